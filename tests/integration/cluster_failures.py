#!/usr/bin/env python3
"""Workers die, freeze, leave and come back while requests run. While one of each role is left, everybody gets
the right answer, also who was on them and has seen a part of it; pools return to their baseline, and a restarted
worker joins again. SIGTERM lets what runs finish and ends with exit status 0."""
import json
import os
import signal
import subprocess
import threading
import time

from _forge import (ROOT, WAIT_S, Failed, Skip, Stream, Suite, answer_of, counters, get, post,
                    served_model, status_port, story_requests, wait_for, WAYS)

SHAPE = dict(prefill=2, decode=2)


class Traffic:
    """Clients that stream one request after the other until told to stop."""

    def __init__(self, port, requests, want, clients=8):
        self.port, self.requests, self.want = port, requests, want
        self.ends = []  # (time, request index, None or the exception, text)
        self.stopping = threading.Event()
        self.lock, self.next = threading.Lock(), 0
        self.threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _client(self):
        while not self.stopping.is_set():
            with self.lock:
                index = self.next % len(self.requests)
                self.next += 1
            stream, error = None, None
            try:
                stream = Stream(self.port, "/v1/completions", self.requests[index], timeout_s=30)
                stream.run()
            except Exception as why:  # pylint: disable=broad-except
                error = why
            with self.lock:
                self.ends.append((time.monotonic(), index, error, stream.text if stream else ""))
            if isinstance(error, Failed) and error.status in (429, 503):
                time.sleep(0.1)

    def completed(self):
        with self.lock:
            return sum(error is None for _, _, error, _ in self.ends)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self.threads), "a request never ended"

    def judge(self):
        """Right answers, every one; returns a note for the report."""
        for _, index, error, text in self.ends:
            assert error is None, f"request {index} failed: {error}"
            assert text == self.want[index]["text"], f"request {index} got a wrong answer"
        return f"{self.completed()} right answers"


def under_fire(suite, cluster, requests, want, name, strike, lost=True):
    """Traffic, then `strike` at worker `name`, more traffic, rest, and the worker's return."""
    role = name.split("-")[0]
    cluster.wait_at_rest(workers=4)
    before = {w["name"]: w for w in cluster.state()["workers"]}
    traffic = Traffic(cluster.port, requests, want)
    try:
        wait_for("traffic", lambda: traffic.completed() >= 20, 60)
        struck_at = strike(name)
        if lost:
            wait_for(f"{name} to be gone from /debug/state",
                     lambda: name not in [w["name"] for w in cluster.state()["workers"]])
        gone_after = time.monotonic() - struck_at
        count = traffic.completed()
        wait_for("traffic to go on", lambda: traffic.completed() >= count + 40, 60)
        assert get(cluster.port, "/health")[0] == 200, "one worker of each role is left"
    finally:
        traffic.stop()
    note = traffic.judge()
    cluster.wait_at_rest(workers=3)
    cluster.workers[name].wait()
    cluster.start_worker(role, name)
    state = wait_for(f"{name} to join again", lambda: next(
        (w for w in cluster.state()["workers"] if w["name"] == name), None), 30)
    assert state["epoch"] != before[name]["epoch"], "a restarted worker must be a stranger"
    assert state["pid"] == cluster.workers[name].pid
    # Placement spreads: soon the newcomer has work again, and its answers are right.
    traffic = Traffic(cluster.port, requests, want)
    try:
        wait_for("traffic after the return", lambda: traffic.completed() >= 30, 60)
    finally:
        traffic.stop()
    traffic.judge()
    cluster.wait_at_rest(workers=4)
    return f"{note}; gone from the books after {gone_after:.2f} s"


