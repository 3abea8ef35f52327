"""Logits that Forge computes, and how far some are from others."""
import os
import pathlib
import subprocess
import tempfile

import numpy as np
from _forge import find_tool

STEPS = 64
# Of make-gguf: float models that mix experts, and others that show each way to stretch positions, fused matrices,
# granite's scales, windows, GELU gates and layers without positions.
MIXTURES = ("tiny-moe", "tiny-mixtral", "tiny-granitemoe", "tiny-qwen2moe")
TINY_SHAPES = ("tiny-linear", "tiny-yarn", "tiny-phi4", "tiny-longrope", "tiny-shortrope", "tiny-granite", "tiny-gemma",
               "tiny-gemma3", "tiny-smollm3") + MIXTURES


def forge_logits(suite, model_path, prompts, steps=STEPS, kv="f16", device=None):
    """tokens [prompt][step] and logits [prompt][step][vocabulary] as Forge computes them, on the CPU or on a device."""
    tool = find_tool(suite, "logits_tool")
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out_file = folder + "/ids", folder + "/out"
        pathlib.Path(ids_file).write_text("".join(" ".join(map(str, p)) + "\n" for p in prompts),
                                          encoding="ascii")
        done = subprocess.run([tool, model_path, ids_file, str(steps), out_file],
                              env={**os.environ, "FORGE_KV_DTYPE": kv, "FORGE_TEST_DEVICE": device or "cpu"},
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"logits_tool ended with {done.returncode}: {done.stderr[-500:]}"
        vocabulary = os.path.getsize(out_file) // (4 * len(prompts) * steps) - 1
        records = np.fromfile(out_file, dtype=[("token", "<u4"), ("logits", "<f4", vocabulary)])
    assert len(records) == len(prompts) * steps, f"{len(records)} records"
    records = records.reshape(len(prompts), steps)
    assert (records["logits"].argmax(axis=-1) == records["token"]).all(), "a token is not the maximum"
    return records["token"], records["logits"]


def probabilities(logits):
    shifted = np.exp((logits - logits.max(axis=-1, keepdims=True)).astype(np.float64))
    return shifted / shifted.sum(axis=-1, keepdims=True)


class Difference:
    """How far one set of logits is from another, gathered over many rows."""

    def __init__(self):
        self.worst, self.squares, self.spread, self.count = 0.0, 0.0, 0.0, 0
        self.divergence, self.rows, self.agree, self.flips = 0.0, 0, 0, []

    def add(self, want, have):
        delta = np.abs(have - want)
        self.worst = max(self.worst, float(delta.max()))
        self.squares += float((delta.astype(np.float64) ** 2).sum())
        self.spread += float(((want - want.mean(axis=-1, keepdims=True)).astype(np.float64) ** 2)
                             .sum())
        self.count += delta.size
        p, q = probabilities(want), probabilities(have)
        self.divergence += float((p * np.log((p + 1e-30) / (q + 1e-30))).sum())
        self.rows += len(want)
        first, second = want.argmax(axis=-1), have.argmax(axis=-1)
        rows = np.arange(len(want))
        self.agree += int((first == second).sum())
        # By how much the reference preferred its own choice where the two disagree.
        self.flips += list((want[rows, first] - want[rows, second])[first != second])

    @property
    def rms(self):
        return (self.squares / self.count) ** 0.5

    @property
    def relative(self):
        """Root mean square of the difference over that of the logits around their mean."""
        return (self.squares / self.spread) ** 0.5

    def __str__(self):
        return (f"rms {self.rms:.2e} (relative {self.relative:.2e}), worst {self.worst:.3f}, "
                f"KL {self.divergence / self.rows:.2e}, top-1 {self.agree}/{self.rows}, largest "
                f"margin lost {max(self.flips, default=0):.3f}")
