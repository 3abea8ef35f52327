#!/usr/bin/env python3
"""Log-probabilities of prompts: are they those of the model, the same bits however a prompt is computed, and in the shapes
that clients know?

Against an independent forward pass in NumPy. With float weights and a float KV cache only the order of float additions can
differ: 1e-4 of a natural logarithm is far above that, and far below any mistake (a row off by one is off by whole units).
With SmolLM2's quantised weights both round activations to 8 bits, and are two draws of the same noise (numpy_reference.py
says why): the mean difference between Forge and NumPy with these roundings may be twice what the roundings themselves cost
NumPy, and the logarithm of the perplexity may be off by 0.02.
"""
# needs: openai numpy gguf
# needs-model
import json
import math
import subprocess
import tempfile
import time

import numpy as np
import openai
from _forge import (WAYS, Failed, Skip, Stream, Suite, device, find_tool, get, post, run_all, served_model,
                    wait_for)
from _numpy_model import Model, read_file

FLOAT_BOUND = 1e-4
TEXT = ("The capital of France is Paris. Water boils at one hundred degrees, and freezes at zero. "
        "def add(a, b):\n    return a + b\n\nCaf\u00e9 \U0001F600: \u6c34 is water in Japanese. "
        "Once upon a time there was a little dog who liked to run in the park with his friends. ")


def make_tiny(suite, folder):
    path = folder + "/tiny.gguf"
    subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", "tiny-linear", "--type", "f32"], check=True)
    return path


def scored(port, prompt, likely=0, **more):
    """[(logprob, rank, {id: logprob})] of a prompt's tokens but the first, and the whole answer."""
    answer = post(port, "/v1/completions", {"prompt": prompt, "prompt_logprobs": likely, "max_tokens": 1,
                                            "temperature": 0, "return_token_ids": True, **more})
    choice = answer["choices"][0]
    ids = choice["prompt_token_ids"]
    assert len(choice["prompt_logprobs"]) == len(ids) and choice["prompt_logprobs"][0] is None
    rows = []
    for token, row in zip(ids[1:], choice["prompt_logprobs"][1:]):
        own = row[str(token)]
        assert next(iter(row)) == str(token) and likely <= len(row) <= likely + 1, row
        rows.append((own["logprob"], own["rank"],
                     {int(k): v["logprob"] for k, v in row.items() if v["rank"] <= likely}))
    return rows, answer


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def float_model(suite):
    if device() != "cpu":
        raise Skip("devices round all to bf16")
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny(suite, folder)
        ids = np.random.default_rng(suite.options.seed).integers(0, 2000, 200).tolist()
        with suite.cluster(model=path, standalone=True, flags=["--kv-dtype", "f32"]) as cluster:
            rows, _ = scored(cluster.port, ids, 5)
        model = Model(read_file(path), "f32")
    want = log_softmax(model.logits(model.forward([np.array(ids)], False)[0], False))
    worst = 0.0
    for at, (logprob, rank, likely) in enumerate(rows):
        row, token = want[at], ids[at + 1]
        worst = max(worst, abs(row[token] - logprob), *(abs(row[i] - v) for i, v in likely.items()))
        least, most = (row > row[token] + FLOAT_BOUND).sum(), (row > row[token] - FLOAT_BOUND).sum()
        assert least < rank <= most + 1, f"token {at + 1} has rank {rank}, not {least + 1}"
        assert len(likely) == 5 and min(likely.values()) >= np.sort(row)[-5] - FLOAT_BOUND
    assert worst < FLOAT_BOUND, f"off by {worst:.2e}"
    return f"{len(rows)} tokens, off by {worst:.1e} at most"


def quantised_model(suite):
    path = suite.smollm2()
    with suite.cluster(model=path, standalone=True) as cluster:
        rows, answer = scored(cluster.port, TEXT)
    ids = answer["choices"][0]["prompt_token_ids"]
    model = Model(read_file(path), "bf16")
    ways = []
    for rounded in (True, False):
        logits = model.logits(model.forward([np.array(ids)], rounded)[0][:-1], rounded)
        ways.append(log_softmax(logits)[np.arange(len(rows)), ids[1:]])
    have = np.array([row[0] for row in rows])
    noise, off = np.abs(ways[0] - ways[1]).mean(), np.abs(ways[0] - have).mean()
    perplexities = [math.exp(-x.mean()) for x in (have, *ways)]
    assert off < 2 * noise, f"off by {off:.4f}, roundings cost {noise:.4f}"
    assert abs((have - ways[1]).mean()) < 0.02, perplexities
    return "perplexity {:.3f}, NumPy {:.3f} rounded and {:.3f} exact; off by {:.4f}, noise {:.4f}".format(
        *perplexities, off, noise)


