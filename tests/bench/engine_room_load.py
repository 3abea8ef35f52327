#!/usr/bin/env python3
"""The step loop under load: planning ahead on and off, a batch against the same requests one by one,
and this build against another one (--before FILE, such as one built from an earlier commit). Ratios
within one run, servers in turns."""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from engine_room_common import (SERVED, Timed, body, ids, machine, median, processor_s, run_together,
                                table)
from _forge import Cluster, Skip, Suite, post


def start(suite, *flags, forge=None):
    return Cluster(forge or suite.options.forge, model=suite.smollm2(), standalone=True,
                   threads=suite.options.threads, flags=[*SERVED, *flags])


def warm(suite, *clusters):
    for cluster in clusters:
        Timed(cluster.port, body(ids(suite.random, 64), 8)).wait()


def decode_gap(suite, cluster, count):
    """Milliseconds from token to token, of all on the mean, while so many streams decode and nobody prefills: some
    come together."""
    streams, _ = run_together(cluster.port, [body(ids(suite.random, 32), suite.options.tokens)
                                             for _ in range(count)])
    begin = max(s.times[0] for s in streams)
    end = min(s.times[-1] for s in streams)
    return 1000 * statistics.mean([gap for s in streams for gap in s.gaps(begin, end)])


def arrival_ttft(suite, cluster):
    """Milliseconds to the first token of a short request that comes while eight streams decode."""
    streams = [Timed(cluster.port, body(ids(suite.random, 32), 2000)) for _ in range(8)]
    while any(len(s.times) < 8 for s in streams):
        time.sleep(0.01)
    times = [1000 * Timed(cluster.port, body(ids(suite.random, 32), 1)).wait().ttft for _ in range(8)]
    for stream in streams:
        stream.stop()
    cluster.wait_at_rest(60)
    return median(times)


def overlap(suite):
    parts = {"step of 1 stream, ms": lambda c: decode_gap(suite, c, 1),
             "step of 8 streams, ms": lambda c: decode_gap(suite, c, 8),
             "TTFT of an arrival beside 8 streams, ms": lambda c: arrival_ttft(suite, c)}
    results = {part: {"on": [], "off": []} for part in parts}
    with start(suite, "--overlap", "on") as ahead, start(suite, "--overlap", "off") as after:
        warm(suite, ahead, after)
        for _ in range(suite.options.rounds):
            for part, measure in parts.items():
                for name, cluster in (("on", ahead), ("off", after)):
                    results[part][name].append(measure(cluster))
    table(["", "overlap on", "overlap off", "on / off"],
          [(part, f"{median(r['on']):.2f}", f"{median(r['off']):.2f}",
            f"{median([a / b for a, b in zip(r['on'], r['off'])]):.3f}") for part, r in results.items()])
    print(f"Medians of {suite.options.rounds} rounds, {suite.options.threads} threads, {machine()}.")


def run_batch(suite, cluster, requests):
    with tempfile.TemporaryDirectory(prefix="forge-bench-") as folder:
        path = pathlib.Path(folder)
        (path / "in.jsonl").write_text("".join(
            json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                        "body": request}) + "\n" for i, request in enumerate(requests)))
        started = time.monotonic()
        child = subprocess.run([os.path.abspath(suite.options.forge), "batch", "--url", cluster.url,
                                "in.jsonl", "out.jsonl"], cwd=folder, capture_output=True, text=True,
                               check=False)
        took = time.monotonic() - started
        assert child.returncode == 0, child.stderr
        lines = (path / "out.jsonl").read_text().splitlines()
        assert len(lines) == len(requests)
        return took


def run_alone(cluster, requests):
    started = time.monotonic()
    for request in requests:
        post(cluster.port, "/v1/completions", request)
    return time.monotonic() - started


def batch(suite):
    options, rng = suite.options, suite.random
    times = {"batch": [], "alone": []}
    with start(suite) as cluster:
        warm(suite, cluster)
        for turn in range(options.rounds):
            for name in ("batch", "alone") if turn % 2 == 0 else ("alone", "batch"):
                requests = [body(ids(rng, rng.randrange(16, 64)), options.batch_tokens)
                            for _ in range(options.batch)]
                times[name].append(run_batch(suite, cluster, requests) if name == "batch"
                                   else run_alone(cluster, requests))
    ratio = median([a / b for a, b in zip(times["alone"], times["batch"])])
    table(["", "seconds", "generated tokens/s"],
          [(name, f"{median(values):.2f}",
            f"{options.batch * options.batch_tokens / median(values):.1f}")
           for name, values in times.items()])
    print(f"The batch is {ratio:.2f} times as fast. Medians of {options.rounds} rounds of "
          f"{options.batch} requests of 16 to 63 prompt tokens and {options.batch_tokens} tokens out, "
          f"{options.threads} threads, {machine()}.")


def before_and_after(suite):
    options = suite.options
    if not options.before:
        raise Skip("--before FILE names the other build")

    def rate(cluster, count):
        streams, took = run_together(cluster.port, [body(ids(suite.random, 32), options.tokens)
                                                    for _ in range(count)])
        return sum(len(s.times) for s in streams) / took

    def prefill(cluster):
        return 1000 * Timed(cluster.port, body(ids(suite.random, 256), 1)).wait().ttft

    parts = {"1 stream, tokens/s": lambda c: rate(c, 1),
             "8 streams, tokens/s": lambda c: rate(c, 8),
             "TTFT of 256 tokens alone, ms": prefill}
    results = {part: {"before": [], "now": []} for part in parts}
    used = {part: {"before": [], "now": []} for part in parts}
    with start(suite) as now, start(suite, forge=options.before) as before:
        warm(suite, now, before)
        for turn in range(options.rounds):
            pair = [("before", before), ("now", now)]
            for part, measure in parts.items():
                for name, cluster in pair if turn % 2 == 0 else pair[::-1]:
                    used_before = processor_s(cluster)
                    results[part][name].append(measure(cluster))
                    used[part][name].append(processor_s(cluster) - used_before)
    ratios = {part: [b / a for a, b in zip(r["before"], r["now"])] for part, r in results.items()}
    table(["", "before", "now", "now / before", "rounds from", "to", "processor time, now / before"],
          [(part, f"{median(r['before']):.1f}", f"{median(r['now']):.1f}",
            f"{median(ratios[part]):.3f}", f"{min(ratios[part]):.2f}", f"{max(ratios[part]):.2f}",
            f"{median([b / a for a, b in zip(used[part]['before'], used[part]['now'])]):.3f}")
           for part, r in results.items()])
    print(f"Medians of {options.rounds} rounds: prompts of 32 tokens, {options.tokens} tokens out, "
          f"{options.threads} threads, {machine()}.")


def main():
    suite = Suite(__doc__, rounds=(5, "rounds"), threads=(2, "compute threads"),
                  tokens=(64, "tokens of each stream"), batch=(64, "requests of the batch"),
                  batch_tokens=(32, "tokens of its answers"),
                  before=("", "another build's forge, to compare with"))
    suite.case("overlap", overlap, suite)
    suite.case("batch", batch, suite)
    suite.case("before and after", before_and_after, suite)
    suite.end()


if __name__ == "__main__":
    main()
