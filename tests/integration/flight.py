#!/usr/bin/env python3
"""The flight recorder with real processes: requests run, the records of router and workers are written on demand
and after a crash, and `forge sim --replay` finds in them what happened; damaged records are refused."""

import os
import pathlib
import random
import signal
import stat
import subprocess
import tempfile
import threading
import urllib.request

from _forge import (Suite, Stream, get, post, run_all, served_model, status_port, story_requests,
                    wait_for, WAYS)

CANARY = "Zyxwvut the secretive walrus"


def replay(suite, path, *flags):
    """Exit code, standard output and standard error of `forge sim --replay`."""
    done = subprocess.run([suite.options.forge, "sim", "--replay", str(path), *flags],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def fetch(cluster, port=None):
    with urllib.request.urlopen(f"http://127.0.0.1:{port or cluster.port}/debug/flight",
                                timeout=30) as got:
        assert got.status == 200, got.status
        return got.read()


def load(cluster, rng, count):
    """All of them are answered."""
    model = served_model(cluster)
    jobs = [lambda b=dict(body, model=model): post(cluster.port, "/v1/completions", b)
            for body in story_requests(rng, count)]
    for result in run_all(jobs):
        if isinstance(result, Exception):
            raise result


class Recorded:
    """A cluster whose records go into a folder of their own."""

    def __init__(self, suite, flags=(), **options):
        self.folder = tempfile.TemporaryDirectory(prefix="forge-flight-")
        self.cluster = suite.cluster(model=suite.stories(), **options,
                                     flags=["--flight-dir", self.folder.name, *flags])

    def __enter__(self):
        self.cluster.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        self.cluster.__exit__(kind, value, trace)
        self.folder.cleanup()

    def record(self, process=None, worker=False):
        """The router's, or that of the process of this name; or of the worker in a standalone server."""
        name = process or self.cluster.router.name
        found = [path for path in pathlib.Path(self.folder.name).glob(f"forge-flight-{name}-*.bin")
                 if ("-worker-" in path.name) == worker]
        return found[0] if found and found[0].stat().st_size > 0 else None

    def ask(self, process):
        """SIGUSR2; the file that comes of it."""
        old = self.record(process.name)
        if old:
            old.unlink()
        process.signal(signal.SIGUSR2)
        return wait_for(f"{process.name}'s record", lambda: self.record(process.name))

    def save(self, content, name="fetched.bin"):
        path = pathlib.Path(self.folder.name) / name
        path.write_bytes(content)
        return path


def check_same(suite, path, requests=0):
    code, out, err = replay(suite, path)
    assert code == 0, (code, out[-600:], err)
    last = out.strip().splitlines()[-1]
    assert last.startswith("same: "), last
    assert int(last.split(" requests")[0].split()[-1]) >= requests, last
    return out


def on_demand(suite):
    with Recorded(suite, prefill=2, decode=2) as r:
        load(r.cluster, suite.random, 24)
        stream = Stream(r.cluster.port, "/v1/completions",
                        {"prompt": CANARY, "max_tokens": 300, "ignore_eos": True, "stream": True})
        next(stream.chunks())
        stream.hang_up()  # a cancel is in the record
        r.cluster.wait_at_rest()
        r.cluster.router.signal(signal.SIGUSR2)
        path = wait_for("the record", r.record)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, oct(path.stat().st_mode)
        out = check_same(suite, path, 25)
        assert "cancel req=" in out and "sent reserve" in out and "frame tokens" in out, out[-600:]
        assert out == replay(suite, path)[1], "the same file gave another history"
        fetched = fetch(r.cluster)
        check_same(suite, r.save(fetched), 25)
        for secret in (CANARY.encode(), b"walrus"):
            assert secret not in fetched and secret not in path.read_bytes()
        code, out, _ = replay(suite, path, "--quiet")
        assert code == 0 and len(out.splitlines()) == 2, out


def while_it_runs(suite):
    """A record that is taken in the middle of things, and workers that die."""
    with Recorded(suite, prefill=2, decode=2) as r:
        loader = threading.Thread(target=lambda: load_and_ignore(r.cluster, suite.random, 40))
        loader.start()
        check_same(suite, r.save(fetch(r.cluster), "early.bin"))
        r.cluster.kill("decode-1")
        for turn in range(3):
            check_same(suite, r.save(fetch(r.cluster), f"turn{turn}.bin"))
        loader.join()
        out = check_same(suite, r.save(fetch(r.cluster), "late.bin"))
        # Its connection ended, or a frame could not be sent before that was noticed.
        assert "sent peer_lost peer=" in out, out[-600:]


def load_and_ignore(cluster, rng, count):
    def one(body):
        try:
            post(cluster.port, "/v1/completions", body)
        except Exception:  # a killed worker may cost an answer; the record is what is looked at
            pass
    model = served_model(cluster)
    run_all([lambda b=dict(body, model=model): one(b) for body in story_requests(rng, count)])


def from_a_rest(suite):
    """The smallest recorder forgets its beginning; the record then begins at a moment of rest."""
    with Recorded(suite, flags=["--flight-recorder-mb", "1"], prefill=2, decode=2) as r:
        for _ in range(60):
            load(r.cluster, suite.random, 40)
            r.cluster.wait_at_rest()
            path = r.save(fetch(r.cluster))
            if "from=rest" in replay(suite, path, "--quiet")[1]:
                load(r.cluster, suite.random, 20)
                path = r.save(fetch(r.cluster))
                out = check_same(suite, path, 20)
                assert "from=rest" in out.splitlines()[0], out.splitlines()[0]
                return
        raise AssertionError("it never forgot its beginning")


def after_a_crash(suite, name=None):
    """The signal comes from outside: nothing in the record crashes. Seldom it comes while a call is at work, which
    replay rightly tells apart: then once more."""
    for _ in range(5):
        with Recorded(suite) as r:
            load(r.cluster, suite.random, 8)
            process = r.cluster.workers[name] if name else r.cluster.router
            r.cluster.killed.add(process)
            process.signal(signal.SIGABRT)
            path = wait_for("the record", lambda record=r.record: record(name) if name else record())
            ended = process.wait()
            assert ended == -signal.SIGABRT, ended
            code, out, err = replay(suite, path)
            assert "signal=6" in out.splitlines()[0], out.splitlines()[0]
            if "ended by signal 6; now the call returned" in out or \
                    "ended by signal 6 in this call" in out:
                continue
            assert code == 0, (code, out[-600:], err)
            assert f"not while its {'worker' if name else 'dispatcher'} was at work" in out, out[-300:]
            return
    raise AssertionError("each signal came while a call was at work")


def bad_files(suite):
    with Recorded(suite) as r:
        load(r.cluster, suite.random, 4)
        good = fetch(r.cluster)
        rng = random.Random(suite.options.seed)
        cases = {"empty": b"", "text": b"hello\n", "short": good[:40], "cut": good[:-8],
                 "longer": good + b"\0" * 8, "version": good[:8] + b"\x63" + good[9:],
                 "shape": good[:16] + bytes(8) + good[24:]}
        for number in range(8):
            at = rng.randrange(256, len(good))
            cases[f"bit {number}"] = good[:at] + bytes([good[at] ^ 4]) + good[at + 1:]
        for name, content in cases.items():
            code, out, err = replay(suite, r.save(content))
            assert code == 2 and err.startswith("forge sim: --replay ") and err.count("\n") == 1, \
                (name, code, out[-200:], err)
        for arguments in (["/nowhere/x.bin"], [r.folder.name], [""], ["x", "y"], ["x", "--seed", "4"]):
            code, out, err = replay(suite, *arguments)
            assert code == 2 and len(err.splitlines()) <= 2 and out == "", (arguments, code, out, err)


WORKER_SHAPES = {
    "one of each": dict(prefill=1, decode=1),
    "TCP, two of each, one step ahead": dict(prefill=2, decode=2, transport="tcp",
                                             flags=["--overlap", "on"]),
    "zero-copy": dict(prefill=1, decode=1, **WAYS["zero-copy"]),
    "few blocks and a tier": dict(prefill=1, decode=1, flags=[
        "--kv-blocks", "48", "--kv-host-blocks", "64", "--preemption", "swap"]),
}


def of_workers(suite, **options):
    """What each worker did is done again: at rest, and in the middle of things. One of two of a role may get little."""
    alone = options["prefill"] == 1
    with Recorded(suite, **options) as r:
        load(r.cluster, suite.random, 24)
        stream = Stream(r.cluster.port, "/v1/completions",
                        {"prompt": CANARY, "max_tokens": 300, "ignore_eos": True, "stream": True})
        next(stream.chunks())
        stream.hang_up()
        r.cluster.wait_at_rest()
        for worker in r.cluster.workers.values():
            path = r.ask(worker)
            out = check_same(suite, path, 5 if alone else 0)
            assert "frame welcome" in out, out[:900]
            assert ("step begins" in out and "step ended" in out) or not alone, out[:900]
            role = worker.name.split("-")[0]
            word = "link push" if role == "prefill" else "link says commit"
            assert word in out or not alone, (worker.name, out[-900:])
            assert b"walrus" not in path.read_bytes()
            assert out == replay(suite, path)[1], "the same file gave another history"
        loader = threading.Thread(target=lambda: load_and_ignore(r.cluster, suite.random, 40))
        loader.start()
        for turn in range(4):
            for worker in r.cluster.workers.values():
                check_same(suite, r.ask(worker))
        loader.join()


def of_a_survivor(suite):
    """A decode worker dies under load: what the prefill worker made of that is made of it again."""
    with Recorded(suite, prefill=1, decode=2, flags=["--status-port", "0"]) as r:
        loader = threading.Thread(target=lambda: load_and_ignore(r.cluster, suite.random, 60))
        loader.start()
        survivor = r.cluster.workers["prefill-0"]
        wait_for("some pushes", lambda: b"\nforge_kv_link_pushed_blocks_total 0\n" not in
                 get(status_port(survivor), "/metrics")[1])
        r.cluster.kill("decode-0")
        loader.join()
        out = check_same(suite, r.save(fetch(r.cluster, status_port(survivor)), "prefill.bin"), 5)
        assert "link lose_peer" in out and "frame peer_lost" in out, out[-900:]


def ask_worker(recorded):
    """The record of the worker in a standalone server."""
    old = recorded.record(worker=True)
    if old:
        old.unlink()
    recorded.cluster.router.signal(signal.SIGUSR2)
    return wait_for("the worker's record", lambda: recorded.record(worker=True))


def worker_from_a_rest(suite):
    """A small recorder forgets; cached blocks, a pinned prefix and a tier are in what it knows then."""
    flags = ["--flight-recorder-mb", "1", "--kv-blocks", "256", "--kv-host-blocks", "128"]
    with Recorded(suite, flags=flags, standalone=True) as r:
        for _ in range(60):
            load(r.cluster, suite.random, 40)
            r.cluster.wait_at_rest()
            path = ask_worker(r)
            if "from=rest" in replay(suite, path, "--quiet")[1]:
                load(r.cluster, suite.random, 20)
                path = ask_worker(r)
                out = check_same(suite, path, 20)
                assert "from=rest" in out.splitlines()[0], out.splitlines()[0]
                check_same(suite, r.record())
                return
        raise AssertionError("it never forgot its beginning")


def switched_off(suite):
    with Recorded(suite, flags=["--flight-recorder-mb", "0"]) as r:
        for process in r.cluster.processes():
            process.signal(signal.SIGUSR2)
        load(r.cluster, suite.random, 2)
        assert not list(pathlib.Path(r.folder.name).iterdir())
        assert get(r.cluster.port, "/debug/flight")[0] == 404


def main():
    suite = Suite(__doc__)
    suite.case("a record on demand runs the same", on_demand, suite)
    suite.case("records taken while requests run", while_it_runs, suite)
    suite.case("a record that begins at rest", from_a_rest, suite)
    suite.case("a crash leaves a record", after_a_crash, suite)
    for name, options in WORKER_SHAPES.items():
        suite.case(f"records of workers: {name}", lambda o=options: of_workers(suite, **o))
    suite.case("a worker whose peer died", of_a_survivor, suite)
    suite.case("a worker's record that begins at rest", worker_from_a_rest, suite)
    suite.case("a worker's crash leaves a record", after_a_crash, suite, "decode-0")
    suite.case("damaged records and bad flags are refused", bad_files, suite)
    suite.case("it can be switched off", switched_off, suite)
    suite.end()


if __name__ == "__main__":
    main()
