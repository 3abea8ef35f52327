#!/usr/bin/env python3
"""What routing to the worker that has the prefix is worth (goal S4): requests that begin with one of some
system prompts, of which the caches of all workers together hold all and each one's only its share. One
cluster for each policy, taking turns on the same requests within each round, in another order every time."""
import contextlib
import time

from engine_room_common import SERVED, body, ids, machine, median, percentile, table
from _forge import Suite
from routing_common import STATUS, closed_loop, computed, found, spread, took

BLOCK = 16
POLICIES = ["cost", "round-robin", "least-loaded"]
LAYOUTS = {  # flags, the split mode, and how many workers compute prompts
    "2P+2D, always split": ([], "always", 2),
    "4 mixed workers": (["--roles", "both"], "auto", 4),
}


def room(options, prompt_workers):
    """Blocks for a worker's share of the prefixes, a quarter more, and the requests under way."""
    prefix = options.prefix // BLOCK
    own = -(-(options.own + options.tokens) // BLOCK) + 1
    return prefix * options.prefixes * 5 // (4 * prompt_workers) + own * options.width + prefix


def measure(cluster, requests, width):
    asked, hit, before = *found(cluster), computed(cluster)
    streams = closed_loop(cluster.port, requests, width)
    cluster.wait_at_rest(60)
    time.sleep(0.3)  # the workers' reports
    now_asked, now_hit = found(cluster)
    ttft = [s.ttft for s in streams]
    return {"rate": len(streams) / took(streams), "ttft": sum(ttft) / len(ttft),
            "p90": percentile(ttft, 0.9), "computed": computed(cluster) - before,
            "hit": (now_hit - hit) / max(1, now_asked - asked)}


def compare(suite, layout):
    options, rng = suite.options, suite.random
    flags, split, prompt_workers = LAYOUTS[layout]
    flags = [*SERVED, *STATUS, *flags, "--kv-blocks", room(options, prompt_workers)]
    prefixes = [ids(rng, options.prefix) for _ in range(options.prefixes)]
    rounds = {policy: [] for policy in POLICIES}
    with contextlib.ExitStack() as stack:
        clusters = {policy: stack.enter_context(
            suite.cluster(model=suite.smollm2(), prefill=2, decode=2, split=split,
                          flags=[*flags, "--routing", policy])) for policy in POLICIES}
        for cluster in clusters.values():
            closed_loop(cluster.port, [body(p + ids(rng, options.own), 2) for p in prefixes], 2)
        for turn in range(options.rounds):
            requests = [body(rng.choice(prefixes) + ids(rng, options.own), options.tokens)
                        for _ in range(options.requests)]
            for i in range(len(POLICIES)):
                policy = POLICIES[(i + turn) % len(POLICIES)]
                rounds[policy].append(measure(clusters[policy], requests, options.width))
                print(f"  # {policy}: {rounds[policy][-1]}", flush=True)
    rows = [(policy, f"{median([r['rate'] for r in seen]):.2f}",
             f"{median([r['ttft'] for r in seen]) * 1000:.0f}",
             f"{median([r['p90'] for r in seen]) * 1000:.0f}",
             f"{median([r['computed'] for r in seen]):.0f}", f"{median([r['hit'] for r in seen]):.2f}")
            for policy, seen in rounds.items()]
    for other in POLICIES[1:]:
        pairs = list(zip(rounds["cost"], rounds[other]))
        rows.append((f"cost / {other}", *(spread([a[k] / max(b[k], 1e-9) for a, b in pairs])
                                          for k in ("rate", "ttft", "p90", "computed", "hit"))))
    table([layout, "requests/s", "mean TTFT ms", "p90 ms", "prompt tokens computed", "hit rate"], rows)
    print(f"Medians of {options.rounds} rounds of {options.requests} requests, {options.width} at a "
          f"time: one of {options.prefixes} prefixes of {options.prefix} tokens, {options.own} own ones, "
          f"{options.tokens} out; {flags[-1]} blocks a worker, 1 thread each; {machine()}.")


def main():
    suite = Suite(__doc__, rounds=(3, "rounds"), prefixes=(12, "system prompts"),
                  prefix=(256, "tokens of each"), own=(16, "tokens of a request alone"),
                  tokens=(4, "tokens of an answer"), requests=(48, "requests a round"),
                  width=(4, "of them at a time"))
    for layout in LAYOUTS:
        suite.case(layout, compare, suite, layout)
    suite.end()


if __name__ == "__main__":
    main()
