#!/usr/bin/env python3
"""Time to first token of a chat's second turn through one prefill and one decode worker, by length of the first answer: its
blocks are on the decode worker, and are sent back to the prefill worker (--kv-pull on) or computed again there (off). Medians, as a
Markdown table; both clusters take turns in one run."""
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import Suite, answer_of, served_model  # noqa: E402  pylint: disable=wrong-import-position
from engine_room_identity import BOS, ids  # noqa: E402  pylint: disable=wrong-import-position

FIRST, MORE = 200, 40


def ask(cluster, prompt, tokens):
    got = answer_of(cluster.port, {"model": served_model(cluster), "prompt": prompt, "temperature": 0,
                                   "max_tokens": tokens, "ignore_eos": True})
    return got["ids"], cluster.state()["recent"][0]


def measure(suite, clusters, length):
    seen = {name: [] for name in clusters}
    for turn in range(suite.options.rounds + 1):
        first, more = [BOS] + ids(suite.random, FIRST - 1), ids(suite.random, MORE)
        for name, cluster in clusters.items():
            said, _ = ask(cluster, first, length)
            _, record = ask(cluster, first + said + more, 4)
            if turn > 0:
                seen[name].append((record["ttft_ms"], record["cached_tokens"], record["pulled_blocks"]))
    for name, rows in seen.items():
        ttft, cached, pulled = (statistics.median(column) for column in zip(*rows))
        print(f"| {length} | {name} | {ttft:.1f} | {cached:.0f} of {FIRST + length + MORE} | {pulled:.0f} |",
              flush=True)


def bench(suite):
    clusters = {}
    try:
        for way in ("on", "off"):
            clusters[way] = suite.cluster(model=suite.smollm2(), prefill=1, decode=1,
                                          flags=["--kv-pull", way, "--local-prefill-tokens", "0",
                                                 "--kv-blocks", "400"])
        print("\n| first answer | pull | TTFT ms, second turn | cached | blocks pulled |\n| ---: | --- | ---: | --- | ---: |")
        for length in [int(word) for word in suite.options.lengths.split(",")]:
            measure(suite, clusters, length)
    finally:
        for cluster in clusters.values():
            cluster.kill_all()


def main():
    suite = Suite(__doc__, rounds=(5, "chats for each row"), lengths=("32,128,400", "tokens of the first answer"))
    suite.case("second turns", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
