#!/usr/bin/env python3
"""A draft model (--speculative-model): the answers are those of a server that guesses nothing, whatever the draft model
says, alone and in a cluster whose decode worker dies; a good one is right nearly always, drawn tokens too; a bad one is
hardly asked; what does not fit is refused in a line."""
# needs-model
import os
import subprocess
import sys
import tempfile
import threading

from _forge import (ROOT, WAIT_S, Stream, Suite, counters, find_tool, plain_environment, post, run_all, served_model,
                    status_port, wait_for)

sys.path.insert(0, str(ROOT / "tests/support"))
import layers_gguf  # noqa: E402  pylint: disable=wrong-import-position,import-error

MODEL = [f"spec_decode_model_{what}_total" for what in
         ("draft_tokens", "accepted_tokens", "steps", "seconds")]
DRAFTED, ACCEPTED, STEPS, SECONDS = MODEL
ENGINE_STEPS = "engine_steps_total"
PROMPTS = ["Tell me a story about a fisherman who lived in a small town by the sea.",
           "The capital of France is", "def quicksort(a):\n", "one two three four five six seven"]


def bodies():
    """Greedy and drawn, short and long, several choices, penalties, an end by a stop string, digests."""
    for i, prompt in enumerate(PROMPTS * 3):
        body = {"prompt": prompt * (1 + 6 * (i % 2)), "temperature": 0, "max_tokens": 24 + 9 * (i % 5)}
        if i % 3 == 1:
            body.update(temperature=0.8, seed=i)
        if i % 4 == 1:
            body.update(n=2, temperature=0.6, seed=i)
        if i % 4 == 2:
            body.update(logits_digest=True)
        if i % 5 == 3:
            body.update(frequency_penalty=0.7, presence_penalty=0.2)
        if i % 6 == 5:
            body.update(stop=[" the"])
        yield body


def answers(cluster, requests):
    have = [None] * len(requests)

    def ask(i):
        answer = post(cluster.port, "/v1/completions",
                      {**requests[i], "model": served_model(cluster), "return_token_ids": True})
        have[i] = answer["choices"]

    run_all([lambda i=i: ask(i) for i in range(len(requests))])
    return have


def same(cluster, requests, want):
    for i, (a, b) in enumerate(zip(want, answers(cluster, requests))):
        assert a == b, f"request {requests[i]}: {b}, without guessing {a}"
    return f"{len(want)} requests"


def counts(port):
    """As they stand still: they are brought up to date now and then."""
    seen = [None, 0]

    def stand_still():
        all_now = counters(port)
        now = {name: all_now[name] for name in (*MODEL, ENGINE_STEPS)}
        seen[:] = [now, seen[1] + 1 if now == seen[0] else 0]
        return now if seen[1] == 8 else None

    return wait_for("counters that stand still", stand_still)


def moved(cluster, port, more):
    cluster.wait_at_rest()
    before = counts(port)
    post(cluster.port, "/v1/completions", {"model": served_model(cluster), "prompt": PROMPTS[0], "max_tokens": 100,
                                           "ignore_eos": True, "temperature": 0, **(more or {})})
    cluster.wait_at_rest()
    after = counts(port)
    return {name: after[name] - before[name] for name in before}


def is_right(cluster, port, more=None):
    """The model is its own draft: whatever it says is right."""
    did = moved(cluster, port, more)
    assert did[DRAFTED] > 60 and did[ACCEPTED] == did[DRAFTED], did
    assert did[ENGINE_STEPS] < 40 and did[SECONDS] > 0, did
    return f"{did[ENGINE_STEPS]:.0f} steps for 100 tokens, {did[ACCEPTED]:.0f} guesses right"


def is_wrong(cluster, port):
    """Compared and thrown away; asked about once in a while."""
    did = moved(cluster, port, None)
    assert did[ACCEPTED] <= did[DRAFTED] / 2, did
    assert did[STEPS] <= 60, f"{did[STEPS]} guesses of a model that is mostly wrong"
    return f"{did[DRAFTED]:.0f} guesses computed, {did[ACCEPTED]:.0f} right, {did[STEPS]:.0f} steps of it"


def alone(suite, requests, want, model, flags, more):
    with suite.cluster(model=suite.smollm2(), standalone=True,
                       flags=["--speculative-model", model, *flags]) as cluster:
        suite.case(f"{more[0]}: the same answers", same, cluster, requests, want)
        for name, check, *rest in more[1:]:
            suite.case(f"{more[0]}: {name}", check, cluster, cluster.port, *rest)
        cluster.wait_at_rest()