SHAPES = [
    ("chunk 7", dict(standalone=True, flags=["--prefill-chunk-size", 7])),
    ("chunk 64, 2 threads", dict(standalone=True, threads=2, flags=["--prefill-chunk-size", 64])),
    ("two ranks", dict(standalone=True, flags=["--tensor-parallel-size", 2])),
    ("1P+1D shm", dict(prefill=1, decode=1, transport="shm")),
    ("2P+2D zero-copy, chunk 16", dict(prefill=2, decode=2, flags=["--prefill-chunk-size", 16], **WAYS["zero-copy"])),
    ("a pool that is too small", dict(standalone=True, flags=["--kv-blocks", 16, "--prefill-chunk-size", 16])),
]
FULL_SHAPES = [
    ("chunk 1", dict(standalone=True, flags=["--prefill-chunk-size", 1])),
    ("plain kernels", dict(standalone=True, flags=["--cpu-isa", "plain"])),
    ("no cache", dict(standalone=True, flags=["--prefix-cache", "off"])),
    ("1P+1D tcp", dict(prefill=1, decode=1, transport="tcp")),
    ("2P+2D tcp, chunk 7", dict(prefill=2, decode=2, transport="tcp", flags=["--prefill-chunk-size", 7])),
]


def told(port, body):
    choices = post(port, "/v1/completions", body)["choices"]
    return [(c["text"], c["logprobs"], c.get("prompt_logprobs"), c.get("token_ids")) for c in choices]


def identity(suite):
    """Prompts that begin alike, so that a cache has something to offer, all at once, between answers of other requests."""
    rng = suite.random
    common = [rng.randrange(2000) for _ in range(64)]
    bodies = []
    for index in range(12):
        prompt = common[:rng.choice((0, 16, 40, 64))] + [rng.randrange(2000) for _ in range(rng.randrange(2, 100))]
        body = {"prompt": prompt, "max_tokens": rng.randrange(1, 40), "ignore_eos": True, "temperature": 0,
                "return_token_ids": True}
        body.update(({"prompt_logprobs": 3}, {"echo": True, "logprobs": 4}, {"echo": True, "logprobs": 1, "n": 2},
                     {"echo": True, "logprobs": 2, "prompt": [prompt, common], "temperature": 1, "seed": 5,
                      "presence_penalty": 0.5}, {})[index % 5])
        if index % 5 == 1 and index > 5:
            body["max_tokens"] = 0
        bodies.append(body)
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny(suite, folder)
        with suite.cluster(model=path, standalone=True) as cluster:
            alone = [told(cluster.port, body) for body in bodies]
        preempted = 0
        for name, shape in SHAPES + (FULL_SHAPES if suite.options.full else []):
            if device() != "cpu" and name in ("two ranks", "plain kernels"):
                continue
            with suite.cluster(model=path, **shape) as cluster:
                for _ in range(2):  # the second time with what the first has left in the caches
                    together = run_all([lambda b=b: told(cluster.port, b) for b in bodies])
                    for body, want, have in zip(bodies, alone, together):
                        assert have == want, f"{name}: {json.dumps(body)[:200]}: {str(have)[:300]}"
                text = get(cluster.port, "/metrics")[1].decode()
                preempted += sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                                 if line.startswith("forge:num_preemptions_total"))
                cluster.wait_at_rest()
    return f"{preempted:g} preemptions"


def of_given_and_chosen(suite):
    """A token's logprob is the same whether it was chosen there or given."""
    with suite.cluster(model=suite.smollm2(), standalone=True) as cluster:
        for more in ({"temperature": 0}, {"temperature": 1, "seed": 3, "repetition_penalty": 1.3}):
            made = post(cluster.port, "/v1/completions", {"prompt": "The little dog", "max_tokens": 24, "logprobs": 5,
                                                          "return_token_ids": True, "ignore_eos": True, **more})
            first, made = made["choices"][0]["logprobs"], made["choices"][0]
            _, answer = scored(cluster.port, "The little dog")
            ids = answer["choices"][0]["prompt_token_ids"] + made["token_ids"]
            again = post(cluster.port, "/v1/completions",
                         {"prompt": ids, "echo": True, "logprobs": 5, "max_tokens": 0})["choices"][0]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                have = again["logprobs"][name][-24:]
                shift = len("The little dog") if name == "text_offset" else 0
                want = [v + shift for v in first[name]] if shift else first[name]
                assert have == want, f"{name}: {have[:3]} {want[:3]}"
            assert again["text"] == "The little dog" + made["text"] and again["finish_reason"] == "length"


