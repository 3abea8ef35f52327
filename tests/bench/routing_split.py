#!/usr/bin/env python3
"""Whether `--split auto` does what is better (goal S6): 1P+1D with auto, always and never, on a grid of
prompt length, answer length and requests at once. The three take turns on the same requests within each
round, in another order every time. Of each cell: mean latency of the better static mode / of auto, where
the better one is chosen by its median over all rounds."""
import contextlib

from engine_room_common import SERVED, body, ids, machine, median, run_together, table
from _forge import Suite
from routing_common import spread

MODES = ["auto", "always", "never"]


def numbers(text):
    return [int(part) for part in text.split(",")]


def one(cluster, requests):
    """Mean latency, mean TTFT, p90 of the gaps between tokens in ms, and the share that was split."""
    streams, _ = run_together(cluster.port, requests)
    latency = [s.times[-1] - s.sent for s in streams]
    recent = cluster.state()["recent"][:len(requests)]
    split = sum(r["prefill"] != r["decode"] for r in recent) / len(recent)
    return (1000 * sum(latency) / len(latency), 1000 * sum(s.ttft for s in streams) / len(streams), split)


def grid(suite):
    options, rng = suite.options, suite.random
    cells = [(p, a, c) for c in numbers(options.together) for p in numbers(options.prompts)
             for a in numbers(options.answers)]
    seen = {cell: {mode: [] for mode in MODES} for cell in cells}
    with contextlib.ExitStack() as stack:
        clusters = {mode: stack.enter_context(suite.cluster(model=suite.smollm2(), split=mode, flags=SERVED))
                    for mode in MODES}
        for cluster in clusters.values():  # what was claimed at the start gives way to what is seen
            for _ in range(4):
                run_together(cluster.port, [body(ids(rng, 64), 8)] * 2)
        for turn in range(options.rounds):
            for cell in cells:
                requests = [body(ids(rng, cell[0]), cell[1]) for _ in range(cell[2])]
                for i in range(len(MODES)):
                    mode = MODES[(i + turn) % len(MODES)]
                    seen[cell][mode].append(one(clusters[mode], requests))
                print(f"  # {cell}: " + ", ".join("%s %.0f ms (first %.0f) split %.2f" %
                                                  (mode, *seen[cell][mode][-1]) for mode in MODES), flush=True)
    rows, ratios = [], []
    for cell, modes in seen.items():
        latency = {mode: [one[0] for one in modes[mode]] for mode in MODES}
        better = min(MODES[1:], key=lambda mode: median(latency[mode]))
        ratio = [b / a for a, b in zip(latency["auto"], latency[better])]
        ratios.append(median(ratio))
        rows.append((f"{cell[0]} + {cell[1]} tokens, {cell[2]} at once",
                     *(f"{median(latency[mode]):.0f}" for mode in MODES),
                     f"{median([one[2] for one in modes['auto']]):.2f}", better, spread(ratio)))
    table(["load", "auto ms", "always ms", "never ms", "auto split", "better", "better / auto"], rows)
    print(f"Mean latencies, medians of {options.rounds} rounds, 1P+1D, 1 thread each. Over the grid: mean of "
          f"the ratios {sum(ratios) / len(ratios):.2f}, least {min(ratios):.2f}; {machine()}.")


def main():
    suite = Suite(__doc__, rounds=(3, "rounds"), prompts=("64,512", "prompt lengths"),
                  answers=("8,64", "answer lengths"), together=("1,8", "requests at once"))
    suite.case("auto against always and never", grid, suite)
    suite.end()


if __name__ == "__main__":
    main()
