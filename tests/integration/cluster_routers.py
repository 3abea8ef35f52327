#!/usr/bin/env python3
"""Two routers serve the same workers side by side: the same answers from both; one is killed under load, and the
requests of the other all end with right answers; the blocks of what it had begun come back; the next one at its
address finds the workers and what they have cached; a worker that starts while one router is away joins when it
comes."""
import json
import os
import signal

from _forge import (Skip, Suite, answer_of, counters, get, post, served_model, status_port, story_requests,
                    wait_for)
from cluster_failures import Traffic


def settle(cluster, port, workers=4):
    """Until that router sees all workers at rest."""
    def at_rest():
        state = json.loads(get(port, "/debug/state")[1])
        books = state["workers"]
        idle = all(w["blocks"]["free"] + w["blocks"]["cached"] == w["blocks"]["total"]
                   and not w["running"] and not w["waiting"] for w in books)
        return len(books) == workers and idle and not state["requests"]
    wait_for(f"rest at port {port}", at_rest, 20)


def same_answers(cluster, requests, want):
    for index, request in enumerate(requests):
        for port in (cluster.port, cluster.second_port):
            assert answer_of(port, request) == want[index], f"request {index} differs at port {port}"


def killed_under_load(cluster, requests, want):
    kept = Traffic(cluster.second_port, requests, want, clients=4)
    lost = Traffic(cluster.port, requests, want, clients=4)
    try:
        wait_for("traffic at both", lambda: min(kept.completed(), lost.completed()) >= 10, 60)
        cluster.router.signal(signal.SIGKILL)
        cluster.router.wait()
        cluster.killed.add(cluster.router)
        count = kept.completed()
        wait_for("traffic to go on", lambda: kept.completed() >= count + 20, 60)
    finally:
        lost.stopping.set()
        kept.stop()
        lost.stop()
    note = kept.judge()
    settle(cluster, cluster.second_port)
    return note


def late_worker(cluster):
    cluster.start_worker("decode", "decode-late", flags=["--status-port", "0"])
    def known():
        state = json.loads(get(cluster.second_port, "/debug/state")[1])
        return "decode-late" in [w["name"] for w in state["workers"]]
    wait_for("the late worker at the router that is left", known, 30)


def another_router(cluster, requests, want):
    cluster.restart_router()
    wait_for("the next router to be ready", lambda: get(cluster.port, "/health")[0] == 200, 30)
    settle(cluster, cluster.port, workers=5)
    wait_for("both links of the late worker", lambda: [
        value for name, value in counters(status_port(cluster.workers["decode-late"])).items()
        if name.startswith("worker_router_joined{")] == [1, 1])
    hits = 0
    for index, request in enumerate(requests):
        answer = post(cluster.port, "/v1/completions", {**request, "stream": False})
        assert answer["choices"][0]["text"] == want[index]["text"], f"request {index} differs"
        hits += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert hits > 0, "it knows of no cached prefix"
    state = json.loads(get(cluster.port, "/debug/state")[1])
    settle(cluster, cluster.port, workers=5)
    settle(cluster, cluster.second_port, workers=5)
    return f"{hits} cached tokens, {len(state['workers'])} workers"


def other_key(suite, cluster):
    """A router with another key would name blocks otherwise: workers leave it alone, and say why."""
    from _forge import Process  # pylint: disable=import-outside-toplevel
    path = os.path.join(cluster.folder, "short.key")
    with open(path, "wb") as file:
        file.write(b"short")
    process = Process("short-key", [cluster.forge, "serve", "--model", cluster.model, "--mode", "router", "--port", "0",
                                    "--control", "tcp://127.0.0.1:0", "--cache-key-file", path], cluster.folder)
    assert process.wait() == 2 and "16 to 4096 bytes" in process.log_tail(), process.log_tail()


def run(suite):
    model = suite.stories()
    requests = story_requests(suite.random, 8)
    with suite.cluster(model=model, standalone=True) as alone:
        for request in requests:
            request["model"] = served_model(alone)
        want = [answer_of(alone.port, request) for request in requests]
    with suite.cluster(model=model, prefill=2, decode=2, routers=2, supervised=False) as cluster:
        wait_for("the second router", lambda: get(cluster.second_port, "/health")[0] == 200, 30)
        suite.case("both routers answer alike", same_answers, cluster, requests, want)
        suite.case("one router is killed", killed_under_load, cluster, requests, want)
        suite.case("a worker starts meanwhile", late_worker, cluster)
        suite.case("the next router finds all", another_router, cluster, requests, want)
        suite.case("a key that is too short", other_key, suite, cluster)


def main():
    suite = Suite(__doc__)
    try:
        run(suite)
    except Skip as why:
        suite.skip("two routers", why)
    suite.end()


if __name__ == "__main__":
    main()
