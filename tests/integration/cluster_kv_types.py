#!/usr/bin/env python3
"""One request, one answer for every --kv-dtype: what a standalone server answers, a prefill worker and a
decode worker answer over a real hand-over, bit for bit, also where their instruction sets differ; and a
worker with another type than those that are here is refused."""
import itertools
import pathlib
import re
import subprocess
import tempfile

from _forge import (Skip, Suite, answer_of, assert_same, counters, find_tool, run_all, served_model,
                    status_port, wait_for, WAYS)
from engine_room_identity import BOS, ids

TYPES = ["f16", "bf16", "int8", "f32"]
BLOCK, CHUNK = 16, 64
FLAGS = ["--prefill-chunk-size", CHUNK, "--local-prefill-tokens", 0]
SAMPLED = {"temperature": 0.9, "top_p": 0.95}

# name, tokens of the prompt, tokens of the answer (more than a block: it goes on in blocks of its own)
PROMPTS = [
    ("short", 5, 20),
    ("a whole number of blocks", 3 * BLOCK, 20),
    ("several blocks and a part", 3 * BLOCK + 9, 20),
    ("longer than a chunk", 3 * CHUNK + BLOCK + 5, 24),
    ("sampled", 2 * BLOCK + 1, 24),
    ("sampled, longer than a chunk", CHUNK + 7, 24),
]
# Who computes with which instruction set, where the standalone server has the best there is. The story
# model's heads are so small that every set uses plain attention, and SmolLM2 is too slow for plain.
SETS = [("two layers", "plain", "auto"), ("two layers", "auto", "plain"),
        ("two layers", "avx2", "auto"), ("two layers", "auto", "avx2"),
        ("SmolLM2", "avx2", "auto"), ("SmolLM2", "auto", "avx2")]


# With biases and with norms of heads between the products and what is stored.
QWENS = {"two layers of qwen2": "qwen2.5-0.5b", "two layers of qwen3": "qwen3-0.6b"}


def two_layers(suite, folder, shape="smollm2-135m"):
    """Random weights with heads as real models have them, and little to compute."""
    path = pathlib.Path(folder) / f"{shape}.gguf"
    if not path.exists():
        subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, "--layers", "2",
                        "--vocab", "2000"], check=True)
    return str(path)


def request_set(rng):
    """The same ids for every model: all know them."""
    return [{"model": "any", "prompt": [BOS] + ids(rng, length - 1), "max_tokens": answer,
             "ignore_eos": True, "temperature": 0,
             **(dict(SAMPLED, seed=rng.randrange(1 << 31)) if name.startswith("sampled") else {})}
            for name, length, answer in PROMPTS]


def named(cluster, requests):
    name = served_model(cluster)
    return [{**request, "model": name} for request in requests]


def alone(suite, model, kv_type, requests):
    flags = [*FLAGS, "--kv-dtype", kv_type]
    with suite.cluster(model=model(), standalone=True, flags=flags) as cluster:
        answers = [answer_of(cluster.port, request) for request in named(cluster, requests)]
        cluster.wait_at_rest()
        return answers


def chosen(process):
    """The instruction set and the KV type that a process says it has chosen."""
    log = pathlib.Path(process.log_path).read_text(encoding="utf-8", errors="replace")
    found = re.search(r"event=chosen isa=(\S+) threads=\d+ kv=(\S+)", log)
    return found and found.groups()


