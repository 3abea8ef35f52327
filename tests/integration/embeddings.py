#!/usr/bin/env python3
"""/v1/embeddings: are the vectors those of the model, the same bits however they are computed, and in the shapes that
clients know?

Against an independent forward pass in NumPy and against llama.cpp (PyPI package xllamacpp). With float weights and a
float KV cache only the order of float additions differs from NumPy's: 5e-7 was seen, of vectors of length 1 whose
numbers are some hundredths. llama.cpp keeps keys and values as f16: a cosine was less than 2e-6 below 1, and 7e-4 with
SmolLM2's quantised weights, where both round activations to 8 bits, each in its own way. A text without its last token
is 0.1 to 0.3 away.
"""
# needs: openai numpy gguf xllamacpp
# needs-model
import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np
import openai
from _forge import (ROOT, Failed, Skip, Stream, Suite, counters, device, find_tool, post, run_all, served_model,
                    wait_for)
from _numpy_model import Model, read_file
from prompt_logprobs import FULL_SHAPES, SHAPES

sys.path.insert(0, str(ROOT / "tests/support"))
import layers_gguf  # noqa: E402  pylint: disable=wrong-import-position,import-error

FLOAT_BOUND, DEVICE_BOUND = 2e-6, 1e-2  # devices round all to bf16
FLOAT_COSINE, QUANTISED_COSINE = 0.9999, 0.99
VOCABULARY, WIDTH, CONTEXT = 2000, 256, 256  # of the tiny models
TEXTS = ["hello", "The capital of France is Paris.", "x", " two  spaces ", "def add(a, b):\n    return a + b\n",
         "Caf\u00e9 \U0001F600: \u6c34 is water in Japanese.", "a<|im_end|>b",
         "Once upon a time there was a little dog who liked to run in the park with his friends. "]
LONG = " ".join(TEXTS)
WITH_EOS = "tokenizer.ggml.add_eos_token", 7, b"\1"


def tiny(suite, shape="tiny-linear"):
    """A file with random weights; made by the first who asks for it."""
    path = f"{suite.folder}/{shape}.gguf"
    if not os.path.exists(path):
        subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, "--type", "f32"], check=True)
    return path


def with_key(source, name, code, value):
    """The same file with one key more: of GGUF's number for its type, and its bytes."""
    version, meta, tensors, alignment = layers_gguf.read(source)
    path = f"{source}-{name}-{value.hex()}.gguf"
    layers_gguf.write(path, version, meta + [(name.encode(), struct.pack("<I", code) + value)], tensors, alignment)
    return path


def embed(port, given, encoding="base64", **more):
    """What stands in the answer for each text, and its usage."""
    answer = post(port, "/v1/embeddings", {"input": given, "encoding_format": encoding, **more})
    data, usage = answer["data"], answer["usage"]
    assert answer["object"] == "list" and answer["id"].startswith("embd-") and answer["created"] > 0, answer
    assert [(d["object"], d["index"]) for d in data] == [("embedding", i) for i in range(len(data))]
    assert usage["total_tokens"] == usage["prompt_tokens"], usage
    return [d["embedding"] for d in data], usage


def numbers(text):
    return np.frombuffer(base64.b64decode(text, validate=True), "<f4")


def unit(vector):
    vector = vector.astype(np.float64)
    return vector / np.linalg.norm(vector)


def ids_of(port, text):
    """As /v1/completions sees it."""
    body = {"prompt": text, "max_tokens": 1, "prompt_logprobs": 0, "return_token_ids": True}
    return post(port, "/v1/completions", body)["choices"][0]["prompt_token_ids"]


def refused(port, body, param, code=None, status=400):
    try:
        post(port, "/v1/embeddings", body)
    except Failed as why:
        assert (why.status, why.error["param"], code or why.error["code"]) == (status, param, why.error["code"]), \
            f"{str(body)[:80]}: {why}"
    else:
        raise AssertionError(f"{str(body)[:80]} was taken")


