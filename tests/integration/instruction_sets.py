#!/usr/bin/env python3
"""Kernels of instruction sets: how many instructions two hot ones take (valgrind's count, repeatable where
time is not), and with --full NEON's results under qemu."""
import pathlib
import re
import shutil
import subprocess
import tempfile

from _forge import ROOT, Skip, Suite, find_tool

# Instructions of one product of 256 outputs x 1024 columns with AVX2 (valgrind knows no AVX-512), as gcc
# 12 compiles the release preset. A better kernel changes its number here, a slip shows.
COUNTS = {("q4_1", 1): 60260, ("q4_k", 8): 304179}
TOLERANCE = 0.03
COMPILER = "12."


def cached(tool, name):
    """A setting of the build that the tool belongs to."""
    for folder in pathlib.Path(tool).parents:
        cache = folder / "CMakeCache.txt"
        if cache.is_file():
            found = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
            return found[1] if found else ""
    return ""


def instructions(suite, kind, rows):
    tool = find_tool(suite, "count_linear")
    if shutil.which("valgrind") is None:
        raise Skip("valgrind is not installed")
    if cached(tool, "CMAKE_BUILD_TYPE") != "RelWithDebInfo" or cached(tool, "FORGE_SANITIZE") \
            or cached(tool, "FORGE_NATIVE") == "ON":
        raise Skip("the numbers are of the release preset")
    plain = subprocess.run([tool, kind, str(rows)], capture_output=True, text=True, check=False)
    if plain.returncode == 77:
        raise Skip("this processor lacks AVX2")
    if not plain.stdout.startswith(COMPILER):
        raise Skip(f"the numbers are of gcc {COMPILER}x, this is {plain.stdout.strip()}")
    done = subprocess.run(["valgrind", "--tool=callgrind", "--toggle-collect=fg_cpu_op_linear",
                           "--callgrind-out-file=/dev/null", tool, kind, str(rows)],
                          capture_output=True, text=True, timeout=120, check=True)
    count = int(re.search(r"Collected\s*:\s*(\d+)", done.stderr)[1])
    want = COUNTS[kind, rows]
    assert abs(count - want) <= TOLERANCE * want, f"{count} instructions, the table says {want}"
    return f"{count} instructions"


def neon_under_qemu(suite):
    if not suite.options.full:
        raise Skip("with tests/run --full")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([ROOT / "tests/support/check-arm64", folder], capture_output=True,
                              text=True, timeout=600, check=False)
    if done.returncode == 77:
        raise Skip(done.stdout.strip())
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return ", ".join(line.removeprefix("ok - ") for line in done.stdout.splitlines())


def main():
    suite = Suite(__doc__)
    for kind, rows in COUNTS:
        suite.case(f"instructions of {kind} with {rows} rows", instructions, suite, kind, rows)
    suite.case("NEON equals plain", neon_under_qemu, suite)
    suite.end()


if __name__ == "__main__":
    main()
