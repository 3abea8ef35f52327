#!/usr/bin/env python3
"""Split mode `auto` against the better of `always` and `never`, over a grid of loads in the simulator.

    tests/bench/fleet_grid.py [--forge build/release/forge] [--requests 600] [--seed 1] [--only TEXT]

A cell is a shape of four workers, a mix of prompts and answers, and a rate as a share of what four such
workers could do at most. Goodput counts requests within both limits; where the better static mode of a
cell serves less than a tenth within them, that cell is left out of the sum. Equal arguments print equal tables.
"""
import argparse
import json
import os
import subprocess
import tempfile

SHAPES = ["prefill=2,decode=2", "prefill=1,decode=3", "prefill=3,decode=1", "both=4"]
MODES = ["auto", "always", "never"]
# name: prompt, answer, further keys of --synthetic
MIXES = {
    "chat": (512, 256, ""),
    "answers": (128, 768, ""),
    "rag": (4096, 128, ""),
    "documents": (12288, 96, ""),
    "mixed": (512, 256, "long=15,long-tokens=8192,long-answer=64"),
    "prefixes": (256, 128, "prefixes=32,prefix-tokens=3072,zipf=0.8"),
}
SHARES = [0.6, 0.9, 1.2, 1.5]
WORKERS = 4


def cost_s(prompt, answer):
    """Of a request on one worker of gpu-8b-assumed with 32 rows in a step."""
    prefill = prompt * 40e-6 + 1.7e-9 * prompt * prompt / 2
    return prefill + answer * (6.7e-3 / 32 + 20e-6 + 55e-9 * (prompt + answer / 2))


def run(args, mix, share):
    prompt, answer, more = MIXES[mix]
    cost = cost_s(prompt, answer)
    if mix == "mixed":
        cost = 0.85 * cost + 0.15 * cost_s(8192, 64)
    rate = share * WORKERS / cost
    load = f"requests={args.requests},rate={rate:.3f},tail-tokens={prompt},answer-tokens={answer}"
    load += "," + (more if "prefix-tokens" in more else more + ",prefix-tokens=0").lstrip(",")
    rows = {}
    for half in (SHAPES[:2], SHAPES[2:]):
        setups = [f"{shape},split={mode}" for shape in half for mode in MODES]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "out.json")
            command = [args.forge, "sim", "--synthetic", load, "--seed", str(args.seed), "--quiet",
                       "--slo-ttft-ms", str(args.ttft), "--slo-itl-ms", str(args.itl),
                       "--queue-limit", "1024", "--json", path, "--compare", ";".join(setups)]
            command += args.more.split()
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(" ".join(command) + "\n" + done.stderr)
            with open(path, encoding="utf-8") as file:
                runs = json.load(file)["runs"]
        for setup, one in zip(setups, runs):
            shape, mode = setup.rsplit(",split=", 1)
            rows[shape, mode] = one["summary"]
    return rate, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--forge", default="build/release/forge")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ttft", type=float, default=1000)
    parser.add_argument("--itl", type=float, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--more", default="", help="further flags of forge sim")
    args = parser.parse_args()
    ratios, latencies = [], []
    print(f"{'mix':10} {'load':>5} {'req/s':>7} {'shape':20} {'auto':>8} {'always':>8} {'never':>8} "
          f"{'ratio':>6} {'latency':>7} {'split%':>6} {'TTFT ratio':>10}")
    for mix in MIXES:
        for share in SHARES:
            if args.only not in f"{mix} {share}":
                continue
            rate, rows = run(args, mix, share)
            for shape in SHAPES:
                auto, always, never = (rows[shape, mode] for mode in MODES)
                best = max(always["good_per_s"], never["good_per_s"])
                latency = min(always["e2e_mean_s"], never["e2e_mean_s"]) / auto["e2e_mean_s"]
                latencies.append(latency)
                ratio = auto["good_per_s"] / best if best > 0 else None
                if best >= rate / 10:
                    ratios.append((ratio, mix, share, shape))
                print(f"{mix:10} {share:5} {rate:7.2f} {shape:20} {auto['good_per_s']:8.3f} "
                      f"{always['good_per_s']:8.3f} {never['good_per_s']:8.3f} "
                      f"{'-' if ratio is None else f'{ratio:.3f}':>6} {latency:7.3f} "
                      f"{100 * auto['split_share']:6.1f} {auto['ttft_ratio_mean']:10.2f}", flush=True)
    values = sorted(ratio for ratio, *_ in ratios)
    mean = sum(values) / len(values)
    below = sum(value < 0.98 for value in values)
    print(f"\ngoodput auto / better static mode: {len(values)} cells, mean {mean:.3f}, "
          f"worst {values[0]:.3f} at {min(ratios)[1:]}, 10th percentile {values[len(values) // 10]:.3f}, "
          f"{below} below 0.98")
    latencies.sort()
    print(f"mean latency, better static mode / auto: mean {sum(latencies) / len(latencies):.3f}, "
          f"worst {latencies[0]:.3f}")


if __name__ == "__main__":
    main()
