#!/usr/bin/env python3
"""Cached blocks go where they are missing: a chat's second turn is computed by a prefill worker that gets the first
answer's blocks from the decode worker, a prompt that moved from one prefill worker to another finds its prefix, and the
answers are those of a standalone server, whoever dies meanwhile."""
import threading

from _forge import (Suite, WAYS, answer_of, counters, run_all, served_model, status_port,
                    wait_for)
from engine_room_identity import BOS, ids

BLOCK = 16
FLAGS = ["--status-port", "0", "--local-prefill-tokens", "0"]


def body(model, prompt, tokens):
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True}


def turns(suite, port, model, count=3, first=120, answer=90, more=30):
    """A chat of token ids; each turn's request and answer."""
    prompt, said = [BOS] + ids(suite.random, first - 1), []
    for _ in range(count):
        request = body(model, prompt, answer)
        got = answer_of(port, request)
        said.append((request, got))
        prompt = prompt + got["ids"] + ids(suite.random, more)
    return said


def standalone(suite, requests):
    with suite.cluster(model=suite.smollm2(), standalone=True, threads=2) as cluster:
        jobs = [lambda r=request: answer_of(cluster.port, r) for request in requests]
        return [answer for start in range(0, len(jobs), 8) for answer in run_all(jobs[start:start + 8])]


def chat(suite, way):
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=1, flags=FLAGS, **WAYS[way]) as cluster:
        said = turns(suite, cluster.port, served_model(cluster))
        records = cluster.state()["recent"][:3][::-1]
        cluster.wait_at_rest(workers=2)
        shown = counters(cluster.port)
        leaked = [counters(status_port(w))["kv_leaked_blocks"] for w in cluster.workers.values()]
    assert records[0]["pulled_blocks"] == 0, records[0]
    known = 0
    for record, (request, _) in zip(records[1:], said[1:]):
        known = len(request["prompt"]) - 30
        # The answer's last token was never run: its block may be one short.
        assert record["cached_tokens"] >= (known - 1) // BLOCK * BLOCK, (known, record)
        assert record["pulled_blocks"] > 0, record
    assert shown["prefix_pulls_total"] == 2, shown["prefix_pulls_total"]
    assert leaked == [0, 0], leaked
    want = standalone(suite, [request for request, _ in said])
    assert [got for _, got in said] == want, "another answer than alone"
    return f"{shown['prefix_pulled_blocks_total']:.0f} blocks, {records[-1]['cached_tokens']} of " \
           f"{len(said[-1][0]['prompt'])} tokens cached"


def switched_off(suite):
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=1,
                       flags=[*FLAGS, "--kv-pull", "off"]) as cluster:
        turns(suite, cluster.port, served_model(cluster), count=2)
        record = cluster.state()["recent"][0]
        assert record["pulled_blocks"] == 0 and record["cached_tokens"] <= 120, record


def under_fire(suite, victim):
    """Four users' chats go on while a worker dies; every answer that came is right."""
    with suite.cluster(model=suite.smollm2(), prefill=2, decode=2, flags=FLAGS) as cluster:
        model = served_model(cluster)
        said, errors = [], []

        def chats():
            try:
                said.extend(turns(suite, cluster.port, model, answer=64))
            except Exception as why:  # an answer that was begun is lost with its worker
                errors.append(why)
        threads = [threading.Thread(target=chats) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_for("a pull", lambda: counters(cluster.port)["prefix_pulls_total"] >= 2, 60)
        cluster.kill(victim)
        for thread in threads:
            thread.join()
        cluster.wait_at_rest(workers=3)
        shown = counters(cluster.port)
    assert len(said) >= 5, (len(said), errors[:2])
    want = standalone(suite, [request for request, _ in said])
    wrong = [i for i, (_, got) in enumerate(said) if got != want[i]]
    assert not wrong, f"{len(wrong)} of {len(said)} answers differ"
    return f"{len(said)} answers, {len(errors)} chats broken off, " \
           f"{shown['prefix_pulled_blocks_total']:.0f} blocks pulled"


def main():
    suite = Suite(__doc__)
    for way in WAYS:
        suite.case(f"a chat's later turns, {way}", chat, suite, way)
    suite.case("it can be switched off", switched_off, suite)
    for victim in ("prefill-0", "decode-1"):
        suite.case(f"kill -9 {victim} under chats", under_fire, suite, victim)
    suite.end()


if __name__ == "__main__":
    main()
