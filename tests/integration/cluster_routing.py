#!/usr/bin/env python3
"""Where requests go: to the worker that has their beginning, which the router shows and the worker
confirms; elsewhere when that worker is gone; a chat's second turn to the worker that answered the first.
And whatever the policy, split or not, while roles change: one request, one answer."""
import threading
import time

from _forge import (Suite, answer_of, assert_same, counters, post, run_all, served_model, status_port,
                    wait_for)
from engine_room_identity import BOS, at_once, ids, make_set

BLOCK = 16
ROUTINGS = ["cost", "cache", "least-loaded", "round-robin", "two-choices"]
SPLITS = ["auto", "always", "never"]


def body(model, prompt, tokens=8, **more):
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, **more}


def worker_named(cluster, name):
    return next((w for w in cluster.state()["workers"] if w["name"] == name), None)


def told(cluster, name, blocks):
    """Waits until the router knows so many cached blocks of that worker."""
    return wait_for(f"{name} to have told of {blocks} blocks",
                    lambda: worker_named(cluster, name)["known_blocks"] >= blocks)


def computed(cluster, name):
    return counters(status_port(cluster.workers[name]))["engine_prompt_tokens_total"]


def computes(cluster, name, total):
    """The worker's own count, which its status shows a little later, comes to this and stays there."""
    wait_for(f"{name} to have computed {total:.0f} prompt tokens, not {computed(cluster, name):.0f}",
             lambda: computed(cluster, name) >= total)
    assert computed(cluster, name) == total, f"{computed(cluster, name)}, expected {total}"


def ask(cluster, request):
    """The answer, and what the router remembers of it."""
    answer = answer_of(cluster.port, request)
    return answer, cluster.state()["recent"][0]


def one_prefix(suite):
    # By the cache alone: `cost` would leave a holder that other work on this machine has slowed down.
    flags = ["--status-port", "0", "--local-prefill-tokens", "0", "--routing", "cache"]
    with suite.cluster(model=suite.stories(), prefill=2, decode=2, flags=flags) as cluster:
        model = served_model(cluster)
        prefix = [BOS] + ids(suite.random, 10 * BLOCK - 1)
        prompts = [prefix + ids(suite.random, 20) for _ in range(4)]
        _, first = ask(cluster, body(model, prompts[0]))
        home = first["prefill"]
        told(cluster, home, 11)
        computes(cluster, home, 180)
        for prompt in prompts[1:3]:
            before = computed(cluster, home)
            _, record = ask(cluster, body(model, prompt))
            assert record["prefill"] == home, f"{record['prefill']} got it, {home} has its prefix"
            assert record["expected_hit_blocks"] == 10, record
            assert record["cached_tokens"] == 160, record
            computes(cluster, home, before + 20)
        for name in ("expected", "found"):
            wait_for(f"the hits {name}", lambda n=name: counters(cluster.port)[
                f"residency_hit_blocks_{n}_total"] == 20)
        cluster.kill(home)
        wait_for("the router to forget it", lambda: worker_named(cluster, home) is None)
        _, record = ask(cluster, body(model, prompts[3]))
        assert record["prefill"] != home and record["expected_hit_blocks"] == 0, record
        cluster.start_worker("prefill", home)
        wait_for("it to be back", lambda: worker_named(cluster, home))
        assert worker_named(cluster, home)["known_blocks"] == 0, "it has nothing any more"
        other = record["prefill"]
        told(cluster, other, 11)
        _, record = ask(cluster, body(model, prompts[0]))
        # The first prompt's own block behind the prefix is with its decode worker, and comes from there if that is quicker.
        assert record["prefill"] == other and record["cached_tokens"] == 160 + BLOCK * record["pulled_blocks"], record
        assert record["pulled_blocks"] <= 1, record
        cluster.wait_at_rest(workers=4)


