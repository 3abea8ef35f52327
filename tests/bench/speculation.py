#!/usr/bin/env python3
"""What guessing the next tokens is worth: a server that does not (--speculate off) and others that do, in turns. The
texts: answers that copy from their prompt, a chat, a chat at temperature 0.8 (which repeats little: what is lost there is
the price of guessing in vain). Prompts are cached after the first turn, so nearly all of the time is decoding. Each
cell: tokens a second of all clients together, over those without guessing; median of the turns (least to most). Every
answer is compared with the one without.

On a machine that has other work to do, `--threads 1 --clock cpu` counts the processor's seconds of each server instead of the
clock's.

With --draft FILE,FILE there are ways "draft" and "draft2", servers with that --speculative-model. What one is worth that is right nearly always
can be seen with real text where the model is a slower one that says the same: tests/support/layers_gguf.py makes both."""
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import Suite, counters, post, run_all, served_model  # noqa: E402  pylint: disable=wrong-import-position

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = {"off": ["--speculate", "off"], "pays": [], "adaptive": ["--draft-length", "adaptive"],
        "fixed": ["--draft-length", "fixed"], "ngram": ["--speculate", "ngram"]}


def file_part(name, begin, end):
    return (ROOT / name).read_text(encoding="utf-8")[begin:end]


def texts():
    """Name, temperature, prompts."""
    prose, code = file_part("docs/SCHEDULING.md", 300, 3300), file_part("common/spec/verdict.h", 0, 2600)
    copies = ["Fix the spelling of this text and repeat all of it:\n" + prose[:1200],
              "Rewrite this code with other names:\n" + code[:1600], "Summarise this:\n" + prose[:2400],
              "Answer from this text: who leaves when blocks are short?\n" + prose]
    chats = ["Why is the sky blue?", "Tell a story about a fox and a crow.", "How does a car engine work?",
             "Write a poem about the sea.", "Explain recursion with an example in Python.",
             "What is the capital of France and why is it famous?"]
    return [("copying", 0, copies), ("chat", 0, chats), ("copying, sampled", 0.8, copies),
            ("chat, sampled", 0.8, chats)]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_text(cluster, model, temperature, prompts, clients, tokens):
    """All prompts, some at a time. Seconds, tokens, answers."""
    answers, todo = [None] * len(prompts), list(range(len(prompts)))

    def client():
        while todo:
            i = todo.pop(0)
            body = {"model": model, "messages": [{"role": "user", "content": prompts[i]}], "seed": i,
                    "temperature": temperature, "max_tokens": tokens, "ignore_eos": True}
            answers[i] = post(cluster.port, "/v1/chat/completions", body)["choices"][0]["message"]["content"]

    began, used = time.monotonic(), cpu_seconds(cluster.router.pid)
    run_all([client] * clients)
    return time.monotonic() - began, cpu_seconds(cluster.router.pid) - used, answers


def cell(rates, base):
    ratios = [rate / other for rate, other in zip(rates, base)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def guessed(cluster):
    now = counters(cluster.port)
    return [now[f"spec_decode_num_{what}_total"] for what in ("draft_tokens", "accepted_tokens")]


def measure(suite, clusters, row, clients):
    name, temperature, prompts = row
    tokens = int(suite.options.tokens)
    prompts = prompts * -(-clients // len(prompts)) if clients > 1 else prompts
    rates, moved = {way: [] for way in clusters}, {}
    for turn in range(suite.options.rounds + 1):
        want = None
        for way, cluster in clusters.items():
            before = guessed(cluster)
            wall, cpu, answers = run_text(cluster, served_model(cluster), temperature, prompts, clients, tokens)
            want = answers if want is None else want
            assert answers == want, f"{name}, {way}: another answer than without guessing"
            if turn > 0:
                rates[way].append(len(prompts) * tokens / (cpu if suite.options.clock == "cpu" else wall))
                moved[way] = [b - a for a, b in zip(before, guessed(cluster))]
    cells = [f"{statistics.median(rates['off']):.0f}"]
    for way in list(clusters)[1:]:
        drafted, accepted = moved[way]
        share = f"{100 * accepted / drafted:.0f} %" if drafted else "none"
        cells.append(f"{cell(rates[way], rates['off'])}, {100 * accepted / (len(prompts) * tokens):.0f} %, {share}")
    print(f"| {name} | {clients} | " + " | ".join(cells) + " |", flush=True)


def bench(suite):
    ways = suite.options.ways.split(",")
    clusters = {}
    model = suite.options.bench_model or suite.smollm2()
    for i, draft in enumerate(suite.options.draft.split(",")):
        WAYS[f"draft{i + 1 if i else ''}"] = ["--speculative-model", draft]
    try:
        for way in ["off", *ways]:
            clusters[way] = suite.cluster(model=model, standalone=True, threads=int(suite.options.threads), flags=WAYS[way])
            clusters[way].wait_ready()
        print("\nIn each cell: times as fast, share of the answers' tokens that were guessed, share of the guesses that "
              "were right.\n\n| text | clients | off, tokens/s | " + " | ".join(ways) + " |\n| --- | ---: | ---: |"
              + " --- |" * len(ways))
        for clients in [int(word) for word in suite.options.clients.split(",")]:
            for row in (row for row in texts() if row[0].startswith(suite.options.texts)):
                measure(suite, clusters, row, clients)
    finally:
        for cluster in clusters.values():
            cluster.kill_all()


def main():
    suite = Suite(__doc__, rounds=(3, "turns"), clients=("1,8", "at once"), ways=("pays,adaptive,fixed", "to guess"),
                  threads=("2", "of each server"), clock=("wall", "or cpu"), texts=("", "only those whose names begin so"),
                  tokens=("200", "of an answer"), draft=("", "draft models' files: ways draft, draft2, ..."),
                  bench_model=("", "another model file than SmolLM2"))
    suite.case("speculation", bench, suite)
    suite.end()


if __name__ == "__main__":
    main()
