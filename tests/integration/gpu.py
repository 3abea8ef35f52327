#!/usr/bin/env python3
"""Serving from a GPU: one request has one answer, with the same logits bit for bit, alone and in company, however
its prompt is cut, whether its KV blocks were computed, found, swapped out and in, or handed over through the host's
mirror or from device memory to device memory, and whoever dies meanwhile. What a device cannot do is refused when a process starts.

FORGE_TEST_DEVICE names the device, such as cuda:0, and FORGE_CUDA_PLUGIN its plugin where that is not beside the
program. Without FORGE_TEST_DEVICE the back end runs in emulation on the CPU. With FORGE_TEST_KV_MEMORY=on every worker
insists on device memory that UCX reaches: on a real device the cases that need it are run with that alone."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile
from unittest import mock

from _forge import (Skip, Stream, Suite, answer_of, assert_same, counters, device, find_tool, plain_environment, post,
                    run_all, served_model, status_port, wait_for)
from engine_room_identity import BOS, choice_answers, ids, wait_moved

BLOCK = 16
POOL = ["--kv-blocks", 1024]
SMALL, TIER = ["--kv-blocks", 12], ["--kv-host-blocks", 100]
SWAPPED = ["num_preemptions_total", "kv_swapped_blocks_total", "kv_restored_blocks_total"]
GUESSED = ["spec_decode_num_draft_tokens_total"]  # how many are right is the model's affair
ALONE = ["--prefix-cache", "off", "--overlap", "off", "--speculate", "off"]
CLASS = re.compile(r"\bclass=(cuda-sm\d+/g\d+/kv-bf16/tp1)$")
OTHER_CLASS = re.compile(r"numerics class (\S+), the workers that are here have (\S+): answers would differ")
OTHER_MEMORY = re.compile(r"its KV blocks are in (the host's|a device's) memory, those of the workers that are here in (\S+ \S+):")
ON_CPU = ["--device", "cpu", "--kv-dtype", "bf16", "--kv-device-memory", "auto"]
# Two processes that compute together: a device each, which may be the same.
DEVICES = "the device twice"
TWICE = ["--device", DEVICES, "--tensor-parallel-size", "2", "--tp-gather", "host", "--kv-device-memory",
         "off"]
EMULATED = []  # not empty where the device is
P1D1, P2D2 = dict(prefill=1, decode=1), dict(prefill=2, decode=2)


def use_device(suite):
    """FORGE_TEST_DEVICE, or the emulation. What Forge says about it."""
    if device() == "cpu":
        try:
            plugin = find_tool(suite, "forge_cuda_emulated.so")
        except Skip:
            raise Skip("neither FORGE_TEST_DEVICE nor an emulation, which needs a C++ compiler: install g++ and "
                       "build again") from None
        os.environ.update(FORGE_TEST_DEVICE="cuda:0", FORGE_CUDA_PLUGIN=plugin)
    return listed(suite)


# --- starts --------------------------------------------------------------------------------------

def forge(suite, *words, **environment):
    return subprocess.run([suite.options.forge, *map(str, words)], env=plain_environment(**environment),
                          capture_output=True, text=True, timeout=60, check=False)


def listed(suite):
    name = "cuda:0" if device() == "cuda" else device()
    done = forge(suite, "serve", "--list-devices")
    line = next((line for line in done.stdout.splitlines() if line.split()[0] == name), None)
    assert done.returncode == 0 and line and "GiB" in line, f"no {name} among: {done.stdout}{done.stderr}"
    return " ".join(line.split())


def none_listed(suite):
    done = forge(suite, "serve", "--list-devices", FORGE_CUDA_PLUGIN="/nowhere/forge_cuda.so")
    line = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and line.startswith("cuda ") and "/nowhere/forge_cuda.so" in line, done.stdout
    return line


# name, flags, environment, words of the one line
CPU_ALONE = [("tiny-gemma", "gemma"), ("tiny-gemma3", "gemma3 with a window"), ("tiny-smollm3", "smollm3"),
             ("tiny-phi3-window", "phi3 with a window")]
REFUSED = [
    ("a device that is not there", ["--device", "cuda:99"], {}, ["cuda:99", "the last is cuda:"]),
    ("a device of no kind", ["--device", "gpu"], {}, ['"gpu"', "cuda:N"]),
    ("a device without a number", ["--device", "cuda:x"], {}, ['"cuda:x"', "cuda:N"]),
    ("no plugin", [], {"FORGE_CUDA_PLUGIN": "/nowhere/forge_cuda.so"}, ["/nowhere/forge_cuda.so", "--device cpu"]),
    ("a plugin that is none", [], {"FORGE_CUDA_PLUGIN": "/proc/self/exe"}, ["--device cpu"]),
    ("no device", [], {"FORGE_EMULATED_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""}, ["no cuda device", "--device cpu"]),
    ("int8 keys", ["--kv-dtype", "int8"], {}, ["--kv-dtype int8", "bf16"]),
    ("f16 keys", ["--kv-dtype", "f16"], {}, ["--kv-dtype f16", "bf16"]),
    ("small blocks", ["--block-size", 8], {}, ["--block-size 8", "16"]),
    ("two processes, one of them without a device", ["--device", "cuda:98,cuda:99", "--tensor-parallel-size", 2], {},
     ["cuda:9", "the last is cuda:"]),
    ("two processes, three devices", ["--device", "cuda:0,cuda:0,cuda:0", "--tensor-parallel-size", 2], {},
     ["one device for each of 2"]),
]
ON_EMULATED = [("little shared memory", [], {"FORGE_EMULATED_SHARED_KIB": "20"}, ["KiB of shared memory", "--device cpu"])]


def refused(suite, model, flags, environment, words):
    """One line and exit status 2, for whoever computes."""
    for role in ([], ["--mode", "decode", "--router", "tcp://127.0.0.1:1"]):
        done = forge(suite, "serve", "--model", model, "--host", "127.0.0.1", *([] if role else ["--port", 0]), *role,
                     *flags, **environment)
        said = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
        assert done.returncode == 2 and len(said) == 1, (done.returncode, done.stderr)
        assert all(word in said[0] for word in words), said[0]
    return said[0].removeprefix("forge serve: ")


def insists(suite, model, flags, words):
    """Whoever wants device memory that other workers reach does not start without: one line, exit status 2."""
    done = forge(suite, "serve", "--model", model, "--mode", "decode", "--router", "tcp://127.0.0.1:1",
                 "--kv-device-memory", "on", *flags)
    said = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
    assert done.returncode == 2 and len(said) == 1, (done.returncode, done.stderr)
    assert "--kv-device-memory on: " in said[0] and all(word in said[0] for word in words), said[0]
    return said[0].removeprefix("forge serve: ")


# Flags that a device other than the CPU has no use for, and values that say nothing of that.
UNUSED = [("--threads", "2"), ("--cpu-isa", "plain"), ("--cpu-pin", "on"), ("--kv-zero-copy", "on"),
          ("--weights-cache", "/tmp")]
USUAL = [("--cpu-isa", "auto"), ("--cpu-pin", "off"), ("--kv-zero-copy", "off"), ("--weights-cache", "off")]


def without_effect(suite, model):
    """Whoever gives a flag expects something of it: the log says where there is nothing to be had."""
    for flags, want in ((UNUSED, [flag for flag, _ in UNUSED]), (USUAL, [])):
        given = [word for flag in flags for word in flag]
        with suite.cluster(model=model, standalone=True, flags=[*POOL, *given]) as cluster:
            lines = [line for line in cluster.router.log_tail(1000).splitlines() if "event=flag_without_effect" in line]
        said = [re.search(r"\blevel=warn\b.* flag=(\S+) device=cuda", line)[1] for line in lines]
        assert said == want, (said, want)
    return f"{len(UNUSED)} flags"


def classes(process):
    return [match[1] for match in map(CLASS.search, process.log_tail(1000).splitlines()) if match]


def turned_away(suite, model, devices, others, reason=OTHER_CLASS):
    """Blocks of the same layout that were computed by other rules, or lie in memory that links do not mix: the worker's
    log says why it may not come in, and the cluster that it came to goes on."""
    with suite.cluster(model=model, flags=[*POOL, *devices], **P1D1) as cluster:
        body = {"model": served_model(cluster), "prompt": [BOS, 300, 301], "max_tokens": 4}
        for mode in ("prefill", "decode"):
            other = cluster.start_worker(mode, f"other-{mode}", others)
            del cluster.workers[other.name]  # it is not to be waited for
            try:
                found = wait_for("the reason in its log", lambda: next(
                    (m for m in map(reason.search, other.log_tail(100).splitlines()) if m), None), 30)
                assert found[1] != found[2], found[0]
                assert reason is not OTHER_CLASS or sum("cuda-" in name for name in found.groups()) == 1, found[0]
                post(cluster.port, "/v1/completions", body)
                cluster.wait_at_rest(workers=2)
                other.signal(signal.SIGTERM)
                assert other.wait() == 0, other.log_tail()
            finally:
                other.signal(signal.SIGKILL)
    return f"{found[1]} beside {found[2]}"


# --- one request, one answer ---------------------------------------------------------------------

def requests_of(rng, longest):
    """Shared beginnings, prompts that end in and at the end of a block, one that is longer than a tile of attention,
    one that repeats itself; every second one is drawn."""
    head, whole = [BOS] + ids(rng, 39), [BOS] + ids(rng, 31)
    prompts = [[BOS], [BOS] + ids(rng, 15), [BOS] + ids(rng, 16), whole, whole, head + ids(rng, 3), head + ids(rng, 20),
               [BOS] + ids(rng, 6) * 8, [BOS] + ids(rng, 139)]
    rows = [{"model": "any", "prompt": prompt, "max_tokens": rng.randrange(longest // 2, longest), "temperature": 0,
             "ignore_eos": True} for prompt in prompts]
    for each in rows[1:7:2]:
        each.update(temperature=0.9, top_p=0.95, seed=rng.randrange(1 << 31))
    rows[7].update(max_tokens=24)
    return rows


def growing(rng, requests, tokens):
    """Short prompts with answers of many tokens, so many that all run before the first one ends."""
    return [{**requests[i % 2], "prompt": [BOS] + ids(rng, 11), "max_tokens": tokens} for i in range(6)]


def alone(suite, model, requests):
    """The reference: nobody beside, nothing cached, guessed or overlapped."""
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *ALONE]) as cluster:
        for request in requests:
            request["model"] = served_model(cluster)
        want = [answer_of(cluster.port, request) for request in requests]
        found = classes(cluster.router)
    assert found, "no log line says the numerics class of a GPU"
    return want, found[0]


def row(name, *flags, moved=(), again=1, grow=False, **shape):
    """One way of serving, and the counters that it must move. `grow`: with the requests that fill a small pool."""
    return dict(name=name, flags=[str(f) for f in [*POOL, *flags]], moved=moved, again=again, grow=grow,
                shape=shape or dict(standalone=True))


def repeats(request, answer):
    """How many tokens came that had been there before, so that what followed them then is a guess at what follows now; not
    as one of the last ones, after which nothing is guessed."""
    known, count = set(request["prompt"]), 0
    for token in answer["ids"][:-3]:
        count += token in known
        known.add(token)
    return count


PUSHED = ["kv_link_pushed_blocks_total"]
IN_DEVICE, MIRRORS = ["--kv-device-memory", "on"], ["--kv-device-memory", "off"]
REACHED = [*PUSHED, "kv_link_device_memory"]
ROWS = [
    row("all at once", again=2, moved=["prefix_cache_hits_total"]),
    row("cache off, overlap off", "--prefix-cache", "off", "--overlap", "off", moved=["no prefix_cache_hits_total"]),
    row("chunks of 7", "--prefill-chunk-size", 7),
    row("few tokens in a step", "--max-batch-tokens", 70, "--max-seqs", 64),
    row("eight guesses each", "--draft-length", "fixed", moved=GUESSED),
    row("blocks of 64", "--block-size", 64),
    row("small pool, recompute", *SMALL, "--preemption", "recompute", grow=True,
        moved=["num_preemptions_total", "no kv_swapped_blocks_total"]),
    row("small pool, swap", *SMALL, "--preemption", "swap", *TIER, grow=True, moved=SWAPPED),
    row("1P+1D over shm", "--local-prefill-tokens", 0, again=2, moved=PUSHED, transport="shm", **P1D1),
    row("1P+1D over shm, guesses", "--local-prefill-tokens", 0, "--draft-length", "fixed", moved=PUSHED,
        transport="shm", **P1D1),
    row("1P+1D over tcp, chunks of 7", "--local-prefill-tokens", 0, "--prefill-chunk-size", 7, moved=PUSHED,
        transport="tcp", **P1D1),
    row("1P+1D, zero copy asked for", "--local-prefill-tokens", 0, "--kv-zero-copy", "on", transport="shm", **P1D1),
    row("1P+1D, device memory over shm", "--local-prefill-tokens", 0, *IN_DEVICE, again=2, moved=REACHED, transport="shm", **P1D1),
    row("1P+1D, device memory over tcp, chunks of 7", "--local-prefill-tokens", 0, "--prefill-chunk-size", 7, *IN_DEVICE,
        moved=REACHED, transport="tcp", **P1D1),
    row("1P+1D, device memory and a mirror", "--local-prefill-tokens", 0, *IN_DEVICE, moved=PUSHED,
        role_flags={"decode": ["--kv-device-memory", "off"]}, **P1D1),
    row("1P+1D, a mirror and device memory", "--local-prefill-tokens", 0, *IN_DEVICE, moved=PUSHED,
        role_flags={"prefill": ["--kv-device-memory", "off"]}, **P1D1),
    row("1P+1D, device memory, small pools, swap", *SMALL, *TIER, "--preemption", "swap", *IN_DEVICE, grow=True,
        moved=SWAPPED, **P1D1),
    row("1P+1D, small pools, swap, guesses", *SMALL, "--draft-length", "fixed", *TIER, "--preemption", "swap", grow=True,
        moved=SWAPPED, **P1D1),
    row("2P+2D over tcp", moved=PUSHED, transport="tcp", **P2D2),
    row("two processes on one device", *TWICE),
    row("two processes, small pool, swap", *TWICE, *SMALL, "--preemption", "swap", *TIER, grow=True, moved=SWAPPED),
    row("1P+1D, two processes to one over shm", "--local-prefill-tokens", 0, *MIRRORS, moved=PUSHED, transport="shm",
        role_flags={"prefill": TWICE}, **P1D1),
    row("1P+1D, one process to two over tcp", "--local-prefill-tokens", 0, *MIRRORS, moved=PUSHED, transport="tcp",
        role_flags={"decode": TWICE}, **P1D1),
]


def reached(what):
    """Whether workers can have blocks where a row wants them. Memory of the emulation can always be reached."""
    if "mirror" in what["name"] and not EMULATED:
        raise Skip("links mix no memory of a real device with the host's: a router refuses such workers")
    if not set(IN_DEVICE) <= set(what["flags"]) or os.environ.get("FORGE_TEST_KV_MEMORY") == "on":
        return {}
    if not EMULATED:
        raise Skip("FORGE_TEST_KV_MEMORY=on says that UCX reaches device memory here")
    return {"FORGE_EMULATED_OPEN": "1"}


def in_row(suite, model, requests, want, what):
    with mock.patch.dict(os.environ, reached(what)):
        return in_cluster(suite, model, requests, want, what)


def in_cluster(suite, model, requests, want, what):
    def named(flags):
        return [",".join([device()] * 2) if flag == DEVICES else flag for flag in flags]
    shape = {**what["shape"], "role_flags": {role: named(flags)
                                             for role, flags in what["shape"].get("role_flags", {}).items()}}
    more = [] if shape.get("standalone") else ["--status-port", "0"]
    with suite.cluster(model=model, flags=[*named(what["flags"]), *more], **shape) as cluster:
        for turn in range(what["again"]):
            have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
            assert_same(requests, want, have, f"differ from those given alone, turn {turn + 1}")
        cluster.wait_at_rest()
        moved = what["moved"]
        if moved is GUESSED and sum(map(repeats, requests, want)) < 8:
            moved = []  # a few may all fall into steps that were planned before their token was known
        return wait_moved(cluster, moved)


def choices(suite, model, requests, shape):
    """Four choices share the prompt's blocks, and the last of them is copied."""
    rows = [{**requests[1], "prompt": requests[i]["prompt"], "max_tokens": 10, "seed": 11} for i in (0, 2, 3, 5)]
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *ALONE]) as cluster:
        want = [[answer_of(cluster.port, {**r, "seed": r["seed"] + i}) for i in range(4)] for r in rows]
    with suite.cluster(model=model, flags=POOL, **shape) as cluster:
        have = run_all([lambda r=r: choice_answers(cluster.port, {**r, "n": 4}) for r in rows])
        assert have == want, [h for h, w in zip(have, want) if h != w][:1]
        cluster.wait_at_rest()


