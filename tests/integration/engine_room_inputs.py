#!/usr/bin/env python3
"""Odd sizes, budgets and options of the engine room: each start is refused with one clear line and
exit code 2, or runs and answers rightly; each bad request option is a 400 that names it. A model whose
numbers are none ends its requests with an error."""
# needs: gguf
# needs-model
import http.client
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

from _forge import (WAIT_S, Failed, Process, Stream, Suite, answer_of, assert_same, get, post,
                    run_all, served_model, story_requests, wait_for)

# --- start-up flags ------------------------------------------------------------------------------

FOLDER, FILE, MISSING = "{folder}", "{folder}/file", "{folder}/none"

# name, flags, words of the one line
REFUSED = [
    ("block size 0", ["--block-size", 0], "--block-size"),
    ("block size 3", ["--block-size", 3], "--block-size 3 must be a power of two"),
    ("block size 255", ["--block-size", 255], "power of two"),
    ("block size 512", ["--block-size", 512], "--block-size"),
    ("block size -16", ["--block-size", -16], "--block-size"),
    ("block size 1e1", ["--block-size", "1e1"], "--block-size"),
    ("too many blocks", ["--kv-blocks", 4194305], "--kv-blocks"),
    ("blocks -1", ["--kv-blocks", -1], "--kv-blocks"),
    ("a step for fewer than may run", ["--max-batch-tokens", 1, "--max-seqs", 64],
     "--max-batch-tokens 1 must be at least --max-seqs 64"),
    ("steps of nothing", ["--max-batch-tokens", 0], "--max-batch-tokens"),
    ("nobody may run", ["--max-seqs", 0], "--max-seqs"),
    ("chunks of nothing", ["--prefill-chunk-size", 0], "--prefill-chunk-size"),
    ("chunks of 65537", ["--prefill-chunk-size", 65537], "--prefill-chunk-size"),
    ("disk without blocks", ["--kv-disk", FOLDER], "needs --kv-host-blocks"),
    ("disk that is missing", ["--kv-disk", MISSING, "--kv-host-blocks", 8], "none"),
    ("disk that is a file", ["--kv-disk", FILE, "--kv-host-blocks", 8], "file"),
    ("disk that cannot be written", ["--kv-disk", "/proc", "--kv-host-blocks", 8], "/proc"),
    ("disk without a name", ["--kv-disk", "", "--kv-host-blocks", 8], "--kv-disk needs"),
    ("host blocks -1", ["--kv-host-blocks", -1], "--kv-host-blocks"),
    ("swap to nowhere", ["--preemption", "swap"], "--preemption swap needs --kv-host-blocks"),
    ("flight records that go nowhere", ["--flight-dir", MISSING], "none takes no files"),
    ("flight records into a file", ["--flight-dir", FILE], "file takes no files"),
    ("flight records that cannot be written", ["--flight-dir", "/proc"], "/proc takes no files"),
    ("preemption by hope", ["--preemption", "hope"], "--preemption"),
    ("victim nonsense", ["--victim", "nonsense"], "--victim"),
    ("victim by number", ["--victim", 1], "--victim"),
    ("schedule nonsense", ["--schedule", "nonsense"], "--schedule"),
    ("admission nonsense", ["--admission", "nonsense"], "--admission"),
    ("cache maybe", ["--prefix-cache", "maybe"], "--prefix-cache"),
    ("overlap maybe", ["--overlap", "maybe"], "--overlap"),
    ("overlap without a word", ["--overlap"], "--overlap"),
    ("speculate wildly", ["--speculate", "wildly"], "--speculate"),
    ("guesses of a model that nobody gave", ["--speculate", "model"], "needs --speculative-model"),
    ("a draft model without a name", ["--speculative-model", ""], "--speculative-model needs"),
    ("a draft model that is missing", ["--speculative-model", MISSING], "none"),
    ("a draft model that is none", ["--speculative-model", FILE], "file"),
    ("a draft model, and guessing off", ["--speculative-model", FILE, "--speculate", "off"],
     "guesses nothing with --speculate off"),
    ("a draft model, and the text alone", ["--speculative-model", FILE, "--speculate", "ngram"],
     "guesses nothing with --speculate ngram"),
    ("its blocks -1", ["--speculative-kv-blocks", -1], "--speculative-kv-blocks"),
    ("no guess at most", ["--draft-max", 0], "--draft-max"),
    ("nine guesses", ["--draft-max", 9], "--draft-max"),
    ("guesses as they come", ["--draft-length", "random"], "--draft-length"),
    ("steps of -1 ms", ["--step-ms", -1], "--step-ms"),
    ("steps of 60001 ms", ["--step-ms", 60001], "--step-ms"),
    ("skip of 65", ["--queue-skip", 65], "--queue-skip"),
    ("local prefill of -1", ["--local-prefill-tokens", -1], "--local-prefill-tokens"),
]

