#!/usr/bin/env python3
"""forge batch and forge trace as a user runs them: the answers of a batch are those of the same
requests sent alone; a killed batch goes on where it was; a server that is full, broken or gone; files
that are none; one picture of several processes."""
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from _forge import Suite, get, served_model, story_requests, wait_for

LIMIT_S = 120  # for one run of a command


class Folder:
    """A folder for the files of one case, and the commands run in it."""

    def __init__(self, suite):
        self.forge = os.path.abspath(suite.options.forge)
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="forge-batch-"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name, text):
        (self.path / name).write_text(text, encoding="utf-8")
        return name

    def lines(self, name, requests):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in requests))

    def start(self, *words, **options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORGE_")}
        return subprocess.Popen([self.forge, *map(str, words)], cwd=self.path, env=environment,
                                stderr=subprocess.PIPE, text=True, **options)

    def run(self, *words, stdin=""):
        child = self.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        out, err = child.communicate(stdin, timeout=LIMIT_S)
        return child.returncode, out, err

    def answers(self, name="out.jsonl"):
        """custom_id -> answer; a line that is not whole, or twice there, fails."""
        found = {}
        for line in (self.path / name).read_text(encoding="utf-8").splitlines(keepends=True):
            assert line.endswith("\n"), f"{name} ends with {line!r}"
            answer = json.loads(line)
            assert set(answer) == {"id", "custom_id", "response", "error"}, line
            assert answer["error"] is None and answer["id"].startswith("batch_req_"), line
            assert set(answer["response"]) == {"status_code", "request_id", "body"}, line
            assert answer["custom_id"] not in found, f"{answer['custom_id']} is there twice"
            found[answer["custom_id"]] = answer["response"]
        return found

    def count(self, name="out.jsonl"):
        try:
            return (self.path / name).read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


def line_of(custom_id, body, url="/v1/completions"):
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def alone(port, line):
    """Status and answer of the same request, sent by itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("POST", line["url"], json.dumps(line["body"]),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return {"status_code": answer.status, "body": json.loads(answer.read())}
    finally:
        connection.close()


def essence(response):
    """What does not differ from one asking to the next."""
    body = {k: v for k, v in response["body"].items() if k not in ("id", "created")}
    if "usage" in body:  # how much of a prompt was cached depends on what ran before
        body["usage"] = {k: v for k, v in body["usage"].items() if k != "prompt_tokens_details"}
    return response["status_code"], body


def mixed_lines(suite, model, count):
    bodies = story_requests(suite.random, count - 6)
    lines = [line_of(f"story-{i}", {**body, "model": model}) for i, body in enumerate(bodies)]
    lines += [
        line_of("chat", {"model": model, "max_tokens": 8, "temperature": 0,
                         "messages": [{"role": "user", "content": "Tell me a story"}]},
                "/v1/chat/completions"),
        line_of("unknown model", {"model": "no such", "prompt": "x"}),
        line_of("unknown route", {"model": model}, "/v1/nothing"),
        line_of("bad parameter", {"model": model, "prompt": "x", "temperature": -1}),
        line_of("too long", {"model": model, "prompt": "x", "max_tokens": 10 ** 9}),
        line_of("ümläut \"quoted\" \\ \n", {"model": model, "prompt": "Once \"upon\"\n", "max_tokens": 5,
                                            "temperature": 0}),
    ]
    suite.random.shuffle(lines)
    return lines


def summary(text):
    match = re.search(r"(\d+) done(?: \((\d+) with an error status\))?, (\d+) failed, (\d+) skipped",
                      text)
    assert match, f"no closing line in {text!r}"
    return [int(part or 0) for part in match.groups()]


def answers_equal(suite):
    """60 lines over --url; every answer is the one that the request gets alone."""
    with suite.cluster(model=suite.stories(), standalone=True) as server, Folder(suite) as folder:
        lines = mixed_lines(suite, served_model(server), 60)
        started = time.monotonic()
        want = {line["custom_id"]: essence(alone(server.port, line)) for line in lines}
        singly_s = time.monotonic() - started
        folder.lines("in.jsonl", lines)
        started = time.monotonic()
        code, out, err = folder.run("batch", "--url", server.url, "in.jsonl", "out.jsonl")
        batch_s = time.monotonic() - started
        assert code == 0 and out == "", f"exit code {code}: {err}"
        have = {name: essence(response) for name, response in folder.answers().items()}
        errors = sum(status >= 400 for status, _ in want.values())
        assert errors >= 3, "the mix has too few refused requests"
        assert summary(err) == [60, errors, 0, 0], err
        bad = [name for name in want if have.get(name) != want[name]]
        assert not bad, f"{len(bad)} of {len(want)} differ: {bad[0]}: {have.get(bad[0])} is not " \
                        f"{want[bad[0]]}"
        before = (folder.path / "out.jsonl").read_bytes()
        code, _, err = folder.run("batch", "--url", server.url + "/v1/", "in.jsonl", "out.jsonl")
        assert code == 0 and summary(err) == [0, 0, 0, 60], err
        assert (folder.path / "out.jsonl").read_bytes() == before, "a second run changed the file"
        server.wait_at_rest()
        return f"one by one {singly_s:.2f} s, as a batch {batch_s:.2f} s"


def other_forms(suite):
    """A JSON array, standard input and output, a server of its own with flags of its own."""
    model = suite.stories()
    name = pathlib.Path(model).stem
    with Folder(suite) as folder:
        lines = [line_of(f"n{i}", {"model": name, "prompt": "Once", "max_tokens": 4 + i,
                                   "temperature": 0}) for i in range(12)]
        folder.lines("in.jsonl", lines)
        folder.write("in.json", json.dumps(lines, indent=2))
        flags = ("--", "--threads", "1", "--served-model-name", name)
        code, _, err = folder.run("batch", "--model", model, "in.jsonl", "a.jsonl", *flags)
        assert code == 0 and summary(err) == [12, 0, 0, 0], err
        code, _, err = folder.run("batch", "--model", model, "in.json", "b.jsonl",
                                  "--concurrency", "3", *flags)
        assert code == 0, err
        code, out, err = folder.run("batch", f"--model={model}", "-", "-", *flags,
                                    stdin=(folder.path / "in.jsonl").read_text("utf-8"))
        assert code == 0 and "starts anew" in err, err
        folder.write("c.jsonl", out)
        want = {k: essence(v) for k, v in folder.answers("a.jsonl").items()}
        assert len(want) == 12 and all(status == 200 for status, _ in want.values()), want
        for other in ("b.jsonl", "c.jsonl"):
            assert {k: essence(v) for k, v in folder.answers(other).items()} == want, other


def child_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"  # nobody reaps it here
    except OSError:
        return True


def kill_and_resume(suite, number, rounds):
    """A batch that is ended by a signal again and again loses no line and does none twice."""
    model = suite.stories()
    name = pathlib.Path(model).stem
    count = 300
    with Folder(suite) as folder:
        lines = [line_of(f"k{i}", {"model": name, "prompt": "Once upon a time", "max_tokens": 120,
                                   "ignore_eos": True, "temperature": 0.7, "seed": i})
                 for i in range(count)]
        folder.lines("in.jsonl", lines)
        words = ("batch", "--model", model, "--concurrency", "8", "in.jsonl", "out.jsonl", "--",
                 "--threads", "1", "--max-seqs", "4")
        killed_at, kept = [], {}
        for _ in range(rounds):
            before = folder.count()
            goal = before + suite.random.randrange(1, count // (rounds + 1))
            child = folder.start(*words)
            wait_for("some answers", lambda want=goal, c=child: folder.count() >= want
                     or c.poll() is not None, LIMIT_S)
            assert child.poll() is None, f"it was over before it could be killed: {child.stderr.read()}"
            server = child_of(child.pid)
            assert server, "there is no server of its own"
            child.send_signal(number)
            _, err = child.communicate(timeout=LIMIT_S)
            if number == signal.SIGKILL:
                assert child.returncode == -signal.SIGKILL
            else:
                assert child.returncode == 1 and "interrupted" in err, (child.returncode, err)
            wait_for("its server to end too", lambda pid=server: is_gone(pid), 30)
            whole = (folder.path / "out.jsonl").read_bytes()
            killed_at.append(whole.count(b"\n"))
            if number == signal.SIGKILL:  # as if the kill had come in the middle of a write
                cut = suite.random.randrange(1, 200)  # each line is longer
                with open(folder.path / "out.jsonl", "ab") as file:
                    file.write(whole[whole[:-1].rfind(b"\n") + 1:][:cut])
            kept = {line["custom_id"]: raw for raw in whole.splitlines() if (line := json.loads(raw))}
        code, _, err = folder.run(*words)
        assert code == 0, err
        assert summary(err) == [count - killed_at[-1], 0, 0, killed_at[-1]], (err, killed_at)
        assert ("was torn" in err) == (number == signal.SIGKILL), err
        have = folder.answers()
        assert set(have) == {line["custom_id"] for line in lines}, "lines were lost"
        after = {json.loads(raw)["custom_id"]: raw
                 for raw in (folder.path / "out.jsonl").read_bytes().splitlines()}
        assert all(after[key] == raw for key, raw in kept.items()), "an old answer has changed"
        code, _, err = folder.run("batch", "--model", model, "in.jsonl", "fresh.jsonl")
        assert code == 0, err
        fresh = folder.answers("fresh.jsonl")
        bad = [key for key in fresh if essence(fresh[key]) != essence(have[key])]
        assert not bad, f"{len(bad)} answers differ from those of a run that was left alone"
        return f"ended with {killed_at} of {count} answers"


def bad_inputs(suite):
    """Each is refused with exit code 2, in words that name the place, before anything is asked."""
    good = json.dumps(line_of("a", {"model": "m"}))
    other = json.dumps(line_of("b", {"model": "m"}))
    rows = [
        ("nothing", "", "in.jsonl: there is no request"),
        ("no JSON", f"{good}\nhello\n", "in.jsonl:2: "),
        ("cut off", f"{good}\n{other[:-3]}", "in.jsonl:2: "),
        ("no object", f"{good}\n[1]\n", "in.jsonl:2: "),
        ("doubled id", f"{good}\n{other}\n\n{good}\n", "in.jsonl:4: custom_id \"a\" is that of line 1"),
        ("doubled id in an array", f"[{good},{good}]", "in.jsonl: request 2: custom_id"),
        ("no id", good.replace("custom_id", "custom") + "\n", "in.jsonl:1: \"custom_id\""),
        ("no method", good.replace("\"method\"", "\"m\"") + "\n", "in.jsonl:1: \"method\""),
        ("GET", good.replace("POST", "GET") + "\n", "in.jsonl:1: \"method\""),
        ("no url", good.replace("\"url\"", "\"u\"") + "\n", "in.jsonl:1: \"url\""),
        ("url of another host", good.replace("/v1/", "http://x/v1/") + "\n", "in.jsonl:1: \"url\""),
        ("no body", good.replace("\"body\"", "\"b\"") + "\n", "in.jsonl:1: \"body\""),
        ("a stream", json.dumps(line_of("a", {"stream": True})) + "\n", "in.jsonl:1: \"stream\""),
        ("binary", "\x00\x01\x02\n", "in.jsonl:1: "),
    ]
    # Nobody listens at port 9: a request that was sent would end with exit code 1.
    to = ("--url", "http://127.0.0.1:9", "--retries", "0")
    for name, text, words in rows:
        with Folder(suite) as folder:
            folder.write("in.jsonl", text)
            code, out, err = folder.run("batch", *to, "in.jsonl", "out.jsonl")
            assert code == 2 and words in err and out == "", f"{name}: {code}: {err}"
            assert err.count("\n") == 1, f"{name}: more than one line: {err}"
            assert not (folder.path / "out.jsonl").exists(), f"{name}: an output file was made"
    calls = [
        ((), "two files"),
        (("in.jsonl",), "two files"),
        (("in.jsonl", "out.jsonl", "more"), "too many"),
        (("in.jsonl", "in.jsonl", *to), "the file with the requests"),
        (("in.jsonl", "link.jsonl", *to), "the file with the requests"),
        (("none.jsonl", "out.jsonl", *to), "none.jsonl: No such file"),
        (("in.jsonl", "none/out.jsonl", *to), "none/out.jsonl: No such file"),
        (("in.jsonl", "notes.txt", *to), "notes.txt:1: "),
        (("in.jsonl", "out.jsonl"), "--model FILE or --url URL"),
        (("in.jsonl", "out.jsonl", "--model", "x", *to), "give one"),
        (("in.jsonl", "out.jsonl", "--url", "ftp://x"), "http://"),
        (("in.jsonl", "out.jsonl", "--concurrency", "0"), "--concurrency"),
        (("in.jsonl", "out.jsonl", "--what"), "--what"),
        (("in.jsonl", "out.jsonl", *to, "--", "--threads", "2"), "--model"),
        (("in.jsonl", "out.jsonl", "--model", "none.gguf"), "none.gguf"),
        (("in.jsonl", "out.jsonl", "--model", "none.gguf", "--", "--mode", "router"), "--mode"),
        (("in.jsonl", "out.jsonl", "--model", "none.gguf", "--", "--bogus"), "--bogus"),
    ]
    for words, message in calls:
        with Folder(suite) as folder:
            folder.write("in.jsonl", good + "\n")
            folder.write("notes.txt", "milk\neggs")
            os.link(folder.path / "in.jsonl", folder.path / "link.jsonl")
            code, _, err = folder.run("batch", *words)
            assert code == 2 and message in err, f"{words}: {code}: {err}"
            assert (folder.path / "notes.txt").read_text() == "milk\neggs"
    with Folder(suite) as folder:
        code, out, err = folder.run("batch", "--help")
        assert code == 0 and "custom_id" in out and err == "", (code, err)
    return f"{len(rows)} files, {len(calls)} command lines"


class Stub:
    """A server that behaves as a function says: (number of the request, parsed body) -> status,
    headers and JSON, or None to hang up without an answer."""

    def __init__(self, behave):
        stub = self
        self.lock = threading.Lock()
        self.seen, self.now, self.most = 0, 0, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                with stub.lock:
                    number = stub.seen
                    stub.seen += 1
                    stub.now += 1
                    stub.most = max(stub.most, stub.now)
                try:
                    answer = behave(number, json.loads(body) if body else None)
                finally:
                    with stub.lock:
                        stub.now -= 1
                if answer is None:
                    self.close_connection = True
                    self.connection.close()
                    return
                status, headers, text = answer
                data = text.encode() if isinstance(text, str) else json.dumps(text).encode()
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = handle_any

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *_):
                pass  # the other side hung up, or we did

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def troubled_server(suite):
    """Refusals, broken connections and errors on the way: in the end each request has its answer."""
    tried = {}

    def behave(number, body):
        turn = tried[body["n"]] = tried.get(body["n"], 0) + 1
        kind = body["n"] % 6
        if turn == 1 and kind == 0:
            return 429, {"Retry-After": "1"}, {"error": {"message": "full"}}
        if turn <= 2 and kind == 1:
            return None
        if turn == 1 and kind in (2, 3):
            return (503, 502)[kind - 2], {}, {"error": {"message": "later"}}
        if kind == 4:
            return 400, {"x-request-id": f"r{number}"}, {"error": {"message": "never"}}
        return 200, {"x-request-id": f"r{number}"}, "{\n \"n\": %d,\n \"usage\":\n{}}" % body["n"]

    with Stub(behave) as stub, Folder(suite) as folder:
        folder.lines("in.jsonl", [line_of(f"t{i}", {"n": i}, "/any") for i in range(60)])
        code, _, err = folder.run("batch", "--url", stub.url, "--concurrency", "5", "in.jsonl",
                                  "out.jsonl")
        assert code == 0 and summary(err) == [60, 10, 0, 0], err
        assert stub.most <= 5, f"{stub.most} requests were in flight"
        assert err.count("trying again") >= 1 and err.count("\n") < 8, f"too many words: {err}"
        for name, response in folder.answers().items():
            number = int(name[1:])
            want = (400 if number % 6 == 4 else 200)
            assert response["status_code"] == want and response["request_id"].startswith("r"), response
            assert want == 400 or response["body"] == {"n": number, "usage": {}}, response
    turns = {kind: {count for n, count in tried.items() if n % 6 == kind} for kind in range(6)}
    assert turns[0] == turns[2] == turns[3] == {2} and turns[1] == {3}, turns
    assert turns[4] == turns[5] == {1}, "a finished request was asked again"


def full_server(suite):
    """A real server with room for few: nothing is lost, and it is kept busy."""
    with suite.cluster(model=suite.stories(), standalone=True,
                       flags=("--queue-limit", 2, "--max-seqs", 2)) as server, Folder(suite) as folder:
        model = served_model(server)
        folder.lines("in.jsonl", [line_of(f"f{i}", {"model": model, "prompt": "Tom", "max_tokens": 20})
                                  for i in range(150)])
        code, _, err = folder.run("batch", "--url", server.url, "in.jsonl", "out.jsonl")
        assert code == 0 and summary(err) == [150, 0, 0, 0], err
        assert all(r["status_code"] == 200 for r in folder.answers().values())
        metrics = get(server.port, "/metrics")[1].decode()
        refused = sum(float(m) for m in re.findall(r'^forge_http_\S*code="429"\S* (\S+)$', metrics,
                                                   re.M))
        server.wait_at_rest()
        return f"{refused:.0f} refusals" if refused else None


def lost_server(suite):
    """Without a server, or with one that only fails, the batch ends by itself with exit code 1, keeps
    what it has, and the next run does the rest."""
    healthy = threading.Event()

    def behave(_, body):
        if healthy.is_set() or body["n"] < 10:
            return 200, {}, {"n": body["n"]}
        return 503, {"Retry-After": "0"}, {"error": {"message": "no worker"}}

    with Stub(behave) as stub, Folder(suite) as folder:
        folder.lines("in.jsonl", [line_of(f"l{i}", {"n": i}, "/any") for i in range(500)])
        words = ("batch", "--url", stub.url, "--retries", "1", "in.jsonl", "out.jsonl")
        code, _, err = folder.run(*words)
        assert code == 1 and summary(err) == [10, 0, 490, 0] and "giving up" in err, err
        assert err.count("no answer to") <= 10, f"too many words: {err}"
        assert len(folder.answers()) == 10
        healthy.set()
        code, _, err = folder.run(*words)
        assert code == 0 and summary(err) == [490, 0, 0, 10] and len(folder.answers()) == 500, err
    with Folder(suite) as folder:
        folder.lines("in.jsonl", [line_of("x", {}, "/any")])
        code, _, err = folder.run("batch", "--url", stub.url, "--retries", "1", "in.jsonl", "out.jsonl")
        assert code == 1 and summary(err) == [0, 0, 1, 0] and "onnect" in err, err


def own_server_dies(suite):
    """The server that a batch started is killed: the batch says so and ends."""
    model = suite.stories()
    with Folder(suite) as folder:
        folder.lines("in.jsonl", [line_of(f"d{i}", {"model": pathlib.Path(model).stem, "prompt": "x",
                                                   "max_tokens": 200, "ignore_eos": True})
                                  for i in range(400)])
        child = folder.start("batch", "--model", model, "in.jsonl", "out.jsonl", "--", "--max-seqs", "2",
                             "--threads", "1")
        wait_for("some answers", lambda: folder.count() >= 3 or child.poll() is not None, LIMIT_S)
        os.kill(child_of(child.pid), signal.SIGKILL)
        _, err = child.communicate(timeout=LIMIT_S)
        assert child.returncode == 1 and "has ended" in err, (child.returncode, err)
        assert len(folder.answers()) >= 3


def full_disk(suite):
    if not os.access("/dev/full", os.W_OK):
        return
    with Stub(lambda *_: (200, {}, {})) as stub, Folder(suite) as folder:
        folder.lines("in.jsonl", [line_of(f"x{i}", {}, "/any") for i in range(5)])
        code, _, err = folder.run("batch", "--url", stub.url, "in.jsonl", "/dev/full")
        assert code == 1 and "No space left" in err, (code, err)


def event(pid, **more):
    return {"ph": "X", "pid": pid, "tid": 1, "name": "step", "ts": 1.5, "dur": 2, "args": {}, **more}


def trace_merges(suite):
    """One picture of several processes, and clear words about those that gave none."""
    pages = {"/a/debug/trace": (200, {}, {"traceEvents": [event(1), event(1, ts=10.125)]}),
             "/b/debug/trace": (200, {}, {"traceEvents": [event(1), event(2)]}),
             "/text/debug/trace": (200, {}, "hello"),
             "/cut/debug/trace": (200, {}, "{\"traceEvents\":["),
             "/other/debug/trace": (200, {}, {"status": "ok"}),
             "/ill/debug/trace": (500, {}, {"error": {"message": "ill"}})}

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, _, text = pages.get(self.path, (404, {}, "{}"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write((text if isinstance(text, str) else json.dumps(text)).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        base = f"127.0.0.1:{server.server_port}"
        with Folder(suite) as folder:
            code, out, err = folder.run("trace", f"http://{base}/a", f"{base}/b/")
            assert code == 0 and out == "" and "2 of 2" in err, (code, err)
            picture = json.loads((folder.path / "forge-trace.json").read_text("utf-8"))
            steps = [e for e in picture["traceEvents"] if e["ph"] == "X"]
            assert len(steps) == 4 and steps[1]["ts"] == 10.125, steps
            pids = [e["pid"] for e in steps]
            assert pids[0] == pids[1] == 1 and len({pids[0], pids[2], pids[3]}) == 3, pids
            for words, message in [((f"{base}/none",), "404"), ((f"{base}/text",), "no JSON"),
                                   ((f"{base}/cut",), "no JSON"), ((f"{base}/other",), "no trace"),
                                   ((f"{base}/ill",), "status 500"), ((":9",), "nobody answers")]:
                code, _, err = folder.run("trace", "--out", "none.json", *words)
                assert code == 1 and message in err and words[0] in err, (words, code, err)
                assert not (folder.path / "none.json").exists(), words
            code, out, err = folder.run("trace", "--out=-", ":9", f"{base}/a")
            assert code == 1 and "1 of 2" in err, (code, err)
            assert len([e for e in json.loads(out)["traceEvents"] if e["ph"] == "X"]) == 2, out
            for words in ((), ("ftp://x",), ("--out",), ("--bogus", "x")):
                code, _, err = folder.run("trace", *words)
                assert code == 2 and err, (words, code, err)
    finally:
        server.shutdown()
        server.server_close()


def trace_of_a_run(suite):
    """The steps and requests of a real batch are in the picture."""
    with suite.cluster(model=suite.stories(), standalone=True) as server, Folder(suite) as folder:
        model = served_model(server)
        folder.lines("in.jsonl", [line_of(f"s{i}", {"model": model, "prompt": "Once upon a time",
                                                   "max_tokens": 10, "temperature": 0})
                                  for i in range(20)])
        code, _, err = folder.run("batch", "--url", server.url, "in.jsonl", "out.jsonl")
        assert code == 0, err
        server.wait_at_rest()
        code, out, err = folder.run("trace", "--out", "-", server.url)
        assert code == 0, err
        events = json.loads(out)["traceEvents"]
        steps = [e for e in events if e["ph"] == "X" and e.get("cat") == "step"]
        requests = {e["tid"] for e in events if e["ph"] == "X" and e.get("cat") == "request"}
        named = [e for e in events if e["ph"] == "M" and e["name"] == "process_name"]
        assert steps and named and len(requests) >= 20, (len(steps), len(named), len(requests))
        for step in steps:
            a = step["args"]
            assert a["blocks_free"] + a["blocks_cached"] + a["blocks_held"] <= a["blocks_total"], a
        return f"{len(steps)} steps, {len(requests)} requests"


def main():
    suite = Suite(__doc__)
    suite.case("60 answers equal those of the same requests alone", answers_equal, suite)
    suite.case("array, standard input and output, own server", other_forms, suite)
    rounds = 6 if suite.options.full else 3
    suite.case("kill -9 and resume", kill_and_resume, suite, signal.SIGKILL, rounds)
    suite.case("SIGTERM and resume", kill_and_resume, suite, signal.SIGTERM, 1)
    suite.case("SIGINT and resume", kill_and_resume, suite, signal.SIGINT, 1)
    suite.case("bad inputs", bad_inputs, suite)
    suite.case("a server in trouble", troubled_server, suite)
    suite.case("a full server", full_server, suite)
    suite.case("a server that is gone", lost_server, suite)
    suite.case("its own server dies", own_server_dies, suite)
    suite.case("a full disk", full_disk, suite)
    suite.case("one trace of several processes", trace_merges, suite)
    suite.case("the trace of a run", trace_of_a_run, suite)
    suite.end()


if __name__ == "__main__":
    main()
