#!/usr/bin/env python3
"""Forge's logits against an independent forward pass in NumPy on the dequantised weights.

Forge writes greedy tokens after each prompt, with the logits of every step (logits_tool); NumPy then
runs once over each prompt with its tokens. Two questions, two bounds:

Is the arithmetic of the model right? The weights are float32 (the story model, SmolLM2 written
out as a float32 file, random models of the other architectures and of each way to stretch positions) and so is the KV cache, so only the order of float additions can differ: the
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
from _logits import STEPS, TINY_SHAPES, Difference, forge_logits
from gguf import (GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter,
                  dequantize, quantize)

GROUP = 32
LEAST_GAP = 2e-5  # additions in another order change a router's logits by some 1e-6
# What else files may say of the same things; llama.cpp reads each of them so, but for turns of its own, which it knows in
# other architectures only.
OTHER_KEYS = (
    ("a linear factor under its old name", "tiny-linear",
     {"rope.scaling.type": None, "rope.scaling.factor": None, "rope.scale_linear": 3.0}),
    ("two linear factors", "tiny-linear", {"rope.scaling.type": None, "rope.scale_linear": 3.0}),
    ("a factor for nothing", "tiny-linear", {"rope.scaling.type": "none"}),
    ("factor 0", "tiny-linear", {"rope.scaling.factor": 0.0}),
    ("and more weight", "tiny-yarn", {"rope.scaling.attn_factor": 1.25}),
    ("no original context", "tiny-yarn", {"rope.scaling.original_context_length": None}),
    ("no factor", "tiny-yarn", {"rope.scaling.factor": None}),
    ("its own turns", "tiny-yarn", {"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5}),
    ("both corners inside", "tiny-yarn", {"rope.freq_base": 10.0, "rope.scaling.original_context_length": 4096}),
    ("both corners outside", "tiny-yarn", {"rope.freq_base": 100.0, "rope.scaling.original_context_length": 100000}),
    ("no corner", "tiny-yarn", {"rope.scaling.original_context_length": 4}),
    ("only the factors say so", "tiny-longrope", {"rope.scaling.type": None}),
    ("no weight", "tiny-longrope", {"rope.scaling.attn_factor": None}),
    ("no scales", "tiny-granite", {"embedding_scale": None, "residual_scale": None, "attention.scale": None}),
    ("another pattern", "tiny-gemma3", {"attention.sliding_window_pattern": 3}),
    ("turns of windows", "tiny-gemma3", {"rope.freq_base_swa": 100.0}),
    ("no window", "tiny-gemma3", {"attention.sliding_window": None}),
    ("a window of all", "tiny-gemma3", {"attention.sliding_window": 4096}),
    ("weights that are not normalised", "tiny-moe", {"expert_weights_norm": False}),
    ("weights that are normalised", "tiny-qwen2moe", {"expert_weights_norm": True}),
    ("weights that are scaled", "tiny-mixtral", {"expert_weights_scale": 1.5, "expert_gating_func": 1}),
    ("one expert for a row", "tiny-moe", {"expert_used_count": 1}),
    ("all experts for a row", "tiny-mixtral", {"expert_used_count": 4}),
    ("scales of 0", "tiny-granite", {"embedding_scale": 0.0, "residual_scale": 0.0, "attention.scale": 0.0}),
)


@functools.cache
def read_file(path):
    """What a file says of itself, and its matrices: name to (floats, type). Reading takes seconds, so it is done once."""
    reader = GGUFReader(path)
    return reader.fields, {tensor.name: (np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type),
                                                              dtype=np.float32), tensor.tensor_type)
                           for tensor in reader.tensors}


class NearTie(Exception):
    """Between experts: the order of float additions decides which way a row goes."""


class Rotation:
    """RoPE with what GGUF knows to stretch it: how far each pair of values of a head turns from one position to the next,
    and by how much the turned ones grow."""

    def __init__(self, field, weights, head_dim, side_by_side, of_window=False):
        """side_by_side: GGUF stores llama's Q and K so that pairs lie so; others' as halves. of_window: of gemma3's layers
        with one."""
        self.rotated = field("rope.dimension_count", head_dim)
        self.side_by_side = side_by_side
        base = field("rope.freq_base", 10000.0)
        pairs = np.arange(self.rotated // 2)
        if of_window:
            self.growth, self.frequencies = 1.0, field("rope.freq_base_swa", 10000.0) ** (-2.0 * pairs / self.rotated)
            return
        kind = field("rope.scaling.type", "linear")
        factor = field("rope.scaling.factor") or field("rope.scale_linear") or 1.0
        original = field("rope.scaling.original_context_length", field("context_length"))
        self.frequencies = base ** (-2.0 * pairs / self.rotated)
        self.growth = field("rope.scaling.attn_factor", 1.0)
        reach = "long" if field("context_length") > original else "short"
        for name in (f"rope_factors_{reach}.weight", "rope_freqs.weight"):
            self.frequencies /= weights.get(name, 1)
        if kind == "yarn":
            first, last = (self.rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
                           for turns in (field("rope.scaling.yarn_beta_fast", 32.0),
                                         field("rope.scaling.yarn_beta_slow", 1.0)))
            first, last = max(math.floor(first), 0), min(math.ceil(last), self.rotated - 1)
            stretched = np.clip((pairs - first) / max(last - first, 0.001), 0, 1)
            self.frequencies *= 1 - stretched + stretched / factor
            self.growth *= 1 + 0.1 * math.log(max(factor, 1))
        elif kind != "none":
            self.frequencies /= factor

    def __call__(self, x):
        """x: [tokens][heads][dim] of one sequence from its start."""
        half = self.rotated // 2
        angles = np.arange(len(x))[:, None, None] * self.frequencies
        first, second = ((slice(0, self.rotated, 2), slice(1, self.rotated, 2)) if self.side_by_side
                         else (slice(0, half), slice(half, self.rotated)))
        cosines, sines = self.growth * np.cos(angles), self.growth * np.sin(angles)
        out = x.copy()
        out[..., first] = x[..., first] * cosines - x[..., second] * sines
        out[..., second] = x[..., first] * sines + x[..., second] * cosines
        return out


class Model:
    """A GGUF file as read_file gives it: float32 weights and the numbers of its shape."""

    def __init__(self, read, kv="f16"):
        self.kv = kv
        fields, tensors = read
        self.arch = fields["general.architecture"].contents()

        def field(name, default=None):
            found = fields.get(f"{self.arch}.{name}")
            return default if found is None else found.contents()

        def scale(name, default):
            """Of granite's numbers; absent or 0: as in other architectures."""
            return np.float32(self.arch.startswith("granite") and field(name) or default)

        self.layers = field("block_count")
        self.heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv", self.heads)
        self.width = field("embedding_length")
        self.head_dim = field("attention.key_length", self.width // self.heads)
        self.embedding_scale = scale("embedding_scale", 1)
        self.residual_scale = scale("residual_scale", 1)
        self.attention_scale = scale("attention.scale", 1 / math.sqrt(self.head_dim))
        self.logit_scale = scale("logit_scale", 1)
        self.epsilon = field("attention.layer_norm_rms_epsilon")
        self.experts, self.experts_used = field("expert_count", 0), field("expert_used_count")
        self.normalised = field("expert_weights_norm", self.arch != "qwen2moe")
        self.least_gap = np.inf  # between an expert's logit that was chosen and one that was not, in a forward
        self.expert_scale = np.float32(field("expert_weights_scale", 1))
        self.weights = {name: floats for name, (floats, _) in tensors.items()}
        self.rounding = {name: ROUNDINGS.get(kind, round_activations) for name, (_, kind) in tensors.items()}
        self.output = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        self.gemma = self.arch.startswith("gemma")
        if self.gemma:
            self.embedding_scale = np.float32(math.sqrt(self.width))
        self.window = field("attention.sliding_window", 0)
        # Which layers see all, and which have no positions.
        self.period = field("attention.sliding_window_pattern", 6) if self.arch == "gemma3" else 0
        self.unturned = 4 if self.arch == "smollm3" else 0
        side_by_side = self.arch in ("llama", "granite", "granitemoe", "smollm3")
        self.rotation = Rotation(field, self.weights, self.head_dim, side_by_side)
        self.window_rotation = (Rotation(field, self.weights, self.head_dim, side_by_side, of_window=True)
                                if self.arch == "gemma3" else self.rotation)

    def product(self, x, name, rounded, expert=slice(None)):
        if rounded:
            x = self.rounding[name](x)
        return x @ self.weights[name][expert].T

    def norm(self, x, name):
        scale = 1.0 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
                              + self.epsilon)
        return (x * scale * self.weights[name]).astype(np.float32)

    def heads_of(self, h, layer, part, rounded):
        """q, k or v: [tokens][heads][dim], with qwen2's bias and qwen3's norm of each head."""
        name = f"blk.{layer}.attn_{part}"
        if self.arch == "phi3":
            counts = [count * self.head_dim for count in (0, self.heads, self.kv_heads, self.kv_heads)]
            index = "qkv".index(part)
            x = self.product(h, f"blk.{layer}.attn_qkv.weight", rounded)
            x = x[:, sum(counts[:index + 1]):sum(counts[:index + 2])]
        else:
            x = self.product(h, name + ".weight", rounded)
        if self.arch in ("qwen2", "qwen2moe"):
            x = x + self.weights[name + ".bias"]
        x = x.reshape(len(h), -1, self.head_dim)
        if self.arch in ("qwen3", "qwen3moe", "gemma3") and part != "v":
            x = self.norm(x, name + "_norm.weight")
        return x

    def attend(self, q, k, v, window, rounded):
        """Causal attention of one sequence, grouped queries. [tokens][heads][dim] each. window: 0, or how many tokens a
        row sees."""
        if rounded:
            k, v = (KV_ROUNDINGS[self.kv](x) for x in (k, v))
        narrow = round_to_bf16 if rounded and self.kv == "bf16" else lambda x: x
        q = narrow(q * np.float32(math.log2(math.e) * self.attention_scale))
        group = self.heads // self.kv_heads
        tokens = len(q)
        mask = np.triu(np.full((tokens, tokens), -np.inf, dtype=np.float32), 1)
        if window > 0:
            mask[np.arange(tokens)[:, None] - np.arange(tokens) >= window] = -np.inf
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
        x = self.weights["token_embd.weight"][np.concatenate(sequences)] * self.embedding_scale
        for layer in range(self.layers):
            name = f"blk.{layer}."
            h = self.norm(x, name + "attn_norm.weight")
            q, k, v = (self.heads_of(h, layer, part, rounded) for part in "qkv")
            parts = []
            window = 0 if self.period and (layer + 1) % self.period == 0 else self.window
            turn = self.window_rotation if window else self.rotation
            if self.unturned and (layer + 1) % self.unturned == 0:
                turn = lambda heads: heads
            for start, end in zip(edges, edges[1:]):
                parts.append(self.attend(turn(q[start:end]), turn(k[start:end]), v[start:end], window, rounded))
            h = np.concatenate(parts).reshape(len(x), -1)
            h = self.product(h, name + "attn_output.weight", rounded)
            if self.arch == "gemma3":
                h = self.norm(h, name + "post_attention_norm.weight")
            x = x + self.residual_scale * h
            h = self.norm(x, name + "ffn_norm.weight")
            feed_forward = self.mix if self.experts > 0 else self.feed_forward
            h = feed_forward(h, name, rounded)
            if self.arch == "gemma3":
                h = self.norm(h, name + "post_ffw_norm.weight")
            x = x + self.residual_scale * h
        return [x[start:end] for start, end in zip(edges, edges[1:])]

    def feed_forward(self, h, name, rounded):
        up = self.product(h, name + "ffn_up.weight", rounded)
        if self.arch == "phi3":
            gate, up = np.split(up, 2, axis=-1)
        else:
            gate = self.product(h, name + "ffn_gate.weight", rounded)
        return self.product(gated(gate, up, self.gemma), name + "ffn_down.weight", rounded)

    def mix(self, h, name, rounded):
        """Each row's experts, each with its weight before the last product, where Forge rounds."""
        logits = h @ self.weights[name + "ffn_gate_inp.weight"].T
        ranked = np.argsort(-logits, axis=-1, kind="stable")
        chosen, next_one = ranked[:, :self.experts_used], ranked[:, self.experts_used:self.experts_used + 1]
        gaps = np.take_along_axis(logits, chosen[:, -1:], axis=-1) - np.take_along_axis(logits, next_one, axis=-1)
        self.least_gap = min(self.least_gap, gaps.min(initial=np.inf))
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights = np.take_along_axis(powers, chosen, axis=-1)
        weights *= self.expert_scale / (weights if self.normalised else powers).sum(axis=-1, keepdims=True)
        out = np.zeros_like(h)
        for expert in range(self.experts):
            rows, places = np.nonzero(chosen == expert)
            gate, up = (self.product(h[rows], f"{name}ffn_{part}_exps.weight", rounded, expert) for part in ("gate", "up"))
            hidden = gated(gate, up) * weights[rows, places, None]
            out[rows] += self.product(hidden, name + "ffn_down_exps.weight", rounded, expert)
        if name + "ffn_up_shexp.weight" in self.weights:
            gate, up = (self.product(h, f"{name}ffn_{part}_shexp.weight", rounded) for part in ("gate", "up"))
            weights = self.weights.get(name + "ffn_gate_inp_shexp.weight")
            share = 1 if weights is None else 1 / (1 + np.exp(-(h @ weights)[:, None]))
            out += self.product(gated(gate, up) * share, name + "ffn_down_shexp.weight", rounded)
        return out

    def logits(self, x, rounded):
        return self.product(self.norm(x, "output_norm.weight"), self.output, rounded) / self.logit_scale


