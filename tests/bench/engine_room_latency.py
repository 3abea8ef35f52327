#!/usr/bin/env python3
"""Inter-token latency of 8 streams while long prompts arrive, by how prompts are cut: whole, in
chunks of a fixed size, or to a step-time target (--step-ms). A target only means something beside
what a step without prompts takes, so the targets are multiples of that, measured in the same round.
Every server has its own idle value too, from the same streams, between one prompt and the next.

Only gaps that overlap the time between the sending of the long prompt and its first token (or the end
of the measured seconds) count as busy, so that the time without prompts cannot hide a pause."""
import re
import time

from engine_room_common import SERVED, Timed, body, ids, machine, median, percentile, table
from _forge import Suite, get

LOWEST = 16  # tokens of each stream before anything is measured
WHOLE_S = 900
KEYS = ("idle50", "idle", "busy50", "busy", "max", "ratio", "rate", "idle rate", "prompt rate", "ttft")


def wait_tokens(streams, count):
    while any(len(s.times) < count for s in streams):
        for stream in streams:
            if stream.error:
                raise stream.error
        time.sleep(0.01)
    return time.monotonic()


def prompt_tokens(cluster):
    text = get(cluster.port, "/metrics", 60)[1].decode()
    return float(re.search(r"^forge:engine_prompt_tokens_total\S* (\S+)$", text, re.M)[1])


def running(cluster):
    text = get(cluster.port, "/metrics", 60)[1].decode()
    return float(re.search(r"^forge:num_requests_running\S* (\S+)$", text, re.M)[1])


def start(suite, flags):
    return suite.cluster(model=suite.smollm2(), standalone=True, threads=suite.options.threads,
                         flags=[*SERVED, "--max-batch-tokens", 8192, "--kv-blocks", 1400, *flags])


def start_streams(suite, cluster):
    streams = [Timed(cluster.port, body(ids(suite.random, 32), 4000))
               for _ in range(suite.options.streams)]
    begin = wait_tokens(streams, LOWEST)
    end = wait_tokens(streams, LOWEST + suite.options.idle_tokens)
    return streams, begin, end, [gap for s in streams for gap in s.gaps(begin, end)]


def idle_ms(suite):
    """What a step of these streams takes when nothing else comes."""
    with start(suite, ["--step-ms", 0]) as cluster:
        streams, _, _, gaps = start_streams(suite, cluster)
        for stream in streams:
            stream.stop()
        return 1000 * median(gaps)


def one_window(suite, cluster, streams, pooled):
    """The streams alone, then beside a prompt that is cut off after its share of the seconds."""
    options = suite.options
    begin = wait_tokens(streams, max(len(s.times) for s in streams))
    end = wait_tokens(streams, max(len(s.times) for s in streams) + options.idle_tokens)
    pooled["idle"] += [gap for s in streams for gap in s.gaps(begin, end)]
    pooled["idle s"] += end - begin
    computed = prompt_tokens(cluster)
    busy_from = time.monotonic()
    prompt = Timed(cluster.port, body(ids(suite.random, options.prompt), 1))
    prompt.thread.join(WHOLE_S if pooled["whole"] else options.seconds / options.windows)
    busy_until = prompt.times[0] if prompt.times else time.monotonic()
    pooled["computed"] += prompt_tokens(cluster) - computed
    time.sleep(0.2)  # tokens of that same step may come a little later
    pooled["busy"] += [gap for s in streams for gap in s.gaps_over(busy_from, busy_until)]
    pooled["busy s"] += busy_until - busy_from
    prompt.cut()
    while running(cluster) > len(streams):
        time.sleep(0.01)
    return prompt.times


def one_round(suite, cluster, whole, result):
    """Windows with and without a prompt take turns on one server: what else the machine does then
    weighs on both alike."""
    options = suite.options
    streams = start_streams(suite, cluster)[0]
    pooled = {"idle": [], "busy": [], "idle s": 0, "busy s": 0, "computed": 0, "whole": whole}
    done = False
    for _ in range(1 if whole else options.windows):
        done = bool(one_window(suite, cluster, streams, pooled))
    for stream in streams:
        stream.stop()
    cluster.wait_at_rest(60)
    idle, busy, took, computed = (pooled[key] for key in ("idle", "busy", "busy s", "computed"))
    values = (median(idle), percentile(idle, 0.99), median(busy), percentile(busy, 0.99), max(busy),
              percentile(busy, 0.99) / percentile(idle, 0.99), len(busy) / took,
              len(idle) / pooled["idle s"], computed / took,
              took if done and whole else took * options.prompt / max(computed, 1))
    for key, value in zip(KEYS, values):
        result.setdefault(key, []).append(value)


def bench(suite):
    options = suite.options
    fixed = [("whole prompt", ["--step-ms", 0, "--prefill-chunk-size", options.prompt]),
             ("chunks of 512", ["--step-ms", 0, "--prefill-chunk-size", 512])] * options.fixed
    results = {}
    for _ in range(options.rounds):
        alone = idle_ms(suite)
        targets = [(f"target {factor} x idle", ["--step-ms", max(1, round(alone * float(factor)))])
                   for factor in options.targets.split(",") if factor]
        for name, flags in fixed + targets:
            with start(suite, flags) as cluster:
                result = results.setdefault(name, {})
                one_round(suite, cluster, name == "whole prompt", result)
            print(f"  # {name} {flags}: " + ", ".join(f"{key} {values[-1]:.4g}" for key, values
                                                      in result.items()), flush=True)
    ms = lambda values: f"{median(values) * 1000:.0f}"  # noqa: E731
    table(["prompts", "p50 idle ms", "p99 idle ms", "p50 busy ms", "p99 busy ms", "longest ms",
           "p99 busy / idle", "long prompt's TTFT s", "prompt tokens/s", "streams' tokens/s", "idle"],
          [(name, ms(r["idle50"]), ms(r["idle"]), ms(r["busy50"]), ms(r["busy"]), ms(r["max"]),
            f"{median(r['ratio']):.2f}", f"{median(r['ttft']):.1f}",
            *(f"{median(r[key]):.1f}" for key in ("prompt rate", "rate", "idle rate")))
           for name, r in results.items()])
    print(f"Medians of {options.rounds} rounds: {options.streams} streams, a prompt of "
          f"{options.prompt} tokens, {options.threads} threads, {machine()}. Where a prompt did not end "
          f"within {options.seconds} s, its TTFT is what its rate makes of it.")


def main():
    suite = Suite(__doc__, rounds=(3, "rounds"), streams=(8, "streams"), prompt=(4096, "tokens"),
                  threads=(2, "compute threads"), seconds=(60, "measured, at most, beside prompts"),
                  windows=(6, "times with and without a prompt, in turns on each server"),
                  idle_tokens=(48, "tokens of each stream for the idle value"),
                  targets=("1.25,1.5,2,4", "values of --step-ms, in steps of the streams alone"),
                  fixed=(1, "0: leave out the servers without a target"))
    suite.case("long prompts beside streams", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
