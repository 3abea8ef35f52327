#!/usr/bin/env python3
"""One trace across router, prefill, transfer and decode: real processes, each with a file of spans.

Reads what they wrote as a collector would, a request object per line, and checks the tree: every id once,
every parent there, times nested, the same trace id everywhere.
"""

import http.client
import json
import os
import pathlib
import shutil
import tempfile

from _forge import Suite, Stream, get, wait_for

# Processes of one host share one clock; each adds its own reading of wall time, and what a worker tells
# the router arrives later than it happened.
SLACK_NS = 20_000_000
ROUTER_STATES = {"queue", "reserve", "prefill", "transfer", "decode"}
BODY = {"prompt": "Once upon a time there was a little girl who lived in a house by the sea",
        "max_tokens": 40, "temperature": 0, "ignore_eos": True,
        "prefix_cache": "disable"}  # a cached prompt would not be handed over


class Traced:
    """A cluster whose processes write their spans into one folder."""

    def __init__(self, suite, flags=(), **options):
        self.folder = tempfile.mkdtemp(prefix="forge-spans-")
        self.cluster = suite.cluster(model=suite.stories(),
                                     flags=["--otlp-file", self.folder + "/", *flags], **options)

    def __enter__(self):
        self.cluster.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        self.cluster.__exit__(kind, value, trace)
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, body, headers=None, path="/v1/completions"):
        """Status, headers (lower case) and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.cluster.port, timeout=60)
        connection.request("POST", path, json.dumps(body),
                           {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text

    def spans(self):
        """All spans that are in the files now, each with `process` and `attrs`."""
        found = []
        for file in sorted(pathlib.Path(self.folder).glob("*.jsonl")):
            for line in file.read_text().splitlines(keepends=True):
                if not line.endswith("\n"):
                    continue  # being written
                for resource in json.loads(line)["resourceSpans"]:
                    process = values(resource["resource"]["attributes"])
                    assert process["service.instance.id"] == file.stem, process
                    for scope in resource["scopeSpans"]:
                        for span in scope["spans"]:
                            span["process"] = file.stem
                            span["attrs"] = values(span["attributes"])
                            found.append(span)
        return found

    def trace(self, trace_id, names, at_least=1):
        """The spans of one trace, once all of `names` are there."""
        def complete():
            mine = [s for s in self.spans() if s["traceId"] == trace_id]
            counts = {n: sum(s["name"] == n for s in mine) for n in names}
            return mine if all(c >= at_least for c in counts.values()) else None
        try:
            return wait_for("the spans", complete, 10)
        except AssertionError as why:
            have = [(s["process"], s["name"]) for s in self.spans() if s["traceId"] == trace_id]
            raise AssertionError(f"{why}: want {sorted(names)}, have {sorted(have)}") from None


def values(attributes):
    out = {}
    for attribute in attributes:
        value = attribute["value"]
        out[attribute["key"]] = value.get("stringValue",
                                          int(value["intValue"]) if "intValue" in value else None)
    return out


def check_tree(spans, caller=None):
    """Ids once, parents there, times nested; the root hangs from `caller` (None: from nobody)."""
    by_id = {}
    for span in spans:
        assert len(span["spanId"]) == 16 and int(span["spanId"], 16) != 0, span
        assert span["spanId"] not in by_id, f"an id twice: {span}"
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]), span
        by_id[span["spanId"]] = span
    roots = [s for s in spans if s.get("parentSpanId") in (None, caller)]
    assert len(roots) == 1 and roots[0]["kind"] == 2, f"roots: {roots}"
    assert roots[0].get("parentSpanId") == caller, roots[0]
    for span in spans:
        if span is roots[0]:
            continue
        parent = by_id.get(span["parentSpanId"])
        assert parent is not None, f"the parent is missing of {span}"
        assert int(span["startTimeUnixNano"]) >= int(parent["startTimeUnixNano"]) - SLACK_NS \
            and int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"]) + SLACK_NS, \
            f"{span['name']} is not inside {parent['name']}: {span} {parent}"
    return roots[0]


def draw(suite):
    return f"{suite.random.randrange(1, 1 << 128):032x}", f"{suite.random.randrange(1, 1 << 64):016x}"


SPLIT = ROUTER_STATES | {"POST /v1/completions", "generate", "worker.queue", "worker.compute",
                         "worker.push", "worker.receive", "worker.decode"}


def one_trace(suite):
    """The caller's trace id in all three processes, in one tree."""
    with Traced(suite) as t:
        trace_id, caller = draw(suite)
        status, headers, text = t.ask(BODY, {"traceparent": f"00-{trace_id}-{caller}-01",
                                             "tracestate": "congo=t61rcWkgMzE"})
        assert status == 200, text
        spans = t.trace(trace_id, SPLIT)
        named = {s["name"]: s for s in spans}
        answered = headers["traceparent"].split("-")
        assert answered[0] == "00" and answered[1] == trace_id and answered[3] == "01", headers
        assert headers["tracestate"] == "congo=t61rcWkgMzE", headers
        root = check_tree(spans, caller)
        assert root["spanId"] == answered[2] != caller, (root, headers)
        assert root["traceState"] == "congo=t61rcWkgMzE", root
        processes = {s["process"] for s in spans}
        assert len(processes) == 3 and {"prefill-0", "decode-0"} < processes, processes
        usage = json.loads(text)["usage"]
        assert root["attrs"]["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 40
        assert root["attrs"]["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert root["attrs"]["http.response.status_code"] == 200
        generate = named["generate"]
        assert generate["parentSpanId"] == root["spanId"]
        assert all(s["parentSpanId"] == generate["spanId"] for s in spans
                   if s not in (root, generate)), "a span in the wrong place"
        assert generate["attrs"]["forge.prefill_worker"] == "prefill-0", generate
        assert generate["attrs"]["forge.decode_worker"] == "decode-0", generate
        assert generate["attrs"]["forge.finish"] == "length", generate
        push = named["worker.push"]["attrs"]
        told = [generate["attrs"]]  # and the transfer, unless a token of decode came before
        if "forge.kv_bytes" in named["transfer"]["attrs"]:
            told.append(named["transfer"]["attrs"])
        for attrs in told:
            assert attrs["forge.kv_bytes"] == push["forge.kv_bytes"] > 0, (attrs, push)
            assert attrs["forge.transport"] == push["forge.transport"] != "", (attrs, push)
        assert named["worker.push"]["process"] == "prefill-0"
        assert named["worker.receive"]["process"] == "decode-0"
        status, page = get(t.cluster.port, "/metrics")
        for name in ("queue", "reserve", "prefill", "transfer", "decode"):
            assert f"forge:request_{name}_time_seconds_count 1" in page.decode(), name
        order = ["queue", "reserve", "prefill", "transfer", "decode"]
        for before, after in zip(order, order[1:]):
            assert named[before]["endTimeUnixNano"] == named[after]["startTimeUnixNano"], before
        return f"{len(spans)} spans of 3 processes"


def headers_bad_and_unsampled(suite):
    """A bad header begins a new trace; a caller that does not record is obeyed."""
    with Traced(suite) as t:
        good = "0af7651916cd43dd8448eb211c80319c"
        fresh = set()
        for bad in ("nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01", f"00-{good}-{'0' * 16}-01",
                    f"00-{good.upper()}-b7ad6b7169203331-01", f"ff-{good}-b7ad6b7169203331-01",
                    "", f"00-{good}-b7ad6b7169203331-01-more", "\xff" * 55, "0" * 5000):
            status, headers, text = t.ask({**BODY, "max_tokens": 2}, {"traceparent": bad,
                                                                      "tracestate": "a=b"})
            assert status == 200, text
            _, trace_id, _, flags = headers["traceparent"].split("-")
            assert trace_id != good and flags == "01" and "tracestate" not in headers, headers
            fresh.add(trace_id)
        assert len(fresh) == 9, "each begins a trace of its own"
        for trace_id in fresh:
            # Two tokens may have come before the router hears that the blocks have arrived.
            check_tree(t.trace(trace_id, SPLIT - {"decode"}))
        status, headers, _ = t.ask(BODY, {"traceparent": f"00-{good}-b7ad6b7169203331-00"})
        assert status == 200 and headers["traceparent"].startswith(f"00-{good}-"), headers
        assert headers["traceparent"].endswith("-00"), headers
        status, headers, _ = t.ask({"prompt": 7}, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
                                                   "tracestate": "x" * 513})
        assert status == 400 and "tracestate" not in headers, headers
        refused = t.trace("1" * 32, {"POST /v1/completions"})
        assert len(refused) == 1 and refused[0]["attrs"]["http.response.status_code"] == 400
        assert not [s for s in t.spans() if s["traceId"] == good], "recorded against the caller's wish"


def choices_streams_and_batches(suite):
    """Each choice, and each line of a batch, has its place in the tree."""
    with Traced(suite) as t:
        trace_id, caller = draw(suite)
        header = {"traceparent": f"00-{trace_id}-{caller}-01"}
        assert t.ask({**BODY, "n": 3}, header)[0] == 200
        spans = t.trace(trace_id, {"POST /v1/completions"})
        root = check_tree(spans, caller)
        assert sum(s["name"] == "generate" for s in spans) == 3 and root["attrs"]["forge.choices"] == 3

        trace_id, caller = draw(suite)
        line = {"method": "POST", "url": "/v1/completions", "body": {**BODY, "max_tokens": 3}}
        status, headers, text = t.ask([{**line, "custom_id": "a"}, {**line, "custom_id": "b"}],
                                      {"traceparent": f"00-{trace_id}-{caller}-01"},
                                      "/forge/v1/batch")
        assert status == 200 and headers["traceparent"].split("-")[1] == trace_id, text
        spans = t.trace(trace_id, {"POST /forge/v1/batch", "worker.decode", "line"})
        root = check_tree(spans, caller)
        lines = [s for s in spans if s["name"] == "line"]
        assert len(lines) == 2 and all(s["parentSpanId"] == root["spanId"] for s in lines)

        trace_id, caller = draw(suite)
        connection = http.client.HTTPConnection("127.0.0.1", t.cluster.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}),
                           {"Content-Type": "application/json",
                            "traceparent": f"00-{trace_id}-{caller}-01"})
        answer = connection.getresponse()
        assert answer.getheader("traceparent").split("-")[1] == trace_id
        answer.read()
        connection.close()
        check_tree(t.trace(trace_id, SPLIT), caller)

        # A client that hangs up.
        stream = Stream(t.cluster.port, "/v1/completions", {**BODY, "max_tokens": 400})
        next(stream.chunks())
        stream.hang_up()
        wait_for("the span of the request that was given up", lambda: [
            s for s in t.spans() if s["kind"] == 2 and s["attrs"].get("forge.finish") == "cancelled"])