def killing(suite, transport, requests, want):
    with suite.cluster(model=suite.stories(), **WAYS[transport], **SHAPE) as cluster:
        for name in ("decode-0", "prefill-1"):
            suite.case(f"{transport}: kill -9 {name} under traffic", under_fire, suite, cluster,
                       requests, want, name, cluster.kill)

        def freeze(name):
            cluster.workers[name].signal(signal.SIGSTOP)
            return time.monotonic()
        suite.case(f"{transport}: decode-1 freezes, is declared dead and ended", under_fire, suite,
                   cluster, requests, want, "decode-1", freeze)

        def leave(name):
            cluster.workers[name].signal(signal.SIGTERM)
            return time.monotonic()
        suite.case(f"{transport}: decode-0 drains on SIGTERM", draining, suite, cluster, requests,
                   want, "decode-0", leave)
        suite.case(f"{transport}: prefill-0 drains on SIGTERM", draining, suite, cluster, requests,
                   want, "prefill-0", leave)


def draining(suite, cluster, requests, want, name, leave):
    """A worker told to leave finishes what it has: no request fails, exit status 0."""
    traffic = Traffic(cluster.port, requests, want)
    try:
        wait_for("traffic", lambda: traffic.completed() >= 20, 60)
        asked_at = leave(name)
        status = cluster.workers[name].wait(30)
        took = time.monotonic() - asked_at
        count = traffic.completed()
        wait_for("traffic to go on", lambda: traffic.completed() >= count + 20, 60)
    finally:
        traffic.stop()
    assert status == 0, f"{name} ended with {status}"
    traffic.judge()
    cluster.wait_at_rest(workers=3)
    cluster.start_worker(name.split("-")[0], name)
    wait_for(f"{name} to join again", lambda: name in [w["name"] for w in
                                                       cluster.state()["workers"]], 30)
    return f"left after {took:.2f} s"


# The roles of workers that are killed one after the other while an answer comes.
DEATHS = [("decode",), ("prefill", "decode"), ("decode", "decode")]
LONG = {"prompt": "Once upon a time, there was a little", "max_tokens": 400, "ignore_eos": True,
        "logits_digest": True}
ANSWERS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.1, "seed": 7, "top_p": 0.9, "min_p": 0.02, "n": 2},
    "up to a stop string": {"temperature": 0.7, "seed": 3, "stop": ["never to be found", "xyz"]},
}


def events_of(port, body, on_event=lambda count: None):
    """What a client hears: the choices of all events of a stream, in order, joined by choice."""
    heard = {}
    stream = Stream(port, "/v1/completions", body)
    for count, chunk in enumerate(stream.chunks(single=False)):
        for choice in chunk["choices"]:
            have = heard.setdefault(choice["index"], {"text": "", "ids": [], "digests": [],
                                                      "finish": None})
            have["text"] += choice["text"]
            have["ids"] += choice["forge"]["token_ids"] if "forge" in choice else []
            have["digests"] += choice["forge"]["digests"] if "forge" in choice else []
            have["finish"] = choice["finish_reason"]
        on_event(count)
    stream.connection.close()
    return heard


def outlives(suite, deaths, options):
    """Workers die under an answer of which the client has a part: it goes on, and is the same."""
    body = {**LONG, **options}
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        want = events_of(cluster.port, {**body, "model": served_model(cluster)})
    with suite.cluster(model=suite.stories(), prefill=2, decode=3) as cluster:
        body["model"] = served_model(cluster)
        killed = []

        def strike(count):
            """At the first event of each tenth, whoever works on the answer then."""
            if len(killed) == len(deaths) or count < 1 + 40 * len(killed):
                return
            role = deaths[len(killed)]
            at = [job[role] for job in cluster.state()["requests"] if job[role]]
            at = [name for name in at if name not in killed]
            if at or role == "prefill":
                name = at[0] if at else f"prefill-{len(killed)}"
                cluster.kill(name)
                killed.append(name)
        for _ in range(20):
            have = events_of(cluster.port, body, strike)
            assert have == want, f"another answer after {killed} died"
            again = cluster.state()["counters"]["said_again"]
            if len(killed) == len(deaths):
                break
        if again == 0:
            raise Skip(f"{killed} died when all of an answer had come: the client is too slow here")
        cluster.wait_at_rest(workers=5 - len(killed))
        stats = cluster.state()["counters"]
        want = {"requests_retried_total": stats["retried"], "tokens_said_again_total": again,
                "workers_lost_total": len(killed)}
        wait_for(f"/metrics to show {want}", lambda: want.items() <= counters(cluster.port).items())
        return f"{', '.join(killed)} died; {again} tokens were made again"