# --- one device, several workers -----------------------------------------------------------------

def dies(suite, model, requests, tokens):
    """The decode worker dies when a part of its answer is out: the rest comes from another one."""
    body = {**requests[5], "max_tokens": tokens, "temperature": 0}
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *ALONE]) as cluster:
        want = answer_of(cluster.port, body)
    with suite.cluster(model=model, prefill=1, decode=2, flags=[*POOL, "--local-prefill-tokens", 0]) as cluster:
        stream = Stream(cluster.port, "/v1/completions", {**body, "logits_digest": True})
        killed = None
        for _ in stream.chunks():
            if len(stream.ids) >= 8 and killed is None:
                killed = next((r["decode"] for r in cluster.state()["requests"]), None)
                if killed is not None:
                    cluster.kill(killed)
        stream.connection.close()
        have = {"ids": stream.ids, "digests": stream.digests, "text": stream.text, "finish": stream.finish}
        assert_same([body], [want], [have], "differ from the one given alone")
        if killed is None or cluster.state()["recent"][0]["attempts"] < 2:
            raise Skip("the answer had come before its worker could be killed: the client is too slow here")
        cluster.wait_at_rest(workers=2)
        return f"{killed} died, {cluster.state()['recent'][0]['attempts']} attempts"


def second_turn(suite, model, requests):
    """A chat's next turn is computed by prefill with the blocks of an answer that decode has."""
    with suite.cluster(model=model, flags=[*POOL, "--local-prefill-tokens", 0], **P1D1) as cluster:
        first = {**requests[6], "max_tokens": 40}
        answers = [answer_of(cluster.port, first)]
        second = {**first, "prompt": first["prompt"] + answers[0]["ids"] + ids(suite.random, 9)}
        answers.append(answer_of(cluster.port, second))
        record = cluster.state()["recent"][0]
        cluster.wait_at_rest()
    known = len(first["prompt"]) + 40
    with suite.cluster(model=model, standalone=True, flags=[*POOL, *ALONE]) as cluster:
        want = [answer_of(cluster.port, body) for body in (first, second)]
    assert_same([first, second], want, answers, "differ from those given alone")
    if record["pulled_blocks"] == 0:
        # The router decides by what it has seen of speeds.
        return "computing was quicker than pulling here"
    assert record["cached_tokens"] >= (known - 1) // BLOCK * BLOCK, (known, record)
    return f"{record['pulled_blocks']} blocks pulled"


