#!/usr/bin/env python3
"""What tests/gpu/bench sets Forge beside on a GPU: PyTorch's products (cuBLAS), attention (SDPA) and sorted sampling,
a Triton kernel for decode, and transformers' Llama. It is started by tests/gpu/bench, in a process of its own.

Each line it prints is JSON: an operation, named as gpu_bench names it, who did it, and the median of some rounds in
us. A part that fails is a line with the reason, and the next one begins. Exit status 77: no PyTorch, or no GPU.
"""
import argparse
import functools
import json
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print(f"no PyTorch here: {error}", file=sys.stderr)
    sys.exit(77)
try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

ROUNDS = 7
RING_BYTES = 400 << 20  # inputs pass by in turns, so that no cache holds them
PRODUCTS = (("8B qkv", 6144, 4096), ("8B out", 4096, 4096), ("8B gate+up", 2 * 14336, 4096),
            ("8B down", 4096, 14336))
PRODUCT_ROWS = (1, 16, 64, 2048, 8192)
HEADS, KV_HEADS = 32, 8
PROMPTS = (("8B", 1024, 128), ("8B", 8192, 128), ("1B", 8192, 64))
SAMPLED_ROWS, VOCABULARY, TOP_K, TOP_P = 128, 128256, 50, 0.9


class Bench:
    """A device, random inputs there, the time of calls, and the lines about it."""

    def __init__(self, device, tiny):
        self.device, self.tiny = torch.device(device), tiny
        self.is_gpu = self.device.type == "cuda"
        self.random = torch.Generator(self.device)
        self.random.manual_seed(7)

    def normal(self, *shape, dtype=torch.bfloat16):
        return torch.randn(*shape, generator=self.random, device=self.device, dtype=dtype)

    def size(self, count, tiny):
        return tiny if self.tiny else count

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def time_of(self, calls):
        """us of one of these calls, which follow each other as one graph: nothing waits for Python."""
        for call in calls:
            call()
        run = functools.partial(self.run_all, calls)
        if self.is_gpu:
            self.wait()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            run = graph.replay
            run()
        return statistics.median(self.round_of(run) for _ in range(ROUNDS)) / len(calls)

    @staticmethod
    def run_all(calls):
        for call in calls:
            call()

    def round_of(self, run):
        if not self.is_gpu:
            began = time.perf_counter()
            run()
            return (time.perf_counter() - began) * 1e6
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e3

    def best_of(self, op, ways, flops=0.0):
        """The quickest of several ways to do the same; one that this device does not have is passed over."""
        why = ""
        found = []
        for name, call in ways:
            try:
                found.append((self.time_of([call] * self.size(8, 1)), name))
            except Exception as error:  # noqa: BLE001 - whatever it is, another way may do
                why = f"{name}: {(str(error).strip().splitlines() or [type(error).__name__])[0]}"
        if not found:
            raise RuntimeError(why)
        us, name = min(found)
        tell(op, name, us, flops)


def tell(op, peer, us, flops=0.0):
    line = {"op": op, "peer": peer, "us": round(us, 2)}
    if flops:
        line["tflops"] = round(flops / us * 1e-6, 2)
    print(json.dumps(line), flush=True)


def part_gemm(b):
    """The compute probe: a product of 8192 x 8192 x 8192 in bf16."""
    n = b.size(8192, 32)
    left, right, out = b.normal(n, n), b.normal(n, n), b.normal(n, n)
    us = b.time_of([functools.partial(torch.matmul, left, right, out=out)] * b.size(8, 1))
    tell("gemm bf16", "cuBLAS", us, 2.0 * n**3)


def part_fp8(b):
    n = b.size(8192, 32)
    left, right = (b.normal(n, n).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=b.device)
    call = functools.partial(torch._scaled_mm, left, right.t(), scale_a=one, scale_b=one,
                             out_dtype=torch.bfloat16, use_fast_accum=True)
    tell("gemm fp8", "scaled_mm", b.time_of([call] * b.size(8, 1)), 2.0 * n**3)


