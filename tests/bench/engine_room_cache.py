#!/usr/bin/env python3
"""What the prefix cache saves: the second of two identical prompts against the first, and a load of
requests that begin with the same system prompt, on a server with the cache and on one without. Ratios
within one run, the servers in turns."""
import re

from engine_room_common import (SERVED, Timed, body, ids, machine, median, run_together, table)
from _forge import Suite, get


def computed(cluster):
    text = get(cluster.port, "/metrics", 60)[1].decode()
    return float(re.search(r"^forge:engine_prompt_tokens_total\S* (\S+)$", text, re.M)[1])


def one(cluster, request):
    before = computed(cluster)
    stream = Timed(cluster.port, request).wait()
    return stream.ttft * 1000, computed(cluster) - before, stream.cached


def second_prompt(suite):
    options = suite.options
    names = ("first", "second", "the same without the cache")
    times, tokens, cached = ({name: [] for name in names} for _ in range(3))
    with suite.cluster(model=suite.smollm2(), standalone=True, threads=options.threads,
                       flags=SERVED) as cluster:
        one(cluster, body(ids(suite.random, 64), 4))
        for _ in range(options.rounds):
            prompt = ids(suite.random, options.prompt)
            for name in names:
                more = {"prefix_cache": "disable"} if name == names[2] else {}
                took, count, hit = one(cluster, body(prompt, 4, **more))
                times[name].append(took)
                tokens[name].append(count)
                cached[name].append(hit)
    ratio = {n: median([a / b for a, b in zip(times[n], times["first"])]) for n in names}
    table(["prompt", "TTFT ms", "of the first", "prompt tokens computed", "cached_tokens"],
          [(n, f"{median(times[n]):.1f}", f"{ratio[n]:.3f}", f"{median(tokens[n]):.0f}",
            f"{median(cached[n]):.0f}") for n in names])
    print(f"Medians of {options.rounds} rounds, prompts of {options.prompt} tokens, "
          f"{options.threads} threads, {machine()}.")


def shared_prefix(suite):
    options, rng = suite.options, suite.random
    results = {"on": [], "off": []}
    with suite.cluster(model=suite.smollm2(), standalone=True, threads=options.threads,
                       flags=[*SERVED, "--prefix-cache", "on"]) as with_cache, \
            suite.cluster(model=suite.smollm2(), standalone=True, threads=options.threads,
                          flags=[*SERVED, "--prefix-cache", "off"]) as without:
        for cluster in (with_cache, without):
            one(cluster, body(ids(rng, 64), 4))
        for _ in range(options.rounds):
            prefix = ids(rng, options.shared)
            requests = [body(prefix + ids(rng, options.own), options.tokens)
                        for _ in range(options.requests)]
            for name, cluster in (("on", with_cache), ("off", without)):
                before = computed(cluster)
                streams, took = run_together(cluster.port, requests)
                results[name].append((options.requests * options.tokens / took,
                                      sum(s.ttft for s in streams) / len(streams),
                                      computed(cluster) - before))
                print(f"  # cache {name}: {results[name][-1]}", flush=True)
    rows = [(f"cache {name}", f"{median([r[0] for r in rounds]):.1f}",
             f"{median([r[1] for r in rounds]):.2f}", f"{median([r[2] for r in rounds]):.0f}")
            for name, rounds in results.items()]
    pairs = list(zip(results["on"], results["off"]))
    rows.append(("on / off", f"{median([a[0] / b[0] for a, b in pairs]):.2f}",
                 f"{median([a[1] / b[1] for a, b in pairs]):.3f}",
                 f"{median([a[2] / b[2] for a, b in pairs]):.3f}"))
    table(["", "generated tokens/s", "mean TTFT s", "prompt tokens computed"], rows)
    print(f"Medians of {options.rounds} rounds: {options.requests} requests at once, "
          f"{options.shared} shared and {options.own} own tokens, {options.tokens} tokens out, "
          f"{options.threads} threads, {machine()}. A round's prefix is new to both servers.")


def main():
    suite = Suite(__doc__, rounds=(3, "rounds"), threads=(2, "compute threads"),
                  prompt=(1000, "tokens of the prompt that comes twice"),
                  requests=(24, "requests at once"), shared=(600, "tokens that they share"),
                  own=(30, "tokens of each alone"), tokens=(16, "tokens of each answer"))
    suite.case("the same prompt twice", second_prompt, suite)
    suite.case("shared system prompt", shared_prefix, suite)
    suite.end()


if __name__ == "__main__":
    main()