def second_device(suite, model):
    """Work on a device that is not the first one: CUDA keeps for each thread which one it means."""
    two = {"FORGE_EMULATED_DEVICES": "2"}
    if "cuda:1" not in forge(suite, "serve", "--list-devices", **two).stdout:
        raise Skip("there is one device only")
    run = forge(suite, "bench", "throughput", "--model", model, "--device", "cuda:1", "-p", 20, "-n", 2, "-b", "1,3",
                "-r", 1, "--json", **two)
    assert run.returncode == 0 and '"backend":"cuda:1"' in run.stdout, (run.returncode, run.stdout, run.stderr)
    return f"{len(run.stdout.splitlines())} tests"


def bench_refuses(suite, model):
    """A measurement of something else than was asked for would mislead."""
    for test in ("throughput", "step"):
        run = forge(suite, "bench", test, "--model", model, "--device", "cuda", "--cpu-isa", "avx2")
        assert run.returncode == 2 and len(run.stderr.splitlines()) == 1 and "--cpu-isa avx2" in run.stderr, run
    return run.stderr.strip()


# --- beside the CPU ------------------------------------------------------------------------------

def texts(suite):
    """Other roundings: the stored texts of the real model need not be met to the end, only for long."""
    long_enough = 40
    with suite.cluster(model=suite.stories(), standalone=True, flags=POOL) as cluster:
        met = []
        for prompt, path in (("", "models/greedy-200.txt"),
                             ("Lily and Tom went to the", "models/greedy-200-prompt-lily.txt")):
            stored = suite.corpus(path).read_text(encoding="utf-8")
            answer = post(cluster.port, "/v1/completions",
                          {"model": served_model(cluster), "prompt": prompt, "temperature": 0, "ignore_eos": True,
                           "max_tokens": long_enough})
            text = prompt + answer["choices"][0]["text"]
            same = next((i for i, (a, b) in enumerate(zip(stored, text)) if a != b), len(text))
            assert same == len(text), f"they part after {same} characters: {text[same:][:40]!r}"
            met.append(f"{same}")
        return f"{' and '.join(met)} characters equal"


