#!/usr/bin/env python3
"""Forge's logits against an independent forward pass in NumPy on the dequantised weights.

Forge writes greedy tokens after each prompt, with the logits of every step (logits_tool); NumPy then
runs once over each prompt with its tokens. Two questions, two bounds:

Is the arithmetic of the model right? The weights are float32 (the story model, SmolLM2 written
out as a float32 file, random models of the other architectures and of each way to stretch positions) and so is the KV cache, so only the order of float additions can differ: the
bound is 3e-5 of the spread of the logits.

Is the quantised path as good as its roundings allow? With quantised weights Forge rounds activations
to 8 bits in groups of 32 (of K types with a scale for 256 but for powers of two), with BF16 weights to bf16, and it keeps keys and values in 16 bits: in f16, or in bf16 (the usual type
of such models), where it rounds queries and attention's weights to bf16 as well. NumPy does the same roundings ("rounded") and measures what they cost against float32 throughout ("exact"). Forge may be as far
from exact as rounded is, with a margin of a quarter. Rounded is no bit-exact twin: a last-bit
difference tips some value over a rounding edge in every layer, and after a few layers the two are
two draws of the same noise, which may lie the square root of two times as far apart as each of them
lies from exact. A wrong scale, a lost minimum or a mask off by one is far outside all of this.
"""
# needs: numpy gguf
# needs-model
import json
import math
import pathlib
import subprocess
import tempfile
import time

import numpy as np
from _forge import Suite, find_tool
from _logits import STEPS, TINY_SHAPES, Difference, forge_logits
from _numpy_model import Model, read_file
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, dequantize, quantize

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


class NearTie(Exception):
    """Between experts: the order of float additions decides which way a row goes."""


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
