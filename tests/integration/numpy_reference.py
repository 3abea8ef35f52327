#!/usr/bin/env python3
"""Forge's logits against an independent forward pass in NumPy on the dequantised weights.

For 24 prompts Forge writes 64 greedy tokens and the logits of every step (logits_tool). NumPy then
runs once over each prompt with its tokens, in two ways:

  exact     float32 throughout. The difference is what Forge gives away for speed: activations
            rounded to 8 bits in groups of 32 before products with quantised weights, and keys and
            values kept in 16 bits.
  rounded   the same with those two roundings done in NumPy. What remains is float order alone and
            the activations that it tips over a rounding edge.

The bound on the first is therefore not chosen but measured: Forge may be as far from `exact` as
`rounded` is, with a margin. A wrong scale, a lost minimum or a mask off by one is far outside it.
For a model without quantised weights there is nothing but the rounding of keys and values, and the
bound is tight.
"""
# needs: numpy gguf
# needs-model
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from _forge import ROOT, Skip, Suite
from gguf import GGUFReader, GGMLQuantizationType, dequantize

STEPS = 64
GROUP = 32
FLOAT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


class Model:
    """One GGUF file of architecture llama: float32 weights and the numbers of its shape."""

    def __init__(self, path):
        reader = GGUFReader(path)

        def field(name, default=None):
            found = reader.fields.get("llama." + name)
            return default if found is None else found.contents()

        self.layers = field("block_count")
        self.heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv", self.heads)
        self.width = field("embedding_length")
        self.head_dim = field("attention.key_length", self.width // self.heads)
        self.rotated = field("rope.dimension_count", self.head_dim)
        self.theta = field("rope.freq_base", 10000.0)
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        self.weights, self.quantised = {}, {}
        for tensor in reader.tensors:
            self.weights[tensor.name] = np.ascontiguousarray(
                dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            self.quantised[tensor.name] = tensor.tensor_type not in FLOAT_TYPES
        self.output = "output.weight" if "output.weight" in self.weights else "token_embd.weight"

    def product(self, x, name, rounded):
        if rounded and self.quantised[name]:
            x = round_activations(x)
        return x @ self.weights[name].T

    def norm(self, x, name):
        scale = 1.0 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
                              + self.epsilon)
        return (x * scale * self.weights[name]).astype(np.float32)

    def rotate(self, x):
        """x: [tokens][heads][dim]; GGUF stores llama's Q and K so that pairs lie side by side."""
        half = self.rotated // 2
        frequencies = self.theta ** (-2.0 * np.arange(half) / self.rotated)
        if "rope_freqs.weight" in self.weights:
            frequencies = frequencies / self.weights["rope_freqs.weight"]
        angles = np.arange(len(x))[:, None, None] * frequencies
        even, odd = x[..., 0:self.rotated:2], x[..., 1:self.rotated:2]
        out = x.copy()
        out[..., 0:self.rotated:2] = even * np.cos(angles) - odd * np.sin(angles)
        out[..., 1:self.rotated:2] = even * np.sin(angles) + odd * np.cos(angles)
        return out

    def attend(self, q, k, v):
        """Causal attention of one sequence, grouped queries. [tokens][heads][dim] each."""
        group = self.heads // self.kv_heads
        tokens = len(q)
        mask = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float32), 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T / np.sqrt(np.float32(self.head_dim)) + mask
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            out[:, head] = scores @ v[:, head // group]
        return out

    def forward(self, sequences, rounded):
        """The state before the last norm of every token; all sequences share the matrix products."""
        edges = np.cumsum([0] + [len(s) for s in sequences])
        x = self.weights["token_embd.weight"][np.concatenate(sequences)]
        for layer in range(self.layers):
            name = f"blk.{layer}."
            h = self.norm(x, name + "attn_norm.weight")
            q, k, v = (self.product(h, f"{name}attn_{part}.weight", rounded)
                       .reshape(len(x), -1, self.head_dim) for part in "qkv")
            parts = []
            for start, end in zip(edges, edges[1:]):
                keys, values = self.rotate(k[start:end]), v[start:end]
                if rounded:
                    keys = keys.astype(np.float16).astype(np.float32)
                    values = values.astype(np.float16).astype(np.float32)
                parts.append(self.attend(self.rotate(q[start:end]), keys, values))
            h = np.concatenate(parts).reshape(len(x), -1)
            x = x + self.product(h, name + "attn_output.weight", rounded)
            h = self.norm(x, name + "ffn_norm.weight")
            gate = self.product(h, name + "ffn_gate.weight", rounded)
            up = self.product(h, name + "ffn_up.weight", rounded)
            h = (gate / (1.0 + np.exp(-gate)) * up).astype(np.float32)
            x = x + self.product(h, name + "ffn_down.weight", rounded)
        return [x[start:end] for start, end in zip(edges, edges[1:])]

    def logits(self, x, rounded):
        return self.product(self.norm(x, "output_norm.weight"), self.output, rounded)


def round_activations(x):
    """8 bits in groups of 32: scale = max|x| / 127, to even on ties (kernels/ops.h)."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    peak = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    return (np.rint(groups * inverse) * (peak / np.float32(127))).reshape(x.shape)


def find_tool(suite):
    for folder in (pathlib.Path(suite.options.forge).parent, ROOT / "build/release"):
        for tool in sorted(folder.rglob("logits_tool")):
            if os.access(tool, os.X_OK) and tool.is_file():
                return str(tool)
    raise Skip("logits_tool is not built (cmake --build --preset release)")


def forge_logits(suite, model_path, prompts, vocabulary, steps=STEPS):
    """tokens [prompt][step] and logits [prompt][step][vocabulary] as Forge computes them."""
    tool = find_tool(suite)
    with tempfile.TemporaryDirectory() as folder:
        ids_file, out_file = folder + "/ids", folder + "/out"
        pathlib.Path(ids_file).write_text("".join(" ".join(map(str, p)) + "\n" for p in prompts),
                                          encoding="ascii")
        done = subprocess.run([tool, model_path, ids_file, str(steps), out_file],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"logits_tool ended with {done.returncode}: {done.stderr[-500:]}"
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


def compare(suite, path, prompts):
    """Differences forge - exact, forge - rounded, rounded - exact over all steps of all prompts."""
    model = Model(path)
    vocabulary = len(model.weights[model.output])
    tokens, logits = forge_logits(suite, path, prompts, vocabulary)
    # The last token of each answer is chosen by the last row; it is never an input.
    sequences = [np.concatenate([p, t[:-1]]).astype(np.int64) for p, t in zip(prompts, tokens)]
    started = time.monotonic()
    states = {way: model.forward(sequences, way) for way in (False, True)}
    results = {name: Difference() for name in ("forge-exact", "forge-rounded", "rounded-exact")}
    for index in range(len(prompts)):
        exact, rounded = (model.logits(states[way][index][-STEPS:], way) for way in (False, True))
        results["forge-exact"].add(exact, logits[index])
        results["forge-rounded"].add(rounded, logits[index])
        results["rounded-exact"].add(exact, rounded)
    for name, result in results.items():
        print(f"  {name:14} {result}")
    print(f"  NumPy took {time.monotonic() - started:.0f} s for {sum(map(len, sequences))} tokens")
    return results


def quantised_model(suite):
    prompts = json.loads((pathlib.Path(__file__).parent / "smollm2_prompts.json")
                         .read_text(encoding="utf-8"))
    results = compare(suite, suite.smollm2(), [p["ids"] for p in prompts])
    forge, noise = results["forge-exact"], results["rounded-exact"]
    assert forge.rms <= 1.25 * noise.rms, "further from the exact logits than the roundings explain"
    assert forge.worst <= 2.0 * noise.worst, "one logit is further off than the roundings explain"
    assert results["forge-rounded"].rms <= noise.rms, "the roundings are not the ones documented"
    # Two logits that each move by at most `worst` can change places only if they are this near.
    assert all(flip <= 2.0 * noise.worst for flip in forge.flips), "a choice that was no near tie"
    return str(forge)


def float_model(suite, path, prompts):
    results = compare(suite, str(path), prompts)
    forge = results["forge-rounded"]
    assert forge.relative <= 1e-3 and forge.worst <= 0.02, "float weights leave no room for this"
    assert all(flip <= 0.02 for flip in forge.flips)
    return str(forge)


def main():
    suite = Suite(__doc__)
    story = [[1], [1, 403, 407, 261], [1] + list(range(260, 330)), [1] + [300, 280] * 40]
    suite.case("stories260K, float weights",
               lambda: float_model(suite, suite.stories(), story))
    suite.case("SmolLM2, quantised weights", quantised_model, suite)
    suite.end()


if __name__ == "__main__":
    main()