# --- all of it -----------------------------------------------------------------------------------

# name, shape, type, type in emulation and layers of a made model. The last two have biases, or norms of heads, before what is stored. (The
# story model's weights are F32, and the last step of its hidden columns is not whole.)
# The emulation has room for rows of quantised weights up to 2048 columns.
MADE = [("made Llama", "smollm2-135m", "q4_k_m", "q4_k_m", 2), ("made Qwen2", "qwen2.5-0.5b", "q8_0", "f16", 1),
        ("made Qwen3", "qwen3-0.6b", "q5_0", "bf16", 1)]


# In emulation, without --full.
SHORT = ["1P+1D, device memory over shm", "1P+1D, a mirror and device memory", "all at once", "two processes on one device",
         "1P+1D, two processes to one over shm", "chunks of 7", "1P+1D over shm, guesses", "1P+1D over tcp, chunks of 7"]


def make(suite, folder, shape, dtype, layers):
    path = pathlib.Path(folder) / f"{shape}-{dtype}.gguf"
    subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, "--type", dtype, "--layers", str(layers),
                    "--vocab", "2000"], check=True)
    return str(path)


def always(suite, name, function):
    """A case that others need, whatever --only says."""
    only, suite.options.only = suite.options.only, ""
    suite.case(name, function)
    suite.options.only = only


