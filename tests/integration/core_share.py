#!/usr/bin/env python3
"""Processes that share the cores of a machine: prefill and decode workers, and two servers, compute on fewer
threads while the other does, with the same answers; one that is stopped or killed in the middle of its
steps leaves all cores to the other."""
import shutil
import signal
import tempfile
import threading

from _forge import (Failed, Suite, answer_of, assert_same, counters, run_all, status_port, story_requests,
                    wait_for)

THREADS = 2
STRETCH = 300  # steps
NAMED = ["--served-model-name", "any"]  # as in the requests


class Load:
    """Requests without an end at one server, some at a time, until stopped or the server is gone."""

    def __init__(self, port, requests, at_a_time=3):
        self.port, self.requests = port, requests
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True)
                        for i in range(at_a_time)]
        for thread in self.threads:
            thread.start()

    def run(self, index):
        while not self.stopped.is_set():
            try:
                answer_of(self.port, self.requests[index % len(self.requests)])
            except (OSError, Failed, ValueError):
                return
            index += 1

    def __enter__(self):
        return self

    def __exit__(self, *_why):
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def shared_steps(port):
    return counters(port)["engine_shared_steps_total"]


def wait_shared(ports, what):
    before = [shared_steps(port) for port in ports]
    wait_for(what, lambda: all(shared_steps(port) > count for port, count in zip(ports, before)), 60)


def wait_alone(port, what):
    """A stretch of steps of which none was shared, on all threads."""
    begin = counters(port)

    def look():
        nonlocal begin
        now = counters(port)
        if now["engine_shared_steps_total"] != begin["engine_shared_steps_total"]:
            begin = now
        return (now["engine_steps_total"] - begin["engine_steps_total"] >= STRETCH
                and now["compute_threads"] == THREADS)
    wait_for(what, look, 60)


def same_answers(suite, folder):
    requests = story_requests(suite.random, 24, tokens=(40, 120))
    model = suite.stories()
    with suite.cluster(model=model, standalone=True, flags=[*NAMED, "--share-cores", "off"]) as alone:
        want = run_all([lambda r=r: answer_of(alone.port, r) for r in requests])
    with suite.cluster(model=model, prefill=1, decode=1, threads=THREADS,
                       flags=[*NAMED, "--status-port", "0", "--share-cores", folder]) as cluster:
        ports = [status_port(worker) for worker in cluster.workers.values()]
        rounds = 0
        while rounds == 0 or not all(shared_steps(port) > 0 for port in ports):
            assert rounds < 20, f"never shared: {[shared_steps(port) for port in ports]}"
            have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
            assert_same(requests, want, have, "differ")
            rounds += 1
        cluster.wait_at_rest(workers=2)
        return f"{rounds} rounds, shared steps {[int(shared_steps(port)) for port in ports]}"


def stops(suite, folder):
    """A server that is stopped in the middle of its work, goes on, and is killed."""
    requests = [{**r, "max_tokens": 200} for r in story_requests(suite.random, 6)]
    options = {"model": suite.stories(), "standalone": True, "threads": THREADS,
               "flags": [*NAMED, "--share-cores", folder]}
    with suite.cluster(**options) as stays, suite.cluster(**options) as leaves, \
            Load(stays.port, requests), Load(leaves.port, requests):
        wait_shared([stays.port, leaves.port], "both to share")
        leaves.router.signal(signal.SIGSTOP)
        wait_alone(stays.port, "all cores beside a stopped process")
        leaves.router.signal(signal.SIGCONT)
        wait_shared([stays.port, leaves.port], "both to share again")
        leaves.killed.add(leaves.router)
        leaves.router.signal(signal.SIGKILL)
        wait_alone(stays.port, "all cores beside a dead process")
        with suite.cluster(**options) as comes, Load(comes.port, requests):
            wait_shared([stays.port, comes.port], "both to share after a restart")


def apart(suite, folder):
    """Where nothing can be shared, one line says so and everything works."""
    request = story_requests(suite.random, 1)[0]
    for where, shared in ((folder, True), ("off", False), (folder + "/missing", False)):
        with suite.cluster(model=suite.stories(), standalone=True, threads=THREADS,
                           flags=[*NAMED, "--share-cores", where]) as cluster:
            answer_of(cluster.port, request)
            log = cluster.router.log_tail(1000)
            assert f"shared={'yes' if shared else 'no'}" in log, log
            assert ("event=cores_not_shared" in log) == where.endswith("missing"), log


def main():
    suite = Suite(__doc__)
    folder = tempfile.mkdtemp(prefix="forge-cores-")
    try:
        suite.case("the same answers while cores are shared", same_answers, suite, folder)
        suite.case("a process stops, goes on and dies", stops, suite, folder)
        suite.case("sharing that cannot be", apart, suite, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    suite.end()


if __name__ == "__main__":
    main()
