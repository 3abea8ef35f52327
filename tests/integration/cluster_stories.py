#!/usr/bin/env python3
"""The story model reproduces its two stored greedy texts byte for byte, standalone and over the
cluster, streaming and not."""
from _forge import Stream, Suite, post, served_model

# Generated tokens that the stored text holds: the second one counts its prompt's tokens too.
TEXTS = [("no prompt", "", "models/greedy-200.txt"),
         ("a prompt", "Lily and Tom went to the", "models/greedy-200-prompt-lily.txt")]
SHAPES = [("standalone", dict(standalone=True)), ("1P+1D", dict(prefill=1, decode=1)),
          ("2P+2D over tcp", dict(prefill=2, decode=2, transport="tcp"))]


def body_of(cluster, prompt):
    return {"model": served_model(cluster), "prompt": prompt, "max_tokens": 200, "temperature": 0,
            "ignore_eos": True}


def compare(stored, prompt, text):
    want = stored.read_text(encoding="utf-8").rstrip("\n")
    have = prompt + text
    # The stored text ends after its 200 tokens; ours may carry the tokens that the prompt took there.
    assert have.startswith(want) or (want.startswith(have.rstrip("\n")) and len(have) > 300), \
        f"they part after {next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), None)} bytes"
    assert len(text) > 300, f"only {len(text)} bytes were written"
    return f"{len(want)} bytes equal"


def plain(cluster, prompt, stored):
    answer = post(cluster.port, "/v1/completions", body_of(cluster, prompt))
    assert answer["usage"]["completion_tokens"] == 200
    assert answer["choices"][0]["finish_reason"] == "length"
    return compare(stored, prompt, answer["choices"][0]["text"])


def streamed(cluster, prompt, stored):
    stream = Stream(cluster.port, "/v1/completions", body_of(cluster, prompt)).run()
    assert stream.finish == "length"
    return compare(stored, prompt, stream.text)


def in_shape(suite, shape_name, shape):
    with suite.cluster(model=suite.stories(), **shape) as cluster:
        for name, prompt, path in TEXTS:
            stored = suite.corpus(path)
            suite.case(f"{shape_name}, {name}", plain, cluster, prompt, stored)
            suite.case(f"{shape_name}, {name}, streamed", streamed, cluster, prompt, stored)
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    for name, shape in SHAPES:
        suite.case(f"{name} starts, ends and gives every block back", in_shape, suite, name, shape)
    suite.end()


if __name__ == "__main__":
    main()