def standalone_and_off(suite):
    """One process: one file. Without the flag: no file, and the caller's trace id still comes back."""
    with Traced(suite, standalone=True) as t:
        status, headers, _ = t.ask(BODY)
        assert status == 200
        trace_id = headers["traceparent"].split("-")[1]
        spans = t.trace(trace_id, {"POST /v1/completions", "generate", "queue", "prefill", "decode",
                                   "worker.compute", "worker.decode"})
        check_tree(spans)
        files = os.listdir(t.folder)
        assert len(files) == 1, files
    with suite.cluster(model=suite.stories(), standalone=True) as cluster:
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=60)
        for header, want in (({"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}, "1" * 32), ({}, None)):
            connection.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 1}),
                               {"Content-Type": "application/json", **header})
            answer = connection.getresponse()
            answer.read()
            have = answer.getheader("traceparent")
            assert (have.split("-")[1] if have else None) == want, have
        connection.close()


def sampled(suite):
    """--otlp-sample 0: only callers that ask for it are recorded."""
    with Traced(suite, flags=["--otlp-sample", "0"], standalone=True) as t:
        for _ in range(3):
            _, headers, _ = t.ask({**BODY, "max_tokens": 1})
            assert headers["traceparent"].endswith("-00"), headers
        trace_id, caller = draw(suite)
        t.ask({**BODY, "max_tokens": 1}, {"traceparent": f"00-{trace_id}-{caller}-01"})
        t.trace(trace_id, {"POST /v1/completions", "generate"})
        assert {s["traceId"] for s in t.spans()} == {trace_id}
        assert get(t.cluster.port, "/health")[0] == 200


def main():
    suite = Suite(__doc__)
    suite.case("one trace id across router, prefill, transfer and decode", one_trace, suite)
    suite.case("bad and unsampled headers", headers_bad_and_unsampled, suite)
    suite.case("choices, batches, streams and hang-ups", choices_streams_and_batches, suite)
    suite.case("one process, and none that looks", standalone_and_off, suite)
    suite.case("the sample", sampled, suite)
    suite.end()


if __name__ == "__main__":
    main()