# name, flags; the answers must be those of a plain start. Unusual, all of them, and right.
RUNNING = [
    ("one at a time, one token a step", ["--max-seqs", 1, "--max-batch-tokens", 1]),
    ("steps just as wide as the batch", ["--max-seqs", 8, "--max-batch-tokens", 8]),
    ("chunks of 1", ["--prefill-chunk-size", 1]),
    ("chunks beyond a step", ["--prefill-chunk-size", 65536, "--max-batch-tokens", 64]),
    ("blocks of 1, a pool of one context", ["--block-size", 1, "--kv-blocks", 512]),
    ("blocks of 256, two of them", ["--block-size", 256, "--kv-blocks", 2]),
    ("a tier of one block", ["--kv-blocks", 32, "--kv-host-blocks", 1, "--preemption", "swap"]),
    ("a tier of one block on disk", ["--kv-blocks", 32, "--kv-host-blocks", 1, "--kv-disk", FOLDER]),
    ("no target for steps", ["--step-ms", 0]),
    ("steps of 1 ms", ["--step-ms", 1]),
    ("skip of 64", ["--queue-skip", 64, "--kv-blocks", 40]),
    ("a queue of one", ["--queue-limit", 1, "--max-seqs", 64]),
    ("more sequences than blocks", ["--max-seqs", 4096, "--kv-blocks", 32]),
    ("guesses in steps of two tokens", ["--max-seqs", 1, "--max-batch-tokens", 2, "--draft-length",
                                        "fixed"]),
    ("guesses in chunks of 2", ["--prefill-chunk-size", 2, "--draft-length", "fixed"]),
    ("eight guesses that are off", ["--speculate", "off", "--draft-max", 8, "--draft-length",
                                    "fixed"]),
    ("everything at once", ["--draft-length", "fixed", "--block-size", 4, "--kv-blocks", 130, "--kv-host-blocks", 64,
                            "--preemption", "auto", "--victim", "cheapest", "--schedule",
                            "prefill-first", "--queue-skip", 4, "--prefill-chunk-size", 5,
                            "--max-batch-tokens", 24, "--max-seqs", 24, "--step-ms", 3,
                            "--overlap", "off"]),
]


def serve(suite, flags, *more):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORGE_")}
    return subprocess.run([suite.options.forge, "serve", "--model", suite.stories(), "--port", "0",
                           "--threads", "1", *map(str, flags), *more], env=environment,
                          capture_output=True, text=True, timeout=WAIT_S, check=False)


def in_folder(flags, folder):
    return [str(flag).replace("{folder}", folder) for flag in flags]


def refused(suite, mode):
    """Every row of the table, for standalone or for a worker that has a router to go to."""
    with tempfile.TemporaryDirectory(prefix="forge-room-") as folder:
        with open(f"{folder}/file", "w", encoding="utf-8") as file:
            file.write("no folder")
        bad = []
        for name, flags, words in REFUSED:
            try:
                done = serve(suite, in_folder(flags, folder), *mode)
            except subprocess.TimeoutExpired:
                bad.append(f"{name}: it runs")
                continue
            lines = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
            if done.returncode != 2 or len(lines) != 1 or words not in lines[0] \
                    or not lines[0].startswith("forge serve: ") or "listening" in done.stdout:
                bad.append(f"{name}: {done.returncode}: {done.stderr}{done.stdout}")
        assert not bad, f"{len(bad)} of {len(REFUSED)}: " + "; ".join(bad[:4])
        return f"{len(REFUSED)} starts refused"


def running(suite, requests, want, flags):
    with tempfile.TemporaryDirectory(prefix="forge-room-") as folder, \
            suite.cluster(model=suite.stories(), standalone=True,
                          flags=in_folder(flags, folder)) as cluster:
        def patiently(request):
            """A full queue says so, and asks to come again."""
            deadline = time.monotonic() + 60
            while True:
                try:
                    return answer_of(cluster.port, request)
                except Failed as why:
                    if why.status != 429 or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)

        have = run_all([lambda r=r: patiently(r) for r in requests])
        assert_same(requests, want, have, "differ from those of a plain start")
        cluster.wait_at_rest()


