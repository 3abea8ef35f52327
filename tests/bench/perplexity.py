#!/usr/bin/env python3
"""Perplexity of a fixed text: Forge, llama.cpp where tests/bench/peers has installed it, and a NumPy pass in
float32 on the dequantised weights, all on the same windows of token ids. Ratios to the float pass.

The text is --text, or the questions of the corpus (traces/mt_bench_question.jsonl).
"""
# needs: numpy gguf
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import numpy as np  # noqa: E402  pylint: disable=wrong-import-position
from _forge import Skip, Suite, find_tool  # noqa: E402  pylint: disable=wrong-import-position
from _numpy_model import Model, read_file  # noqa: E402  pylint: disable=wrong-import-position

HERE = pathlib.Path(__file__).resolve().parent


def read_text(suite):
    if suite.options.text:
        return pathlib.Path(suite.options.text).read_text(encoding="utf-8")
    lines = suite.corpus("traces/mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n\n".join(turn for line in lines for turn in json.loads(line)["turns"])


def token_ids(suite, text):
    data = text.encode()
    done = subprocess.run([find_tool(suite, "tokenize_tool"), suite.smollm2(), "encode"],
                          input=struct.pack("<I", len(data)) + data, capture_output=True, check=True)
    return [int(word) for word in done.stdout.split()]


def score(lines):
    """Perplexity from lines of "COUNT NATS"."""
    pairs = [line.split() for line in lines.splitlines() if line.strip()]
    return math.exp(sum(float(n) for _, n in pairs) / sum(int(c) for c, _ in pairs))


def numpy_score(model, windows, rounded):
    lines = ""
    for window in windows:
        logits = model.logits(model.forward([window], rounded)[0], rounded).astype(np.float64)
        peak = logits.max(axis=-1, keepdims=True)
        log_sums = np.log(np.exp(logits - peak).sum(axis=-1)) + peak[:, 0]
        wanted = logits[np.arange(len(window) - 1), window[1:]]
        lines += f"{len(window) - 1} {float((log_sums[:-1] - wanted).sum())}\n"
    return score(lines)


def forge_score(suite, ids_file, kv):
    done = subprocess.run([find_tool(suite, "perplexity_tool"), suite.smollm2(), ids_file],
                          env={**os.environ, "FORGE_KV_DTYPE": kv}, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        return done.stderr.strip()
    return score(done.stdout)


def peer_score(suite, ids_file):
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    python = cache / "forge/peers/bin/python"
    if not python.is_file():
        return "skipped: tests/bench/peers --install"
    done = subprocess.run([str(python), str(HERE / "peer_llamacpp.py"), "--model", suite.smollm2(),
                           "--threads", str(os.cpu_count()), "--nats", ids_file],
                          capture_output=True, text=True, check=False)
    return score(done.stdout) if done.returncode == 0 else "skipped: " + done.stderr[-200:]


def bench(suite):
    ids = token_ids(suite, read_text(suite))
    length, count = suite.options.window, suite.options.windows
    windows = [ids[at:at + length] for at in range(0, len(ids) - length + 1, length)][:count]
    assert windows, f"the text has {len(ids)} tokens, fewer than a window"
    with tempfile.TemporaryDirectory() as folder:
        ids_file = folder + "/ids"
        pathlib.Path(ids_file).write_text("".join(" ".join(map(str, w)) + "\n" for w in windows),
                                          encoding="ascii")
        model = Model(read_file(suite.smollm2()))
        exact = numpy_score(model, windows, False)
        rows = [("float32, NumPy", exact),
                ("Forge's roundings with KV f16, NumPy", numpy_score(model, windows, True))]
        rows += [(f"Forge, KV {kv}", forge_score(suite, ids_file, kv))
                 for kv in suite.options.kv.split(",")]
        rows.append(("llama.cpp, KV f16", peer_score(suite, ids_file)))
    print("\n| engine | perplexity | to float |\n| --- | --: | --: |")
    for name, value in rows:
        print(f"| {name} | {value} | - |" if isinstance(value, str)
              else f"| {name} | {value:.4f} | {100 * (value / exact - 1):+.3f} % |")
    print(f"\n{len(windows)} windows of {length} tokens.")


def main():
    suite = Suite(__doc__, text=("", "a text file"), window=(512, "tokens of a window"),
                  windows=(8, "at most so many"), kv=("bf16,f16,f32,int8", "KV types of Forge"))
    try:
        bench(suite)
    except Skip as missing:
        sys.exit(f"{missing}; --text FILE takes another text")


if __name__ == "__main__":
    main()