def in_few_steps(suite):
    """What the client has of an answer whose worker dies is computed again as guesses, several to a step."""
    body = {**LONG, "temperature": 1.3, "seed": 5, "max_tokens": 120}  # a text that hardly repeats
    flags = ["--draft-length", "fixed", "--draft-max", "8", "--status-port", "0"]
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=2, flags=flags) as cluster:
        body["model"] = served_model(cluster)
        killed = []

        def accepted():
            return sum(counters(status_port(worker))["spec_decode_num_accepted_tokens_total"]
                       for name, worker in cluster.workers.items() if name not in killed)

        def strike(count):
            at = [job["decode"] for job in cluster.state()["requests"] if job["decode"]]
            if count >= 40 and at and not killed:
                cluster.kill(at[0])
                killed.extend(at)
        events_of(cluster.port, body, strike)
        again = cluster.state()["counters"]["said_again"]
        if not again:
            raise Skip(f"{killed} died when all of an answer had come: the client is too slow here")
        cluster.wait_at_rest(workers=2)
        wait_for(f"most of {again} tokens to have been guessed", lambda: accepted() >= 0.8 * again)
        return f"{accepted():.0f} tokens guessed right, {again} were made again"


def no_worker_left(suite, requests, want):
    """Without a decode worker: not healthy, 503; with a new one: as before."""
    with suite.cluster(model=suite.stories(), prefill=1, decode=1) as cluster:
        cluster.kill("decode-0")
        wait_for("/health to say 503", lambda: get(cluster.port, "/health")[0] == 503)
        assert get(cluster.port, "/live")[0] == 200, "the router itself lives"
        try:
            post(cluster.port, "/v1/completions", requests[0])
            raise AssertionError("a request succeeded without a decode worker")
        except Failed as failed:
            assert failed.status == 503, f"status {failed.status}, not 503"
            assert failed.error["message"], "no message"
        cluster.workers["decode-0"].wait()
        cluster.start_worker("decode", "decode-0")
        cluster.wait_ready()
        assert answer_of(cluster.port, requests[0]) == want[0]
        cluster.wait_at_rest(workers=2)


def joined_again(cluster, epochs, names):
    """Waits until these workers are back as strangers, and looks whether they stay: what falls out and joins
    again, over and over, has another epoch each time."""
    def epochs_now():
        return {w["name"]: w["epoch"] for w in cluster.state()["workers"]}

    def all_back():
        now = epochs_now()
        return now if all(now.get(name) not in (None, epochs[name]) for name in names) else None
    back = wait_for(f"{names} to join again", all_back, 30)
    began_at = time.monotonic()
    wait_for("a look at who stays", lambda: time.monotonic() - began_at > 1.0, 5)
    assert epochs_now() == {**epochs, **{name: back[name] for name in names}}, \
        f"they do not stay: {epochs_now()} after {back}"


def coming_back(suite, requests, want):
    """Nobody ends whom the router gave up: frozen workers, and all after the router's restart or a pause of
    its own, find back by themselves."""
    with suite.cluster(model=suite.stories(), supervised=False, **SHAPE) as cluster:
        def epochs():
            return {w["name"]: w["epoch"] for w in cluster.state()["workers"]}
        for name in ("prefill-0", "decode-1"):
            before = epochs()
            cluster.workers[name].signal(signal.SIGSTOP)
            wait_for(f"{name} to be given up", lambda who=name: who not in epochs())
            cluster.workers[name].signal(signal.SIGCONT)
            joined_again(cluster, before, [name])
        for _ in range(3):
            before = epochs()
            cluster.restart_router()
            joined_again(cluster, before, list(before))
        for request, answer in zip(requests[:8], want):
            assert answer_of(cluster.port, request) == answer
        cluster.wait_at_rest(workers=4)


