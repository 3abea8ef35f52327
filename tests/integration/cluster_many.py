#!/usr/bin/env python3
"""200 requests at once through 2 prefill and 2 decode workers: all complete, each equal to its solo
run, streams interleave, and every pool ends at its baseline. Then the same with a third of the
clients hanging up at random moments."""
import time

from _forge import Stream, Suite, answer_of, assert_same, run_all, served_model, story_requests


def solo_answers(suite, requests):
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        for request in requests:
            request["model"] = served_model(cluster)
        return [answer_of(cluster.port, request) for request in requests]


def all_at_once(cluster, requests, want):
    have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
    assert_same(requests, want, have, "differ from their solo runs")
    cluster.wait_at_rest(workers=4)


def streams(cluster, requests, want):
    runs = run_all([lambda r=r: Stream(cluster.port, "/v1/completions",
                                       {**r, "logits_digest": True}).run() for r in requests])
    have = [run if isinstance(run, Exception) else
            {"ids": run.ids, "digests": run.digests, "text": run.text, "finish": run.finish}
            for run in runs]
    assert_same(requests, want, have, "differ from their solo runs")
    ordered = sorted(runs, key=lambda run: run.times[0])
    overlaps = sum(later.times[0] < earlier.times[-1]
                   for earlier, later in zip(ordered, ordered[1:]))
    assert overlaps > len(runs) // 2, f"only {overlaps} of {len(runs)} streams overlap the next one"
    cluster.wait_at_rest(workers=4)
    return f"{overlaps} of {len(runs)} overlap the next"


def hanging_up(suite, cluster, requests, want):
    """Every third client leaves: before its first byte, after some chunks, or after a pause."""
    plans = [None] * len(requests)
    for index in suite.random.sample(range(len(requests)), len(requests) // 3):
        plans[index] = suite.random.choice([("chunks", suite.random.randrange(1, 12)),
                                            ("pause", suite.random.random() * 1.5)])

    def client(index):
        request, plan = {**requests[index], "logits_digest": True}, plans[index]
        stream = Stream(cluster.port, "/v1/completions", request)
        if plan is None:
            stream.run()
            return {"ids": stream.ids, "digests": stream.digests, "text": stream.text,
                    "finish": stream.finish}
        if plan[0] == "pause":
            time.sleep(plan[1])
        else:
            for count, _ in enumerate(stream.chunks(), 1):
                if count >= plan[1]:
                    break
        stream.hang_up()
        return want[index]

    have = run_all([lambda i=i: client(i) for i in range(len(requests))])
    assert_same(requests, want, have, "differ from their solo runs")
    cluster.wait_at_rest(workers=4)
    return f"{sum(plan is not None for plan in plans)} hung up"


def main():
    suite = Suite(__doc__, requests=(200, "how many at once"), rounds=(1, "hang-up rounds"))
    requests = story_requests(suite.random, suite.options.requests, tokens=(16, 64), words=(0, 80))
    want = []
    suite.case("solo runs", lambda: want.extend(solo_answers(suite, requests)))

    def in_cluster(transport):
        with suite.cluster(model=suite.stories(), prefill=2, decode=2,
                           transport=transport) as cluster:
            suite.case(f"{transport}: all at once", all_at_once, cluster, requests, want)
            suite.case(f"{transport}: all at once, streamed", streams, cluster, requests, want)
            for index in range(suite.options.rounds * (3 if suite.options.full else 1)):
                suite.case(f"{transport}: a third hangs up, round {index + 1}", hanging_up, suite,
                           cluster, requests, want)

    if want:
        for transport in ("shm", "tcp"):
            suite.case(f"{transport}: cluster starts and ends well", in_cluster, transport)
    suite.end()


if __name__ == "__main__":
    main()
