#!/usr/bin/env python3
"""Who waits, and who is told not to: users share the workers fairly however many requests one of them has,
caps and weights hold, a class of service is refused early and honestly, and a deadline ends a wait."""
import http.client
import json
import threading
import time

from _forge import Suite, counters, get, served_model, wait_for
from engine_room_identity import BOS, ids

REFUSED = 'requests_refused_total{reason="%s"}'


def request(port, body):
    """Status, headers and parsed body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), json.loads(answer.read())
    finally:
        connection.close()


class Crowd:
    """Requests in threads of their own, with the moment when each was answered."""

    def __init__(self, port):
        self.port, self.threads, self.answers = port, [], []
        self.lock = threading.Lock()

    def send(self, who, body):
        def work():
            status, _, _ = request(self.port, body)
            with self.lock:
                self.answers.append((who, status, time.monotonic()))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.threads.append(thread)

    def wait(self):
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a request did not end"
        return self.answers


def queued(cluster):
    return counters(cluster.port)["num_requests_waiting"]


def body(model, rng, tokens=60, **more):
    return {"model": model, "prompt": [BOS] + ids(rng, 40), "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, **more}


def users_share(suite):
    """alice has 40 requests in line when bob comes with 4: his are served among her next ones."""
    flags = ["--max-seqs", "2", "--prefix-cache", "off"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        model, rng = served_model(cluster), suite.random
        crowd = Crowd(cluster.port)
        for _ in range(40):
            crowd.send("alice", body(model, rng, 400, user="alice"))
        wait_for("alice's line", lambda: queued(cluster) >= 24)
        for _ in range(4):
            crowd.send("bob", body(model, rng, user="bob"))
        answers = crowd.wait()
        assert all(status == 200 for _, status, _ in answers), answers
        order = [who for who, _, _ in answers]
        last = max(i for i, who in enumerate(order) if who == "bob")
        assert last < 36, f"bob's last was answered as number {last + 1} of 44: {order}"
        cluster.wait_at_rest()
        return f"bob's last was number {last + 1} of 44"


def weights_count(suite):
    """With weight 4, bob gets four of five places while both wait."""
    flags = ["--max-seqs", "1", "--prefix-cache", "off", "--tenant-weights", "bob=4"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        model, rng = served_model(cluster), suite.random
        crowd = Crowd(cluster.port)
        for _ in range(16):  # the worker and its own line are taken
            crowd.send("first", body(model, rng, 400, user="first"))
        wait_for("a line", lambda: queued(cluster) >= 3)
        for _ in range(30):
            crowd.send("alice", body(model, rng, user="alice"))
            crowd.send("bob", body(model, rng, user="bob"))
        answers = crowd.wait()
        order = [who for who, _, _ in answers if who != "first"]
        early = order[:20].count("bob")
        assert early >= 12, f"bob had {early} of the first 20: {order}"
        return f"bob had {early} of the first 20"


def caps_hold(suite):
    flags = ["--max-seqs", "1", "--tenant-queue-limit", "3"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        model, rng = served_model(cluster), suite.random
        crowd = Crowd(cluster.port)
        for _ in range(12):
            crowd.send("alice", body(model, rng, 150, user="alice"))
        wait_for("refusals", lambda: counters(cluster.port)[REFUSED % "tenant_cap"] > 0)
        status, _, answer = request(cluster.port, body(model, rng, 5, user="bob"))
        assert status == 200, (status, answer)
        answers = crowd.wait()
        refused = sum(status == 429 for _, status, _ in answers)
        assert 0 < refused < 12 and all(s in (200, 429) for _, s, _ in answers), answers
        wait_for("the count", lambda: counters(cluster.port)[REFUSED % "tenant_cap"] == refused)
        cluster.wait_at_rest()
        return f"{refused} of 12 refused"


def classes_are_kept(suite):
    """A class that cannot be kept is refused before anything is computed; one that can is served."""
    flags = ["--slo", "never=1/0,easy=60000/0", "--max-seqs", "2", "--prefix-cache", "off"]
    with suite.cluster(model=suite.smollm2(), standalone=True, flags=flags) as cluster:
        model, rng = served_model(cluster), suite.random
        status, _, answer = request(cluster.port, body(model, rng, 2, slo="easy"))
        assert status == 200, (status, answer)
        wait_for("its count", lambda: counters(cluster.port)["engine_prompt_tokens_total"] == 41)
        status, headers, answer = request(cluster.port, body(model, rng, 2, slo="never"))
        assert status == 429, (status, answer)
        retry = int({k.lower(): v for k, v in headers.items()}["retry-after"])
        assert retry == 60, f"Retry-After {retry}: no waiting makes a prompt of 41 tokens take 1 ms"
        assert "first token" in answer["error"]["message"], answer
        wait_for("the count", lambda: counters(cluster.port)[REFUSED % "ttft"] == 1)
        status, _, answer = request(cluster.port, body(model, rng, 2, slo="other"))
        assert status == 400 and answer["error"]["param"] == "slo", answer
        cluster.wait_at_rest()
        assert counters(cluster.port)["engine_prompt_tokens_total"] == 41, "it was computed"


def deadlines_end_a_wait(suite):
    flags = ["--max-seqs", "1", "--prefix-cache", "off"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        model, rng = served_model(cluster), suite.random
        crowd = Crowd(cluster.port)
        for _ in range(48):  # a quick server has answered many of them before all are sent
            crowd.send("first", body(model, rng, 400, user="a"))
        wait_for("a line", lambda: queued(cluster) >= 8)
        status, _, answer = request(cluster.port, body(model, rng, 5, user="a", deadline_ms=30))
        assert status == 429, (status, answer)
        wait_for("the count", lambda: sum(counters(cluster.port)[name] for name in (
            "requests_given_up_total", REFUSED % "deadline")) == 1)
        answers = crowd.wait()
        assert all(status == 200 for _, status, _ in answers), answers
        cluster.wait_at_rest()


BAD = [({"slo": "x"}, "slo"), ({"slo": 3}, "slo"), ({"deadline_ms": 0}, "deadline_ms"),
       ({"deadline_ms": -1}, "deadline_ms"), ({"deadline_ms": 1.5}, "deadline_ms"),
       ({"deadline_ms": "soon"}, "deadline_ms"), ({"deadline_ms": 10 ** 12}, "deadline_ms"),
       ({"user": 7}, "user")]


def nonsense_is_refused(suite):
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        model = served_model(cluster)
        for more, param in BAD:
            status, _, answer = request(cluster.port, body(model, suite.random, 2, **more))
            assert status == 400 and answer["error"]["param"] == param, (more, status, answer)
        for index in range(300):
            status, _, _ = request(cluster.port, body(model, suite.random, 1, user=f"user {index}"))
            assert status == 200
        assert get(cluster.port, "/health")[0] == 200
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    suite.case("users share", users_share, suite)
    suite.case("weights count", weights_count, suite)
    suite.case("caps hold", caps_hold, suite)
    suite.case("classes are kept", classes_are_kept, suite)
    suite.case("deadlines end a wait", deadlines_end_a_wait, suite)
    suite.case("nonsense is refused, and many users cost little", nonsense_is_refused, suite)
    suite.end()


if __name__ == "__main__":
    main()