def part_products(b):
    for name, outputs, columns in PRODUCTS:
        outputs, columns = b.size(outputs, 48), b.size(columns, 32)
        ring = [b.normal(outputs, columns) for _ in range(b.size(RING_BYTES // (2 * outputs * columns) + 1, 2))]
        for rows in PRODUCT_ROWS:
            count = b.size(rows, 4)
            inputs, out = b.normal(count, columns), b.normal(count, outputs)
            turns = ring * (1 if rows > 256 else -(-24 // len(ring)))
            calls = [functools.partial(torch.matmul, inputs, weight.t(), out=out) for weight in turns[:24]]
            tell(f"{name}, {rows} rows", "cuBLAS", b.time_of(calls), 2.0 * rows * outputs * columns)


def with_backend(backend, call):
    def run():
        with sdpa_kernel(backend):
            call()
    return run


BACKENDS = (("SDPA flash", SDPBackend.FLASH_ATTENTION), ("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION))


def part_prompts(b):
    for name, rows, dim in PROMPTS:
        count = b.size(rows, 24)
        q, k, v = (b.normal(1, count, heads, dim).transpose(1, 2) for heads in (HEADS, KV_HEADS, KV_HEADS))
        repeated = [t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v)]
        attend = functional.scaled_dot_product_attention
        ways = []
        for backend, kind in BACKENDS:
            ways += [(backend, with_backend(kind, functools.partial(attend, q, k, v, is_causal=True,
                                                                    enable_gqa=True))),
                     (backend + ", repeated KV", with_backend(kind, functools.partial(
                         attend, q, *repeated, is_causal=True)))]
        b.best_of(f"attend {name}, 1 x {rows} rows behind 0", ways, 2.0 * rows * (rows + 1) * HEADS * dim)


if triton is not None:
    @triton.jit
    def decode_parts(q, k, v, sums, scores, scale, slots, part, GROUP: tl.constexpr, DIM: tl.constexpr,
                     TILE: tl.constexpr):
        """A part of the slots of one KV head of one sequence, for the query heads that share it; padded to 16."""
        pair, at = tl.program_id(0).to(tl.int64), tl.program_id(1)
        rows, dims = tl.arange(0, 16), tl.arange(0, DIM)
        query = tl.load(q + (pair * GROUP + rows[:, None]) * DIM + dims[None, :], mask=rows[:, None] < GROUP, other=0.0)
        highest = tl.full([16], float("-inf"), tl.float32)
        total = tl.zeros([16], tl.float32)
        out = tl.zeros([16, DIM], tl.float32)
        for first in range(at * part, (at + 1) * part, TILE):
            tile = (pair * slots + first + tl.arange(0, TILE)[:, None]) * DIM + dims[None, :]
            score = tl.dot(query, tl.trans(tl.load(k + tile))) * (scale * 1.44269504)
            above = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp2(score - above[:, None])
            faded = tl.exp2(highest - above)
            total = total * faded + tl.sum(weight, 1)
            value = tl.load(v + tile)
            out = out * faded[:, None] + tl.dot(weight.to(value.dtype), value)
            highest = above
        place = (pair * tl.num_programs(1) + at) * GROUP + rows
        tl.store(sums + place[:, None] * DIM + dims[None, :], out / total[:, None], mask=rows[:, None] < GROUP)
        tl.store(scores + place, highest + tl.log2(total), mask=rows < GROUP)

    @triton.jit
    def decode_merge(sums, scores, out, PARTS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr):
        pair, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
        parts, dims = tl.arange(0, PARTS), tl.arange(0, DIM)
        place = (pair * PARTS + parts) * GROUP + row
        score = tl.load(scores + place)
        weight = tl.exp2(score - tl.max(score, 0))
        merged = tl.sum(tl.load(sums + place[:, None] * DIM + dims[None, :]) * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(out + (pair * GROUP + row) * DIM + dims, merged.to(out.dtype.element_ty))


def triton_decode(q, k, v, parts, tile):
    """A call for decode attention; q is [sequence][KV head][head of it][dim], k and v [sequence][KV head][slot][dim]."""
    seqs, kv_heads, group, dim = q.shape
    slots = k.shape[2]
    sums = torch.empty(seqs * kv_heads, parts, group, dim, device=q.device, dtype=torch.float32)
    scores = torch.empty(seqs * kv_heads, parts, group, device=q.device, dtype=torch.float32)
    out = torch.empty_like(q)

    def call():
        decode_parts[(seqs * kv_heads, parts)](q, k, v, sums, scores, dim**-0.5, slots, slots // parts, GROUP=group,
                                               DIM=dim, TILE=tile, num_warps=4, num_stages=256 // tile)
        decode_merge[(seqs * kv_heads, group)](sums, scores, out, PARTS=parts, GROUP=group, DIM=dim, num_warps=4)
        return out
    return call


def part_decode(b):
    seqs, slots, dim, group = b.size(32, 2), b.size(4096, 64), b.size(128, 16), HEADS // KV_HEADS
    dtype = torch.bfloat16 if b.is_gpu else torch.float16  # Triton's interpreter has no products of bf16
    q = b.normal(seqs, KV_HEADS, group, dim, dtype=dtype)
    k, v = (b.normal(seqs, KV_HEADS, slots, dim, dtype=dtype) for _ in range(2))
    attend = functional.scaled_dot_product_attention
    op = "attend 8B, 32 x 1 rows behind 4095"
    # The heads that share K and V as rows of one: the quickest way to say it.
    b.best_of(op, [(name, with_backend(kind, functools.partial(attend, q, k, v))) for name, kind in BACKENDS]
              + [(name + ", grouped", with_backend(kind, functools.partial(
                  attend, q.view(seqs, HEADS, 1, dim), k, v, enable_gqa=True))) for name, kind in BACKENDS])
    if triton is None:
        raise RuntimeError("no Triton here")
    wanted = attend(q.float(), k.float(), v.float())
    ways = [(f"Triton, {parts} parts", triton_decode(q, k, v, parts, tile))
            for parts in (2, 4, 8) for tile in b.size((64, 128), (16,)) if slots // parts % tile == 0]
    for name, call in ways:
        apart = ((call().float() - wanted).norm() / wanted.norm()).item()
        if not apart < 0.02:
            raise RuntimeError(f"{name}: its answer is {apart:.3f} away")
    b.best_of(op, ways)


def sorted_choice(logits, noise):
    """Top-k and top-p by a sort of all, then a draw, as engines do it without a kernel for it."""
    scores, order = torch.sort(logits / 0.7, dim=-1, descending=True)
    scores = scores.masked_fill(scores < scores[:, TOP_K - 1:TOP_K], float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    kept = weights.cumsum(-1) - weights < TOP_P
    best = (weights * kept / noise).argmax(-1, keepdim=True)
    return order.gather(1, best)


def part_sampling(b):
    rows, columns = b.size(SAMPLED_ROWS, 4), b.size(VOCABULARY, 1000)
    logits = 4.0 * b.normal(rows, columns, dtype=torch.float32)
    noise = torch.empty_like(logits).exponential_(generator=b.random)
    call = functools.partial(sorted_choice, logits, noise)
    tell(f"choose of the {TOP_K} highest and {TOP_P}, {SAMPLED_ROWS} x {VOCABULARY}", "torch.sort",
         b.time_of([call] * b.size(4, 1)))


@functools.lru_cache(None)
def llama(b):
    """Llama-3.1-8B with random weights, made where they are used."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    config = LlamaConfig(vocab_size=b.size(128256, 500), hidden_size=b.size(4096, 128),
                         intermediate_size=b.size(14336, 256), num_hidden_layers=b.size(32, 2),
                         num_attention_heads=b.size(32, 4), num_key_value_heads=b.size(8, 2),
                         max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=False)
    with torch.device(b.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def decode_us(b, step, position=0):
    """Of a token, each chosen from the logits of the one before; the context grows from nothing, as in forge bench."""
    token, took = torch.full((1, 1), 17, device=b.device), []
    for turn in range(1 + ROUNDS):
        count = b.size(16, 2)
        b.wait()
        began = time.perf_counter()
        for _ in range(count):
            logits = step(token, torch.full((1, 1), position, device=b.device))
            token = logits[:, -1:].argmax(-1)
            position += 1
        b.wait()
        if turn > 0:  # the first one compiles, and chooses kernels
            took.append((time.perf_counter() - began) / count * 1e6)
    return statistics.median(took)


@torch.no_grad()
def part_model(b):
    from transformers import DynamicCache
    model = llama(b)
    cache = DynamicCache(config=model.config)
    us = decode_us(b, lambda token, position: model(token, position_ids=position, past_key_values=cache).logits)
    tell("8B bf16, 1 sequence", "transformers", us)


@torch.no_grad()
def part_model_compiled(b):
    from transformers import StaticCache
    model = llama(b)
    cache = StaticCache(config=model.config, max_cache_len=256)
    # The first token makes the cache, whose addresses must be there before anything is compiled.
    model(torch.full((1, 1), 17, device=b.device), past_key_values=cache)
    run = torch.compile(model.forward, **({"mode": "reduce-overhead"} if b.is_gpu else {"backend": "aot_eager"}))

    def step(token, position):
        torch.compiler.cudagraph_mark_step_begin()
        return run(token, position_ids=position, past_key_values=cache).logits.clone()
    tell("8B bf16, 1 sequence", "transformers, compiled", decode_us(b, step, 1))


PARTS = {name[5:].replace("_", "-"): part for name, part in list(globals().items()) if name.startswith("part_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing, to try the code: --device cpu")
    options = parser.parse_args()
    if options.device.startswith("cuda"):
        if not torch.cuda.is_available():
            print("PyTorch sees no GPU", file=sys.stderr)
            sys.exit(77)
        torch.cuda.set_device(options.device)
    print(json.dumps({"torch": torch.__version__, "triton": triton.__version__ if triton else None}), flush=True)
    bench = Bench(options.device, options.tiny)
    failed = False
    for name in options.parts:
        began = time.perf_counter()
        try:
            PARTS[name](bench)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next part goes on
            failed = True
            why = (str(error).strip().splitlines() or [""])[0][:300]
            print(json.dumps({"part": name, "failed": f"{type(error).__name__}: {why}"}), flush=True)
        print(json.dumps({"part": name, "took_s": round(time.perf_counter() - began, 1)}), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