def gated(gate, up, gelu=False):
    opened = (0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate ** 3))) if gelu
              else gate / (1.0 + np.exp(-gate)))
    return (opened * up).astype(np.float32)


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
    if model.least_gap < LEAST_GAP:
        raise NearTie
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


def write_float_file(source, target, kind=GGMLQuantizationType.F32, changes=None):
    """The same model with every matrix but the routers of this type. With float32 no product rounds activations. What it holds then.
    `changes`: of the architecture's keys, name to new value; None leaves a key out."""
    fields, tensors = read_file(source)
    arch = fields["general.architecture"].contents()
    changes = {f"{arch}.{name}": value for name, value in (changes or {}).items()}
    writer = GGUFWriter(target, arch)
    for name, value in changes.items():
        if value is not None:
            kinds = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32,
                     str: GGUFValueType.STRING}
            writer.add_key_value(name, value, kinds[type(value)])
    for field in fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name in changes:
            continue
        value = field.types[0]
        element = field.types[-1] if value == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), value, sub_type=element)
    written = {}
    for name, (floats, _) in tensors.items():
        if floats.ndim < 2 or kind == GGMLQuantizationType.F32 or "ffn_gate_inp" in name:
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


def without_near_ties(check):
    """The first result with prompts of other seeds in which no experts are as good as equal."""
    for turn in range(20):
        try:
            return check(turn)
        except NearTie:
            print(f"  turn {turn}: a near tie of experts")
    raise AssertionError("near ties in all turns")


