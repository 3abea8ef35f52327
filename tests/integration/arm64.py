#!/usr/bin/env python3
"""All of Forge for ARM64, built here and run under qemu: it answers as this machine's does, token for token and
logit for logit, alone and as one half of a cluster whose other half is this machine's."""
# runs-in: full
# needs-model
import pathlib
import subprocess
import tempfile

from _forge import ROOT, Skip, Suite, answer_of, assert_same, served_model
from cluster_kv_types import FLAGS, TYPES, alone, chosen, handed_over, request_set, two_layers

LIMIT_S = 900


def build(folder):
    done = subprocess.run([ROOT / "tests/support/build-arm64", folder], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False)
    if done.returncode == 77:
        raise Skip((done.stdout + done.stderr).strip()[-300:])
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    return done.stderr.strip().splitlines()[-1].strip()


def built(folder):
    program = folder / "forge-arm64"
    if not program.exists():
        raise Skip("it was not built")
    return str(program)


def version(folder):
    said = subprocess.run([built(folder), "--version"], capture_output=True, text=True, timeout=60, check=True)
    kernels, = [line for line in said.stdout.splitlines() if line.startswith("cpu kernels: ")]
    assert kernels == "cpu kernels: neon, plain; neon here", kernels
    return kernels


def with_program(suite, program, function, *arguments, **shape):
    own, suite.options.forge = suite.options.forge, program
    try:
        return function(suite, *arguments, **shape)
    finally:
        suite.options.forge = own


def same_alone(suite, folder, model, kv_type, requests):
    program = built(folder)
    want = alone(suite, model, kv_type, requests)
    have = with_program(suite, program, alone, model, kv_type, requests)
    assert_same(requests, want, have, "differ from those of this machine's program")
    return f"{sum(len(answer['ids']) for answer in want)} tokens"


def smollm2(suite, folder):
    """A real model and a real tokenizer."""
    answers = []
    for program in (suite.options.forge, built(folder)):
        with with_program(suite, program, Suite.cluster, model=suite.smollm2(), standalone=True,
                          flags=FLAGS) as cluster:
            body = {"model": served_model(cluster), "prompt": "The moon is", "max_tokens": 8, "temperature": 0}
            answers.append(answer_of(cluster.port, body))
            isa, _ = chosen(cluster.router)
    assert isa == "neon", isa
    assert answers[0] == answers[1], answers
    return repr(answers[1]["text"])


def half(suite, folder, model, kv_type, requests, role):
    """The workers of one role are ARM64's, all other processes this machine's."""
    program = folder / f"forge-{role}"
    program.write_text(f"""#!/bin/sh
case " $* " in
*" --mode {role} "*) exec {built(folder)} "$@" ;;
*) exec {suite.options.forge} "$@" ;;
esac
""")
    program.chmod(0o755)
    want = alone(suite, model, kv_type, requests)
    return with_program(suite, str(program), handed_over, model, kv_type, requests, want, transport="tcp")


def main():
    suite = Suite(__doc__, arm64=("", "a folder that holds, or gets, the ARM64 build and stays"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(suite.options.arm64 or scratch).resolve()
        requests = request_set(suite.random)

        def model():
            return two_layers(suite, scratch)

        suite.case("all of it builds", build, folder)
        suite.case("it takes NEON", version, folder)
        for kv_type in TYPES:
            suite.case(f"two layers, {kv_type}: alone", same_alone, suite, folder, model, kv_type, requests[2::3])
        suite.case("SmolLM2: alone", smollm2, suite, folder)
        for role in ("prefill", "decode"):
            suite.case(f"two layers, int8: {role} on ARM64", half, suite, folder, model, "int8", requests, role)
    suite.end()


if __name__ == "__main__":
    main()
