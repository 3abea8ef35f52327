#!/usr/bin/env python3
"""tests/gpu/bench without a GPU: what lines of its programs come to, and how it goes when some of them fail."""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

from _forge import ROOT, Suite

SCRIPT = ROOT / "tests/gpu/bench"
COPY = '{"op":"probe: copy of 1 GiB","us":714.0,"gb_per_s":3008.0,"tflops":0.00,"share_of_copy":1.000}'


def load():
    loader = importlib.machinery.SourceFileLoader("gpu_goals_bench", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def op(name, us, gb_per_s=1.0, tflops=0.0):
    return {"op": name, "us": us, "gb_per_s": gb_per_s, "tflops": tflops, "share_of_copy": 0.5}


def run_line(test, tokens, batch, depth, rate):
    return {"test": test, "tokens": tokens, "batch": batch, "depth": depth, "tokens_per_s": rate}


def seen_of(bench):
    """An H100 of 3,008 GB/s and 790 TFLOP/s, and what was seen there."""
    seen = bench.Seen()
    seen.add_op(json.loads(COPY))
    seen.add_peer({"op": "gemm bf16", "peer": "cuBLAS", "us": 1392.0, "tflops": 790.0})
    seen.add_run("8B bf16", run_line("tg32", 32, 1, 0, 160.4))
    seen.add_run("8B bf16", run_line("tg32 b=16", 512, 16, 0, 2506.0))
    seen.add_run("8B bf16", run_line("tg32 b=64 @ d1024", 2048, 64, 1024, 5470.0))
    seen.add_run("8B bf16", run_line("pp1024", 1024, 1, 0, 25960.0))
    seen.add_run("8B Q4_0", run_line("tg32", 32, 1, 0, 417.0))
    seen.add_run("8B Q4_0", run_line("tg32 b=16", 512, 16, 0, 3051.0))
    seen.add_run("1B bf16", run_line("tg32", 32, 1, 0, 1500.0))
    for name, us, theirs in zip(bench.LAYER, (800, 560, 4069, 2437), (560, 360, 3108, 1259)):
        seen.add_op(op(f"{name}, 8192 rows", us))
        seen.add_peer({"op": f"{name}, 8192 rows", "peer": "cuBLAS", "us": theirs})
    seen.add_op(op(bench.DECODE, 228.0, 2354.0))
    seen.add_peer({"op": bench.DECODE, "peer": "SDPA flash", "us": 200.0})
    seen.add_peer({"op": bench.DECODE, "peer": "Triton, 4 parts", "us": 240.0})
    seen.add_peer({"op": bench.DECODE, "peer": "Triton, 8 parts", "us": 260.0})
    seen.add_op(op(bench.CHOOSE, 61.0))
    return seen


def goals(_suite):
    """Each kind of goal, met and missed: shares, ratios, times of which less is more, and what was not measured."""
    bench = load()
    rows = bench.goal_rows(seen_of(bench), bench.BY_DEFAULT)
    got = {(row.goal, row.what): (row.ratio, row.verdict) for row in rows}
    assert len(got) == len(rows), "two rows of one name"
    for key, wanted in {
            ("G1", "8B bf16, 1 sequence, of copy"): ("80%", "floor met"),
            ("G1", "against transformers"): ("", "not measured"),
            ("G2", "1B bf16, a token"): ("123%", "target met"),
            ("G3", "8B bf16, 64 sequences at 1k, of the limit"): ("67%", "floor met"),
            ("G3", "8B bf16, 256 sequences at 1k, of the limit"): ("", "not measured"),
            ("G4", "8B bf16, prompt of 1,024"): ("47%", "missed"),
            ("G4", "products of a layer, 8,192 rows, against cuBLAS"): ("0.67x", "missed"),
            ("G4", "products of a layer, 2,048 rows, against cuBLAS"): ("", "not measured"),
            ("G5", f"{bench.DECODE}, of copy"): ("78%", "floor met"),
            ("G5", f"{bench.DECODE}, against Triton, 4 parts"): ("1.05x", "floor met"),
            ("G6", "1B bf16, GPU idle between steps"): ("", "not measured"),
            ("G7", bench.CHOOSE): ("61.0 us", "floor met"),
            ("G8", "8B Q4_0 against bf16, 1 sequence"): ("2.60x", "floor met"),
            ("G8", "8B Q4_0 against bf16, 16 sequences"): ("1.22x", "missed"),
            ("G8", "fp8 product against scaled_mm"): ("", "not measured")}.items():
        assert got.get(key) == wanted, (key, got.get(key), wanted)
    assert not [row for row in rows if row.goal == "G1-compiled"], "not asked for"
    compiled = bench.goal_rows(seen_of(bench), ["G1-compiled"])
    assert [row.goal for row in compiled] == ["G1", "G1-compiled"], compiled
    empty = bench.goal_rows(bench.Seen(), list(bench.NEEDS))
    assert {row.verdict for row in empty} == {"not measured"} and len(empty) == len(rows) + 1, empty


def limits(_suite):
    """The limits that the goals were set by: an H200 of 4.3 TB/s and 790 TFLOP/s."""
    bench = load()
    for batch, wanted in ((1, 284), (64, 11700), (256, 22300)):
        rate = batch / bench.decode_limit_s(bench.SHAPE_8B, batch, 1024, 4.3e12, 790e12)
        assert abs(rate / wanted - 1) < 0.01, (batch, rate)
    for tokens, wanted in ((1024, 55500), (8192, 49000)):
        rate = tokens / bench.prompt_limit_s(bench.SHAPE_8B, tokens, 790e12)
        assert abs(rate / wanted - 1) < 0.01, (tokens, rate)


def plans(_suite):
    """Goals that need the same model at the same depth share a run."""
    bench = load()
    runs, ops, peers, models = bench.plan(["G1", "G4", "G8"])
    assert runs == {("8B bf16", 0): ([1, 16, 128], [1024, 8192]), ("8B Q4_0", 0): ([1, 16, 128], [])}, runs
    assert ops == bench.PRODUCTS + bench.PROMPTS and peers == ["model", "gemm", "products", "prompts", "fp8"], peers
    assert models == {"8B bf16", "8B Q4_0"}, models
    assert bench.plan(["G6"])[3] == {"1B bf16"} and not bench.plan(["G5"])[3]


def idle(_suite):
    """Gaps between graphs, without what other kernels compute in them; copies are no computing."""
    bench = load()
    lines, at = [], 1000
    for _ in range(10):
        lines += [f"graph {at} {at + 900000}", f"copy {at + 905000} {at + 907000}",
                  f"kernel {at + 910000} {at + 914000}"]
        at += 920000
    got = bench.idle_of("\n".join(reversed(lines)))
    assert got == {"gap_us": 16.0, "step_us": 920.0, "gaps": 9}, got
    try:
        bench.idle_of("graph 1 2\ngraph 3 4")
    except ValueError as error:
        assert "too few" in str(error)
    else:
        raise AssertionError("two graphs are no median")


STUBS = {
    "forge": """
if "--list-devices" in sys.argv:
    print("cpu      this machine")
    print("cuda:0   NVIDIA Test 9000                          sm_90")
else:
    value = lambda name: sys.argv[sys.argv.index(name) + 1]
    assert open(value("--model")).read() == "a model"
    for batch in map(int, value("--batch").split(",")):
        if batch > 1:
            sys.exit("the device has no memory for so many")
        print(json.dumps({"test": "tg32", "tokens": 32, "batch": 1, "depth": 0, "tokens_per_s": 1500.0}), flush=True)
""",
    "gpu_bench": f"print('{COPY}')\n" + """
for name in sys.argv[5::2]:
    if name != "the probe alone":
        print(json.dumps({"op": name, "us": 50.0, "gb_per_s": 1313.0, "tflops": 0.0, "share_of_copy": 0.4}))
""",
    "make-gguf": "open(sys.argv[1], 'w').write('a model')",
    "python": """
if sys.argv[1] == "-c":
    sys.exit()
print(json.dumps({"op": "choose of the 50 highest and 0.9, 128 x 128256", "peer": "torch.sort", "us": 2000.0}))
print(json.dumps({"part": "fp8", "failed": "RuntimeError: not on this device"}))
sys.exit(1)
""",
}


def stubs(folder):
    for name, text in STUBS.items():
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!{sys.executable}\nimport json, sys\n{text}")
        os.chmod(path, 0o755)


def call(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120,
                          check=False)


def whole_run(_suite):
    """Programs that print lines, and some that fail: their goals are missing, with the reason, the others are there."""
    with tempfile.TemporaryDirectory() as folder:
        stubs(folder)
        models, log = os.path.join(folder, "models"), os.path.join(folder, "log")
        done = call("--bin", folder, "--python", os.path.join(folder, "python"), "--models", models, "--json", log,
                    "--only", "G2,G7,G8")
        assert done.returncode == 1, (done.returncode, done.stderr)
        assert sorted(os.listdir(models)) == ["llama-3.1-8b-bf16.gguf", "llama-3.1-8b-q4_0.gguf",
                                              "llama-3.2-1b-bf16.gguf"], os.listdir(models)
        with open(log, encoding="utf-8") as file:
            kept = [json.loads(line) for line in file]
    for wanted in ("| G2 | 1B bf16, a token | 0.90 ms | 0.70 ms | 0.67 ms | 0.82 ms by copy | 123% | target met |",
                   "| 250.0 us | 60.0 us | 50.0 us |  | 50.0 us | target met |",
                   "| 50.0 us | 2000.0 us | 40.00x | target met |",
                   "| G8 | 8B Q4_0 against bf16, 1 sequence | 2.50x | 3.40x | 1,500 tok/s | 1,500 tok/s | 1.00x | missed |",
                   "| G8 | 8B Q4_0 against bf16, 16 sequences | 2.50x | 3.40x |  |  |  | not measured |",
                   "NVIDIA Test 9000", "Copy probe: 3,008, 3,008 GB/s.",
                   "failed or skipped: fp8: RuntimeError: not on this device",
                   "failed or skipped: 8B bf16, 0 tokens deep: the device has no memory for so many"):
        assert wanted in done.stdout, (wanted, done.stdout)
    assert kept[0]["device"].startswith("NVIDIA Test") and kept[-1]["source"] == "goal", kept
    assert {line["source"] for line in kept} == {"run", "gpu_bench", "peer", "1B bf16", "8B bf16", "8B Q4_0", "goal"}


def without_gpu(suite):
    """One line and 77; refusals before anything is run."""
    with tempfile.TemporaryDirectory() as folder:
        stubs(folder)
        done = call("--bin", folder, "--device", "cuda:7")
        assert done.returncode == 77 and done.stdout.startswith("bench: no cuda:7 here"), done
        assert done.stdout.count("\n") == 1 and not done.stderr, done
        os.remove(os.path.join(folder, "gpu_bench"))
        done = call("--bin", folder)
        assert done.returncode == 2 and "gpu_bench is not in" in done.stderr, done
    done = call("--only", "G2,G9")
    assert done.returncode == 2 and '"G9" is no goal' in done.stderr, done
    done = call("--help")
    assert done.returncode == 0 and "tests/gpu/bench --only G4,G5,G7" in done.stdout, done


def main():
    suite = Suite(__doc__)
    suite.case("lines become goals", goals, suite)
    suite.case("limits are those that goals were set by", limits, suite)
    suite.case("goals share runs", plans, suite)
    suite.case("gaps between graphs", idle, suite)
    suite.case("a whole run, some of it fails", whole_run, suite)
    suite.case("without a GPU, and refusals", without_gpu, suite)
    suite.end()


if __name__ == "__main__":
    main()