def float_model(suite):
    flags, bound = (["--kv-dtype", "f32"], FLOAT_BOUND) if device() == "cpu" else ([], DEVICE_BOUND)
    rng = np.random.default_rng(suite.options.seed)
    lists = [rng.integers(0, VOCABULARY, count).tolist() for count in (1, 2, 3, 15, 16, 17, 31, 64, 65, 100, 199, 200)]
    path = tiny(suite)
    with suite.cluster(model=path, standalone=True, flags=flags) as cluster:
        have, usage = embed(cluster.port, lists)
        as_text, _ = embed(cluster.port, lists, "float")
        short = {count: embed(cluster.port, lists, dimensions=count)[0] for count in (1, 2, 7, 255, 256)}
    model = Model(read_file(path), "f32")
    assert usage["prompt_tokens"] == sum(map(len, lists)), usage
    states = model.forward([np.array(ids) for ids in lists], False)
    want = [model.norm(state[-1:], "output_norm.weight")[0] for state in states]
    worst = 0.0
    for index, state in enumerate(want):
        vector = numbers(have[index])
        assert len(vector) == WIDTH and short[WIDTH][index] == have[index]
        assert np.array(as_text[index]).astype(np.float32).tobytes() == vector.tobytes(), "base64 says something else"
        for count, vectors in short.items():
            # A part of a vector is made longer, and with it what it is off by.
            off = np.abs(numbers(vectors[index]) - unit(state[:count])) * np.linalg.norm(unit(state)[:count])
            assert len(off) == count and off.max() < bound, \
                f"{len(lists[index])} tokens, {count} numbers: off by {off.max():.2e}"
            worst = max(worst, off.max())
    return f"{len(lists)} lists of ids, off by {worst:.1e} at most"


