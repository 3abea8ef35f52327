#!/usr/bin/env python3
"""What measuring itself costs a worker at its start, and what it is worth: a fresh 1P+1D cluster for each
round, the time until it is ready, and the predicted against the seen time to first token of its first
requests, one at a time. With --other, a second build takes turns: one that calibrates longer or shorter."""
import math
import os
import re
import time

from engine_room_common import SERVED, Timed, body, ids, machine, median, table
from _forge import Cluster, Suite
from routing_common import record_of, spread


def calibration(worker):
    """When the worker had its blocks and when it had measured itself, seconds of the day, and what it saw."""
    found = {}
    with open(worker.log_path, encoding="utf-8") as log:
        for line in log:
            event = re.search(r"ts=\S+T(\d+):(\d+):([\d.]+)Z .*event=(started|kv|calibrated|joined)(.*)", line)
            if event:
                found[event[4]] = (int(event[1]) * 3600 + int(event[2]) * 60 + float(event[3]), event[5])
    return found


def one_round(suite, forge, folder, prompts):
    started = time.monotonic()
    with Cluster(forge, suite.smollm2(), flags=SERVED, logs=folder) as cluster:
        ready = time.monotonic() - started
        seen = []
        for prompt in prompts:
            Timed(cluster.port, body(prompt, 2)).wait()
            cluster.wait_at_rest(60)
            record = record_of(cluster)
            seen.append(record["predicted_ttft_ms"] / record["ttft_ms"])
        said = calibration(cluster.workers["prefill-0"]).get("calibrated", (0, ""))[1].strip()
    return ready, seen, said


def error(ratios):
    """How many times too long or too short, on average."""
    return math.exp(sum(abs(math.log(r)) for r in ratios) / len(ratios))


def compare(suite):
    options, rng = suite.options, suite.random
    builds = {"this build": options.forge}
    if options.other:
        builds["the other"] = options.other
    lengths = [int(part) for part in options.prompts.split(",")]
    rounds = {name: [] for name in builds}
    folder = options.logs or f"/tmp/forge-first-{os.getpid()}"
    for turn in range(options.rounds):
        prompts = [ids(rng, lengths[i % len(lengths)]) for i in range(options.requests)]
        for name in list(builds) if turn % 2 == 0 else reversed(builds):
            rounds[name].append(one_round(suite, builds[name], f"{folder}/{turn}-{name[:4]}", prompts))
            print(f"  # {name}: ready after {rounds[name][-1][0]:.2f} s, {rounds[name][-1][2]}; predicted / seen "
                  + " ".join(f"{r:.2f}" for r in rounds[name][-1][1]), flush=True)
    rows = []
    for name, seen in rounds.items():
        parts = [spread([error(run[1][a:b]) for run in seen]) if options.requests > a else "-"
                 for a, b in ((0, 1), (0, 5), (5, 10), (10, 20))]
        rows.append((name, spread([run[0] for run in seen]),
                     f"{median([run[1][0] for run in seen]):.2f}", *parts))
    table(["", "ready after s", "first: predicted / seen", "error of the 1st", "1 to 5", "6 to 10", "11 to 20"], rows)
    print(f"Medians and ranges of {options.rounds} rounds of {options.requests} requests of {options.prompts} "
          f"tokens in turn; error: times too long or too short, geometric mean; {machine()}.")


def main():
    suite = Suite(__doc__, rounds=(3, "rounds"), requests=(20, "requests of each"),
                  prompts=("32,256,96", "their lengths, in turn"), other=("", "another forge program"))
    suite.case("first predictions", compare, suite)
    suite.end()


if __name__ == "__main__":
    main()
