#!/usr/bin/env python3
"""100 requests, one answer each: alone without cache, overlap and guesses, then all at once in every way that
the engine room can be set, with pools so small that nearly everything is preempted. Token ids and
logits digests are equal each time, and the counters show that the way was really taken."""
import json
import subprocess
import tempfile

from _forge import (Suite, answer_of, assert_same, counters, difference, get, post, run_all, served_model,
                    status_port, streamed_choices, wait_for)

CONTEXT = 512
BOS, FIRST_PIECE, VOCAB = 1, 259, 512
SMALL = ["--kv-blocks", 40]
TIER = ["--kv-host-blocks", 200]


# --- the set -------------------------------------------------------------------------------------

def ids(rng, count):
    return [rng.randrange(FIRST_PIECE, VOCAB) for _ in range(count)]


def fresh_prompts(rng):
    """88 prompts with their longest answers: shared beginnings of awkward lengths, equal ones, some
    that fill the context, many short ones that grow."""
    long_head, even_head, odd_head = ([BOS] + ids(rng, n) for n in (149, 127, 16))
    rows = [(long_head + ids(rng, rng.randrange(1, 60)), rng.randrange(8, 60)) for _ in range(12)]
    rows += [(even_head + ids(rng, rng.randrange(0, 30)), rng.randrange(8, 90)) for _ in range(10)]
    rows += [(even_head, rng.randrange(2, 90)) for _ in range(4)]  # a whole number of blocks
    rows += [(odd_head + ids(rng, rng.randrange(0, 2)), rng.randrange(40, 120)) for _ in range(10)]
    for _ in range(4):
        rows += [([BOS] + ids(rng, rng.randrange(20, 150)), rng.randrange(10, 90))] * 2
    for answer in (1, 2, 15, 16, 17, 33, 100, 180):
        rows.append(([BOS] + ids(rng, CONTEXT - answer - 1), answer))
    rows += [([BOS] + ids(rng, rng.randrange(0, 20)), rng.randrange(90, 200)) for _ in range(22)]
    rows += [("Once upon a time" + " the dog" * rng.randrange(0, 40), rng.randrange(20, 90))
             for _ in range(10)]
    rows += [([BOS] + ids(rng, rng.randrange(200, 420)), rng.randrange(4, 60)) for _ in range(4)]
    return rows


def body_of(rng, prompt, answer, index):
    body = {"prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": index % 5 != 0}
    if index % 2:
        body.update(temperature=rng.choice([0.5, 0.8, 1.0, 1.3]), seed=rng.randrange(1 << 31),
                    top_p=rng.choice([1.0, 0.95, 0.8]), top_k=rng.choice([0, 20, 40]),
                    min_p=rng.choice([0.0, 0.02]))
    return body


def make_set(suite):
    """The requests, their answers alone, and the conversations: lists of indices, each one after the
    other. The last 12 continue an answer, some of them one that was itself a second turn."""
    rng = suite.random
    requests = [body_of(rng, *row, i) for i, row in enumerate(fresh_prompts(rng))]
    requests[3] = dict(requests[2])  # one that is equal in everything
    talks = [[i] for i in range(len(requests))]
    flags = ["--prefix-cache", "off", "--overlap", "off", "--speculate", "off"]
    with suite.cluster(model=suite.stories(), standalone=True, flags=flags) as cluster:
        model = json.loads(get_text(cluster, "/v1/models"))["data"][0]
        assert model["max_model_len"] == CONTEXT, model
        for request in requests:
            request["model"] = model["id"]
        want = [answer_of(cluster.port, request) for request in requests]
        may_go_on = [i for i, r in enumerate(requests)
                     if isinstance(r["prompt"], list) and len(r["prompt"]) + r["max_tokens"] < 300]
        parents = rng.sample(may_go_on, 8)
        for parent in parents + list(range(len(requests), len(requests) + 4)):
            prompt = requests[parent]["prompt"] + want[parent]["ids"] + ids(rng, rng.randrange(1, 40))
            request = body_of(rng, prompt, rng.randrange(8, 40), len(requests))
            request["model"] = model["id"]
            next(talk for talk in talks if parent in talk).append(len(requests))
            requests.append(request)
            want.append(answer_of(cluster.port, request))
    assert len(requests) == 100, len(requests)
    assert all(len(answer["ids"]) > 0 for answer in want)
    return requests, want, talks


def get_text(cluster, path):
    return get(cluster.port, path)[1]


