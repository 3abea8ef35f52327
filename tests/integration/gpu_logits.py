#!/usr/bin/env python3
"""What a GPU computes beside what the CPU computes: logits and greedy tokens.

They are two numerics classes. A GPU rounds weights and activations of products to bf16, and adds a step of 16
columns in one way of its own. The CPU does as much with BF16 weights, and adds in another order: a sum on the edge
of two bf16 becomes the other one, and after some layers the two are two draws of the same noise. With quantised
weights the CPU rounds activations to 8 bits in groups of 32, a coarser noise, and the GPU rounds what a code and its
scale make to bf16. With float weights the CPU rounds nothing but K and V.

So logits are compared as a whole: the root mean square of the difference, as a share of the logits' spread, has a bound
for each kind of weights, twice what was seen at most. Each of the CPU's greedy texts is run on the GPU too, from
eight places in it on; where the GPU chooses another token, the CPU must have preferred its own by less than the bound
of a near tie, and the rest of that piece is not compared: another text follows.

FORGE_TEST_DEVICE names the device, such as cuda:0; without it the back end runs in emulation. With --model a real
model's texts are compared too."""
# needs: numpy
import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np
from _forge import Skip, Suite, device, find_tool
from _logits import Difference, forge_logits
from gpu import use_device

STEPS, PIECE = 32, 4
VOCABULARY = 2000
# What a row of logits may differ by, as a share of how far its logits spread; and how clearly the CPU may have
# preferred another token than the GPU chose, in spreads.
# SmolLM2, which is Q4_1, has 30 layers, the others few.
BOUNDS = {"f32": (0.02, 0.08), "bf16": (0.0125, 0.05), "q8_0": (0.05, 0.1), "q4_0": (0.05, 0.1), "q4_k_m": (0.05, 0.1),
          "q4_1": (0.1, 0.3)}
# shape, type, layers. The emulation has room for rows of quantised weights up to 2048 columns.
MADE = [("smollm2-135m", "bf16", 4), ("smollm2-135m", "f32", 4), ("smollm2-135m", "q4_0", 4),
        ("qwen2.5-0.5b", "bf16", 2), ("qwen3-0.6b", "q8_0", 2), ("smollm2-135m", "q4_k_m", 4),
        ("tiny-longrope", "f32", 2), ("tiny-granite", "bf16", 2)]
EMULATED = [("smollm2-135m", "bf16", 1), ("tiny-longrope", "f32", 2), ("tiny-granite", "bf16", 2),
            ("smollm2-135m", "q4_0", 1)]  # the last one with --full


def compare(suite, path, prompts, bounds):
    rms_bound, tie_bound = bounds
    tokens, want = forge_logits(suite, path, prompts, STEPS, "bf16")
    places = [(p, first) for p in range(len(prompts)) for first in range(0, STEPS, PIECE)]
    pieces = [list(prompts[p]) + tokens[p, :first].tolist() for p, first in places]
    chosen, have = forge_logits(suite, path, pieces, PIECE, "bf16", device())
    result, parted = Difference(), []
    for (p, first), ids, rows in zip(places, chosen, have):
        for step, token in enumerate(ids):
            row = want[p, first + step]
            result.add(row[None], rows[step][None])
            if token != tokens[p, first + step]:
                parted.append((float(row.max() - row[token]) / float(row.std()), p, first + step))
                break
    note = (f"{result.rows} rows: {result.relative:.4f} of the spread apart, worst {result.worst:.3f}; {len(parted)} other "
            f"tokens, the clearest choice {max(parted, default=(0,))[0]:.3f} spreads")
    assert result.rows >= len(places), note
    assert result.relative <= rms_bound, f"{note}; allowed are {rms_bound}"
    assert all(margin <= tie_bound for margin, *_ in parted), f"{note}; no near tie: {max(parted)}, {tie_bound} is allowed"
    return note


def made(suite, folder, shape, dtype, layers, longest):
    path = pathlib.Path(folder) / f"{shape}-{dtype}.gguf"
    subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, "--type", dtype, "--layers", str(layers),
                    "--vocab", str(VOCABULARY)], check=True)
    rng = np.random.default_rng(suite.options.seed)
    prompts = [rng.integers(0, VOCABULARY, count).tolist() for count in (1, 9, longest)]
    try:
        return compare(suite, str(path), prompts, BOUNDS[dtype])
    finally:
        path.unlink()


def real(suite):
    if os.path.getsize(suite.smollm2()) < 50e6:
        raise Skip(f"{suite.smollm2()} is a small stand-in")
    texts = json.loads((pathlib.Path(__file__).parent / "smollm2_prompts.json").read_text(encoding="utf-8"))
    return compare(suite, suite.smollm2(), [text["ids"] for text in texts], BOUNDS["q4_1"])


def main():
    suite = Suite(__doc__)
    used = []
    suite.case("a device to test", lambda: used.append(use_device(suite)) or used[0])
    if not used:
        suite.end()
    emulated = " emulated " in used[0]
    with tempfile.TemporaryDirectory(prefix="forge-logits-") as folder:
        for shape, dtype, layers in MADE if not emulated else EMULATED if suite.options.full else EMULATED[:-1]:
            suite.case(f"{shape} with {dtype}, {layers} layers", made, suite, folder, shape, dtype, layers,
                       20 if emulated else 70)
    if not emulated:
        suite.case("SmolLM2", real, suite)
    suite.end()


if __name__ == "__main__":
    main()
