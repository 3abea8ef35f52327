#!/usr/bin/env python3
"""Forge's reference dequantiser equals the PyPI package `gguf`, bit for bit: random blocks of every
type (all bits random, scales finite), and every tensor of the story model and of SmolLM2."""
# needs: numpy gguf
# needs-model
import subprocess

import numpy as np
from _forge import Suite, find_tool
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFReader
from gguf.quants import dequantize

TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]
# Byte offsets of the half-precision scales in a block.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}


def random_blocks(kind, rows, rng):
    """Blocks with every bit random, except that no scale is infinite or NaN."""
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    if kind == T.F32:
        return rng.normal(size=(rows, 256)).astype(np.float32).view(np.uint8)
    if kind in (T.F16, T.BF16):
        halves = rng.integers(0, 1 << 16, size=(rows, 256), dtype=np.uint16)
        exponent = 0x7C00 if kind == T.F16 else 0x7F80
        halves[halves & exponent == exponent] = 0x8001  # a negative subnormal instead
        return halves.view(np.uint8)
    blocks = rng.integers(0, 256, size=(rows * (256 // per_block), block_bytes), dtype=np.uint8)
    for at in HALVES[kind]:
        half = blocks[:, at:at + 2].copy().view(np.uint16)
        half[half & 0x7C00 == 0x7C00] &= 0x83FF
        blocks[:, at:at + 2] = half.view(np.uint8)
    return blocks.reshape(rows, -1)


def forge(tool, kind, data):
    per_block, block_bytes = GGML_QUANT_SIZES[kind]
    count = data.size // block_bytes * per_block
    done = subprocess.run([tool], input=b"%d %d\n" % (kind, count) + data.tobytes(),
                          stdout=subprocess.PIPE, check=True)
    return np.frombuffer(done.stdout, dtype=np.float32)


def reference(kind, data):
    with np.errstate(over="ignore"):
        if kind == T.F32:
            return data.view(np.float32).reshape(-1)
        if kind == T.F16:
            return data.view(np.float16).astype(np.float32).reshape(-1)
        return dequantize(data, kind).astype(np.float32).reshape(-1)


def compare(tool, what, kind, data):
    got, want = forge(tool, kind, data), reference(kind, data)
    # Equal values; -0 and 0 are one value, NaN never appears.
    wrong = np.flatnonzero(got != want) if got.shape == want.shape else [0]
    assert not len(wrong), (f"{what} {kind.name}: {len(wrong)} of {want.size} differ, first at "
                            f"{wrong[0]}: {got[wrong[0]]!r} instead of {want[wrong[0]]!r}")


def model(suite, path):
    tensors = GGUFReader(path).tensors
    for t in tensors:
        compare(find_tool(suite, "dequant_tool"), t.name, t.tensor_type,
                np.ascontiguousarray(t.data).view(np.uint8).reshape(t.data.shape[0], -1))
    return f"{len(tensors)} tensors"


def main():
    suite = Suite(__doc__)
    rng = np.random.default_rng(suite.options.seed)
    for kind in TYPES:
        suite.case(f"random blocks of {kind.name}", lambda k=kind: compare(
            find_tool(suite, "dequant_tool"), "random", k, random_blocks(k, 4096, rng)))
    suite.case("stories260K", lambda: model(suite, suite.stories()))
    suite.case("SmolLM2", lambda: model(suite, suite.smollm2()))
    suite.end()


if __name__ == "__main__":
    main()