# --- the ways ------------------------------------------------------------------------------------

def at_once(cluster, requests, talks):
    """Every conversation in a thread of its own; answers in the order of the requests."""
    have = [None] * len(requests)

    def talk(indices):
        for index in indices:
            try:
                have[index] = answer_of(cluster.port, requests[index])
            except Exception as why:  # pylint: disable=broad-except
                have[index] = why

    run_all([lambda t=t: talk(t) for t in talks])
    return have


def lines_of(requests):
    return [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
             "body": {**request, "logits_digest": True}} for i, request in enumerate(requests)]


def answers_of_lines(lines):
    have = {}
    for line in lines:
        assert line["response"]["status_code"] == 200, line
        choice = line["response"]["body"]["choices"][0]
        have[int(line["custom_id"])] = {
            "ids": choice["forge"]["token_ids"], "digests": choice["forge"]["digests"],
            "text": choice["text"], "finish": choice["finish_reason"]}
    return [have[i] for i in range(len(have))]


def as_batch(cluster, requests, _talks):
    return answers_of_lines(post(cluster.port, "/forge/v1/batch",
                                 {"requests": lines_of(requests)})["data"])


def as_batch_file(cluster, requests, _talks):
    with tempfile.TemporaryDirectory(prefix="forge-room-") as folder:
        with open(f"{folder}/in.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines_of(requests))
        done = subprocess.run([cluster.forge, "batch", "--url", cluster.url, "--concurrency", "100",
                               f"{folder}/in.jsonl", f"{folder}/out.jsonl"], capture_output=True,
                              text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        with open(f"{folder}/out.jsonl", encoding="utf-8") as file:
            return answers_of_lines(json.loads(line) for line in file)


def changed(change):
    """All at once, each request changed a little; the answers must not be."""
    def run(cluster, requests, talks):
        return at_once(cluster, [{**r, **change(i)} for i, r in enumerate(requests)], talks)
    return run


def choice_answers(port, body):
    answer = post(port, "/v1/completions", {**body, "logits_digest": True})
    choices = sorted(answer["choices"], key=lambda c: c["index"])
    return [{"ids": c["forge"]["token_ids"], "digests": c["forge"]["digests"], "text": c["text"],
             "finish": c["finish_reason"]} for c in choices]


# A way: name, flags, and where needed: run, the cluster's shape, counters that must have moved (or,
# with "no ", must be zero).
def way(name, *flags, run=at_once, shape=None, moved=()):
    return dict(name=name, flags=[str(f) for f in flags], run=run, moved=moved,
                shape=shape or dict(standalone=True))


def victims():
    for victim in ("fewest-output", "last-admitted", "cheapest"):
        for name, flags, moved in (
                ("recompute", ["--preemption", "recompute"], ["no kv_swapped_blocks_total"]),
                ("swap", ["--preemption", "swap", *TIER],
                 ["kv_swapped_blocks_total", "kv_restored_blocks_total"]),
                ("auto", ["--preemption", "auto", *TIER], [])):
            yield way(f"small pool, {victim}, {name}", *SMALL, "--victim", victim, *flags,
                      moved=["num_preemptions_total", *moved])


def ways(folder, model):
    small = [*SMALL, "--preemption"]
    preempted = ["num_preemptions_total"]
    swapped = [*preempted, "kv_swapped_blocks_total", "kv_restored_blocks_total"]
    yield way("as it comes", moved=["prefix_cache_hits_total"])
    yield way("cache off", "--prefix-cache", "off", moved=["no prefix_cache_hits_total"])
    yield way("overlap off", "--overlap", "off")
    yield way("overlap and cache off", "--overlap", "off", "--prefix-cache", "off")
    yield way("prefill first", "--schedule", "prefill-first")
    yield way("prefill first, small pool", "--schedule", "prefill-first", *small, "recompute",
              moved=preempted)
    yield from victims()
    yield way("small pool, swap, overlap off", *small, "swap", *TIER, "--overlap", "off",
              moved=swapped)
    yield way("small pool, swap, cache off", *small, "swap", *TIER, "--prefix-cache", "off",
              moved=swapped)
    yield way("small pool, recompute, cache off", *small, "recompute", "--prefix-cache", "off",
              moved=preempted)
    yield way("small pool, swap into a small tier", *small, "swap", "--kv-host-blocks", 12,
              moved=swapped)
    yield way("small pool, tier on disk", *small, "swap", *TIER, "--kv-disk", folder, moved=swapped)
    yield way("pool of one context", "--kv-blocks", 32, "--kv-host-blocks", 64, moved=preempted)
    yield way("no evict", *SMALL, "--admission", "no-evict",
              moved=["no num_preemptions_total", "kv_evicted_blocks_total"])
    yield way("no evict, tier", *SMALL, "--admission", "no-evict", *TIER,
              moved=["no num_preemptions_total", "prefix_cache_tier_hits_total"])
    guessed = ["spec_decode_num_accepted_tokens_total"]
    fixed = ["--draft-length", "fixed"]
    yield way("nothing guessed", "--speculate", "off", moved=["no spec_decode_num_drafts_total"])
    yield way("eight guesses each", *fixed, moved=guessed)
    yield way("one guess each, overlap off", *fixed, "--draft-max", 1, "--overlap", "off",
              moved=guessed)
    yield way("guesses by the formula, small pool, swap", "--draft-length", "adaptive", *small,
              "swap", *TIER, moved=[*swapped, *guessed])
    yield way("eight guesses each, no evict, tier", *fixed, *SMALL, "--admission", "no-evict",
              *TIER, moved=["no num_preemptions_total", *guessed])
    yield way("eight guesses each, blocks of 1", *fixed, "--block-size", 1, moved=guessed)
    yield way("eight guesses each, 1P+1D, small pools", *fixed, *SMALL, *TIER,
              shape=dict(prefill=1, decode=1), moved=[*preempted, *guessed])
    drafts = ["--speculative-model", model, *fixed]
    said = ["spec_decode_model_accepted_tokens_total", *guessed]
    yield way("a draft model", *drafts, moved=said)
    yield way("a draft model alone, small pool, swap", *drafts, "--speculate", "model", *small, "swap", *TIER,
              moved=[*swapped, *said])
    yield way("a draft model with few blocks, as it pays", *drafts[:2], "--speculative-kv-blocks", 40)
    for chunk in (1, 7, 64, 512):
        yield way(f"chunk {chunk}", "--prefill-chunk-size", chunk)
    yield way("few tokens in a step", "--max-batch-tokens", 70, "--max-seqs", 64)
    yield way("chunk 7, small pool, swap", "--prefill-chunk-size", 7, *small, "swap", *TIER,
              moved=swapped)
    yield way("blocks of 64", "--block-size", 64)
    for size in (1, 4, 64):  # below 16 attention is plain C, and takes its time
        yield way(f"blocks of {size}, small pool", "--block-size", size, "--kv-blocks",
                  2 * CONTEXT // size if size < 64 else 12, "--preemption", "swap",
                  "--kv-host-blocks", 2048 // size, moved=swapped)
    yield way("steps of 5 ms", "--step-ms", 5)
    yield way("queue skip", *SMALL, "--queue-skip", 8)
    yield way("two at a time", "--max-seqs", 2, "--max-batch-tokens", 64)
    yield way("batch over HTTP", run=as_batch)
    yield way("batch over HTTP, small pool", *SMALL, run=as_batch, moved=preempted)
    yield way("batch file", run=as_batch_file)
    yield way("cache disabled by every second request", *SMALL, moved=preempted,
              run=changed(lambda i: {"prefix_cache": "disable"} if i % 2 else {}))
    yield way("three salts", *SMALL, moved=preempted,
              run=changed(lambda i: {"cache_salt": f"salt {i % 3}"} if i % 4 else {}))
    yield way("priorities", *SMALL, moved=preempted,
              run=changed(lambda i: {"priority": i % 3 - 1}))
    for count in (1, 2):
        for local in (0, 128):
            shape = dict(prefill=count, decode=count)
            yield way(f"{count}P+{count}D, local {local}", "--local-prefill-tokens", local,
                      shape=shape)
            yield way(f"{count}P+{count}D, local {local}, small pools", *SMALL, *TIER,
                      "--local-prefill-tokens", local, shape=shape, moved=preempted)
    yield way("1P+1D, small pools, swap", *small, "swap", *TIER, shape=dict(prefill=1, decode=1),
              moved=swapped)
    yield way("1P+1D, no evict", *SMALL, "--admission", "no-evict",
              shape=dict(prefill=1, decode=1), moved=["no num_preemptions_total"])


# Left to the long version, because others are close to them.
FULL_ONLY = {"overlap and cache off", "chunk 64", "batch over HTTP", "2P+2D, local 0", "no evict",
             "small pool, last-admitted, auto", "small pool, cheapest, auto",
             "one guess each, overlap off", "eight guesses each, blocks of 1",
             "chunk 7, small pool, swap", "blocks of 4, small pool",
             "prefill first"}


def totals(cluster):
    """The counters of all workers, added up."""
    if not cluster.workers:
        return counters(cluster.port)
    total = {}
    for worker in cluster.workers.values():
        for name, value in counters(status_port(worker)).items():
            total[name] = total.get(name, 0) + value
    return total


def check_moved(total, moved):
    assert total["kv_restored_blocks_total"] == total["kv_swapped_blocks_total"], "blocks were lost"
    for name in moved:
        if name.startswith("no "):
            assert total[name[3:]] == 0, f"{name[3:]} is {total[name[3:]]:.0f}"
        else:
            assert total[name] > 0, f"{name} is 0: this way was not taken"
    return ", ".join(f"{total[name]:.0f} {name.removesuffix('_total')}" for name in moved
                     if not name.startswith("no "))


def wait_moved(cluster, moved):
    """The same, once workers have brought their metrics up to date, which they do a few times a second."""
    missing = []

    def shown():
        try:
            return check_moved(totals(cluster), moved) or "nothing to count"
        except AssertionError as why:
            missing.append(why)
            return None
    try:
        return wait_for("counters", shown)
    except AssertionError:
        raise missing[-1] from None


def in_way(suite, requests, want, talks, row):
    flags = row["flags"] + ([] if row["shape"].get("standalone") else ["--status-port", "0"])
    with suite.cluster(model=suite.stories(), flags=flags, **row["shape"]) as cluster:
        have = row["run"](cluster, requests, talks)
        assert_same(requests, want, have, "differ from those given alone")
        cluster.wait_at_rest()
        return wait_moved(cluster, row["moved"])


def four_choices(suite, requests, flags, shape):
    """n = 4 against four single choices with seed + i, whole and streamed, all at once."""
    rng = suite.random
    rows = [r for r in requests if r["temperature"] and r["ignore_eos"]]
    rows = rng.sample([r for r in rows if len(r["prompt"]) < 300], 10)
    rows += [{**rows[0], "prompt": prompt} for prompt in ([BOS], [BOS] + ids(rng, 16),
                                                          [BOS] + ids(rng, 31))]
    rows.append({**rows[1], "seed": (1 << 63) - 2})  # the third choice wraps around
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=["--prefix-cache", "off"]) as cluster:
        jobs = [lambda r=r, i=i: answer_of(cluster.port, {**r, "seed": wrapped(r["seed"] + i)})
                for r in rows for i in range(4)]
        want = run_all(jobs)
    with suite.cluster(model=suite.stories(), flags=flags, **shape) as cluster:
        bodies = [{**r, "n": 4} for r in rows]
        have = run_all([lambda b=b: choice_answers(cluster.port, b) for b in bodies]
                       + [lambda b=b: streamed_choices(cluster.port, b) for b in bodies])
        for index, answers in enumerate(have):
            assert not isinstance(answers, Exception), f"row {index}: {answers}"
            for choice, answer in enumerate(answers):
                single = want[index % len(rows) * 4 + choice]
                assert answer == single, (f"choice {choice} of row {index % len(rows)}: "
                                          + difference(single, answer))
        cluster.wait_at_rest()
        if shape.get("standalone"):
            return check_moved(totals(cluster), ["prefix_forks_total"])
    return None


def wrapped(seed):
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def main():
    suite = Suite(__doc__)
    found = []
    only, suite.options.only = suite.options.only, ""  # everything else is compared with this
    suite.case("alone, one after the other", lambda: found.extend(make_set(suite)))
    suite.options.only = only
    if found:
        requests, want, talks = found
        with tempfile.TemporaryDirectory(prefix="forge-room-") as folder:
            for row in ways(folder, suite.stories()):
                if suite.options.full or row["name"] not in FULL_ONLY:
                    suite.case(row["name"], in_way, suite, requests, want, talks, row)
        for name, flags, shape in (("", [], dict(standalone=True)),
                                   (", small pool", SMALL, dict(standalone=True)),
                                   (", 1P+1D", [], dict(prefill=1, decode=1))):
            suite.case(f"four choices{name}", four_choices, suite, requests, flags, shape)
    suite.end()


if __name__ == "__main__":
    main()