def second_turn(suite, split):
    flags = ["--status-port", "0", "--routing", "cache"]
    with suite.cluster(model=suite.stories(), prefill=2, decode=2, flags=flags, split=split) as cluster:
        model = served_model(cluster)
        spent = {name: 0 for name in cluster.workers}
        for _ in range(3):
            prompt = [BOS] + ids(suite.random, 99)
            answer, first = ask(cluster, body(model, prompt, 60))
            spent[first["prefill"]] += 100
            home, have = first["decode"], (100 + 59) // BLOCK
            told(cluster, home, have)
            turn = prompt + answer["ids"] + ids(suite.random, 12)
            _, second = ask(cluster, body(model, turn))
            assert second["decode"] == home, f"{first} then {second}"
            assert second["prefill"] == home, "what is missing is computed where the rest is"
            assert second["cached_tokens"] == have * BLOCK, second
            spent[home] += len(turn) - have * BLOCK
        for name, total in spent.items():
            computes(cluster, name, total)
        cluster.wait_at_rest()
        return f"{have * BLOCK} of {len(turn)} prompt tokens found"


ZERO_COPY = ("--kv-transport", "shm", "--kv-zero-copy", "on")


# --- one request, one answer ---------------------------------------------------------------------

class Roles:
    """Changes the workers' roles all the time; there is always somebody for each phase."""

    def __init__(self, suite, cluster):
        self.rng, self.cluster, self.changes, self.error = suite.random, cluster, 0, None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _set(self, name, role):
        answer = post(self.cluster.port, "/forge/v1/admin/role", {"worker": name, "role": role})
        assert answer["role"] == role, answer
        self.changes += 1

    def _run(self):
        names = sorted(self.cluster.workers)
        try:
            while not self.stop.is_set():
                pair = self.rng.sample(names, 2)
                for name in pair:  # first nobody is missing, then the two phases are theirs
                    self._set(name, "both")
                for name in names:
                    if name not in pair:
                        self._set(name, self.rng.choice(["prefill", "decode", "both"]))
                self._set(pair[0], "prefill")
                self._set(pair[1], "decode")
                time.sleep(0.02)
        except Exception as why:  # pylint: disable=broad-except
            self.error = why

    def end(self):
        self.stop.set()
        self.thread.join()
        assert self.error is None, self.error
        return self.changes


def in_way(suite, requests, want, talks, routing, split, flags=(), roles=False):
    flags = ["--status-port", "0", "--routing", routing, *flags]
    with suite.cluster(model=suite.stories(), prefill=2, decode=2, flags=flags, split=split) as cluster:
        changer = Roles(suite, cluster) if roles else None
        have = []
        for _ in range(3 if roles else 1):
            have = at_once(cluster, requests, talks)
            assert_same(requests, want, have, "differ from those given alone")
        changes = changer.end() if changer else 0
        cluster.wait_at_rest()
        wait_for("all to be counted", lambda: counters(cluster.port)["num_requests_running"] == 0)
        shown = counters(cluster.port)
        whole, split_ = (shown[f'placements_total{{kind="{k}"}}'] for k in ("whole", "split"))
        assert split != "never" or split_ == 0, f"{split_:.0f} requests were split"
        assert split != "always" or split_ > 0, "none was split"
        return f"{whole:.0f} whole, {split_:.0f} split" + (f", {changes} role changes" if roles else "")


def main():
    suite = Suite(__doc__)
    suite.case("three prompts with one prefix, and a worker that dies", one_prefix, suite)
    for split in SPLITS[:2]:
        suite.case(f"a second turn finds the first one's blocks, split {split}", second_turn, suite, split)
    found = []
    only, suite.options.only = suite.options.only, ""
    suite.case("alone, one after the other", lambda: found.extend(make_set(suite)))
    suite.options.only = only
    if found:
        requests, want, talks = found
        for routing in ROUTINGS:
            for split in SPLITS if suite.options.full or routing == "cost" else ["auto"]:
                suite.case(f"{routing}, split {split}", in_way, suite, requests, want, talks, routing,
                           split)
            suite.case(f"{routing}, split always, zero-copy", in_way, suite, requests, want, talks, routing,
                       "always", ZERO_COPY)
        small = ["--kv-blocks", "48", "--kv-host-blocks", "100"]
        suite.case("cost, split auto, small pools", in_way, suite, requests, want, talks, "cost",
                   "auto", small)
        for split in ("auto", "always"):
            for name, flags in ("pushed", ()), ("zero-copy", ZERO_COPY):
                suite.case(f"roles change under load, split {split}, {name}", in_way, suite, requests, want,
                           talks, "cost", split, flags, True)
    suite.end()


if __name__ == "__main__":
    main()