def one_block(suite):
    """A pool of one block: what fits into it runs, what can never fit is refused at once."""
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=["--kv-blocks", 1]) as cluster:
        body = {"model": served_model(cluster), "temperature": 0, "ignore_eos": True}
        rows = [(4, 8, 200), (4, 12, 200), (15, 1, 200), (4, 14, 400), (16, 1, 400), (17, 1, 400),
                (40, 40, 400)]
        for prompt, answer, status in rows:
            started = time.monotonic()
            try:
                got = post(cluster.port, "/v1/completions",
                           {**body, "prompt": [1] * prompt, "max_tokens": answer})
                have, text = 200, got["usage"]["completion_tokens"]
                assert text == answer, f"{prompt} + {answer}: {text} tokens came"
            except Failed as why:
                have, text = why.status, why.error
                assert why.error["code"] == "context_length_exceeded", why
            assert have == status, f"{prompt} + {answer} tokens: {have}, {text}"
            assert time.monotonic() - started < WAIT_S
        bodies = [{**body, "prompt": [1, 300 + i], "max_tokens": 10} for i in range(12)]
        answers = run_all([lambda b=b: post(cluster.port, "/v1/completions", b) for b in bodies])
        assert all(not isinstance(answer, Exception) for answer in answers), answers
        cluster.wait_at_rest()


def other_block_size(suite):
    """A worker whose blocks have another size is turned away, its log says why, and the cluster that
    it came to goes on."""
    with suite.cluster(model=suite.stories(), prefill=1, decode=1) as cluster:
        body = {"model": served_model(cluster), "prompt": "Once", "max_tokens": 4}
        for mode in ("prefill", "decode"):
            other = Process("other-" + mode, [
                cluster.forge, "serve", "--model", cluster.model, "--mode", mode, "--name", "other",
                "--router", cluster.control, "--threads", "1", "--block-size", "32"],
                cluster.folder)
            try:
                wait_for("the reason in its log", lambda: "block size 32" in other.log_tail())
                post(cluster.port, "/v1/completions", body)
                cluster.wait_at_rest(workers=2)
                other.signal(signal.SIGTERM)
                assert other.wait() == 0, other.log_tail()
            finally:
                other.signal(signal.SIGKILL)


# --- request options -----------------------------------------------------------------------------

# parameter, value, code of the refusal (None: fine)
OPTIONS = [
    ("priority", 7, "invalid_value"), ("priority", -2, "invalid_value"),
    ("priority", "urgent", "invalid_value"), ("priority", "", "invalid_value"),
    ("priority", 0.5, "invalid_type"), ("priority", True, "invalid_type"),
    ("priority", [0], "invalid_type"), ("priority", 10 ** 18, "invalid_value"),
    ("priority", -1, None), ("priority", 1.0, None), ("priority", "low", None),
    ("priority", None, None),
    ("prefix_cache", "maybe", "invalid_value"), ("prefix_cache", "", "invalid_value"),
    ("prefix_cache", True, "invalid_type"), ("prefix_cache", {}, "invalid_type"),
    ("prefix_cache", "auto", None), ("prefix_cache", "disable", None), ("prefix_cache", None, None),
    ("cache_salt", "", "invalid_value"), ("cache_salt", 5, "invalid_type"),
    ("cache_salt", "x" * 2000, "invalid_value"), ("cache_salt", "ä" * 513, "invalid_value"),
    ("cache_salt", "ä" * 512, None), ("cache_salt", None, None),
    ("n", 0, "invalid_value"), ("n", 65, "invalid_value"), ("n", 1.5, "invalid_type"),
    ("n", "2", "invalid_type"), ("n", -1, "invalid_value"), ("n", 2.0, None), ("n", 64, None),
    ("n", None, None),
    ("return_timings", "yes", "invalid_type"), ("return_timings", 1, "invalid_type"),
    ("return_timings", True, None),
    ("return_token_ids", "yes", "invalid_type"), ("ignore_eos", 0, "invalid_type"),
    ("logits_digest", "true", "invalid_type"),
]


def options(suite, stream):
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        bad = []
        for name, value, code in OPTIONS:
            for path, body in (("/v1/completions", {"prompt": "Once"}),
                               ("/v1/chat/completions", {"messages": [
                                   {"role": "user", "content": "Hello"}]})):
                if code is None and "chat" in path:
                    continue  # this model has no chat template
                status, error = ask(cluster.port, path, {
                    **body, "max_tokens": 2, "stream": stream, name: value})
                want = (200, None, None) if code is None else (400, name, code)
                have = (status, error.get("param"), error.get("code"))
                if have != want:
                    bad.append(f"{name}={str(value)[:12]!r} at {path}: {have}")
                if code is not None and len(error.get("message", "")) < 10:
                    bad.append(f"{name}={str(value)[:12]!r}: {error}")
        assert not bad, f"{len(bad)} of {2 * len(OPTIONS)}: " + "; ".join(bad[:6])
        cluster.wait_at_rest()
        return f"{len(OPTIONS)} values"