def make_tiny(suite, path, shape, dtype="f32", turn=0):
    """A model that make-gguf knows, and prompts that with an answer of STEPS tokens fill its 256 positions."""
    subprocess.run([find_tool(suite, "make-gguf"), path, "--shape", shape, "--type", dtype], check=True)
    rng = np.random.default_rng([suite.options.seed, turn])
    return [rng.integers(0, 2000, count).tolist() for count in (1, 7, 90, 190)]


def tiny_model(suite, shape, dtype, kv):
    def check(turn):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/tiny.gguf"
            prompts = make_tiny(suite, path, shape, dtype, turn)
            if kv == "f32":
                return float_model(suite, path, prompts, STEPS)
            return rounded_model(suite, path, prompts, STEPS, kv)
    return without_near_ties(check)


def all_experts(suite, shape, count, kind):
    """With a choice, a rounding now and then tips it, and a row takes quite another way."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = folder + "/tiny.gguf", folder + "/changed.gguf"
        prompts = make_tiny(suite, source, shape)
        write_float_file(source, target, kind, {"expert_used_count": count})
        return rounded_model(suite, target, prompts, STEPS, "bf16")


def tiny_with_other_keys(suite, shape, changes):
    def check(turn):
        with tempfile.TemporaryDirectory() as folder:
            source, target = folder + "/tiny.gguf", folder + "/changed.gguf"
            prompts = make_tiny(suite, source, shape, turn=turn)
            write_float_file(source, target, changes=changes)
            return float_model(suite, target, prompts, 8)
    return without_near_ties(check)


def smollm2_as_float(suite):
    source = suite.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        target = folder + "/float.gguf"
        read = write_float_file(source, target)
        prompts = smollm2_prompts()
        return float_model(suite, target, prompts[::2] if suite.options.full else prompts[::4],
                           16 if suite.options.full else 8, read)


def smollm2_as_bf16(suite):
    source = suite.smollm2()
    with tempfile.TemporaryDirectory() as folder:
        target = folder + "/bf16.gguf"
        read = write_float_file(source, target, GGMLQuantizationType.BF16)
        prompts = smollm2_prompts()
        return rounded_model(suite, target, prompts[::3] if suite.options.full else prompts[::4],
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
    # llama.cpp does not do this window.
    for shape in (*TINY_SHAPES, "tiny-phi3-window"):
        suite.case(f"{shape}, float weights", tiny_model, suite, shape, "f32", "f32")
    for shape, dtype in (("tiny-longrope", "q4_k_m"), ("tiny-phi4", "q8_0"), ("tiny-granite", "q4_0"),
                         ("tiny-gemma3", "q4_k_m")):
        suite.case(f"{shape}, {dtype}", tiny_model, suite, shape, dtype, "bf16")
    for shape, count, kind in (("tiny-moe", 16, kinds.Q4_0), ("tiny-mixtral", 4, kinds.Q8_0),
                               ("tiny-granitemoe", 8, kinds.BF16), ("tiny-qwen2moe", 8, kinds.Q5_1)):
        suite.case(f"{shape}, {kind.name}, all experts", all_experts, suite, shape, count, kind)
    for what, shape, changes in OTHER_KEYS:
        suite.case(f"{shape}, {what}", tiny_with_other_keys, suite, shape, changes)
    suite.case("SmolLM2 as a float file", smollm2_as_float, suite)
    suite.case("SmolLM2 as a bf16 file", smollm2_as_bf16, suite)
    suite.case("SmolLM2, quantised weights", smollm2_quantised, suite)
    suite.end()


if __name__ == "__main__":
    main()