class Llama:
    """llama.cpp's server inside this process."""

    def __init__(self, path):
        import xllamacpp  # pylint: disable=import-outside-toplevel
        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx, params.n_parallel, params.port, params.verbosity = CONTEXT, 1, 0, 0
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(params)

    def embed(self, given):
        request = urllib.request.Request(self.server.listening_address + "/v1/embeddings",
                                         json.dumps({"input": given}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            parsed = json.load(answer)
        return np.array(parsed["data"][0]["embedding"]), parsed["usage"]["prompt_tokens"]


def agree(suite, path, texts, bound):
    """How far the least cosine is below 1. The numbers of tokens agree too."""
    llama, least = Llama(path), 1.0
    with suite.cluster(model=path, standalone=True) as cluster:
        for text in texts:
            (have,), usage = embed(cluster.port, text)
            want, tokens = llama.embed(text)
            assert usage["prompt_tokens"] == tokens, f"{text!r}: {usage}, llama.cpp has {tokens}"
            cosine = float(unit(numbers(have)) @ unit(want))
            assert cosine > bound, f"{text!r}: the cosine is {cosine:.6f}"
            least = min(least, cosine)
    return f"{1 - least:.1e}"


def llamacpp(suite):
    if device() != "cpu":
        raise Skip("devices round all to bf16")
    notes = {shape: agree(suite, tiny(suite, shape), TEXTS + [LONG, [5, 6, 7]], FLOAT_COSINE)
             for shape in ("tiny-linear", "tiny-gemma3", "tiny-granite")}
    notes["with EOS"] = agree(suite, with_key(tiny(suite), *WITH_EOS), TEXTS, FLOAT_COSINE)
    notes["SmolLM2"] = agree(suite, suite.smollm2(), TEXTS + [LONG], QUANTISED_COSINE)
    return "below a cosine of 1: " + ", ".join(f"{name} {off}" for name, off in notes.items())


def what_files_say(suite):
    """EOS where the file wants it, behind texts and not behind ids; and what kinds of embeddings are not given."""
    path = tiny(suite)
    eos = read_file(path)[0]["tokenizer.ggml.eos_token_id"].contents()
    with suite.cluster(model=path, standalone=True) as cluster:
        plain = [embed(cluster.port, text) for text in TEXTS]
        ids = [ids_of(cluster.port, text) for text in TEXTS]
        assert embed(cluster.port, ids)[0] == [vectors[0] for vectors, _ in plain]
        ended = embed(cluster.port, [i + [eos] for i in ids])[0]
    flagged = with_key(path, *WITH_EOS)
    with suite.cluster(model=flagged, standalone=True) as cluster:
        assert [ids_of(cluster.port, text) for text in TEXTS] == ids, "completions end with EOS"
        assert embed(cluster.port, ids)[0] == [vectors[0] for vectors, _ in plain], "lists of ids get something"
        assert embed(cluster.port, TEXTS)[0] == ended, "texts do not end with EOS"
        for text, (_, usage) in zip(TEXTS, plain):
            assert embed(cluster.port, text)[1]["prompt_tokens"] == usage["prompt_tokens"] + 1
        # The longest text, with BOS and EOS; each digit is a token.
        longest = "1" * (CONTEXT - 3)
        assert embed(cluster.port, longest)[1]["prompt_tokens"] == CONTEXT - 1
        refused(cluster.port, {"input": ["x", longest + "1"]}, "input", "context_length_exceeded")
    for pooling in (0, 1, 2, 3, 4, 9):
        marked = with_key(path, "llama.pooling_type", 4, struct.pack("<I", pooling))
        with suite.cluster(model=marked, standalone=True) as cluster:
            if pooling in (0, 3):
                assert embed(cluster.port, TEXTS)[0] == [vectors[0] for vectors, _ in plain]
            else:
                refused(cluster.port, {"input": "x"}, "model", "unsupported_model")
                ids_of(cluster.port, "x")


def identity(suite):
    """Texts that begin alike, each alone and all in one list, at once and between answers that begin alike too."""
    rng = suite.random
    common = [rng.randrange(VOCABULARY) for _ in range(64)]
    given = [common[:rng.choice((0, 16, 40, 64))] + [rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 100))]
             for _ in range(8)]
    given += [common, common[:48] + [7], "hello hello ", "hello hello hello"]
    bodies = [{"prompt": rng.choice(given), "max_tokens": rng.randrange(30, 90), "ignore_eos": True, "temperature": 0,
               "return_token_ids": True, "logprobs": 1} for _ in range(6)]

    def completed(port, body):
        return [(c["token_ids"], c["logprobs"]) for c in post(port, "/v1/completions", body)["choices"]]

    path = tiny(suite)
    with suite.cluster(model=path, standalone=True) as cluster:
        alone = [embed(cluster.port, [text])[0][0] for text in given]
        short = embed(cluster.port, given, dimensions=9)[0]
        answers = [completed(cluster.port, body) for body in bodies]
    assert len(set(alone)) == len(given)
    preempted = 0
    for name, shape in SHAPES + (FULL_SHAPES if suite.options.full else []):
        if device() != "cpu" and name in ("two ranks", "plain kernels"):
            continue
        with suite.cluster(model=path, **shape) as cluster:
            port = cluster.port
            work = [(lambda: embed(port, given)[0], alone), (lambda: embed(port, given[::-1])[0], alone[::-1]),
                    (lambda: embed(port, given, dimensions=9)[0], short),
                    (lambda: embed(port, given * 6)[0], alone * 6)]
            work += [(lambda t=text: embed(port, t)[0], [vector]) for text, vector in zip(given, alone)]
            work += [(lambda b=body: completed(port, b), answer) for body, answer in zip(bodies, answers)]
            rng.shuffle(work)
            for _ in range(2):  # the second time with what the first has left in the caches
                for (_, want), have in zip(work, run_all([job for job, _ in work])):
                    assert have == want, f"{name}: {str(have)[:300]} is not {str(want)[:300]}"
            preempted += sum(v for k, v in counters(port).items() if k.startswith("num_preemptions_total"))
            cluster.wait_at_rest()
    return f"{preempted:g} preemptions"


