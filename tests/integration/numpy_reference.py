#!/usr/bin/env python3
"""Forge's logits against an independent forward pass in NumPy on the dequantised weights.

Forge writes greedy tokens after each prompt, with the logits of every step (logits_tool); NumPy then
runs once over each prompt with its tokens. Two questions, two bounds:

Is the arithmetic of the model right? The weights are float32 (the story model, SmolLM2 written
out as a float32 file, random models of the architectures qwen2 and qwen3) and so is the KV cache, so only the order of float additions can differ: the
bound is 3e-5 of the spread of the logits.

Is the quantised path as good as its roundings allow? With quantised weights Forge rounds activations
to 8 bits in groups of 32, with BF16 weights to bf16, and it keeps keys and values in 16 bits: in f16, or in bf16 (the usual type
of such models), where it rounds queries and attention's weights to bf16 as well. NumPy does the same roundings ("rounded") and measures what they cost against float32 throughout ("exact"). Forge may be as far
from exact as rounded is, with a margin of a quarter. Rounded is no bit-exact twin: a last-bit
difference tips some value over a rounding edge in every layer, and after a few layers the two are
two draws of the same noise, which may lie the square root of two times as far apart as each of them
lies from exact. A wrong scale, a lost minimum or a mask off by one is far outside all of this.
"""
# needs: numpy gguf
# needs-model
import functools
import json
import math
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from _forge import Suite, find_tool
from _logits import STEPS, Difference, forge_logits
from gguf import (GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter,
                  dequantize, quantize)

GROUP = 32


@functools.cache
def read_file(path):
    """What a file says of itself, and its matrices: name to (floats, type). Reading takes seconds, so it is done once."""
    reader = GGUFReader(path)
    return reader.fields, {tensor.name: (np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type),
                                                              dtype=np.float32), tensor.tensor_type)
                           for tensor in reader.tensors}


