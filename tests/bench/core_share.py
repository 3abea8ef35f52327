#!/usr/bin/env python3
"""Prefill and decode processes on the same cores: alone, and with a long prompt that arrives while an
answer is written. One standalone process, and one prefill and one decode worker with all cores each, with
and without --share-cores; all take turns in one run, so that they see the same machine. The ITL of a
mixed load is that of the gaps between the tokens while the prompt was computed. Medians over the rounds,
p99 over all gaps, as a Markdown table."""
import os
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import Stream, Suite, counters, served_model, status_port  # noqa: E402  pylint: disable=wrong-import-position

SHORT, LONG = 18, 450
COLUMNS = ("ttft_short", "ttft_long", "itl", "mixed_ttft", "mixed_itl", "exposed")


class Answer:
    """One streamed answer: when it was asked for, and the moments of its tokens."""

    def __init__(self, cluster, prompt, tokens, reached=0):
        self.moments = []
        self.reached = threading.Event()
        self.count = reached
        body = {"model": served_model(cluster), "prompt": prompt, "temperature": 0,
                "max_tokens": tokens, "ignore_eos": True, "logits_digest": True}
        self.started = time.monotonic()
        self.stream = Stream(cluster.port, "/v1/completions", body)

    def read(self):
        for chunk in self.stream.chunks():
            for choice in chunk["choices"]:
                found = len(choice.get("forge", {}).get("token_ids", []))
                self.moments += [time.monotonic()] * found
            if len(self.moments) >= self.count:
                self.reached.set()
        self.stream.connection.close()
        return self

    def ttft(self):
        return (self.moments[0] - self.started) * 1000

    def gaps(self, begin=0.0, end=float("inf")):
        """Between tokens after the second one: the first gap is the hand-over's."""
        pairs = list(zip(self.moments, self.moments[1:]))[1:]
        return [(b - a) * 1000 for a, b in pairs if begin <= b and a <= end]


def prompt_of(kind, turn, words):
    return f"{kind} {turn}: " + "the quick brown fox jumps over the lazy dog " * (words // 9)


def one_round(cluster, turn, tokens, result):
    answer = Answer(cluster, prompt_of("Short", turn, SHORT), tokens).read()
    result["ttft_short"].append(answer.ttft())
    result["itl"].extend(answer.gaps())
    result["exposed"].append(cluster.state()["recent"][0].get("push_exposed_ms") or 0)
    result["ttft_long"].append(Answer(cluster, prompt_of("Long", turn, LONG), 2).read().ttft())
    written = Answer(cluster, prompt_of("Written", turn, SHORT), 8 * tokens, reached=8)
    reader = threading.Thread(target=written.read)
    reader.start()
    written.reached.wait()
    arriving = Answer(cluster, prompt_of("Arriving", turn, LONG), 2).read()
    reader.join()
    result["mixed_ttft"].append(arriving.ttft())
    result["mixed_itl"].extend(written.gaps(arriving.started, arriving.moments[0]))


def row(name, result):
    p99 = sorted(result["mixed_itl"])[int(len(result["mixed_itl"]) * 0.99)]
    cells = [f"{statistics.median(result[c]):.1f}" for c in COLUMNS[:4]]
    spread = f"{min(result['mixed_ttft']):.0f}-{max(result['mixed_ttft']):.0f}"
    return (f"| {name} | " + " | ".join(cells) + f" ({spread}) | "
            f"{statistics.mean(result['mixed_itl']):.1f}, {p99:.0f} |")


def bench(suite):
    cores = os.cpu_count()
    model = suite.smollm2()
    flags = ["--status-port", "0", "--local-prefill-tokens", "0"]
    shapes = {
        f"standalone, {cores} threads": {"standalone": True, "flags": []},
        f"1P+1D, {cores} threads each, apart": {"flags": flags + ["--share-cores", "off"]},
        f"1P+1D, {cores} threads each, shared": {"flags": flags},
    }
    if suite.options.single:
        shapes["1P+1D, 1 thread each"] = {"flags": flags + ["--share-cores", "off"], "threads": 1}
    clusters = {}
    results = {name: {column: [] for column in COLUMNS} for name in shapes}
    try:
        for name, options in shapes.items():
            clusters[name] = suite.cluster(model=model, **{"threads": cores, **options})
        for turn in range(suite.options.rounds + 1):
            for name, cluster in clusters.items():
                warm = {column: [] for column in COLUMNS}
                one_round(cluster, turn, suite.options.tokens, results[name] if turn else warm)
        print("\n| shape | TTFT 18 words ms | TTFT 450 words ms | ITL ms | mixed TTFT ms (range) | mixed ITL "
              "mean, p99 ms |\n| --- | ---: | ---: | ---: | ---: | ---: |")
        for name, result in results.items():
            print(row(name, result))
        for name, result in results.items():
            print(f"{name}: transfer of a short prompt, exposed {statistics.median(result['exposed']):.1f} ms")
        print(f"\n{suite.options.rounds} rounds, answers of {suite.options.tokens} tokens.")
        for name, cluster in clusters.items():
            for worker in cluster.workers.values() if "standalone" not in name else ():
                shown = counters(status_port(worker))
                print(f"{name}, {worker.name}: {shown.get('engine_shared_steps_total', 0):.0f} of "
                      f"{shown['engine_steps_total']:.0f} steps shared")
    finally:
        for cluster in clusters.values():
            cluster.kill_all()


def main():
    suite = Suite(__doc__, rounds=(5, "rounds"), tokens=(24, "tokens of a short answer"),
                  single=(1, "also with one thread each (0: not)"))
    suite.case("cores shared", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
