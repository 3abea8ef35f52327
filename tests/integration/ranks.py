#!/usr/bin/env python3
"""Several processes that compute one model (--tensor-parallel-size): one request has one answer, with the same logits bit
for bit, for any number of them, on both sides of a hand-over; they begin, end and fail with their worker."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from _forge import (Skip, Stream, Suite, answer_of, assert_same, plain_environment, run_all, served_model, wait_for)
from cluster_kv_types import two_layers
from engine_room_identity import BOS, ids, wait_moved

POOL = ["--kv-blocks", 1024]
SMALL, TIER = ["--kv-blocks", 14], ["--kv-host-blocks", 100]
HAND_OVER = ["--local-prefill-tokens", 0]
SWAPPED = ["num_preemptions_total", "kv_swapped_blocks_total", "kv_restored_blocks_total"]
PUSHED = ["kv_link_pushed_blocks_total"]
REUSED = ["prefix_cache_hits_total"]


def by(count):
    return ["--tensor-parallel-size", count]


# name, flags of all, ranks of standalone or of (prefill, decode), transport, counters that it must move
WAYS = [
    ("two", [], 2, None, REUSED),
    ("four, cache and overlap off", ["--prefix-cache", "off", "--overlap", "off"], 4, None, []),
    ("two, chunks of 7, two threads each", ["--prefill-chunk-size", 7, "--threads", 4], 2, None, []),
    ("two, eight guesses each", ["--draft-length", "fixed"], 2, None, ["spec_decode_num_draft_tokens_total"]),
    ("two, small pool, swap", [*SMALL, *TIER, "--preemption", "swap"], 2, None, SWAPPED),
    ("two to one, shm", HAND_OVER, (2, 1), "shm", PUSHED),
    ("one to two, shm", HAND_OVER, (1, 2), "shm", PUSHED),
    ("four to two, tcp", HAND_OVER, (4, 2), "tcp", PUSHED),
    ("two to four, zero copy asked for", [*HAND_OVER, "--kv-zero-copy", "on"], (2, 4), "shm", PUSHED),
    ("one to two, zero copy", [*HAND_OVER, "--kv-zero-copy", "on"], (1, 2), "shm", ["kv_link_direct_blocks_total"]),
    ("two to two, small pools, guesses", [*HAND_OVER, *SMALL, *TIER, "--draft-length", "fixed"], (2, 2), "shm",
     PUSHED),
]
SHORT = ["two", "two, small pool, swap", "four to two, tcp", "one to two, zero copy"]


def requests_of(rng, longest):
    """Shared beginnings, ends in and at the end of a block, prompts longer than a tile; every second one is drawn."""
    head = [BOS] + ids(rng, 39)
    prompts = [[BOS], [BOS] + ids(rng, 15), [BOS] + ids(rng, 16), head, head, head + ids(rng, 3), head + ids(rng, 20),
               [BOS] + ids(rng, 6) * 8, [BOS] + ids(rng, 139)]
    rows = [{"model": "any", "prompt": prompt, "max_tokens": rng.randrange(longest // 2, longest), "temperature": 0,
             "ignore_eos": True} for prompt in prompts]
    for each in rows[1::2]:
        each.update(temperature=0.9, top_p=0.95, seed=rng.randrange(1 << 31))
    return rows


def alone(suite, model, requests):
    """The reference: one process, nobody beside, nothing cached, guessed or overlapped."""
    flags = [*POOL, "--prefix-cache", "off", "--overlap", "off", "--speculate", "off"]
    with suite.cluster(model=model, standalone=True, flags=flags) as cluster:
        for request in requests:
            request["model"] = served_model(cluster)
        return [answer_of(cluster.port, request) for request in requests]


def shape_of(flags, ranks, transport):
    if isinstance(ranks, tuple):
        return dict(flags=[*POOL, *flags, "--status-port", 0], prefill=1, decode=1, transport=transport,
                    role_flags={role: list(map(str, by(n))) for role, n in zip(("prefill", "decode"), ranks)})
    return dict(flags=[*POOL, *flags, *by(ranks)], standalone=True)


def in_way(suite, model, requests, want, flags, ranks, transport, moved):
    with suite.cluster(model=model, **shape_of(flags, ranks, transport)) as cluster:
        have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
        assert_same(requests, want, have, f"of {ranks} ranks differ from those of one")
        cluster.wait_at_rest()
        return wait_moved(cluster, moved)


TILES = [96, 127, 128, 129, 160, 176, 191, 192, 193, 256, 320, 383, 384, 385, 448]


def tiles(suite, model, ranks):
    """Prompts one after another, each a step by itself, about as long as one, two and three tiles of the weights' types."""
    prompts = [[BOS] + ids(suite.random, length - 1) for length in TILES]
    requests = [{"model": "any", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
                for prompt in prompts]
    want = alone(suite, model, requests)
    with suite.cluster(model=model, standalone=True, flags=[*POOL, "--prefix-cache", "off", *by(ranks)]) as cluster:
        have = [answer_of(cluster.port, request) for request in requests]
        assert_same(requests, want, have, f"of {ranks} ranks differ from those of one")
    return f"{len(requests)} lengths"


# --- lives ---------------------------------------------------------------------------------------

def ranks_of(process, count):
    """Process ids of a worker's other ranks, as its log names them."""
    def named():
        log = pathlib.Path(process.log_path).read_text(encoding="utf-8", errors="replace")
        found = re.findall(r"event=rank_started rank=\d+ pid=(\d+)", log)
        return [int(pid) for pid in found] if len(found) == count else None
    return wait_for(f"{count} ranks in the log", named)


def lives(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def rank_dies(suite, requests, want):
    """Half-way through an answer: its worker ends and says why, and the rest comes from another one."""
    body = {**requests[5], "max_tokens": 400, "temperature": 0}
    with suite.cluster(model=suite.stories(), flags=[*POOL, *HAND_OVER, *by(2)], prefill=1, decode=2) as cluster:
        stream = Stream(cluster.port, "/v1/completions", {**body, "logits_digest": True})
        victim = None
        for _ in stream.chunks():
            if len(stream.ids) >= 8 and victim is None:
                name = next((r["decode"] for r in cluster.state()["requests"]), None)
                if name is not None:
                    victim = cluster.workers[name]
                    cluster.killed.add(victim)
                    os.kill(ranks_of(victim, 1)[0], signal.SIGKILL)
        stream.connection.close()
        have = {"ids": stream.ids, "digests": stream.digests, "text": stream.text, "finish": stream.finish}
        assert_same([body], [want], [have], "differ from the one given alone")
        if victim is None or cluster.state()["recent"][0]["attempts"] < 2:
            raise Skip("the answer had come before a rank could be killed: the client is too slow here")
        code = victim.wait()
        assert code == 1, f"exit status {code}"
        assert "event=rank_lost rank=1" in victim.log_tail(50), victim.log_tail(50)
        cluster.wait_at_rest(workers=2)
        return f"{victim.name} ended, {cluster.state()['recent'][0]['attempts']} attempts"


def rank_dies_at_rest(suite):
    """While nothing runs: its worker does not wait for the next request to find out."""
    with suite.cluster(model=suite.stories(), standalone=True, flags=[*POOL, *by(2)]) as cluster:
        cluster.killed.add(cluster.router)
        os.kill(ranks_of(cluster.router, 1)[0], signal.SIGKILL)
        code = cluster.router.wait()
        assert code == 1 and "event=rank_lost rank=1" in cluster.router.log_tail(50), cluster.router.log_tail(50)


def worker_dies(suite):
    """However a worker ends, no rank of it stays."""
    with suite.cluster(model=suite.stories(), standalone=True, flags=[*POOL, *by(4)]) as cluster:
        others = ranks_of(cluster.router, 3)
        assert all(map(lives, others)), others
        cluster.killed.add(cluster.router)
        cluster.router.signal(signal.SIGKILL)
        cluster.router.wait()
        wait_for("the ranks to end", lambda: not any(map(lives, others)))
    return f"{len(others)} ended with it"


def signals(suite, request, want):
    """What a terminal or a supervisor sends to all processes: the ranks leave it to their worker, which drains."""
    with suite.cluster(model=suite.stories(), standalone=True, flags=[*POOL, *by(2)]) as cluster:
        other, = ranks_of(cluster.router, 1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(other, number)
        have = answer_of(cluster.port, request)
        assert_same([request], [want], [have], "differ after signals")
        long = Stream(cluster.port, "/v1/completions", {**request, "max_tokens": 200, "logits_digest": True})
        told = False
        for _ in long.chunks():
            if len(long.ids) >= 1 and not told:
                told = True
                for pid in (cluster.router.pid, other):
                    os.kill(pid, signal.SIGTERM)
        assert len(long.ids) == 200, f"{len(long.ids)} tokens came while it drained"
        assert cluster.router.wait() == 0, cluster.router.log_tail()
        wait_for("the rank to end", lambda: not lives(other))


def stopped(suite, request, want):
    """A rank that is stopped for a moment costs that moment."""
    with suite.cluster(model=suite.stories(), standalone=True, flags=[*POOL, *by(2)]) as cluster:
        other, = ranks_of(cluster.router, 1)
        stream = Stream(cluster.port, "/v1/completions", {**request, "max_tokens": 300, "logits_digest": True})
        was_stopped = False
        for _ in stream.chunks():
            if len(stream.ids) >= 4 and not was_stopped:
                was_stopped = True
                os.kill(other, signal.SIGSTOP)
                time.sleep(0.5)
                os.kill(other, signal.SIGCONT)
        assert len(stream.ids) == 300
        have = answer_of(cluster.port, request)
        assert_same([request], [want], [have], "differ after a stop")


# --- what cannot be ------------------------------------------------------------------------------

REFUSED = [("more than the KV heads", [*by(5)], ["--tensor-parallel-size 5", "at most 4", "4 KV heads"]),
           ("none", [*by(0)], ["--tensor-parallel-size", "1"]),
           ("a device that is not there", [*by(2), "--device", "cuda:9999"], ["cuda"]),
           ("three devices for two", [*by(2), "--device", "cpu,cpu,cpu"], ["--device", "each of 2"]),
           ("devices of two kinds", [*by(2), "--device", "cpu,cuda:0"], ["another kind of device"])]


def refused(suite, flags, words):
    """One line and exit status 2; no process stays."""
    for role in (["--port", 0], ["--mode", "decode", "--router", "tcp://127.0.0.1:1"]):
        done = subprocess.run([suite.options.forge, "serve", "--model", suite.stories(), "--host", "127.0.0.1",
                               *map(str, role), *map(str, flags)], env=plain_environment(), capture_output=True,
                              text=True, timeout=60, check=False)
        said = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
        assert done.returncode == 2 and len(said) == 1, (done.returncode, done.stderr)
        assert all(word in said[0] for word in words), said[0]
    return said[0].removeprefix("forge serve: ")


def by_hand(suite):
    """`forge rank` is for a worker to start."""
    for words in (["1"], [], ["x"], ["0"], ["99"], ["1", "2"]):
        done = subprocess.run([suite.options.forge, "rank", *words], env=plain_environment(), capture_output=True,
                              text=True, timeout=60, check=False)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, (words, done)
    return done.stderr.strip()


def offline(suite):
    """forge bench computes with ranks too."""
    done = subprocess.run([suite.options.forge, "bench", "throughput", "--model", suite.stories(), "--tp", "2", "-p", "20",
                           "-n", "4", "-b", "1,3", "-r", "1", "--json"], env=plain_environment(), capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.count('"ranks":2') == 3, done
    return f"{len(done.stdout.splitlines())} tests"


def family(suite, label, model, requests, ways):
    """`model()` is the file, or skips."""
    want = []
    suite.case(f"{label}: one rank", lambda: want.extend(alone(suite, model(), requests)))
    for name, flags, ranks, transport, moved in ways if want else ():
        suite.case(f"{label}: {name}", in_way, suite, model(), requests, want, flags, ranks, transport, moved)


def one_sidecar(cache):
    """What three have made two have found."""
    files = list(cache.iterdir())
    assert len(files) == 1, files
    return f"{files[0].stat().st_size >> 10} KiB"


def main():
    suite = Suite(__doc__)
    requests = requests_of(suite.random, 60)
    # Ways that must guess or swap need answers that are long enough.
    requests[7].update(max_tokens=100, temperature=0)
    ways = [way for way in WAYS if suite.options.full or way[0] in SHORT]
    long = {**requests[5], "max_tokens": 400, "temperature": 0}
    want = []
    family(suite, "stories260K", suite.stories, requests, ways)
    suite.case("stories260K: tiles", lambda: tiles(suite, suite.stories(), 2))
    suite.case("a long answer of one rank", lambda: want.extend(alone(suite, suite.stories(), [long, requests[3]])))
    if want:
        suite.case("a rank dies", rank_dies, suite, [long] * 6, want[0])
        suite.case("signals to a rank", signals, suite, requests[3], want[1])
        suite.case("a rank is stopped for a moment", stopped, suite, requests[3], want[1])
    suite.case("a rank dies while nothing runs", rank_dies_at_rest, suite)
    suite.case("a worker dies", worker_dies, suite)
    for name, flags, words in REFUSED:
        suite.case(f"refused: {name}", refused, suite, flags, words)
    suite.case("by hand", by_hand, suite)
    suite.case("forge bench", offline, suite)
    with tempfile.TemporaryDirectory(prefix="forge-ranks-") as folder:
        # Three KV heads: parts of two sizes.
        cache = pathlib.Path(folder) / "cache"
        family(suite, "two layers of SmolLM2", lambda: two_layers(suite, folder), requests_of(suite.random, 24),
               [("three", [], 3, None, []), ("two to three, shm", HAND_OVER, (2, 3), "shm", PUSHED),
                ("three that make a sidecar", ["--weights-cache", cache], 3, None, []),
                ("two that find one", ["--weights-cache", cache], 2, None, []),
                ("two that can keep none", ["--weights-cache", "/proc/nowhere"], 2, None, [])])
        suite.case("two layers of SmolLM2: tiles", lambda: tiles(suite, two_layers(suite, folder), 3))
        if cache.exists():
            suite.case("two layers of SmolLM2: one sidecar", one_sidecar, cache)
        for label, shape in (("qwen2", "qwen2.5-0.5b"), ("qwen3", "qwen3-0.6b")):
            family(suite, f"two layers of {label}", lambda s=shape: two_layers(suite, folder, s), requests_of(suite.random, 16),
                   [("two", [], 2, None, [])])
    suite.end()


if __name__ == "__main__":
    main()
