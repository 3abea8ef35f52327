#!/usr/bin/env python3
"""One core half stolen (goal C7): `forge bench throughput` alone and beside a process that spins on one of the cores,
in turns. The fair share is what the thief leaves of the cores: of 2 cores, one of them shared by two, 1.5 of 2.

Printed are medians over the rounds (least to most): tokens per second alone and robbed, and the robbed ones as a share
of fair, (robbed / alone) / (cores left / cores). The thief's part is measured, not assumed.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


def spin(core):
    """A child that spins on one core until it is killed."""
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        while True:
            pass
    return child


def measure(options, core):
    """Tokens per second of each test, and the cores that a thief on `core` (None: there is none) has left."""
    command = [options.forge, "bench", "throughput", "-m", options.model, "-t", str(options.threads), "-p", options.prompt,
               "-n", str(options.generate), "-b", options.batch, "-r", str(options.repeat), "--json"]
    thief = spin(core) if core is not None else None
    began = time.monotonic()
    try:
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    finally:
        took = time.monotonic() - began
        stolen = 0.0
        if thief is not None:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            os.kill(thief, 9)
            os.waitpid(thief, 0)
            stolen = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before.ru_utime) / took
    lines = [json.loads(line) for line in out.splitlines()]
    return {line["test"]: line["tokens_per_s"] for line in lines}, options.threads - stolen


def spread(values, digits=1):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forge", default=os.environ.get("FORGE_BIN") or str(ROOT / "build/release/forge"))
    parser.add_argument("--model", default=str(CACHE / "forge/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", default="512")
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    core = sorted(os.sched_getaffinity(0))[-1]
    alone, robbed, shares, left = {}, {}, {}, []
    for turn in range(options.rounds):
        free, _ = measure(options, None)
        taken, cores = measure(options, core)
        left.append(cores)
        for test, rate in free.items():
            alone.setdefault(test, []).append(rate)
            robbed.setdefault(test, []).append(taken[test])
            shares.setdefault(test, []).append(taken[test] / rate / (cores / options.threads))
        print(f"round {turn + 1} of {options.rounds}: {cores:.2f} of {options.threads} cores were left", file=sys.stderr)
    print("| test | alone t/s | robbed t/s | share of fair |\n| --- | --: | --: | --: |")
    for test, values in shares.items():
        print(f"| {test} | {spread(alone[test])} | {spread(robbed[test])} | {spread(values, 2)} |")
    print(f"\nCores left by the thief: {spread(left, 2)} of {options.threads}.")


if __name__ == "__main__":
    main()
