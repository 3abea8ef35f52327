#!/usr/bin/env python3
"""What a hand-over exposes, by prompt length, way of the blocks and form of the last chunk, one request at a
time through one prefill and one decode worker: from the end of the prompt's computing to decode's
acceptance (exposed), from first to second token (gap), and time to first token. Medians, as a Markdown
table; all clusters take turns in one run, so that they see the same machine."""
import itertools
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import (Suite, WAYS, answer_of, counters, served_model,  # noqa: E402  pylint: disable=wrong-import-position
                    status_port)
from engine_room_identity import BOS, ids  # noqa: E402  pylint: disable=wrong-import-position

# Of GPUs: by a mirror in host memory, or straight.
GPU_WAYS = {"mirror": dict(way_flags=["--kv-device-memory", "off"]), "device": dict(way_flags=["--kv-device-memory", "on"])}
COLUMNS = ("push_exposed_ms", "handover_gap_ms", "ttft_ms", "itl_ms", "chunks")


def measure(suite, clusters, length):
    seen = {shape: {name: [] for name in COLUMNS} for shape in clusters}
    for turn in range(suite.options.rounds + 1):
        prompt = [BOS] + ids(suite.random, length - 1)
        for shape, cluster in clusters.items():
            answer_of(cluster.port, {"model": served_model(cluster), "prompt": prompt, "temperature": 0,
                                     "max_tokens": 6, "ignore_eos": True})
            record = cluster.state()["recent"][0]
            for name in COLUMNS if turn > 0 else ():
                seen[shape][name].append(record[name])
    for (transport, way), values in seen.items():
        cells = [f"{statistics.median(values[name]):.1f}" for name in COLUMNS]
        print(f"| {length} | {transport} | {way} | " + " | ".join(cells) + " |", flush=True)


def bench(suite):
    flags = ["--status-port", "0", "--local-prefill-tokens", "0"]
    clusters = {}
    try:
        for transport, way in itertools.product(suite.options.transports.split(","),
                                                suite.options.ways.split(",")):
            clusters[transport, way] = suite.cluster(
                model=suite.smollm2(), prefill=1, decode=1, **{**WAYS, **GPU_WAYS}[transport],
                flags=flags + ["--last-chunk", way, "--kv-blocks", suite.options.blocks])
        print("\n| prompt | way | last chunk | exposed ms | gap ms | TTFT ms | ITL ms | chunks |\n"
              "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |")
        for length in [int(word) for word in suite.options.lengths.split(",")]:
            measure(suite, clusters, length)
        print("\nBlocks and transfers, all lengths together:")
        for (transport, way), cluster in clusters.items():
            shown = counters(status_port(cluster.workers["prefill-0"]))
            print(f"{transport} {way}: {shown['kv_link_pushed_blocks_total']:.0f} in "
                  f"{shown['kv_link_descriptors_total']:.0f}")
    finally:
        for cluster in clusters.values():
            cluster.kill_all()


def main():
    suite = Suite(__doc__, rounds=(5, "requests for each row"), lengths=("64,256,600", "prompt tokens"), blocks=("400", "KV blocks of a worker"),
                  transports=(",".join(WAYS), "ways from prefill to decode; with a GPU mirror,device"),
                  ways=("whole,short,auto", "forms of the last chunk"))
    suite.case("hand-over", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
