#!/usr/bin/env python3
"""The engine room as its clients see it: a second turn computes only its new tail; ten times more
work than memory holds ends well for everybody; caches are cleared, forced, disabled and salted;
traces and timings add up; and at rest nothing spins."""
import http.client
import json
import os
import re
import subprocess
import tempfile
import threading
import time

from _forge import (Failed, Stream, Suite, answer_of, assert_same, counters, get, post, run_all,
                    served_model, status_port, story_requests, wait_for)

BOS = 1
STATUS = ["--status-port", "0"]
PATIENCE_S = 60  # nobody may wait longer for anything here


def cached_of(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ids(rng, count):
    return [BOS] + [rng.randrange(259, 512) for _ in range(count - 1)]


def post_plain(port, path):
    """A POST without a body: status and parsed answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


# --- a second turn -------------------------------------------------------------------------------

SYSTEM = ("You are a patient gardener who answers in short sentences. You know the names of all "
          "plants that grow in cold countries, when to sow them, how deep, and how much water they "
          "want. You never talk about anything else, and you never use long words.")


def talk(port, model, block_size):
    """Two turns; the usage of the second, its prompt, and what of it is new by whole blocks."""
    body = {"model": model, "temperature": 0, "max_tokens": 40, "logits_digest": True}
    messages = [{"role": "system", "content": SYSTEM},
                {"role": "user", "content": "When do I sow carrots, and how deep?"}]
    first = post(port, "/v1/chat/completions", {**body, "messages": messages})
    seen = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    between = yield first
    messages += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]},
                 {"role": "user", "content": "And how much water do they want?"}]
    second = post(port, "/v1/chat/completions", {**body, "messages": messages})
    cached, prompt = cached_of(second), second["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens"] < cached, "the first answer was not found"
    assert seen - 2 * block_size < cached <= seen, f"{cached} of {seen} known tokens were found"
    yield second, prompt, cached, between


def turns(suite, block_size):
    """Standalone: the worker computes the second prompt's new tail and nothing else."""
    flags = ["--block-size", block_size]
    with suite.cluster(model=suite.smollm2(), standalone=True, flags=flags, threads=2) as cluster:
        steps = talk(cluster.port, served_model(cluster), block_size)
        next(steps)
        before = counters(cluster.port)
        second, prompt, cached, _ = next(steps)
        after = counters(cluster.port)
        computed = after["engine_prompt_tokens_total"] - before["engine_prompt_tokens_total"]
        assert computed == prompt - cached, f"{computed:.0f} of {prompt} computed, {cached} cached"
        hits = after["prefix_cache_hits_total"] - before["prefix_cache_hits_total"]
        assert hits == cached, f"{hits:.0f} hits counted"
        cluster.wait_at_rest()
        return f"{computed:.0f} of {prompt} prompt tokens computed", second["choices"][0]["forge"]


def turns_of_cluster(suite, local, want):
    """1P+1D: with a short tail the decode worker does it alone, otherwise the prefill worker, which is not sent the
    first answer here (cluster_pull is about that)."""
    flags = [*STATUS, "--local-prefill-tokens", local, "--kv-pull", "off"]
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=1, flags=flags) as cluster:
        ports = [status_port(cluster.workers[name]) for name in ("prefill-0", "decode-0")]
        steps = talk(cluster.port, served_model(cluster), 16)
        next(steps)
        cluster.wait_at_rest()
        before = [counters(port)["engine_prompt_tokens_total"] for port in ports]
        assert before[0] > 0 and before[1] == 0, f"the first turn was computed as {before}"
        pushed = counters(cluster.port)["kv_pushed_blocks_total"]
        if local == 0:  # the prefill worker knows the first prompt, not its answer
            try:
                next(steps)
                raise AssertionError("the prefill worker cannot have the answer in its cache")
            except AssertionError as why:
                assert "was not found" in str(why), why
        else:
            second, prompt, cached, _ = next(steps)
            assert second["choices"][0]["forge"] == want, "not the answer of one process"
        cluster.wait_at_rest()
        after = [counters(port)["engine_prompt_tokens_total"] for port in ports]
        if local == 0:
            assert after[1] == 0 and after[0] > before[0], (before, after)
            return f"{after[0] - before[0]:.0f} tokens computed by the prefill worker"
        assert after[0] == before[0], "the prefill worker had work with it"
        assert after[1] == prompt - cached, f"{after[1]:.0f} computed of {prompt}, {cached} cached"
        assert counters(cluster.port)["kv_pushed_blocks_total"] == pushed, "blocks were pushed"
        return f"{after[1]:.0f} of {prompt} prompt tokens computed, by the decode worker"


