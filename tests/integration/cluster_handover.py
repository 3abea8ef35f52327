#!/usr/bin/env python3
"""What a hand-over leaves behind: a decode worker that dies before or behind the first token costs another push
from prefill's cache, not another prefill; and however a prompt's last chunk is cut, over whatever
transport, the answer is the same."""
import signal

from _forge import (Stream, Suite, answer_of, assert_same, counters, device, run_all, served_model,
                    status_port, wait_for, WAYS)
from engine_room_identity import BOS, ids

BLOCK = 16
PROMPT = 400
FLAGS = ["--status-port", "0", "--local-prefill-tokens", "0", "--prefill-chunk-size", "64"]


def request(suite, model, prompt=PROMPT, tokens=8):
    return {"model": model, "prompt": [BOS] + ids(suite.random, prompt - 1), "max_tokens": tokens,
            "temperature": 0, "ignore_eos": True}


def computed(cluster):
    return counters(status_port(cluster.workers["prefill-0"]))["engine_prompt_tokens_total"]


def under_way(cluster, chunks):
    """The request that prefill computes, once its decode worker has reserved for it."""
    def look():
        found = [r for r in cluster.state()["requests"] if r["state"] == "prefilling"]
        return found[0] if found and computed(cluster) >= chunks * 64 else None
    return wait_for("a prompt that is being computed", look, 30)


def dies_early(suite, way, alone):
    """Killed while the prompt is computed: nobody has seen a token, so the router tries again."""
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=2, flags=FLAGS,
                       **WAYS[way]) as cluster:
        body = request(suite, served_model(cluster))
        want = alone(body)
        result = {}
        jobs = [lambda: answer_of(cluster.port, body),
                lambda: result.update(job=under_way(cluster, 2)) or cluster.kill(result["job"]["decode"])]
        have = run_all(jobs)[0]
        if isinstance(have, Exception):
            raise have
        assert have == want, "another answer after the retry"
        record = cluster.state()["recent"][0]
        assert record["attempts"] >= 2, record
        assert record["decode"] != result["job"]["decode"] and record["prefill"] == "prefill-0"
        assert record["cached_tokens"] >= 2 * 64, f"computed again: {record}"
        again = computed(cluster) - PROMPT
        assert again <= 2 * 64, f"{again:.0f} prompt tokens were computed twice"
        cluster.wait_at_rest(workers=2)
        return f"{record['cached_tokens']} of {PROMPT} from the cache, {again:.0f} computed twice"


def freeze(cluster, stream):
    """Stops the decode worker of a prompt that is still being computed. None: it was too late."""
    victim = cluster.workers[under_way(cluster, 5)["decode"]]
    victim.signal(signal.SIGSTOP)  # what is pushed into its memory arrives all the same
    if not stream.ids and [r for r in cluster.state()["requests"] if r["state"] == "prefilling"]:
        return victim
    victim.signal(signal.SIGCONT)
    return None


def dies_late(suite, way, alone):
    """Killed when the first token is out and decode has said nothing: the stream goes on elsewhere, and prefill
    has the whole prompt."""
    for _ in range(5):
        note = try_late(suite, way, alone)
        if note is not None:
            return note
    raise AssertionError("the prompt was always computed before its decode worker could be stopped")


def try_late(suite, way, alone):
    with suite.cluster(model=suite.smollm2(), prefill=1, decode=2, flags=FLAGS,
                       **WAYS[way]) as cluster:
        body = request(suite, served_model(cluster))
        want = alone(body)
        stream = Stream(cluster.port, "/v1/completions", {**body, "logits_digest": True})

        def strike():
            victim = freeze(cluster, stream)
            if victim is None:
                return None
            wait_for("the first token", lambda: stream.ids, 30)
            at_once = len(stream.ids) == 1
            cluster.kill(victim.name)
            return at_once
        for result in (results := run_all([stream.run, strike])):
            if isinstance(result, Exception):
                raise result
        assert (stream.ids, stream.digests) == (want["ids"], want["digests"]), \
            f"{stream.ids}, not {want['ids']}"
        record = cluster.state()["recent"][0]
        if not results[1] or record["attempts"] < 2:
            return None  # too late, or so slow that its lease ran out before
        assert record["cached_tokens"] >= PROMPT - BLOCK, f"computed again: {record}"
        again = computed(cluster) - PROMPT
        assert again <= BLOCK, f"{again:.0f} prompt tokens were computed twice"
        cluster.wait_at_rest(workers=2)
        return f"{record['cached_tokens']} of {PROMPT} from the cache, {again:.0f} computed twice"


def cut(suite, last_chunk, way, requests, want):
    """The same answers however the last chunk is cut; neighbours travel together, or nothing does."""
    flags = FLAGS + ["--last-chunk", last_chunk]
    with suite.cluster(model=suite.stories(), prefill=1, decode=1, flags=flags,
                       **WAYS[way]) as cluster:
        have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
        assert_same(requests, want, have, f"--last-chunk {last_chunk} by {way}")
        cluster.wait_at_rest(workers=2)
        full = sum(len(r["prompt"]) // BLOCK for r in requests)
        begun = sum(len(r["prompt"]) % BLOCK != 0 for r in requests)  # the last ones
        direct = way == "zero-copy" and device() == "cpu"  # a device's blocks go through its host's mirror
        expected = (full, begun) if direct else (0, full + begun)

        def shown():
            now = counters(status_port(cluster.workers["prefill-0"]))
            moved = (now["kv_link_direct_blocks_total"], now["kv_link_pushed_blocks_total"])
            return now if moved == expected else None
        # A worker brings its metrics up to date a few times a second.
        puts = wait_for(f"{expected} blocks computed there and pushed", shown)["kv_link_descriptors_total"]
        if direct:
            return f"{full} blocks computed there, {begun} pushed"
        assert 0 < puts < full + begun, f"{puts:.0f} transfers for {full + begun} blocks"
        return f"{full + begun} blocks in {puts:.0f} transfers"


def main():
    suite = Suite(__doc__)
    stories, want = [], []

    def solo():
        with suite.cluster(model=suite.stories(), standalone=True) as cluster:
            stories.extend(request(suite, served_model(cluster), 20 + 17 * i, 12) for i in range(12))
            want.extend(answer_of(cluster.port, body) for body in stories)
    suite.case("solo runs", solo)
    for last_chunk in ("short", "whole", "auto") if want else ():
        for way in WAYS:
            suite.case(f"{way}: --last-chunk {last_chunk}", cut, suite, last_chunk, way, stories,
                       want)

    def alone(body):
        with suite.cluster(model=suite.smollm2(), standalone=True) as cluster:
            return answer_of(cluster.port, body)
    for way in WAYS:
        suite.case(f"{way}: decode dies while the prompt is computed", dies_early, suite, way, alone)
        suite.case(f"{way}: decode dies behind the first token", dies_late, suite, way, alone)
    suite.end()


if __name__ == "__main__":
    main()