def family(suite, label, model, requests, rows, emulated):
    """The ways of serving one model, those of `rows` when there are any, beside what it answers alone."""
    sets = [requests, [] if rows else growing(suite.random, requests, 40 if emulated else 150)]
    want = []

    def reference():
        answers, found = alone(suite, model, [request for each in sets for request in each])
        want.extend((answers[:len(requests)], answers[len(requests):]))
        return found

    def in_way(what):
        return in_row(suite, model, sets[what["grow"]], want[what["grow"]], what)
    cases = [(what["name"], in_way, what) for what in ROWS if not rows or what["name"] in rows]
    if not rows:
        cases += [("four choices, standalone", choices, suite, model, requests, dict(standalone=True)),
                  ("four choices, 1P+1D", choices, suite, model, requests, P1D1),
                  ("decode dies half-way", dies, suite, model, requests, 60 if emulated else 400),
                  ("a second turn", second_turn, suite, model, requests)]
    if any(suite.options.only in f"{label}: {name}" for name, *_ in cases):
        always(suite, f"{label}: alone, one after the other", reference)
    for name, *call in cases if want else ():
        suite.case(f"{label}: {name}", *call)


def made_family(suite, label, model, emulated):
    requests = requests_of(suite.random, 24)
    if not emulated:
        family(suite, label, model, requests, [], emulated)
        return
    # An emulated token takes 20 ms and more.
    few = [{**requests[i], "max_tokens": 4} for i in (1, 6)] + [{**requests[7], "max_tokens": 10}]
    family(suite, label, model, few, ["1P+1D over shm, guesses"], emulated)


