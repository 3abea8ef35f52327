#!/usr/bin/env python3
"""Several processes whose GPUs gather rows over NCCL (--tp-gather): one request has one answer, with the same logits bit for
bit, whichever way they gather; all ranks take the same way, and what ends one ends its worker.

FORGE_TEST_DEVICE and FORGE_CUDA_PLUGIN are as of gpu.py. On a real device NCCL is FORGE_NCCL's, what pip has installed as
nvidia.nccl, or the system's, and the ranks seem to be on hosts of their own, since all of them use one GPU. In emulation it
is tests/gpu/fake_nccl.c."""
import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import time

from _forge import (Stream, Suite, answer_of, assert_same, device, find_tool, plain_environment, run_all)
from engine_room_identity import wait_moved
from gpu import POOL, PUSHED, SMALL, SWAPPED, TIER, alone, always, growing, requests_of, use_device
from ranks import ranks_of

WAY = re.compile(r"event=gather way=(\w+) (?:by|why)=\"(.*)\"$")


@contextlib.contextmanager
def environment(**values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def installed_nccl():
    """pip's, which the loader does not find by itself."""
    with contextlib.suppress(ModuleNotFoundError):
        for folder in importlib.util.find_spec("nvidia.nccl").submodule_search_locations:
            file = pathlib.Path(folder) / "lib" / "libnccl.so.2"
            if file.is_file():
                return str(file)
    return "libnccl.so.2"


def use_nccl(suite, emulated):
    if "FORGE_NCCL" not in os.environ:
        os.environ["FORGE_NCCL"] = find_tool(suite, "fake_nccl.so") if emulated else installed_nccl()
    if not emulated:
        os.environ.update(FORGE_NCCL_HOSTID_PER_RANK="on", NCCL_SOCKET_IFNAME="lo")
    return os.environ["FORGE_NCCL"]


def by(count, way):
    return ["--device", ",".join([device()] * count), "--tensor-parallel-size", str(count), "--tp-gather", way]


def ways_of(process):
    """How a worker's ranks gather, and why."""
    return [match.groups() for match in map(WAY.search, process.log_tail(1000).splitlines()) if match]


# --- one request, one answer ---------------------------------------------------------------------

# name, ranks and how they gather, flags, which role has them (None: there is one process), how KV blocks go, with requests
# that fill a small pool, counters that it must move. (The story model's 4 KV heads and 64 columns are cut unevenly by three.)
ROWS = [
    ("two, host", (2, "host"), [], None, None, False, []),
    ("two, nccl", (2, "nccl"), [], None, None, False, []),
    ("two, whatever there is", (2, "auto"), [], None, None, False, []),
    ("three, nccl", (3, "nccl"), [], None, None, False, []),
    ("two, nccl, chunks of 7, eight guesses each", (2, "nccl"), ["--prefill-chunk-size", 7, "--draft-length", "fixed"],
     None, None, False, []),
    ("two, nccl, few tokens in a step", (2, "nccl"), ["--max-batch-tokens", 40, "--max-seqs", 36], None, None, False, []),
    ("two, nccl, small pool, swap", (2, "nccl"), [*SMALL, "--preemption", "swap", *TIER], None, None, True, SWAPPED),
    ("1P+1D, two by nccl to one", (2, "nccl"), [], "prefill", "shm", False, PUSHED),
    ("1P+1D, one to two by nccl", (2, "nccl"), [], "decode", "tcp", False, PUSHED),
]
SHORT = ["two, nccl", "three, nccl", "1P+1D, one to two by nccl"]  # in emulation, without --full


def in_way(suite, model, requests, want, ranks, flags, role, transport, moved):
    shape, more = dict(standalone=True), by(*ranks)
    if role:
        shape = dict(prefill=1, decode=1, transport=transport, role_flags={role: by(*ranks)})
        more = ["--local-prefill-tokens", 0, "--status-port", 0]
    with suite.cluster(model=model, flags=[*POOL, *flags, *more], **shape) as cluster:
        have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
        assert_same(requests, want, have, "differ from those of one process")
        cluster.wait_at_rest()
        seen = [way for process in cluster.processes() for way in ways_of(process)]
        assert [way for way, _ in seen] == ([] if ranks[1] == "host" else ["nccl"]), seen
        return (wait_moved(cluster, moved) or "") + (f" by {seen[0][1]}" if seen else "")


def bench(suite, model):
    done = subprocess.run([suite.options.forge, "bench", "throughput", "--model", model, *by(2, "nccl"), "-p", "20", "-n",
                           "4", "-b", "1,3", "-r", "1", "--json"], env=plain_environment(), capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 and done.stdout.count('"ranks":2') == 3, done
    assert "event=gather way=nccl" in done.stderr, done.stderr
    return f"{len(done.stdout.splitlines())} tests"


# --- what is not there ---------------------------------------------------------------------------

# name, environment, words of the reason
WITHOUT = [
    ("no library", {"FORGE_NCCL": "/nowhere/libnccl.so.2"}, ["/nowhere/libnccl.so.2", "FORGE_NCCL"]),
    ("a library that is none", {"FORGE_NCCL": "libm.so.6"}, ["libm.so.6 has no function nccl"]),
]
# Of the fake.
FAILING = [
    ("rank 0 cannot open", {"FORGE_FAKE_NCCL": "init:0"}, ["rank 0: NCCL", "the network is down"]),
    ("rank 1 cannot open", {"FORGE_FAKE_NCCL": "init:1"}, ["rank 1: NCCL", "the network is down"]),
    ("one device for two ranks", {"FORGE_FAKE_NCCL": "duplicate:1"}, ["rank 1: NCCL", "Duplicate GPU detected"]),
    ("rank 1 receives what nobody sent", {"FORGE_FAKE_NCCL": "garble:1"}, ["rank 1: NCCL", "arrived wrong"]),
    ("rank 0 receives what nobody sent", {"FORGE_FAKE_NCCL": "garble:0"}, ["rank 0: NCCL", "arrived wrong"]),
    ("rank 1 does not come", {"FORGE_FAKE_NCCL": "hang:1", "FORGE_NCCL_SECONDS": "1"}, ["not met after 1 s"]),
    ("rank 0 does not come", {"FORGE_FAKE_NCCL": "hang:0", "FORGE_NCCL_SECONDS": "1"}, ["not met after 1 s"]),
]


def serve_once(suite, model, *flags):
    return subprocess.run([suite.options.forge, "serve", "--model", model, "--host", "127.0.0.1", "--port", "0",
                           *map(str, flags)], env=plain_environment(), capture_output=True, text=True, timeout=60,
                          check=False)


def without(suite, model, request, want, values, words):
    """By auto all ranks take the other way, and one line says why; by nccl nobody serves."""
    with environment(**values):
        with suite.cluster(model=model, standalone=True, flags=[*POOL, *by(2, "auto")]) as cluster:
            have = answer_of(cluster.port, request)
            assert_same([request], [want], [have], "differ from the one given alone")
            seen = ways_of(cluster.router)
        assert [way for way, _ in seen] == ["host"], seen
        assert all(word in seen[0][1] for word in words), seen
        done = serve_once(suite, model, *POOL, *by(2, "nccl"))
    said = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
    assert done.returncode == 2 and len(said) == 1 and "--tp-gather nccl" in said[0], (done.returncode, done.stderr)
    assert all(word in said[0] for word in words), said[0]
    return seen[0][1]


def on_a_cpu(suite, model):
    done = serve_once(suite, model, "--device", "cpu", "--tensor-parallel-size", 2, "--tp-gather", "nccl")
    assert done.returncode == 2 and "on a CPU" in done.stderr, done
    return done.stderr.splitlines()[-1]


# --- lives ---------------------------------------------------------------------------------------

def dies_while_opening(suite, model, rank):
    with environment(FORGE_FAKE_NCCL=f"die:{rank}"):
        done = serve_once(suite, model, *POOL, *by(2, "auto"))
    if rank == 0:
        assert done.returncode == -signal.SIGKILL, done
        return
    assert done.returncode == 1 and "event=rank_lost rank=1" in done.stderr, done


def dies_in_step(suite, model, request):
    """Rank 0 waits for a gathering that never ends: its process must not."""
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *by(2, "nccl")]) as cluster:
        stream = Stream(cluster.port, "/v1/completions", {**request, "max_tokens": 400, "logits_digest": True})
        cluster.killed.add(cluster.router)
        at = None
        with contextlib.suppress(Exception):  # the connection ends
            for _ in stream.chunks():
                if len(stream.ids) >= 8 and at is None:
                    at = time.monotonic()
                    os.kill(ranks_of(cluster.router, 1)[0], signal.SIGKILL)
        code = cluster.router.wait()
        assert at is not None and len(stream.ids) < 400, "the answer had come before a rank could be killed"
        assert code == 1 and "event=rank_lost rank=1" in cluster.router.log_tail(50), (code, cluster.router.log_tail(50))
        return f"after {cluster.router.ended_at - at:.2f} s"


