"""A forward pass in NumPy on the dequantised weights of a GGUF file, exact or with Forge's roundings."""
import functools
import math

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, dequantize

GROUP, SUPER = 32, 256


@functools.cache
def read_file(path):
    """What a file says of itself, and its matrices: name to (floats, type). Reading takes seconds, so it is done once."""
    reader = GGUFReader(path)
    return reader.fields, {tensor.name: (np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type),
                                                              dtype=np.float32), tensor.tensor_type)
                           for tensor in reader.tensors}


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
        for layer in range(self.layers):
            for names in READ_TOGETHER:
                self.share_supers([f"blk.{layer}.{name}.weight" for name in names])
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

    def share_supers(self, names):
        """Products of the same rows: if one reads super-groups, all quantised ones read their quants."""
        names = [name for name in names if name in self.rounding]
        if any(self.rounding[name] is round_in_supers for name in names):
            for name in names:
                if self.rounding[name] is round_activations:
                    self.rounding[name] = round_in_supers

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


def round_in_supers(x):
    """8 bits, and a shift of 0 to 3 for each group of 32, below a scale for each 256 (kernels/ops.h)."""
    groups = x.reshape(*x.shape[:-1], -1, SUPER // GROUP, GROUP)
    peaks = np.abs(groups).max(axis=-1, keepdims=True)
    peak = peaks.max(axis=-2, keepdims=True)
    peak = np.where(peak < np.float32(1e-30), np.float32(0), peak)
    inverse = np.divide(np.float32(1016), peak, out=np.zeros_like(peak), where=peak > 0)
    most = peaks * inverse
    shifts = sum((most > limit).astype(np.int32) for limit in (127, 254, 508))
    powers = np.ldexp(np.float32(1), shifts)
    return (np.rint(groups * (inverse / powers)) * (peak / np.float32(1016) * powers)).reshape(x.shape)


def round_to_bf16(x):
    """The nearest bf16, to even on ties; the models here have nothing near 2^-50."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return bits.view(np.float32)


# What becomes of activations that meet weights of these types; others are quantised in groups.
ROUNDINGS = {GGMLQuantizationType.F32: lambda x: x, GGMLQuantizationType.F16: lambda x: x,
             GGMLQuantizationType.BF16: round_to_bf16, GGMLQuantizationType.Q4_K: round_in_supers,
             GGMLQuantizationType.Q5_K: round_in_supers, GGMLQuantizationType.Q6_K: round_in_supers}
# Matrices of a layer that are multiplied with the same rows, where they are quantised.
READ_TOGETHER = (("attn_q", "attn_k", "attn_v"),
                 ("ffn_gate", "ffn_up", "ffn_gate_exps", "ffn_up_exps", "ffn_gate_shexp", "ffn_up_shexp"))
KV_ROUNDINGS = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float16).astype(np.float32),
                "bf16": round_to_bf16}