def main():
    suite = Suite(__doc__)
    used = []
    always(suite, "a device to test", lambda: used.append(use_device(suite)) or used[0])
    if not used:
        suite.end()
    emulated = " emulated " in used[0]
    EMULATED.extend([True] * emulated)
    with tempfile.TemporaryDirectory(prefix="forge-gpu-") as folder:
        made = [make(suite, folder, shape, small if emulated else dtype, layers)
                for _, shape, dtype, small, layers in MADE]
        suite.case("why there is no device is listed", none_listed, suite)
        for name, flags, environment, words in REFUSED + (ON_EMULATED if emulated else []):
            suite.case(f"refused: {name}", refused, suite, made[0], flags, environment, words)
        for shape, *words in CPU_ALONE:
            suite.case(f"refused: {shape}", refused, suite, make(suite, folder, shape, "bf16", 2), [], {},
                       [*words, "--device cpu"])
        if os.environ.get("FORGE_TEST_KV_MEMORY") != "on":
            suite.case("device memory that UCX does not reach", insists, suite, made[0], [], ["UCX", "does not reach GPU memory"])
        suite.case("device memory of the CPU", insists, suite, made[0], ["--device", "cpu"], ["--device cpu"])
        suite.case("device memory of several processes", insists, suite, made[0],
                   ["--device", ",".join([device()] * 2), "--tensor-parallel-size", 2], ["several processes"])
        suite.case("flags without effect are named", without_effect, suite, made[0])
        suite.case("the second device", second_device, suite, made[0])
        suite.case("bench: a flag that says nothing of a GPU", bench_refuses, suite, made[0])
        suite.case("a worker on the CPU comes to a cluster on the GPU", turned_away, suite, made[0], [], ON_CPU)
        suite.case("a worker on the GPU comes to a cluster on the CPU", turned_away, suite, made[0], ON_CPU,
                   ["--device", device()])
        if not emulated and os.environ.get("FORGE_TEST_KV_MEMORY") == "on":
            suite.case("a worker with a mirror comes to a cluster with blocks in device memory", turned_away, suite, made[0],
                       IN_DEVICE, MIRRORS, OTHER_MEMORY)
        suite.case("the story model's stored texts", texts, suite)
        short = emulated and not suite.options.full
        requests = requests_of(suite.random, 6 if short else 8 if emulated else 24)
        try:
            family(suite, "stories260K", suite.stories(), requests, SHORT if short else [], emulated)
        except Skip as why:
            suite.skip("stories260K", why)
        for what, model in list(zip(MADE, made))[:1 if short else None]:
            made_family(suite, what[0], model, emulated)
    suite.end()


if __name__ == "__main__":
    main()