def refused_in_step(suite, model, request, rank):
    """NCCL says at one rank, within a step, that it cannot."""
    flags = [*POOL, *by(2, "nccl"), "--flight-recorder-mb", 0]  # it crashes: no records of that where the suite runs
    with environment(FORGE_FAKE_NCCL=f"gather:{rank}"):
        with suite.cluster(model=model, standalone=True, flags=flags) as cluster:
            cluster.killed.add(cluster.router)
            with contextlib.suppress(Exception):
                answer_of(cluster.port, {**request, "max_tokens": 100})
            code = cluster.router.wait()
            log = cluster.router.log_tail(50)
    assert code == (-signal.SIGABRT if rank == 0 else 1) and "a gathering too many" in log, (code, log)


def stopped(suite, model, request, want):
    """A rank that is stopped for a moment costs that moment."""
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *by(2, "nccl")]) as cluster:
        other, = ranks_of(cluster.router, 1)
        stream = Stream(cluster.port, "/v1/completions", {**request, "logits_digest": True})
        was_stopped = False
        for _ in stream.chunks():
            if len(stream.ids) >= 2 and not was_stopped:
                was_stopped = True
                os.kill(other, signal.SIGSTOP)
                time.sleep(0.5)
                os.kill(other, signal.SIGCONT)
        have = {"ids": stream.ids, "digests": stream.digests, "text": stream.text, "finish": stream.finish}
        assert_same([request], [want], [have], "differ after a stop")