class Model:
    """A GGUF file of architecture llama, qwen2 or qwen3, as read_file gives it: float32 weights and the numbers of its shape."""

    def __init__(self, read, kv="f16"):
        self.kv = kv
        fields, tensors = read
        self.arch = fields["general.architecture"].contents()

        def field(name, default=None):
            found = fields.get(f"{self.arch}.{name}")
            return default if found is None else found.contents()

        self.layers = field("block_count")
        self.heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv", self.heads)
        self.width = field("embedding_length")
        self.head_dim = field("attention.key_length", self.width // self.heads)
        self.rotated = field("rope.dimension_count", self.head_dim)
        self.theta = field("rope.freq_base", 10000.0)
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        self.weights = {name: floats for name, (floats, _) in tensors.items()}
        self.rounding = {name: ROUNDINGS.get(kind, round_activations) for name, (_, kind) in tensors.items()}
        self.output = "output.weight" if "output.weight" in self.weights else "token_embd.weight"

    def product(self, x, name, rounded):
        if rounded:
            x = self.rounding[name](x)
        return x @ self.weights[name].T

    def norm(self, x, name):
        scale = 1.0 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
                              + self.epsilon)
        return (x * scale * self.weights[name]).astype(np.float32)

    def heads_of(self, h, layer, part, rounded):
        """q, k or v: [tokens][heads][dim], with qwen2's bias and qwen3's norm of each head."""
        name = f"blk.{layer}.attn_{part}"
        x = self.product(h, name + ".weight", rounded)
        if self.arch == "qwen2":
            x = x + self.weights[name + ".bias"]
        x = x.reshape(len(h), -1, self.head_dim)
        if self.arch == "qwen3" and part != "v":
            x = self.norm(x, name + "_norm.weight")
        return x

    def rotate(self, x):
        """x: [tokens][heads][dim]; GGUF stores llama's Q and K so that pairs lie side by side, Qwen's as halves."""
        half = self.rotated // 2
        frequencies = self.theta ** (-2.0 * np.arange(half) / self.rotated)
        if "rope_freqs.weight" in self.weights:
            frequencies = frequencies / self.weights["rope_freqs.weight"]
        angles = np.arange(len(x))[:, None, None] * frequencies
        first, second = ((slice(0, self.rotated, 2), slice(1, self.rotated, 2)) if self.arch == "llama"
                         else (slice(0, half), slice(half, self.rotated)))
        out = x.copy()
        out[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
        out[..., second] = x[..., first] * np.sin(angles) + x[..., second] * np.cos(angles)
        return out

    def attend(self, q, k, v, rounded):
        """Causal attention of one sequence, grouped queries. [tokens][heads][dim] each."""
        if rounded:
            k, v = (KV_ROUNDINGS[self.kv](x) for x in (k, v))
        narrow = round_to_bf16 if rounded and self.kv == "bf16" else lambda x: x
        q = narrow(q * np.float32(math.log2(math.e) / math.sqrt(self.head_dim)))
        group = self.heads // self.kv_heads
        tokens = len(q)
        mask = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float32), 1)
        out = np.empty_like(q)
        for head in range(self.heads):
            scores = q[:, head] @ k[:, head // group].T + mask
            scores = narrow(np.exp2(scores - scores.max(axis=-1, keepdims=True)))
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
            q, k, v = (self.heads_of(h, layer, part, rounded) for part in "qkv")
            parts = []
            for start, end in zip(edges, edges[1:]):
                parts.append(self.attend(self.rotate(q[start:end]), self.rotate(k[start:end]),
                                         v[start:end], rounded))
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


def round_to_bf16(x):
    """The nearest bf16, to even on ties; the models here have nothing near 2^-50."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return bits.view(np.float32)


# What becomes of activations that meet weights of these types; others are quantised.
ROUNDINGS = {GGMLQuantizationType.F32: lambda x: x, GGMLQuantizationType.F16: lambda x: x,
             GGMLQuantizationType.BF16: round_to_bf16}
KV_ROUNDINGS = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16).astype(np.float32),
                "bf16": round_to_bf16}


def compare(suite, path, prompts, steps, kv, ways, read):
    """Differences between Forge, exact and (in ways) rounded, over all steps of all prompts. `read`: what the file is
    known to hold; None: it is read."""
    model = Model(read or read_file(path), kv)
    tokens, logits = forge_logits(suite, path, prompts, steps, kv)
    # The last token of each answer is chosen by the last row; it is never an input.
    sequences = [np.concatenate([p, t[:-1]]).astype(np.int64) for p, t in zip(prompts, tokens)]
    started = time.monotonic()
    pairs = [("forge", "exact")]
    if "rounded" in ways:
        pairs += [("forge", "rounded"), ("rounded", "exact")]
    results = {pair: Difference() for pair in pairs}
    states = {way: model.forward(sequences, way == "rounded") for way in ways}
    for index in range(len(prompts)):
        rows = {way: model.logits(states[way][index][-steps:], way == "rounded") for way in ways}
        rows["forge"] = logits[index]
        for have, want in pairs:
            results[have, want].add(rows[want], rows[have])
    for (have, want), result in results.items():
        print(f"  {have} - {want}: {result}")
    print(f"  NumPy took {time.monotonic() - started:.0f} s for {sum(map(len, sequences))} tokens")
    return results


def smollm2_prompts():
    path = pathlib.Path(__file__).parent / "smollm2_prompts.json"
    return [entry["ids"] for entry in json.loads(path.read_text(encoding="utf-8"))]


def write_float_file(source, target, kind=GGMLQuantizationType.F32):
    """The same model with every matrix of this type. With float32 no product rounds activations. What it holds then."""
    fields, tensors = read_file(source)
    writer = GGUFWriter(target, "llama")
    for field in fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.types[0]
        element = field.types[-1] if value == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value, sub_type=element)
    written = {}
    for name, (floats, _) in tensors.items():
        if floats.ndim < 2 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(name, floats)
            written[name] = floats, GGMLQuantizationType.F32
        else:
            data = quantize(floats, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
            written[name] = dequantize(data, kind), kind
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return fields, written


def write_random_model(path, arch, kind, rng, tied):
    """A small model with biases or norms of heads that an answer would miss, and heads of a size of their own."""
    width, heads, kv_heads, dim, ffn, vocabulary, layers = 128, 6, 2, 64, 256, 400, 3
    writer = GGUFWriter(path, arch)
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)

    def matrix(name, rows, columns):
        floats = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        writer.add_tensor(name + ".weight", quantize(floats, kind), raw_dtype=kind)

    def vector(name, count, low, high):
        writer.add_tensor(name, rng.uniform(low, high, count).astype(np.float32))

    matrix("token_embd", vocabulary, width)
    vector("output_norm.weight", width, 1.0, 3.0)  # logits that prefer something
    if not tied:
        matrix("output", vocabulary, width)
    for layer in range(layers):
        name = f"blk.{layer}."
        for part, rows, columns in (("attn_q", heads * dim, width), ("attn_k", kv_heads * dim, width),
                                    ("attn_v", kv_heads * dim, width),
                                    ("attn_output", width, heads * dim), ("ffn_gate", ffn, width),
                                    ("ffn_up", ffn, width), ("ffn_down", width, ffn)):
            matrix(name + part, rows, columns)
        vector(name + "attn_norm.weight", width, 0.5, 1.5)
        vector(name + "ffn_norm.weight", width, 0.5, 1.5)
        if arch == "qwen2":
            vector(name + "attn_q.bias", heads * dim, -1, 1)
            vector(name + "attn_k.bias", kv_heads * dim, -4, 4)
            vector(name + "attn_v.bias", kv_heads * dim, -1, 1)
        else:
            vector(name + "attn_q_norm.weight", dim, 0.5, 2)
            vector(name + "attn_k_norm.weight", dim, 0.5, 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_model(suite, arch, kind, tied, kv):
    rng = np.random.default_rng(suite.options.seed)
    prompts = [rng.integers(0, 400, count).tolist() for count in (1, 7, 90, 200)]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/random.gguf"
        write_random_model(path, arch, kind, rng, tied)
        if kv == "f32":
            return float_model(suite, path, prompts, STEPS)
        return rounded_model(suite, path, prompts, STEPS, kv)


def float_model(suite, path, prompts, steps, read=None):
    result = compare(suite, path, prompts, steps, "f32", ("exact",), read)["forge", "exact"]
    assert result.relative <= 3e-5, "more than the order of float additions explains"
    assert result.worst <= 2e-3, "one logit is further off than float additions explain"
    assert all(flip <= 2e-3 for flip in result.flips), "a choice that was no near tie"
    return str(result)


def smollm2_as_float(suite):
    source = suite.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        target = folder + "/float.gguf"
        read = write_float_file(source, target)
        prompts = smollm2_prompts()
        return float_model(suite, target, prompts if suite.options.full else prompts[::4],
                           16 if suite.options.full else 8, read)


def smollm2_as_bf16(suite):
    source = suite.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        target = folder + "/bf16.gguf"
        read = write_float_file(source, target, GGMLQuantizationType.BF16)
        prompts = smollm2_prompts()
        return rounded_model(suite, target, prompts if suite.options.full else prompts[::4],
                             STEPS if suite.options.full else 16, "f16", read)


def smollm2_quantised(suite):
    prompts = smollm2_prompts()
    return rounded_model(suite, suite.smollm2(), prompts if suite.options.full else prompts[::3], STEPS,
                         "bf16")


def rounded_model(suite, path, prompts, steps, kv, read=None):
    results = compare(suite, path, prompts, steps, kv, ("exact", "rounded"), read)
    forge, noise = results["forge", "exact"], results["rounded", "exact"]
    assert forge.rms <= 1.25 * noise.rms, "further from exact than the roundings explain"
    assert forge.worst <= 2.0 * noise.worst, "one logit is further off than the roundings explain"
    assert results["forge", "rounded"].rms <= 1.25 * math.sqrt(2) * noise.rms, \
        "not the roundings that kernels/ops.h documents"
    # Two logits that each move by at most `worst` change places only if they are this near.
    assert all(flip <= 2.0 * noise.worst for flip in forge.flips), "a choice that was no near tie"
    return str(forge)


def main():
    suite = Suite(__doc__)
    story = [[1], [1, 403, 407, 261], [1] + list(range(260, 330)), [1] + [300, 280] * 40]
    suite.case("stories260K, float weights",
               lambda: float_model(suite, suite.stories(), story, STEPS))
    kinds = GGMLQuantizationType
    suite.case("qwen2, float weights", random_model, suite, "qwen2", kinds.F32, True, "f32")
    suite.case("qwen3, float weights", random_model, suite, "qwen3", kinds.F32, False, "f32")
    suite.case("qwen2, quantised weights", random_model, suite, "qwen2", kinds.Q8_0, False, "bf16")
    suite.case("qwen3, quantised weights", random_model, suite, "qwen3", kinds.Q5_1, True, "bf16")
    suite.case("qwen2, bf16 weights", random_model, suite, "qwen2", kinds.BF16, True, "f16")
    suite.case("SmolLM2 as a float file", smollm2_as_float, suite)
    suite.case("SmolLM2 as a bf16 file", smollm2_as_bf16, suite)
    suite.case("SmolLM2, quantised weights", smollm2_quantised, suite)
    suite.end()


if __name__ == "__main__":
    main()
