#!/usr/bin/env python3
"""One request at a time through a standalone process and through a cluster, taking turns in one run
so that both see the same machine: time to first token (TTFT), inter-token latency (ITL), and the
hand-over gap from the first to the second token. Medians, as a Markdown table.

The processes of a cluster get a part of the cores each; core_share.py has them share all of them."""
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import Stream, Suite, served_model  # noqa: E402  pylint: disable=wrong-import-position
import time  # noqa: E402  pylint: disable=wrong-import-order


def one(cluster, body):
    """TTFT, gap from first to second token, and the gaps after it, in milliseconds."""
    started = time.monotonic()
    stream = Stream(cluster.port, "/v1/completions", body)
    moments = []
    for chunk in stream.chunks():
        for choice in chunk["choices"]:
            moments += [time.monotonic()] * len(choice.get("forge", {}).get("token_ids", []))
    stream.connection.close()
    gaps = [(b - a) * 1000 for a, b in zip(moments, moments[1:])]
    return (moments[0] - started) * 1000, gaps[0], gaps[1:]


def measure(suite, clusters, lengths):
    rows = []
    for words in lengths:
        results = {name: ([], [], []) for name in clusters}
        for turn in range(suite.options.rounds + 1):
            # A prompt of its own for each turn, the same one for every shape.
            prompt = f"Story {turn}: " + "the quick brown fox jumps over the lazy dog " * (words // 9)
            for name, cluster in clusters.items():
                body = {"model": served_model(cluster), "prompt": prompt, "temperature": 0,
                        "max_tokens": suite.options.tokens, "ignore_eos": True,
                        "logits_digest": True}
                ttft, hand_over, gaps = one(cluster, body)
                if turn == 0:
                    continue  # the first one warms up
                results[name][0].append(ttft)
                results[name][1].append(hand_over)
                results[name][2].extend(gaps)
        for name, (ttft, hand_over, gaps) in results.items():
            rows.append((words, name, statistics.median(ttft), statistics.median(hand_over),
                         statistics.median(gaps), sorted(gaps)[int(len(gaps) * 0.99)]))
    return rows


def bench(suite):
    cores = os.cpu_count()
    model = suite.smollm2()
    with suite.cluster(model=model, standalone=True, threads=1) as single, \
            suite.cluster(model=model, standalone=True, threads=cores) as standalone, \
            suite.cluster(model=model, prefill=1, decode=1, transport="shm",
                          threads=max(1, cores // 2)) as shm, \
            suite.cluster(model=model, prefill=1, decode=1, transport="tcp",
                          threads=max(1, cores // 2)) as tcp:
        rows = measure(suite, {"standalone, 1 thread": single,
                               f"standalone, {cores} threads": standalone,
                               "1P+1D over shm": shm, "1P+1D over tcp": tcp}, (18, 90, 450))
    print("\n| prompt words | shape | TTFT ms | first to second token ms | ITL ms | ITL p99 ms |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for words, name, ttft, hand_over, itl, itl_p99 in rows:
        print(f"| {words} | {name} | {ttft:.1f} | {hand_over:.1f} | {itl:.1f} | {itl_p99:.1f} |")
    print(f"\nMedians of {suite.options.rounds} requests of {suite.options.tokens} tokens, one at a "
          f"time, on {cores} cores.\n")


def main():
    suite = Suite(__doc__, rounds=(7, "requests for each row"), tokens=(48, "tokens for each"))
    suite.case("cluster and standalone", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