def ask(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text)["error"] if answer.status != 200 else {}
    finally:
        connection.close()


def many_choices(suite):
    """64 choices where 8 can run: all come, each once, in the right order; more than workers and queue ever
    have room for is a 400 and nothing is left behind."""
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=["--max-seqs", 8, "--kv-blocks", 40]) as cluster:
        body = {"model": served_model(cluster), "prompt": "Once", "max_tokens": 20, "n": 64,
                "seed": 5}
        answer = post(cluster.port, "/v1/completions", body)
        assert sorted(c["index"] for c in answer["choices"]) == list(range(64))
        texts = {c["text"] for c in answer["choices"]}
        assert len(texts) > 20, f"{len(texts)} different texts"
        cluster.wait_at_rest()
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=["--max-seqs", 2, "--queue-limit", 16]) as cluster:
        status, error = ask(cluster.port, "/v1/completions", body)
        assert status == 400 and error["param"] == "n", (status, error)
        assert get(cluster.port, "/health")[0] == 200
        cluster.wait_at_rest()
        status, _ = ask(cluster.port, "/v1/completions", {**body, "n": 8})
        assert status == 200, status
        cluster.wait_at_rest()


# --- a damaged model -----------------------------------------------------------------------------

def damaged(suite, model, tensor, shape):
    """One float of the file is NaN: a 500 that says so, at once and once, and one line in a log."""
    import gguf  # pylint: disable=import-outside-toplevel
    with tempfile.TemporaryDirectory(prefix="forge-room-") as folder:
        path = shutil.copy(model(), f"{folder}/damaged.gguf")
        reader = gguf.GGUFReader(path, "r+")
        next(t for t in reader.tensors if t.name == tensor).data[5] = float("nan")
        reader.data.flush()
        with suite.cluster(model=path, flags=["--weights-cache", "off"], **shape) as cluster:
            for draws in ({"temperature": 0}, {"temperature": 1, "seed": 3, "n": 2}):
                body = {"model": served_model(cluster), "prompt": "Once upon a time",
                        "max_tokens": 8, **draws}
                status, error = ask(cluster.port, "/v1/completions", body)
                assert status == 500 and "not a number" in error["message"], (status, error)
                try:
                    Stream(cluster.port, "/v1/completions", body).run()
                    raise AssertionError("a stream of nothing ended well")
                except Failed as why:
                    assert why.status in (200, 500) and "not a number" in why.error["message"], why
            cluster.wait_at_rest()
            assert cluster.state()["counters"]["retried"] == 0, "it was tried again"
            lines = [line for process in cluster.processes()
                     for line in process.log_tail(1000).splitlines() if "event=model_broken" in line]
            assert len(lines) == 1 and "checksum" in lines[0], lines
            assert get(cluster.port, "/health")[0] == 200


def main():
    suite = Suite(__doc__)
    suite.case("starts refused, standalone", refused, suite, [])
    suite.case("starts refused, decode worker", refused, suite,
               ["--mode", "decode", "--router", "tcp://127.0.0.1:1"])
    requests = story_requests(suite.random, 24, tokens=(8, 40), words=(0, 90))
    requests[5].update(prompt=[1] + [300] * 471, max_tokens=40)  # the whole context
    want = []

    def alone():
        with suite.cluster(model=suite.stories(), standalone=True) as cluster:
            for request in requests:
                request["model"] = served_model(cluster)
                want.append(answer_of(cluster.port, request))

    only, suite.options.only = suite.options.only, ""
    suite.case("answers of a plain start", alone)
    suite.options.only = only
    for name, flags in RUNNING if want else ():
        suite.case(f"runs: {name}", running, suite, requests, want, flags)
    suite.case("runs: a pool of one block", one_block, suite)
    suite.case("workers of two block sizes", other_block_size, suite)
    suite.case("request options", options, suite, False)
    suite.case("request options, streamed", options, suite, True)
    suite.case("many choices", many_choices, suite)
    for name, shape in (("standalone", {"standalone": True}), ("1P+1D", {"prefill": 1, "decode": 1})):
        suite.case(f"NaN in the last norm, floats, {name}", damaged, suite, suite.stories,
                   "output_norm.weight", shape)
        suite.case(f"NaN in the last norm, Q4_1, {name}", damaged, suite, suite.smollm2,
                   "output_norm.weight", shape)
    suite.case("NaN in a layer, Q4_1", damaged, suite, suite.smollm2, "blk.4.ffn_norm.weight",
               {"standalone": True})
    suite.end()


if __name__ == "__main__":
    main()
