#!/usr/bin/env python3
"""What handing over costs (goals S7, S8): standalone, 1P+1D over shared memory and over TCP, taking turns on
the same prompt, each with one compute thread.

`fresh`: prompts that nobody has seen. Time to first token against standalone, first to second token
against standalone (the hand-over gap), and the part of the push that prefill did not hide.
`bare`: the same prompt again after the decode worker was started anew, so that prefill has all of its
blocks and decode none: nothing is left but the hand-over of all of them."""
import contextlib
import signal

from engine_room_common import SERVED, Timed, body, machine, median, table
from _forge import Suite, get, wait_for
from routing_common import record_of, spread

SHAPES = ["standalone", "shm", "tcp"]


def model_of(suite, name):
    """The tiny one has 4096 tokens of context and computes nearly nothing: what is left is Forge's own."""
    return suite.smollm2() if name == "smollm2" else str(suite.corpus("models/llama-2-tiny-random.gguf"))


def ids(rng, count):
    """A prompt that nobody has seen, of tokens that both models have."""
    return [rng.randrange(1000, 30000) for _ in range(count)]


def start(suite, stack, model):
    made = {}
    for shape in SHAPES:
        more = {"standalone": True} if shape == "standalone" else {"transport": shape}
        flags = [*SERVED, "--local-prefill-tokens", "0"] if shape != "standalone" else SERVED
        made[shape] = stack.enter_context(suite.cluster(model=model, flags=flags, **more))
    return made


def one(cluster, request):
    """TTFT and the gap to the second token in ms as the client sees them, and the router's record."""
    stream = Timed(cluster.port, request).wait()
    cluster.wait_at_rest(60)
    return 1000 * stream.ttft, 1000 * stream.gaps()[0], record_of(cluster)


def least(seen, shape, field):
    """The shortest of all rounds, and by how much it is longer than standalone's shortest: on a busy
    machine the best of many runs says more than the median."""
    best = {name: min(run[field] for run in seen[name]) for name in (shape, "standalone")}
    return f"{best[shape]:.2f} ({best[shape] - best['standalone']:+.2f})"


def quarters(values):
    ordered = sorted(values)
    return f"{median(values):.2f} ({ordered[len(values) // 4]:.2f} to {ordered[len(values) * 3 // 4]:.2f})"


def fresh(suite, name):
    options, rng = suite.options, suite.random
    rows = []
    with contextlib.ExitStack() as stack:
        clusters = start(suite, stack, model_of(suite, name))
        for cluster in clusters.values():
            for _ in range(3):
                one(cluster, body(ids(rng, 64), 4))
        for length in [int(part) for part in options.prompts.split(",")]:
            rounds = options.rounds_tiny if name == "tiny" else \
                options.rounds if length <= 512 else options.rounds_long
            seen = {shape: [] for shape in SHAPES}
            for turn in range(rounds):
                request = body(ids(rng, length), 8)
                for i in range(len(SHAPES)):
                    shape = SHAPES[(i + turn) % len(SHAPES)]
                    seen[shape].append(one(clusters[shape], request))
            for shape in SHAPES:
                more = [a[0] - b[0] for a, b in zip(seen[shape], seen["standalone"])]
                gap = [a[1] - b[1] for a, b in zip(seen[shape], seen["standalone"])]
                record = [r for _, _, r in seen[shape]]
                rows.append((f"{length}, {shape}", least(seen, shape, 0), quarters(more),
                             least(seen, shape, 1), quarters(gap),
                             f"{median([r['handover_gap_ms'] for r in record]):.2f}",
                             quarters([r["push_exposed_ms"] for r in record]),
                             f"{median([r['kv_bytes'] for r in record]) / 1e6:.2f}"))
                print("  #", rows[-1], flush=True)
    table([f"{name}: prompt tokens", "least TTFT ms (more)", "more than standalone, pairs",
           "least gap ms (more)", "more than standalone, pairs", "the router's gap ms", "push exposed ms",
           "MB"], rows)
    print(f"Pairs: median of the differences within a round, and its quarters. {options.rounds_tiny} rounds "
          f"of the tiny model, {options.rounds} of SmolLM2, {options.rounds_long} beyond 512 tokens, "
          f"{machine()}.")


def new_decode(cluster):
    """A decode worker that has nothing in its cache."""
    old = cluster.workers["decode-0"]
    old.signal(signal.SIGTERM)
    old.wait(30)
    wait_for("the router to forget it", lambda: len(cluster.state()["workers"]) == 1)
    cluster.start_worker("decode", "decode-0")
    wait_for("it to be back", lambda: len(cluster.state()["workers"]) == 2
             and get(cluster.port, "/health")[0] == 200, 30)


def bare(suite):
    options, rng = suite.options, suite.random
    lengths = [int(part) for part in options.prompts.split(",") if int(part) <= options.bare_max]
    seen = {}
    with contextlib.ExitStack() as stack:
        clusters = start(suite, stack, suite.smollm2())
        prompts = {length: body(ids(rng, length), 8) for length in lengths}
        for cluster in clusters.values():
            for request in prompts.values():
                one(cluster, request)
        for turn in range(options.rounds):
            for shape in SHAPES[1:]:
                new_decode(clusters[shape])
                one(clusters[shape], body(ids(rng, 64), 8))  # the first push connects
            for length in lengths:
                for i in range(len(SHAPES)):
                    shape = SHAPES[(i + turn) % len(SHAPES)]
                    seen.setdefault((length, shape), []).append(one(clusters[shape], prompts[length]))
    rows = []
    for (length, shape), runs in seen.items():
        alone = seen[length, "standalone"]
        record = [r for _, _, r in runs]
        rate = [r["kv_bytes"] / r["push_exposed_ms"] / 1e6 for r in record if r["push_exposed_ms"] > 0]
        rows.append((f"{length}, {shape}", f"{median([r[0] for r in runs]):.1f}",
                     spread([a[0] - b[0] for a, b in zip(runs, alone)], 1),
                     spread([a[1] - b[1] for a, b in zip(runs, alone)], 1),
                     f"{median([r['kv_bytes'] for r in record]) / 1e6:.1f}",
                     f"{median([r['push_exposed_ms'] for r in record]):.1f}",
                     spread(rate) if rate else "-"))
    table(["bare: prompt tokens", "TTFT ms", "more than standalone", "gap more than standalone ms", "MB",
           "push exposed ms", "GB/s"], rows)
    print(f"Medians of {options.rounds} rounds, {machine()}.")


def main():
    suite = Suite(__doc__, rounds=(7, "rounds"), rounds_tiny=(41, "rounds of the tiny model"),
                  rounds_long=(3, "rounds of long prompts of SmolLM2"),
                  prompts=("64,256,1024", "prompt lengths"), bare_max=(2048, "longest prompt of `bare`"))
    suite.case("fresh prompts, tiny", fresh, suite, "tiny")
    suite.case("fresh prompts, SmolLM2", fresh, suite, "smollm2")
    suite.case("bare hand-over", bare, suite)
    suite.end()


if __name__ == "__main__":
    main()