def caches(suite):
    """What was embedded is cached for everybody, and found."""
    ids = [suite.random.randrange(VOCABULARY) for _ in range(70)]
    with suite.cluster(model=tiny(suite), standalone=True) as cluster:
        def cached(**more):
            (vector,), usage = embed(cluster.port, ids, **more)
            return vector, usage["prompt_tokens_details"]["cached_tokens"]

        first, found = cached(prefix_cache="disable")
        assert found == 0
        for more, want in (({}, 0), ({}, 64), ({"prefix_cache": "force"}, 64), ({"prefix_cache": "disable"}, 0),
                           ({"cache_salt": "a"}, 0), ({"cache_salt": "a", "priority": "low", "user": "u"}, 64)):
            assert cached(**more) == (first, want), f"{more}: {cached(**more)[1]} tokens were cached"
        usage = post(cluster.port, "/v1/completions", {"prompt": ids, "max_tokens": 2})["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 64, usage
        _, usage = embed(cluster.port, [ids, ids[:40], ids[:9]])
        assert usage["prompt_tokens_details"]["cached_tokens"] == 64 + 32 and usage["prompt_tokens"] == 119, usage
        refused(cluster.port, {"input": ids[::-1], "prefix_cache": "force"}, "prefix_cache", "prefix_cache_miss", 409)


def prefilling(cluster):
    """The worker that computes a text now."""
    return next((r["prefill"] for r in cluster.state()["requests"] if r["state"] == "prefilling"), None)


def killed_half_way(suite):
    """The worker that computes a long text dies when a part of it has been computed; another one does it."""
    salts = iter(range(100))  # nothing is found in a cache
    with suite.cluster(model=suite.smollm2(), prefill=2, decode=1, flags=["--prefill-chunk-size", 16]) as cluster:
        def ask():
            return embed(cluster.port, LONG * 4, cache_salt=str(next(salts)))

        started = time.monotonic()
        want = ask()
        took = time.monotonic() - started

        def kill(share):
            name = wait_for("the text to be computed", lambda: prefilling(cluster))
            deadline = time.monotonic() + took * share
            wait_for("a part of it to be computed", lambda: time.monotonic() > deadline)
            if prefilling(cluster) == name:
                cluster.kill(name)

        for share in (1 / 3, 1 / 5, 1 / 10, 0):  # again where it was computed too quickly
            assert run_all([ask, lambda s=share: kill(s)]) == [want, None]
            if cluster.killed:
                break
        attempts = max(r["attempts"] for r in cluster.wait_at_rest(workers=2)["recent"])
        assert attempts >= 2, f"{attempts} attempts"
    return f"{want[1]['prompt_tokens']} tokens, {took:.1f} s, {attempts} attempts"


def killed_in_a_list(suite):
    """A worker dies in the middle of a list. Nobody sees it, and no text is left out."""
    lists = [[suite.random.randrange(VOCABULARY) for _ in range(60)] for _ in range(200)]
    path = tiny(suite)
    with suite.cluster(model=path, standalone=True) as cluster:
        want = embed(cluster.port, lists)
    with suite.cluster(model=path, prefill=2, decode=1, flags=["--prefill-chunk-size", 16]) as cluster:
        def busy():
            done = counters(cluster.port).get("request_prefill_time_seconds_count", 0)
            return done >= 40 and prefilling(cluster)

        have, _ = run_all([lambda: embed(cluster.port, lists),
                           lambda: cluster.kill(wait_for("some texts to be done", busy))])
        assert cluster.killed and have == want, str(have)[:300]
        retried = cluster.wait_at_rest(workers=2)["counters"]["retried"]
        assert retried >= 1, f"{retried} texts were begun again"
    return f"{retried} of {len(lists)} texts were begun again"


REFUSED = [({}, "input"), *(({"input": given}, "input") for given in (
    None, "", [], [[]], 5, {"text": "x"}, ["x", 5], [5, "x"], [[5], 5], [["x"]], ["x", None], ["x", ""], ["x", []],
    [1.5], [True], [-1], [VOCABULARY], [[1], [VOCABULARY]], ["x"] * 2049, [1] * CONTEXT, ["x", "hello " * CONTEXT]))]
REFUSED += [({"input": "x", name: value}, name) for name, value in (
    ("encoding_format", "int8"), ("encoding_format", 1), ("dimensions", 0), ("dimensions", WIDTH + 1),
    ("dimensions", "9"), ("dimensions", 9.5), ("normalize", False), ("user", 1))]


def openai_client(suite):
    """Of a server that takes far fewer requests at a time than a list has texts."""
    with suite.cluster(model=tiny(suite), standalone=True, flags=["--queue-limit", 5, "--max-seqs", 4]) as cluster:
        client = openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0)
        name, port = served_model(cluster), cluster.port
        for given in ("hello", TEXTS, ids_of(port, "hello"), [[1, 2, 3], [4]]):
            want, usage = embed(port, given)
            for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):  # the client asks for base64
                answer = client.embeddings.create(model=name, input=given, **more)
                have = [d.embedding for d in answer.data]
                if more.get("encoding_format") != "base64":
                    have = [base64.b64encode(np.array(v, "<f4").tobytes()).decode() for v in have]
                assert have == want, f"{given!r}, {more}"
                assert answer.model == name and answer.object == "list" and answer.data[-1].index == len(want) - 1
                assert answer.usage.prompt_tokens == answer.usage.total_tokens == usage["prompt_tokens"]
        assert embed(port, "hello") == embed(port, ids_of(port, "hello")), "a text is not its ids"
        answer = client.embeddings.create(model=name, input=TEXTS, dimensions=10)
        assert [len(d.embedding) for d in answer.data] == [10] * len(TEXTS)
        many = [f"text number {i}" for i in range(300)]
        answer = client.embeddings.create(model=name, input=many)
        assert [d.index for d in answer.data] == list(range(300))
        assert answer.usage.prompt_tokens == sum(len(ids_of(port, text)) for text in many)
        for index in suite.random.sample(range(300), 20):
            alone = client.embeddings.create(model=name, input=many[index]).data[0].embedding
            assert answer.data[index].embedding == alone, f"text {index}"
        for body, param in REFUSED:
            refused(port, body, param)
        refused(port, {"input": "x", "model": "another"}, "model", "model_not_found", 404)
        # Whoever hangs up in the middle of a list hurts nobody.
        lists = [[suite.random.randrange(VOCABULARY) for _ in range(200)] for _ in range(1000)]
        for _ in range(3):
            stream = Stream(port, "/v1/embeddings", {"input": lists})
            wait_for("the list to be begun", lambda: cluster.state()["requests"])
            stream.hang_up()
            cluster.wait_at_rest()
        assert embed(port, TEXTS)[0] == embed(port, TEXTS, prefix_cache="disable")[0]