def check_handed_over(cluster, requests, direct):
    """What the router noted: every prompt was computed by prefill, in chunks, and all its blocks moved."""
    lengths = sorted(len(request["prompt"]) for request in requests)
    have = sorted((r["prompt_tokens"], r["prefill"], r["decode"], r["cached_tokens"],
                   r["chunks"] * CHUNK >= r["prompt_tokens"]) for r in cluster.state()["recent"])
    want = [(length, "prefill-0", "decode-0", 0, True) for length in lengths]
    assert have == want, f"{have}, not {want}"
    blocks = sum(length // BLOCK if direct else -(-length // BLOCK) for length in lengths)
    # Not the router's count: no push is reported to it behind the end of a short answer.
    port = status_port(cluster.workers["prefill-0"])
    kind = "direct" if direct else "pushed"
    wait_for(f"{blocks} {kind} blocks",
             lambda: counters(port)[f"kv_link_{kind}_blocks_total"] >= blocks)
    return f"{blocks} {kind} blocks"


def handed_over(suite, model, kv_type, requests, want, **shape):
    flags = [*FLAGS, "--kv-dtype", kv_type, "--status-port", 0]
    with suite.cluster(model=model(), flags=flags, **shape) as cluster:
        choices = [wait_for("its choice", lambda n=name: chosen(cluster.workers[n]))
                   for name in ("prefill-0", "decode-0")]
        assert all(kv == kv_type for _, kv in choices), choices
        have = run_all([lambda r=r: answer_of(cluster.port, r) for r in named(cluster, requests)])
        assert_same(requests, want, have, f"with a cache of {kv_type} differ from those given alone")
        cluster.wait_at_rest(workers=2)
        note = check_handed_over(cluster, requests, "way_flags" in shape)
    return f"{note}, {choices[0][0]} to {choices[1][0]}"


def mixed(suite, model, kv_type, requests, want, prefill, decode):
    """One side has the best instruction set there is, the other a lesser one."""
    flags = {"prefill": ["--cpu-isa", prefill], "decode": ["--cpu-isa", decode]}
    try:
        note = handed_over(suite, model, kv_type, requests, want, role_flags=flags)
    except AssertionError as why:
        if "; use auto" in str(why):
            raise Skip(f"this processor has no {prefill if decode == 'auto' else decode}") from None
        raise
    one, other = note.rsplit(", ", 1)[1].split(" to ")
    if one == other:
        raise Skip(f"both sides have {one}, the best that this processor has")
    return note


def types_differ(requests, want):
    """Otherwise everything above would show nothing: the type arrives and changes logits."""
    for one, other in itertools.combinations(want, 2):
        same = [i for i in range(len(requests))
                if want[one][i]["digests"] == want[other][i]["digests"]]
        assert not same, f"{one} and {other} give the same logits for {PROMPTS[same[0]][0]}"


def strangers(suite):
    """A worker of each other type, at a cluster that goes on."""
    with suite.cluster(model=suite.stories(), flags=[*FLAGS, "--kv-dtype", TYPES[0]]) as cluster:
        request, = named(cluster, request_set(suite.random)[:1])
        want = answer_of(cluster.port, request)
        for kv_type in TYPES[1:]:
            name = f"with-{kv_type}"
            worker = cluster.start_worker("decode", name, ["--kv-dtype", kv_type])
            refusal = wait_for(f"{name} to be refused", lambda n=name: next(
                (r for r in cluster.state()["refused_workers"] if r["name"] == n), None))
            assert "KV layout" in refusal["why"], refusal
            wait_for(f"{name} to say why", lambda w=worker: refusal["why"] in w.log_tail(50))
            members = [w["name"] for w in cluster.state()["workers"]]
            assert sorted(members) == ["decode-0", "prefill-0"], members
        assert answer_of(cluster.port, request) == want
        return f"{len(TYPES) - 1} types: {refusal['why']}"


def family(suite, label, model, requests):
    """Every type alone and over every transport, in short less of it; what each gave alone is returned."""
    want = {}
    everything = suite.options.full or label == "two layers"
    ways = WAYS if everything else ("shm",) if label in QWENS else ("shm", "zero-copy")
    for kv_type in TYPES if everything or label == "stories260K" else ("bf16", "int8"):
        suite.case(f"{label}, {kv_type}: alone",
                   lambda t=kv_type: want.update({t: alone(suite, model, t, requests)}))
        for way in ways if kv_type in want else ():
            suite.case(f"{label}, {kv_type}: by {way}",
                       lambda t=kv_type, by=way: handed_over(suite, model, t, requests, want[t],
                                                             **WAYS[by]))
    if len(want) > 1:
        suite.case(f"{label}: each type has logits of its own", types_differ, requests, want)
    return want


def main():
    suite = Suite(__doc__)
    requests = request_set(suite.random)
    with tempfile.TemporaryDirectory(prefix="forge-types-") as folder:
        models = {"two layers": lambda: two_layers(suite, folder), "stories260K": suite.stories,
                  "SmolLM2": suite.smollm2}
        for label, shape in QWENS.items():
            models[label] = lambda s=shape: two_layers(suite, folder, s)
        want = {label: family(suite, label, model, requests) for label, model in models.items()}
        for label, prefill, decode in SETS:
            if "bf16" in want[label]:
                suite.case(f"{label}, bf16: prefill with {prefill}, decode with {decode}", mixed, suite,
                           models[label], "bf16", requests, want[label]["bf16"], prefill, decode)
    suite.case("another type is refused at join", strangers, suite)
    suite.end()


if __name__ == "__main__":
    main()
