#!/usr/bin/env python3
"""The story model reproduces its two stored greedy texts byte for byte, standalone and over the
cluster, streaming and not."""
from _forge import Stream, Suite, post, served_model

# The stored texts are what 200 steps give: a step reads one token, so a prompt of n tokens leaves
# 201 - n of them for new tokens.
STEPS = 200
TEXTS = [("no prompt", "", 1, "models/greedy-200.txt"),
         ("a prompt", "Lily and Tom went to the", 9, "models/greedy-200-prompt-lily.txt")]
SHAPES = [("standalone", dict(standalone=True)), ("1P+1D", dict(prefill=1, decode=1)),
          ("2P+2D over tcp", dict(prefill=2, decode=2, transport="tcp"))]


def body_of(cluster, prompt, prompt_tokens):
    return {"model": served_model(cluster), "prompt": prompt, "temperature": 0, "ignore_eos": True,
            "max_tokens": STEPS + 1 - prompt_tokens}


def compare(stored, have):
    want = stored.read_text(encoding="utf-8").removesuffix("\n")
    parted = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), len(want))
    assert have == want, f"they part after {parted} of {len(want)} bytes: {have[parted:][:40]!r}"
    return f"{len(want)} bytes equal"


def plain(cluster, prompt, prompt_tokens, stored):
    answer = post(cluster.port, "/v1/completions", body_of(cluster, prompt, prompt_tokens))
    assert answer["usage"]["prompt_tokens"] == prompt_tokens
    assert answer["choices"][0]["finish_reason"] == "length"
    return compare(stored, prompt + answer["choices"][0]["text"])


def streamed(cluster, prompt, prompt_tokens, stored):
    stream = Stream(cluster.port, "/v1/completions", body_of(cluster, prompt, prompt_tokens)).run()
    assert stream.finish == "length"
    return compare(stored, prompt + stream.text)


def in_shape(suite, shape_name, shape):
    with suite.cluster(model=suite.stories(), **shape) as cluster:
        for name, prompt, prompt_tokens, path in TEXTS:
            stored = suite.corpus(path)
            suite.case(f"{shape_name}, {name}", plain, cluster, prompt, prompt_tokens, stored)
            suite.case(f"{shape_name}, {name}, streamed", streamed, cluster, prompt, prompt_tokens,
                       stored)
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    for name, shape in SHAPES:
        suite.case(f"{name} starts, ends and gives every block back", in_shape, suite, name, shape)
    suite.end()


if __name__ == "__main__":
    main()
