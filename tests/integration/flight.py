#!/usr/bin/env python3
"""The flight recorder with real processes: requests run, the router's record is written on demand and after a
crash, and `forge sim --replay` finds in it what happened; damaged records are refused."""

import os
import pathlib
import random
import signal
import stat
import subprocess
import tempfile
import threading
import urllib.request

from _forge import Suite, Stream, get, post, run_all, served_model, story_requests, wait_for

CANARY = "Zyxwvut the secretive walrus"


def replay(suite, path, *flags):
    """Exit code, standard output and standard error of `forge sim --replay`."""
    done = subprocess.run([suite.options.forge, "sim", "--replay", str(path), *flags],
                          capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def fetch(cluster):
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/debug/flight", timeout=30) as got:
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

    def record(self):
        found = list(pathlib.Path(self.folder.name).glob("forge-flight-*.bin"))
        return found[0] if found and found[0].stat().st_size > 0 else None

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
        assert "down peer=" in out, out[-600:]


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


def after_a_crash(suite):
    with Recorded(suite) as r:
        load(r.cluster, suite.random, 8)
        r.cluster.killed.add(r.cluster.router)
        r.cluster.router.signal(signal.SIGABRT)
        path = wait_for("the record", r.record)
        ended = r.cluster.router.wait()
        assert ended == -signal.SIGABRT, ended
        out = check_same_after_crash(suite, path)
        assert "signal=6" in out.splitlines()[0], out.splitlines()[0]


def check_same_after_crash(suite, path):
    """The signal came from outside: nothing in the record crashes."""
    code, out, err = replay(suite, path)
    assert code == 0, (code, out[-600:], err)
    assert "not while its dispatcher was at work" in out, out[-300:]
    return out


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


def switched_off(suite):
    with Recorded(suite, flags=["--flight-recorder-mb", "0"]) as r:
        r.cluster.router.signal(signal.SIGUSR2)
        load(r.cluster, suite.random, 2)
        assert r.record() is None
        assert get(r.cluster.port, "/debug/flight")[0] == 404


def main():
    suite = Suite(__doc__)
    suite.case("a record on demand runs the same", on_demand, suite)
    suite.case("records taken while requests run", while_it_runs, suite)
    suite.case("a record that begins at rest", from_a_rest, suite)
    suite.case("a crash leaves a record", after_a_crash, suite)
    suite.case("damaged records and bad flags are refused", bad_files, suite)
    suite.case("it can be switched off", switched_off, suite)
    suite.end()


if __name__ == "__main__":
    main()