# --- ten times more work than memory holds -------------------------------------------------------

def crowd(suite, count):
    """Short and long prompts, all classes; the longest fill the context."""
    rng = suite.random
    requests = story_requests(rng, count, tokens=(16, 64), words=(0, 90))
    for index in rng.sample(range(count), count // 8):
        requests[index].update(prompt=ids(rng, 400 + rng.randrange(60)), max_tokens=40)
    for request in requests:
        request["priority"] = rng.choice([-1, 0, 0, 1, "high", "normal", "low"])
    return requests


def solo(suite, requests):
    flags = ["--prefix-cache", "off", "--overlap", "off", "--speculate", "off"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        for request in requests:
            request["model"] = served_model(cluster)
        return [answer_of(cluster.port, request) for request in requests]


class Clients:
    """Streams of all requests at once; a third leave, at a random chunk or after a random pause."""

    def __init__(self, suite, port, requests):
        self.port, self.requests, rng = port, requests, suite.random
        self.leave = [None] * len(requests)
        for index in rng.sample(range(len(requests)), len(requests) // 3):
            self.leave[index] = rng.choice([("chunks", rng.randrange(1, 12)),
                                            ("pause", rng.random())])
        self.waits = []  # for the first chunk, and between two

    def one(self, index):
        """The answer; None of one that left."""
        body = {**self.requests[index], "logits_digest": True}
        started = time.monotonic()
        stream = Stream(self.port, "/v1/completions", body, timeout_s=PATIENCE_S)
        kind, when = self.leave[index] or ("never", 0)
        if kind == "pause":
            time.sleep(when)
        else:
            for count, _ in enumerate(stream.chunks(), 1):
                if kind == "chunks" and count >= when:
                    break
        if kind != "never":
            stream.hang_up()
            return None
        times = [started, *stream.times]
        self.waits += [later - earlier for earlier, later in zip(times, times[1:])]
        stream.connection.close()
        return {"ids": stream.ids, "digests": stream.digests, "text": stream.text,
                "finish": stream.finish}

    def run(self, during=None):
        stop = threading.Event()
        beside = threading.Thread(target=during or (lambda _: None), args=(stop,), daemon=True)
        beside.start()
        try:
            return run_all([lambda i=i: self.one(i) for i in range(len(self.requests))],
                           timeout_s=4 * PATIENCE_S)
        finally:
            stop.set()
            beside.join(PATIENCE_S)
            assert not beside.is_alive(), "what went on beside never ended"


def judge(clients, requests, want, have):
    stayed = [i for i, plan in enumerate(clients.leave) if plan is None]
    failed = [f"{i}: {have[i]}" for i in range(len(have)) if isinstance(have[i], Exception)]
    assert not failed, f"{len(failed)} requests failed, such as {failed[0]}"
    assert_same([requests[i] for i in stayed], [want[i] for i in stayed],
                [have[i] for i in stayed], "differ from their solo runs")
    return f"{len(stayed)} right answers, {len(have) - len(stayed)} left"


def pressure(suite, requests, want, flags, shape):
    with suite.cluster(model=suite.stories(), flags=flags, **shape) as cluster:
        clients = Clients(suite, cluster.port, requests)
        have = clients.run()
        note = judge(clients, requests, want, have)
        cluster.wait_at_rest()
        if shape.get("standalone"):
            note += f", {counters(cluster.port)['num_preemptions_total']:.0f} preemptions"
        return f"{note}, longest wait {max(clients.waits):.1f} s"


def high_first(suite, flags, shape):
    """High ones that come last into a full queue pass all that have not begun, and the low ones end
    too."""
    with suite.cluster(model=suite.stories(), flags=flags, **shape) as cluster:
        body = {"model": served_model(cluster), "max_tokens": 250, "temperature": 0,
                "ignore_eos": True}
        ends, lock, full = [], threading.Lock(), threading.Event()
        prompts = [ids(suite.random, 40) for _ in range(96)]

        def client(index):
            name, priority = (("low", 1), ("normal", 0), ("high", -1))[index // 40]
            if name == "high":
                assert full.wait(PATIENCE_S), "the queue never filled"
            post(cluster.port, "/v1/completions",
                 {**body, "priority": priority, "prompt": prompts[index]})
            with lock:
                ends.append(name)

        def watch():
            wait_for("a full queue", lambda: len(cluster.state()["requests"]) >= 45, PATIENCE_S)
            full.set()

        bad = [r for r in run_all([lambda i=i: client(i) for i in range(96)] + [watch])
               if isinstance(r, Exception)]
        assert not bad, f"{len(bad)} failed: {bad[0]}"
        places = {name: [i for i, end in enumerate(ends) if end == name]
                  for name in ("low", "normal", "high")}
        middle = {name: row[len(row) // 2] for name, row in places.items()}
        # What ran before they came is not interrupted; those behind it are passed.
        begun = places["high"][0]
        passed = [end for end in ends[begun:places["high"][-1]] if end == "low"]
        assert len(passed) <= 16, f"{len(passed)} low ones ended among the high ones: {middle}"
        assert middle["high"] < middle["low"], f"medians {middle}"
        cluster.wait_at_rest()
        return f"medians of the order in which they ended: {middle}"


# --- clearing ------------------------------------------------------------------------------------

CLEAR = ["/forge/v1/cache/clear", "/reset_prefix_cache", "/flush_cache"]


def check_stats(cluster):
    status, text = get(cluster.port, "/forge/v1/cache/stats")
    assert status == 200, status
    stats = json.loads(text)
    rows, total = stats["workers"], stats["total"]
    for name, value in total.items():
        if name == "blocks":
            for state, count in value.items():
                assert count == sum(row["blocks"][state] for row in rows), (state, stats)
        elif name == "hit_rate":
            rate = total["hit_tokens"] / total["query_tokens"] if total["query_tokens"] else 0
            assert abs(value - rate) < 0.0001 and 0 <= value <= 1, total
        else:
            assert value == sum(row[name] for row in rows), (name, stats)
    for blocks in [row["blocks"] for row in rows] + [total["blocks"]]:
        assert blocks["total"] == sum(v for k, v in blocks.items() if k != "total"), blocks
    return total


def clearing(suite, requests, want, flags, shape, workers):
    """Caches are cleared all the time by all three names while everything runs."""
    with suite.cluster(model=suite.stories(), flags=flags, **shape) as cluster:
        counts = {path: 0 for path in CLEAR}

        def during(stop):
            while not stop.is_set():
                for path in CLEAR:
                    status, answer = post_plain(cluster.port, path)
                    assert (status, answer) == (200, {"cleared_workers": workers}), (status, answer)
                    counts[path] += 1
                    check_stats(cluster)
                    stop.wait(0.02)

        clients = Clients(suite, cluster.port, requests)
        note = judge(clients, requests, want, clients.run(during))
        assert min(counts.values()) > 0, counts
        cluster.wait_at_rest()
        one = {**requests[0], "prompt": ids(suite.random, 100), "priority": 0}
        post(cluster.port, "/v1/completions", one)
        cluster.wait_at_rest()
        wait_for("cached blocks in the books",
                 lambda: check_stats(cluster)["blocks"]["cached"] >= 6)
        assert cached_of(post(cluster.port, "/v1/completions", one)) >= 64
        cluster.wait_at_rest()
        post_plain(cluster.port, CLEAR[0])
        wait_for("empty caches", lambda: (total := check_stats(cluster))["blocks"]["cached"] == 0
                 and total["blocks"]["free"] == total["blocks"]["total"]
                 and total["tier_blocks"] == 0)
        assert cached_of(post(cluster.port, "/v1/completions", one)) == 0, "not cleared"
        assert get(cluster.port, CLEAR[0])[0] == 405
        cluster.wait_at_rest()
        return f"{note}, {sum(counts.values())} clears"


# --- force, disable, salts -----------------------------------------------------------------------

def cache_options(suite, shape, flags):
    with suite.cluster(model=suite.stories(), flags=flags, **shape) as cluster:
        model = served_model(cluster)

        def ask(prompt, path="/v1/completions", **options):
            answer = post(cluster.port, path, {"model": model, "prompt": prompt, "max_tokens": 4,
                                               "temperature": 0, **options})
            cluster.wait_at_rest()  # so that what it leaves is there for the next one
            return answer

        def misses(prompt, **options):
            try:
                ask(prompt, prefix_cache="force", **options)
            except Failed as why:
                assert why.status == 409 and why.error["code"] == "prefix_cache_miss" \
                    and why.error["param"] == "prefix_cache", why
                return True
            return False

        cold, short = ids(suite.random, 70), ids(suite.random, 9)
        assert misses(cold) and misses(cold, n=3), "force on a cold cache"
        try:
            Stream(cluster.port, "/v1/completions", {"model": model, "prompt": cold,
                                                     "prefix_cache": "force"}).run()
            raise AssertionError("force on a cold cache, streamed, went well")
        except Failed as why:
            assert why.status == 409, f"streamed: {why}"
        batch = post(cluster.port, "/forge/v1/batch", {"requests": [
            {"custom_id": "a", "method": "POST", "url": "/v1/completions",
             "body": {"prompt": cold, "prefix_cache": "force"}}]})["data"][0]["response"]
        assert batch["status_code"] == 409, batch
        assert cached_of(ask(cold, prefix_cache="disable")) == 0
        assert misses(cold), "disable left something in a cache"
        plain = ask(cold, return_token_ids=True)
        assert cached_of(plain) == 0, "what was refused or disabled left something"
        forced = ask(cold, prefix_cache="force", return_token_ids=True)
        assert cached_of(forced) == 64, f"force found {cached_of(forced)} of 70 tokens"
        assert forced["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
        assert cached_of(ask(cold, prefix_cache="force", n=2)) == 64
        assert cached_of(ask(cold, prefix_cache="disable")) == 0, "disable hit"
        assert cached_of(ask(cold, prefix_cache="auto")) == 64
        ask(short)
        assert misses(short), "less than a block cannot be cached"
        salted = ids(suite.random, 70)
        for salt in ("a", "b", "a ", "ä", "x" * 1024):
            assert misses(salted, cache_salt=salt), f"salt {salt[:9]!r} sees another's blocks"
            assert cached_of(ask(salted, cache_salt=salt)) == 0
            assert cached_of(ask(salted, cache_salt=salt)) == 64
            assert cached_of(ask(salted, cache_salt=salt, prefix_cache="force")) == 64
        assert cached_of(ask(salted)) == 0, "no salt sees the blocks of a salt"
        post_plain(cluster.port, CLEAR[1])
        assert misses(cold) and misses(salted, cache_salt="a"), "cleared"


def cache_off(suite):
    """Without a cache nothing is found, and force is refused rather than left to wait."""
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=["--prefix-cache", "off"]) as cluster:
        body = {"model": served_model(cluster), "prompt": ids(suite.random, 70), "max_tokens": 4}
        for _ in range(2):
            assert cached_of(post(cluster.port, "/v1/completions", body)) == 0
        try:
            post(cluster.port, "/v1/completions", {**body, "prefix_cache": "force"})
            raise AssertionError("force without a cache went well")
        except Failed as why:
            assert why.status == 409, why
        assert post_plain(cluster.port, CLEAR[0])[0] == 200
        cluster.wait_at_rest()


# --- seeing it -----------------------------------------------------------------------------------

def check_picture(text):
    """A trace that Perfetto would take; slices by (process, kind)."""
    events = json.loads(text)["traceEvents"]
    slices, rows = {}, {}
    for event in events:
        assert event["ph"] in "XCM", event
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0 and isinstance(event["pid"], int), event
        if event["ph"] == "C":
            assert all(value >= 0 for value in event["args"].values()), event
            continue
        assert event["dur"] >= 0, event
        slices.setdefault((event["pid"], event["cat"]), []).append(event)
        rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
    for row, spans in rows.items():
        spans.sort()
        for (ts, dur), (later, _) in zip(spans, spans[1:]):
            assert ts + dur <= later + 0.002, f"slices of row {row} overlap: {ts} + {dur} > {later}"
    for (_, kind), found in slices.items():
        for event in found if kind == "step" else ():
            step = event["args"]
            assert step["blocks_free"] + step["blocks_cached"] + step["blocks_held"] \
                <= step["blocks_total"], step
    names = {event["pid"]: event["args"]["name"] for event in events
             if event["ph"] == "M" and event["name"] == "process_name"}
    return slices, names


def check_timings(answer, took_ms):
    for row in [answer.get("timings")] if answer.get("timings") else \
            [choice["timings"] for choice in answer["choices"]]:
        assert all(value >= 0 for value in row.values()), row
        parts = sum(row[part + "_ms"] for part in ("queued", "reserved", "prefill", "transfer",
                                                   "decode"))
        assert parts <= row["total_ms"] + 0.01, f"parts of {parts}: {row}"
        assert parts >= row["total_ms"] - 1, f"parts of only {parts}: {row}"
        # The worker may begin before the router has written down that it may.
        assert row["worker_queue_ms"] + row["worker_compute_ms"] \
            <= row["reserved_ms"] + row["prefill_ms"] + 0.01, row
        assert row["first_token_ms"] <= row["total_ms"] <= took_ms, (row, took_ms)
        assert row["attempts"] >= 1 and row["chunks"] >= 1, row


def timed(port, body):
    started = time.monotonic()
    answer = post(port, "/v1/completions", {**body, "return_timings": True})
    check_timings(answer, (time.monotonic() - started) * 1000)
    return answer


def load(suite, cluster, requests):
    model = served_model(cluster)
    bodies = [{**r, "model": model, **({"n": 2} if i % 5 == 0 else {})}
              for i, r in enumerate(requests)]
    answers = run_all([lambda b=b: timed(cluster.port, b) for b in bodies])
    bad = [answer for answer in answers if isinstance(answer, Exception)]
    assert not bad, f"{len(bad)} failed: {bad[0]}"
    cluster.wait_at_rest()
    return answers


def request_ids(slices, pid):
    return {event["args"]["request"] for event in slices.get((pid, "request"), [])}


def picture(suite, requests, flags):
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        load(suite, cluster, requests)
        slices, names = check_picture(get(cluster.port, "/debug/trace")[1])
        pid = cluster.router.pid
        assert list(names) == [pid], names
        steps = slices[(pid, "step")]
        assert len({step["args"]["number"] for step in steps}) == len(steps)
        assert sum(step["args"]["preempted"] for step in steps) > 0, "no preemption in the picture"
        empty = [step for step in steps
                 if not any(step["args"][k] for k in ("decode_rows", "chunks", "copies"))]
        assert not empty, f"steps that did nothing: {empty[0]}"
        recent = {row["id"] for row in cluster.state()["recent"]}
        missing = recent - request_ids(slices, pid)
        assert not missing, f"{len(missing)} of {len(recent)} requests are not in the picture"
        states = {event["name"] for event in slices[(pid, "request")]}
        return f"{len(steps)} steps, states {', '.join(sorted(states))}"


def merged_picture(suite, requests):
    with suite.cluster(model=suite.stories(), prefill=1, decode=1, flags=STATUS) as cluster, \
            tempfile.TemporaryDirectory(prefix="forge-room-") as folder:
        load(suite, cluster, requests)
        ports = [status_port(worker) for worker in cluster.workers.values()]
        out = os.path.join(folder, "run.json")
        done = subprocess.run([cluster.forge, "trace", "--out", out, cluster.url,
                               *[f":{port}" for port in ports]], capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        with open(out, encoding="utf-8") as file:
            slices, names = check_picture(file.read())
        pids = [process.pid for process in cluster.processes()]
        assert sorted(names) == sorted(pids), (names, pids)
        for pid in pids[1:]:
            assert slices.get((pid, "step")), f"no steps of {names[pid]}"
        recent = {row["id"] for row in cluster.state()["recent"]}
        for pid in pids:
            missing = recent - request_ids(slices, pid)
            assert not missing, f"{len(missing)} requests are not with {names[pid]}"
        return f"{sum(map(len, slices.values()))} slices of {', '.join(names.values())}"


def cpu_s(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(suite, requests, shape):
    """After load, without work: two seconds cost next to nothing."""
    with suite.cluster(model=suite.stories(), flags=["--kv-host-blocks", 64], **shape) as cluster:
        load(suite, cluster, requests)
        time.sleep(1)  # timers slow down by and by
        before = {process.name: cpu_s(process.pid) for process in cluster.processes()}
        time.sleep(2)
        used = {process.name: cpu_s(process.pid) - before[process.name]
                for process in cluster.processes()}
        assert max(used.values()) < 0.1, f"CPU seconds in two seconds of nothing: {used}"
        return ", ".join(f"{name} {1000 * used[name]:.0f} ms" for name in used)


# --- all of it -----------------------------------------------------------------------------------

def main():
    suite = Suite(__doc__, requests=(200, "how many at once"))
    alone = dict(standalone=True)
    tight = ["--kv-blocks", 64]
    swap = ["--preemption", "swap", "--kv-host-blocks", 128]

    suite_turns(suite)
    requests, want = crowd(suite, suite.options.requests), []
    only, suite.options.only = suite.options.only, ""
    suite.case("solo runs", lambda: want.extend(solo(suite, requests)))
    suite.options.only = only
    if want:
        for name, flags, shape in (
                ("standalone", tight, alone),
                ("standalone, swap", [*tight, *swap], alone),
                ("standalone, no evict", [*tight, "--admission", "no-evict"], alone),
                ("1P+1D", tight, dict(prefill=1, decode=1)),
                ("2P+2D, swap", [*tight, *swap], dict(prefill=2, decode=2))):
            suite.case(f"pressure, {name}", pressure, suite, requests, want, flags, shape)
        for name, flags, shape, count in (
                ("standalone", [*tight, *swap], alone, 1),
                ("2P+2D", [*tight, *swap], dict(prefill=2, decode=2), 4)):
            suite.case(f"clearing, {name}", clearing, suite, requests, want, flags, shape, count)
    suite.case("high ones first, standalone", high_first, suite, [*tight, "--max-seqs", 8], alone)
    suite.case("high ones first, 1P+1D", high_first, suite, [*tight, "--max-seqs", 8],
               dict(prefill=1, decode=1))
    suite.case("cache options, standalone", cache_options, suite, alone, [])
    suite.case("cache options, 1P+1D", cache_options, suite, dict(prefill=1, decode=1), [])
    suite.case("cache options, 1P+1D, nothing local", cache_options, suite,
               dict(prefill=1, decode=1), ["--local-prefill-tokens", 0])
    suite.case("cache off", cache_off, suite)
    some = requests[:60]
    suite.case("trace and timings, standalone", picture, suite, some, ["--kv-blocks", 40])
    suite.case("trace and timings, 1P+1D", merged_picture, suite, some)
    suite.case("idle, standalone", idle, suite, some, alone)
    suite.case("idle, 1P+1D", idle, suite, some, dict(prefill=1, decode=1))
    suite.end()


def suite_turns(suite):
    found = []

    def standalone(block_size):
        note, answer = turns(suite, block_size)
        found.append(answer)
        return note

    suite.case("second turn, standalone", standalone, 16)
    suite.case("second turn, standalone, blocks of 4", standalone, 4)
    if found:
        suite.case("second turn, 1P+1D", turns_of_cluster, suite, 128, found[0])
        suite.case("second turn, 1P+1D, nothing local", turns_of_cluster, suite, 0, found[0])


if __name__ == "__main__":
    main()