def killed_half_way(suite):
    """The worker that computes a prompt dies when a part of it has been told; another one goes on. Nobody sees it."""
    body = {"prompt": (TEXT * 8)[:2400], "echo": True, "logprobs": 2, "max_tokens": 4, "temperature": 0}
    flags = ["--prefill-chunk-size", 16]
    with suite.cluster(model=suite.smollm2(), prefill=2, decode=1, flags=flags) as cluster:
        want = told(cluster.port, body)
        started = time.monotonic()
        told(cluster.port, body)
        took = time.monotonic() - started

        def prefilling():
            for request in cluster.state()["requests"]:
                if request["state"] == "prefilling":
                    return request["prefill"]
            return None

        def kill(share):
            name = wait_for("the request to be computed", prefilling)
            deadline = time.monotonic() + took * share
            wait_for("a part of it to be told", lambda: time.monotonic() > deadline)
            if prefilling() == name:
                cluster.kill(name)

        for share in (1 / 3, 1 / 5, 1 / 10, 0):  # again where it was computed too quickly
            results = run_all([lambda: told(cluster.port, body), lambda s=share: kill(s)])
            assert results[1] is None, results[1]
            assert results[0] == want, str(results[0])[:300]
            if cluster.killed:
                break
        state = cluster.wait_at_rest(workers=2)
        attempts = max(r["attempts"] for r in state["recent"])
        assert attempts >= 2, f"{attempts} attempts"  # one more where the decode worker noticed first
    return f"{len(want[0][1]['tokens'])} tokens, {took:.1f} s, {attempts} attempts"


def check_offsets(choice):
    """Each token's text stands where its offset says; a piece of a character where that character does."""
    logprobs, text = choice.logprobs, choice.text
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        if not token.startswith("bytes:"):
            assert text[offset:offset + len(token)] == token, f"{token!r} at {offset} of {text!r}"


def openai_client(suite):
    text = "Caf\u00e9 \U0001F600 x"
    with suite.cluster(model=suite.smollm2(), standalone=True) as cluster:
        client = openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0)
        name = served_model(cluster)
        only = client.completions.create(model=name, prompt=text, echo=True, logprobs=1, max_tokens=0)
        choice = only.choices[0]
        assert choice.text == text and choice.finish_reason == "length" and only.usage.completion_tokens == 0
        assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
        assert all(v <= 0 for v in choice.logprobs.token_logprobs[1:])
        check_offsets(choice)
        # Several prompts, of ids and of text, and a stream of them: the same as one by one.
        alone = [client.completions.create(model=name, prompt=p, echo=True, logprobs=2, max_tokens=3, temperature=0,
                                           stop=["Caf"]).choices[0] for p in (text, [504, 3575, 282])]
        both = client.completions.create(model=name, prompt=[text, [504, 3575, 282]], echo=True, logprobs=2,
                                         max_tokens=3, temperature=0, n=2, stop=["Caf"])
        assert [c.index for c in both.choices] == [0, 1, 2, 3]
        joined = [{"text": "", "tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
                  for _ in range(2)]
        for chunk in client.completions.create(model=name, prompt=[text, [504, 3575, 282]], echo=True, logprobs=2,
                                               max_tokens=3, temperature=0, stream=True, stop=["Caf"]):
            for part in chunk.choices:
                joined[part.index]["text"] += part.text
                for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                    joined[part.index][key] += getattr(part.logprobs, key) if part.logprobs else []
        for index in range(2):
            check_offsets(alone[index])
            for other in both.choices[2 * index:2 * index + 2]:
                assert other.text == alone[index].text and other.logprobs == alone[index].logprobs
            assert joined[index]["text"] == alone[index].text
            for key in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
                assert joined[index][key] == getattr(alone[index].logprobs, key), key
        plain = client.completions.create(model=name, prompt=text, echo=True, max_tokens=2, temperature=0).choices[0]
        assert plain.text.startswith(text) and plain.logprobs is None
        chat = client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}], max_tokens=1,
                                              extra_body={"prompt_logprobs": 1})
        assert len(chat.model_extra["prompt_logprobs"]) == chat.usage.prompt_tokens
        assert chat.usage.prompt_tokens_details.cached_tokens == 0
        for body, param in (({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"), ({"max_tokens": 0}, "max_tokens"),
                            ({"prompt_logprobs": 1, "prefix_cache": "force"}, "prefix_cache")):
            try:
                post(cluster.port, "/v1/completions", {"prompt": "x", **body})
            except Failed as why:
                assert why.status == 400 and why.error["param"] == param, why
            else:
                raise AssertionError(f"{body} was taken")
        # Whoever hangs up in the middle of a prompt hurts nobody.
        for _ in range(3):
            stream = Stream(cluster.port, "/v1/completions", {"prompt": TEXT * 3, "echo": True, "logprobs": 3})
            stream.hang_up()
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    suite.case("a float model, against NumPy", float_model, suite)
    if suite.options.full:
        suite.case("SmolLM2, against NumPy", quantised_model, suite)
    suite.case("the same bits whoever computes them", identity, suite)
    suite.case("given and chosen tokens", of_given_and_chosen, suite)
    suite.case("a prefill worker killed half-way", killed_half_way, suite)
    suite.case("the openai package", openai_client, suite)
    suite.end()


if __name__ == "__main__":
    main()