def terminated(suite, shape, requests, want):
    """SIGTERM while a stream runs: not ready at once, the stream ends well, exit status 0."""
    cluster = suite.cluster(model=suite.stories(), **shape)
    try:
        long = {**requests[0], "max_tokens": 400, "prompt": "Once upon a time"}
        want_text = answer_of(cluster.port, long)["text"]
        stream = Stream(cluster.port, "/v1/completions", long)
        events = stream.chunks()
        next(events)
        next(events)
        cluster.router.signal(signal.SIGTERM)
        for _ in events:
            pass
        stream.connection.close()
        assert stream.text == want_text, "the stream that ran was cut or changed"
        status = cluster.router.wait(30)
        assert status == 0, f"the router ended with {status}: {cluster.router.log_tail()}"
        cluster.close()
    finally:
        cluster.kill_all()


def script(suite, requests, want):
    """deploy/cluster: ready line, a dead worker is reported, everything ends within 5 s."""
    environment = {**os.environ, "FORGE_BIN": suite.options.forge}
    child = subprocess.Popen([str(ROOT / "deploy/cluster"), "--model", suite.stories(), "--prefill",
                              "2", "--decode", "2", "--port", "0"], text=True, cwd="/",
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    log = []
    threading.Thread(target=lambda: log.extend(child.stderr), daemon=True).start()
    try:
        line = child.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), f"{line!r}, {log[-5:]}"
        port = int(line.rsplit(":", 1)[1])
        body = {**requests[0], "model": json.loads(get(port, "/v1/models")[1])["data"][0]["id"]}
        assert answer_of(port, body) == want[0]
        workers = json.loads(get(port, "/debug/state")[1])["workers"]
        assert len(workers) == 4
        os.kill(workers[0]["pid"], signal.SIGKILL)
        wait_for("the report of the dead worker", lambda: any(
            str(workers[0]["pid"]) in text and "killed by signal 9" in text for text in log))
        wait_for("the router to notice",
                 lambda: len(json.loads(get(port, "/debug/state")[1])["workers"]) == 3)
        asked_at = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.wait(WAIT_S) == 0, f"exit status {child.returncode}"
        took = time.monotonic() - asked_at
        left = [w["pid"] for w in workers if os.path.exists(f"/proc/{w['pid']}")]
        assert not left, f"processes are left: {left}"
        return f"ended {took:.1f} s after SIGTERM"
    finally:
        child.kill()


def main():
    suite = Suite(__doc__)
    requests = story_requests(suite.random, 60, tokens=(40, 120), words=(0, 120))
    want = []

    def solo():
        with suite.cluster(model=suite.stories(), standalone=True) as cluster:
            for request in requests:
                request["model"] = served_model(cluster)
            want.extend(answer_of(cluster.port, request) for request in requests)

    suite.case("what was said is said again in few steps", in_few_steps, suite)
    suite.case("solo runs", solo)
    if want:
        for transport in WAYS:
            suite.case(f"{transport}: cluster starts and ends well", killing, suite, transport,
                       requests, want)
        for deaths in DEATHS:
            for name, options in ANSWERS.items():
                suite.case(f"{' and '.join(deaths)} killed under an answer: {name}", outlives, suite, deaths,
                           options)
        suite.case("no decode worker left", no_worker_left, suite, requests, want)
        suite.case("thawed workers and those of a restarted router come back", coming_back, suite,
                   requests, want)
        suite.case("SIGTERM to the router", terminated, suite, SHAPE, requests, want)
        suite.case("SIGTERM standalone", terminated, suite, dict(standalone=True), requests, want)
        suite.case("deploy/cluster", script, suite, requests, want)
    suite.end()


if __name__ == "__main__":
    main()
