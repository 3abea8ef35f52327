#!/usr/bin/env python3
"""Guessed tokens: the answers, their ends and what is counted are those without guessing; texts that
repeat themselves come in fewer steps; the counters say so, on the workers that decode."""
from _forge import (Stream, Suite, counters, post, run_all, served_model, status_port,
                    wait_for)

DRAFTS, DRAFTED, ACCEPTED = (f"spec_decode_num_{what}_total"
                             for what in ("drafts", "draft_tokens", "accepted_tokens"))
COUNTED = (DRAFTS, DRAFTED, ACCEPTED, "engine_steps_total")
LIST = ("red apples, green pears, yellow plums, blue grapes, black cherries, white peaches, ")
REPEATS = "Say it again and again. " + LIST * 3
SHAPES = [("standalone", [], dict(standalone=True)),
          ("1P+1D", ["--status-port", "0"], dict(prefill=1, decode=1))]
WAYS = [("as it comes", []), ("eight each", ["--draft-length", "fixed"]),
        ("by the formula, overlap off", ["--draft-length", "adaptive", "--overlap", "off"])]


def bodies(rng, text):
    """Requests that end in the middle of what comes at once: at lengths, at stop strings, with choices."""
    for i in range(16):
        body = {"prompt": REPEATS, "temperature": 0, "max_tokens": rng.randrange(1, 80)}
        if i % 3 == 0:
            at = rng.randrange(10, len(text) - 10)
            body.update(stop=[text[at:at + rng.randrange(1, 9)]], max_tokens=100)
        if i % 4 == 1:
            body.update(temperature=0.7, seed=i, n=2)
        if i % 5 == 2:
            body.update(logits_digest=True)
        yield body


def answers(cluster, requests):
    """All at once, whole; and what each of them is said to have cost."""
    have = [None] * len(requests)

    def ask(i):
        answer = post(cluster.port, "/v1/completions",
                      {**requests[i], "model": served_model(cluster), "return_token_ids": True})
        usage = {k: v for k, v in answer["usage"].items() if k.endswith("_tokens")}
        have[i] = (answer["choices"], usage)

    run_all([lambda i=i: ask(i) for i in range(len(requests))])
    return have


def long_answer(cluster):
    body = {"model": served_model(cluster), "prompt": REPEATS, "temperature": 0, "max_tokens": 100,
            "ignore_eos": True}
    return post(cluster.port, "/v1/completions", body)["choices"][0]["text"]


def same(cluster, requests, want):
    have = answers(cluster, requests)
    for i, (a, b) in enumerate(zip(want, have)):
        assert a == b, f"request {requests[i]}: {b}, without guessing {a}"
    return f"{len(want)} requests"


def streamed(cluster, requests, want):
    """The same as a stream: nothing behind a stop string is seen, whatever came along with it."""
    count = 0
    for body, (choices, _) in zip(requests, want):
        if body.get("n", 1) == 1 and "logits_digest" not in body:
            stream = Stream(cluster.port, "/v1/completions", {**body, "model": served_model(cluster)}).run()
            assert (stream.text, stream.finish) == (choices[0]["text"], choices[0]["finish_reason"])
            count += 1
    return f"{count} streams"


def decoders(cluster):
    return [worker for name, worker in cluster.workers.items() if name.startswith("d")]


def counts(cluster, standalone):
    """Of the workers that decode, as they stand still: they are brought up to date now and then."""
    seen = [None, 0]

    def stand_still():
        ports = [cluster.port] if standalone else [status_port(w) for w in decoders(cluster)]
        now = {name: sum(counters(port)[name] for port in ports) for name in COUNTED}
        seen[:] = [now, seen[1] + 1 if now == seen[0] else 0]
        return now if seen[1] == 8 else None

    cluster.wait_at_rest()
    return wait_for("counters that stand still", stand_still)


def counted(cluster, standalone):
    """What one long answer that repeats itself moved."""
    before = counts(cluster, standalone)
    long_answer(cluster)
    after = counts(cluster, standalone)
    return {name: after[name] - before[name] for name in COUNTED}


def fewer_steps(cluster, standalone):
    moved = counted(cluster, standalone)
    assert 0 < moved[DRAFTS] <= moved[DRAFTED], moved
    assert moved[DRAFTED] >= moved[ACCEPTED] > 30, moved
    assert moved["engine_steps_total"] < 75, f"{moved} for 100 tokens"
    return f"{moved['engine_steps_total']:.0f} steps for 100 tokens, {moved[ACCEPTED]:.0f} guessed"


def off_is_off(cluster):
    moved = counted(cluster, True)
    assert moved[DRAFTS] == moved[DRAFTED] == moved[ACCEPTED] == 0, moved
    assert moved["engine_steps_total"] >= 99, moved


def prefill_guesses_nothing(cluster):
    ports = [status_port(w) for name, w in cluster.workers.items() if name.startswith("p")]
    assert ports and all(counters(port)[DRAFTS] == 0 for port in ports)


def in_shape(suite, shape_name, more, shape, requests, want):
    for name, flags in WAYS if "standalone" in shape else WAYS[:2]:
        with suite.cluster(model=suite.smollm2(), flags=[*flags, *more], **shape) as cluster:
            what = f"{shape_name}, {name}"
            suite.case(f"{what}: the same answers and counts", same, cluster, requests, want)
            suite.case(f"{what}: the same streams", streamed, cluster, requests, want)
            if name != "as it comes":  # whether that pays is a matter of the machine
                suite.case(f"{what}: fewer steps", fewer_steps, cluster, "standalone" in shape)
            if "standalone" not in shape:
                suite.case(f"{what}: prefill guesses nothing", prefill_guesses_nothing, cluster)
            cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    requests, want = [], []

    def reference():
        with suite.cluster(model=suite.smollm2(), standalone=True,
                           flags=["--speculate", "off"]) as cluster:
            requests.extend(bodies(suite.random, long_answer(cluster)))
            want.extend(answers(cluster, requests))
            suite.case("off is off", off_is_off, cluster)

    suite.case("without guessing", reference)
    for name, more, shape in SHAPES:
        suite.case(f"{name} starts, ends and gives every block back", in_shape, suite, name, more,
                   shape, requests, want)
    suite.end()


if __name__ == "__main__":
    main()