def dies(cluster, want):
    """In the middle of an answer whose worker had a draft model; another one, which has one too, goes on."""
    body = {"prompt": PROMPTS[0], "temperature": 0, "max_tokens": 150, "ignore_eos": True, "model": served_model(cluster)}
    stream = Stream(cluster.port, "/v1/completions", body)
    killed = []

    def kill_when_half_way():
        wait_for("tokens", lambda: len(stream.text) > 60)
        busy = [w["name"] for w in cluster.state()["workers"] if w["running"] and w["name"].startswith("d")]
        killed.extend(busy[:1])
        if busy:
            cluster.kill(busy[0])

    thread = threading.Thread(target=kill_when_half_way)
    thread.start()
    stream.run()
    thread.join(WAIT_S)
    assert stream.text == want, f"{stream.text!r} instead of {want!r}"
    return f"{killed} died" if killed else "the answer was quicker"


def decoders(cluster):
    return [worker for name, worker in cluster.workers.items() if name.startswith("d")]


def in_cluster(suite, requests, want, long_want):
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=2, flags=["--status-port", "0"],
                       role_flags={"decode": ["--speculative-model", suite.smollm2(), "--draft-length", "fixed"]}) \
            as cluster:
        suite.case("1P+2D: the same answers", same, cluster, requests, want)
        accepted = sum(counts(status_port(worker))[ACCEPTED] for worker in decoders(cluster))
        assert accepted > 100, f"{accepted} guesses were right"
        suite.case("1P+2D: a decode worker dies", dies, cluster, long_want)
        cluster.wait_at_rest()


def refused(suite, other):
    """Files that cannot guess for this model."""
    rows = [("other tokens", [other], "can't guess for"),
            ("a file that is missing", ["/nowhere/draft.gguf"], "/nowhere/draft.gguf"),
            ("no model", [__file__], __file__),
            ("a prefill worker", [suite.smollm2(), "--mode", "prefill", "--router", "127.0.0.1:9"], "workers that decode"),
            ("a router", [suite.smollm2(), "--mode", "router"], "workers that decode"),
            ("guessing off", [suite.smollm2(), "--speculate", "off"], "guesses nothing with --speculate off"),
            ("the text alone", [suite.smollm2(), "--speculate", "ngram"], "guesses nothing with --speculate ngram"),
            ("no file", [""], "--speculative-model needs a file")]
    for name, flags, words in rows:
        done = subprocess.run([suite.options.forge, "serve", "--model", suite.smollm2(), "--port", "0", "--threads", "1",
                               "--speculative-model", *flags], env=plain_environment(), capture_output=True, text=True,
                              timeout=WAIT_S, check=False)
        lines = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
        assert done.returncode == 2 and len(lines) == 1 and words in lines[0], f"{name}: {done.stderr}{done.stdout}"
    return f"{len(rows)} starts refused"


def main():
    suite = Suite(__doc__)
    requests = list(bodies())
    with tempfile.TemporaryDirectory(prefix="forge-draft-") as folder:
        bad, partly, padded, other = (os.path.join(folder, name)
                                      for name in ("bad.gguf", "partly.gguf", "padded.gguf", "other.gguf"))
        layers_gguf.pad(suite.smollm2(), padded, 128)
        layers_gguf.make(suite.smollm2(), bad, 3)
        layers_gguf.make(suite.smollm2(), partly, 27)
        subprocess.run([find_tool(suite, "make-gguf"), other], check=True)
        with suite.cluster(model=suite.smollm2(), standalone=True, flags=["--speculate", "off"]) as cluster:
            want = answers(cluster, requests)
            long_want = post(cluster.port, "/v1/completions",
                             {"model": served_model(cluster), "prompt": PROMPTS[0], "temperature": 0, "max_tokens": 150,
                              "ignore_eos": True})["choices"][0]["text"]
        fixed = ["--draft-length", "fixed", "--speculate", "model"]
        twin = suite.smollm2()
        for model, flags, more in [
                (twin, fixed, ("its own draft", ("greedy, always right", is_right),
                               ("drawn, always right", is_right, {"temperature": 0.9, "seed": 5}))),
                (twin, ["--draft-length", "adaptive", "--overlap", "off"], ("its own draft, by the formula",)),
                (padded, fixed, ("its own draft with a padded vocabulary", ("greedy, always right", is_right))),
                (twin, ["--draft-length", "fixed", "--speculative-kv-blocks", "12", "--draft-max", "3"],
                 ("few blocks for it",)),
                (partly, ["--draft-length", "fixed"], ("right now and then",)),
                (partly, [], ("right now and then, as it pays",)),
                (bad, [*fixed, "--draft-max", "2"], ("nearly always wrong",)),
                (bad, ["--speculate", "model"], ("nearly always wrong, as it pays", ("hardly asked", is_wrong)))]:
            suite.case(f"{more[0]} starts, ends and gives every block back", alone, suite, requests, want, model, flags,
                       more)
        suite.case("1P+2D starts, ends and gives every block back", in_cluster, suite, requests, want, long_want)
        suite.case("what does not fit is refused", refused, suite, other)
    suite.end()


if __name__ == "__main__":
    main()