def batch(suite):
    """Lines of embeddings between others: each the same as alone."""
    bodies = [("embeddings", {"input": TEXTS}), ("embeddings", {"input": LONG, "encoding_format": "base64"}),
              ("completions", {"prompt": LONG, "max_tokens": 9, "temperature": 0}),
              ("embeddings", {"input": [[1, 2, 3]] * 99, "dimensions": 8}),
              ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "seed": 1})]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/" + url, "body": body}
             for i, (url, body) in enumerate(bodies)]
    with suite.cluster(model=tiny(suite), standalone=True) as cluster:
        answers = post(cluster.port, "/forge/v1/batch", {"requests": lines})["data"]
        have = {answer["custom_id"]: answer["response"] for answer in answers}
        assert len(answers) == len(have) == len(lines)
        for line in lines:
            status, body = have[line["custom_id"]]["status_code"], have[line["custom_id"]]["body"]
            want = post(cluster.port, line["url"], line["body"])
            for answer in (body, want):  # how much was cached depends on what ran before
                del answer["id"], answer["created"], answer["usage"]["prompt_tokens_details"]
            assert status == 200 and body == want, f"{line['body']}: {str(body)[:300]}"


def main():
    suite = Suite(__doc__)
    with tempfile.TemporaryDirectory() as suite.folder:
        suite.case("a float model, against NumPy", float_model, suite)
        suite.case("llama.cpp says the same", llamacpp, suite)
        suite.case("what files say of embeddings", what_files_say, suite)
        suite.case("the same bits whoever computes them", identity, suite)
        suite.case("what was embedded is cached", caches, suite)
        suite.case("a worker killed half-way", killed_half_way, suite)
        suite.case("a worker killed in the middle of a list", killed_in_a_list, suite)
        suite.case("the openai package", openai_client, suite)
        suite.case("a batch", batch, suite)
    suite.end()


if __name__ == "__main__":
    main()