def ends_well(suite, model):
    """All ranks close their part at the same time, so none waits for another that is gone."""
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *by(3, "nccl")]) as cluster:
        at = time.monotonic()
        cluster.router.signal(signal.SIGTERM)
        assert cluster.router.wait() == 0, cluster.router.log_tail()
        took = cluster.router.ended_at - at
        assert took < 4, f"{took:.1f} s"
        return f"{took:.2f} s"


def main():
    suite = Suite(__doc__)
    used = []

    def prepare():
        used.append(use_device(suite))
        used.append(suite.stories())
        return f"{used[0]}; {use_nccl(suite, ' emulated ' in used[0])}"
    always(suite, "a device, NCCL and a model", prepare)
    if len(used) < 2:
        suite.end()
    emulated, model = " emulated " in used[0], used[1]
    short = emulated and not suite.options.full
    requests = requests_of(suite.random, 6 if short else 8)
    sets = [requests, growing(suite.random, requests, 40)]
    found, _ = alone(suite, model, [request for each in sets for request in each])
    want = [found[:len(requests)], found[len(requests):]]
    for name, ranks, flags, role, transport, grow, moved in ROWS:
        if not short or name in SHORT:
            suite.case(name, in_way, suite, model, sets[grow], want[grow], ranks, flags, role, transport, moved)
    if not short:
        with environment(FORGE_NCCL_GRAPHS="off"):
            suite.case("two, nccl, no graphs", in_way, suite, model, sets[0], want[0], (2, "nccl"), [], None, None, [])
        suite.case("forge bench", bench, suite, model)
        suite.case("a rank is stopped for a moment", stopped, suite, model, requests[7], want[0][7])
    for name, values, words in WITHOUT + (FAILING if emulated else []):
        suite.case(f"without: {name}", without, suite, model, requests[1], want[0][1], values, words)
    suite.case("refused: on a CPU", on_a_cpu, suite, model)
    suite.case("a rank dies in a step", dies_in_step, suite, model, requests[5])
    suite.case("the end", ends_well, suite, model)
    for rank in (1,) if short else (0, 1) if emulated else ():
        suite.case(f"rank {rank} dies while it opens", dies_while_opening, suite, model, rank)
        suite.case(f"rank {rank} is refused a gathering", refused_in_step, suite, model, requests[5], rank)
    suite.end()


if __name__ == "__main__":
    main()
