#!/usr/bin/env python3
"""One request, one answer: 50 mixed requests give the same token ids and the same logits, bit for
bit, alone and in a full batch, whatever the chunk size, the thread count, the shape of the cluster
and the KV transport."""
import pathlib
import subprocess
import tempfile

from _forge import (Suite, answer_of, assert_same, find_tool, run_all, served_model, story_requests,
                    WAYS)

# name, flags and shape; every one runs all requests at once and is compared with "alone"
SHAPES = [
    ("batch", dict(standalone=True)),
    ("chunk 1", dict(standalone=True, flags=["--prefill-chunk-size", 1])),
    ("chunk 7", dict(standalone=True, flags=["--prefill-chunk-size", 7])),
    ("chunk 64", dict(standalone=True, flags=["--prefill-chunk-size", 64])),
    ("chunk 512", dict(standalone=True, flags=["--prefill-chunk-size", 512])),
    ("2 threads", dict(standalone=True, threads=2)),
    ("2 threads, chunk 7", dict(standalone=True, threads=2, flags=["--prefill-chunk-size", 7])),
    ("1P+1D shm", dict(prefill=1, decode=1, transport="shm")),
    ("1P+1D tcp", dict(prefill=1, decode=1, transport="tcp")),
    ("2P+2D shm", dict(prefill=2, decode=2, transport="shm")),
    ("2P+2D tcp", dict(prefill=2, decode=2, transport="tcp")),
    ("2P+2D shm, chunk 7", dict(prefill=2, decode=2, transport="shm",
                                flags=["--prefill-chunk-size", 7])),
    ("2P+2D zero-copy", dict(prefill=2, decode=2, **WAYS["zero-copy"])),
    ("2P+2D zero-copy, chunk 7, 2 threads", dict(prefill=2, decode=2, threads=2,
                                                 flags=["--prefill-chunk-size", 7],
                                                 **WAYS["zero-copy"])),
    ("2P+2D tcp, 2 threads", dict(prefill=2, decode=2, transport="tcp", threads=2)),
]
# SmolLM2 is a thousand times the work: the shapes that exercise quantised kernels and real blocks.
REAL_SHAPES = ["batch", "chunk 7", "2 threads", "1P+1D shm", "2P+2D zero-copy", "2P+2D tcp"]


# Architectures beside llama, stretched positions, windows: random models of a few layers. Plain kernels here and the best
# ones there show that biases, norms of heads, turns and scales have the same bits everywhere; ranks cut rows out of tensors that
# hold several matrices.
RANDOM = ["qwen2.5-0.5b", "qwen3-0.6b", "tiny-longrope", "tiny-phi4", "tiny-granite", "tiny-yarn", "tiny-gemma3",
          "tiny-smollm3", "tiny-moe", "tiny-mixtral", "tiny-granitemoe", "tiny-qwen2moe"]
RANDOM_SHAPES = [s for s in SHAPES if s[0] in ("batch", "chunk 7", "2 threads", "2P+2D tcp")] + [
    ("1P+1D shm, prefill with plain kernels",
     dict(prefill=1, decode=1, transport="shm", role_flags={"prefill": ["--cpu-isa", "plain"]})),
    ("two ranks", dict(standalone=True, flags=["--tensor-parallel-size", 2]))]


def random_model(suite, folder, shape):
    path = pathlib.Path(folder) / f"{shape}.gguf"
    if not path.exists():
        layers = [] if shape.startswith("tiny") else ["--layers", "2"]
        subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, *layers, "--vocab", "2000"], check=True)
    return str(path)


def alone(suite, model, requests):
    with suite.cluster(model=model, standalone=True) as cluster:
        name = served_model(cluster)
        for request in requests:
            request["model"] = name
        return [answer_of(cluster.port, request, logprobs=True) for request in requests]


def in_shape(suite, model, requests, want, shape):
    with suite.cluster(model=model, **shape) as cluster:
        have = run_all([lambda r=r: answer_of(cluster.port, r, logprobs=True) for r in requests])
        assert_same(requests, want, have, "differ from those given alone")
        cluster.wait_at_rest()


def family(suite, label, model, requests, shapes):
    want = []
    suite.case(f"{label}: alone, one after the other",
               lambda: want.extend(alone(suite, model(), requests)))
    for name, shape in shapes:
        if want:
            suite.case(f"{label}: {name}", in_shape, suite, model(), requests, want, shape)


def real_requests(rng):
    prompts = ["Why is the sky blue?", "The capital of France is", "def fibonacci(n):",
               "Water boils at", "My favourite season is autumn because " * 12,
               "List three colours: red,"]
    requests = [{"model": "any", "prompt": prompt, "max_tokens": 20, "temperature": 0}
                for prompt in prompts]
    for request in requests[1::2]:
        request.update(temperature=0.9, top_p=0.95, seed=rng.randrange(1 << 31))
    for request in requests[2:4]:
        request.update(presence_penalty=0.5, repetition_penalty=1.2, logprobs=3, min_tokens=15)
    requests[4].update(structured_outputs={"regex": "([A-Za-z]+,? ){4,8}[a-z]+[.]"})
    requests[5].update(response_format={"type": "json_object"})
    return requests


def random_requests(rng):
    """Ids: words of a made-up vocabulary would be letters. One prompt is longer than several blocks."""
    requests = [{"model": "any", "prompt": [rng.randrange(300, 1700) for _ in range(count)],
                 "max_tokens": 20, "ignore_eos": True, "temperature": 0}
                for count in (1, 16, 17, 40, 80)]
    for request in requests[1::2]:
        request.update(temperature=0.9, top_p=0.95, seed=rng.randrange(1 << 31))
    return requests


def main():
    suite = Suite(__doc__, requests=(50, "how many story requests"))
    family(suite, "stories260K", suite.stories,
           story_requests(suite.random, suite.options.requests), SHAPES)
    shapes = [s for s in SHAPES if s[0] in REAL_SHAPES]
    family(suite, "SmolLM2", suite.smollm2, real_requests(suite.random),
           shapes if suite.options.full else shapes[-1:])
    with tempfile.TemporaryDirectory(prefix="forge-identity-") as folder:
        for shape in RANDOM:
            family(suite, shape, lambda s=shape: random_model(suite, folder, s),
                   random_requests(suite.random), RANDOM_SHAPES)
    suite.end()


if __name__ == "__main__":
    main()
