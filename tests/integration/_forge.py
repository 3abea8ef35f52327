"""What the integration suites share: real processes, a small HTTP client, the books, the report.

Only the standard library. A suite prints "ok - NAME" or "not ok - NAME: WHY" for each case and ends
with "N passed, N failed, N skipped". Waits end at generous deadlines; times are only reported.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAIT_S = 10.0  # every wait for something that should come soon


class Skip(Exception):
    """Raised by a case that cannot run here; the text is the reason."""


class Suite:
    """Arguments, cases and the closing count of one suite."""

    def __init__(self, description, **defaults):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # processes and folders are cleared away
        parser = argparse.ArgumentParser(description=description,
                                         formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--forge", default=os.environ.get("FORGE_BIN")
                            or str(ROOT / "build/release/forge"), help="the program to test")
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        parser.add_argument("--model", default=str(
            cache / "forge/models/SmolLM2-135M-Instruct.Q4_1.gguf"), help="the SmolLM2 file")
        parser.add_argument("--full", action="store_true", help="the long version")
        parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32),
                            help="of everything random here (default: a new one, printed)")
        parser.add_argument("--only", default="", help="only cases whose name contains this")
        parser.add_argument("--logs", default=None, help="folder for the logs of the processes")
        for name, (value, text) in defaults.items():
            parser.add_argument("--" + name.replace("_", "-"), default=value, type=type(value),
                                help=f"{text} (default {value})")
        self.options = parser.parse_args()
        self.random = random.Random(self.options.seed)
        self.name = pathlib.Path(sys.argv[0]).stem
        self.passed = self.failed = self.skipped = 0
        print(f"{self.name}: seed {self.options.seed}", flush=True)

    def corpus(self, path):
        """A file of the corpus; a case that needs it is skipped when there is no corpus."""
        folder = os.environ.get("FORGE_CORPUS")
        if not folder:
            raise Skip("FORGE_CORPUS is not set")
        found = pathlib.Path(folder) / path
        if not found.is_file():
            raise AssertionError(f"{found} is missing")
        return found

    def stories(self):
        return str(self.corpus("models/stories260K-f32.gguf"))

    def smollm2(self):
        if not os.path.isfile(self.options.model):
            raise Skip("SmolLM2 is not there: run deploy/get-model")
        return self.options.model

    def cluster(self, **options):
        return Cluster(self.options.forge, logs=self.options.logs, **options)

    def case(self, name, function, *arguments):
        """Runs one case and reports it; a failed case does not stop the suite."""
        if self.options.only and self.options.only not in name:
            return
        started = time.monotonic()
        try:
            note = function(*arguments)
        except Skip as why:
            self.skip(name, why)
        except BaseException as why:  # pylint: disable=broad-except
            if isinstance(why, KeyboardInterrupt):
                raise
            self.failed += 1
            print(f"not ok - {name}: {type(why).__name__}: {why}", flush=True)
            if not isinstance(why, AssertionError):
                traceback.print_exc(file=sys.stdout)
        else:
            self.passed += 1
            print(f"ok - {name} ({time.monotonic() - started:.1f} s)"
                  + (f" # {note}" if note else ""), flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip: {name}: {why}", flush=True)

    def end(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        sys.exit(1 if self.failed else 0)


def find_tool(suite, name):
    """A test tool from the build folder of the forge under test, or of the release preset."""
    for folder in (pathlib.Path(suite.options.forge).parent, ROOT / "build/release"):
        for tool in sorted(folder.rglob(name)):
            if tool.is_file() and os.access(tool, os.X_OK):
                return str(tool)
    raise Skip(f"{name} is not built (cmake --build --preset release)")


def wait_for(what, condition, timeout_s=WAIT_S):
    """Waits until condition() is true and returns what it returned."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.02)


def device():
    """What computes in the processes that a suite starts: FORGE_TEST_DEVICE, the CPU without it."""
    return os.environ.get("FORGE_TEST_DEVICE") or "cpu"


KEPT = ("FORGE_CORPUS", "FORGE_CUDA_AHEAD", "FORGE_CUDA_PLUGIN", "FORGE_EMULATED_MEMORY_MIB", "FORGE_EMULATED_OPEN",
        "FORGE_FAKE_NCCL", "FORGE_NCCL",
        "FORGE_NCCL_GRAPHS", "FORGE_NCCL_HOSTID_PER_RANK", "FORGE_NCCL_SECONDS")


def plain_environment(**more):
    """The environment without the options that whoever runs the tests may have set, and with these. Every process
    computes on device(), unless its options say otherwise."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FORGE_") or k in KEPT}
    if device() != "cpu":
        kept["FORGE_DEVICE"] = device()
    return {**kept, **more}


class Process:
    """One forge process; reaped the moment it ends, because a zombie counts as alive to its peers."""

    def __init__(self, name, command, folder, on_line=None, environment=None):
        self.name = name
        self.log_path = os.path.join(folder, name + ".log")
        self.on_line = on_line
        self.lines = []  # of standard output
        self.ended_at = None
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, errors="replace",
                                      env=plain_environment(**(environment or {})))
        self.pid = self.child.pid
        self.threads = [threading.Thread(target=work, daemon=True)
                        for work in (self._read_out, self._read_log, self._reap)]
        for thread in self.threads:
            thread.start()

    def _read_out(self):
        for line in self.child.stdout:
            self.lines.append(line.rstrip("\n"))

    def _read_log(self):
        with open(self.log_path, "a", encoding="utf-8") as log:
            for line in self.child.stderr:
                log.write(line)
                log.flush()
                if self.on_line:
                    self.on_line(line)

    def _reap(self):
        self.child.wait()
        self.ended_at = time.monotonic()

    @property
    def status(self):
        return self.child.returncode

    def signal(self, number):
        try:
            if self.status is None:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass  # it ended between the two lines

    def wait(self, timeout_s=WAIT_S):
        wait_for(f"{self.name} to end", lambda: self.ended_at is not None, timeout_s)
        return self.status

    def log_tail(self, count=8):
        try:
            with open(self.log_path, encoding="utf-8") as log:
                return "".join(log.readlines()[-count:])
        except OSError:
            return ""


# How KV blocks get from prefill to decode: options of a cluster.
WAYS = {"shm": dict(transport="shm"), "tcp": dict(transport="tcp"),
        "zero-copy": dict(transport="shm", way_flags=["--kv-zero-copy", "on"])}


class Cluster:
    """A router with workers, or one standalone process, on free ports of loopback.

    As a context manager it ends everything and then insists that every process which was not killed
    on purpose ended with exit status 0.
    """

    def __init__(self, forge, model, prefill=1, decode=1, standalone=False, flags=(), threads=1,
                 transport=None, logs=None, split="always", role_flags=None, way_flags=(),
                 supervised=True, routers=1):
        if not os.access(forge, os.X_OK):
            raise AssertionError(f"{forge} is not there: cmake --build --preset release")
        self.forge, self.model, self.threads = forge, model, threads
        self.flags = [str(flag) for flag in (*flags, *way_flags)]
        self.role_flags = role_flags or {}  # more flags for the workers of a role
        if transport:
            self.flags += ["--kv-transport", transport]
        memory = os.environ.get("FORGE_TEST_KV_MEMORY")
        if memory and not standalone and device() != "cpu":
            self.flags[:0] = ["--kv-device-memory", memory]
        if not standalone and "--split" not in self.flags:
            self.flags += ["--split", split]  # left to itself the router hands little over
        self.supervised = supervised  # else whom the router gave up lives, and may come back
        self.own_folder = logs is None
        self.folder = logs or tempfile.mkdtemp(prefix="forge-test-")
        os.makedirs(self.folder, exist_ok=True)
        self.workers, self.killed, self.control = {}, set(), None
        self.lost = []  # what the router said of workers that it gave up
        self.second = None  # another router beside the first, of the same workers
        common = [forge, "serve", "--model", model, "--host", "127.0.0.1", "--port", "0"]
        try:
            if standalone:
                self.router = Process("standalone", common + ["--threads", str(threads)]
                                      + self.flags, self.folder)
                self._listening()
            else:
                names = {"prefill": [f"prefill-{i}" for i in range(prefill)],
                         "decode": [f"decode-{i}" for i in range(decode)]}
                self.router_command = common + [
                    "--mode", "router", "--control", "tcp://127.0.0.1:0",
                    "--prefill", ",".join(names["prefill"]), "--decode", ",".join(names["decode"])]
                if routers > 1:
                    key = os.path.join(self.folder, "cache.key")
                    with open(key, "wb") as file:
                        file.write(os.urandom(32))
                    self.router_command += ["--cache-key-file", key]
                self.router = Process("router", self.router_command + self.flags, self.folder,
                                      self._on_router_line)
                self._listening()
                self._start_second(routers)
                for role, members in names.items():
                    for name in members:
                        self.start_worker(role, name)
            self.wait_ready()
        except BaseException:
            self.kill_all()
            raise

    def _listening(self):
        def line():
            if self.router.status is not None:
                raise AssertionError(f"{self.router.name} ended with {self.router.status}:\n"
                                     + self.router.log_tail())
            for text in self.router.lines:
                match = re.search(r"listening http=(\S+)(?: control=(\S+))?", text)
                if match:
                    return match
            return None
        match = wait_for("the line that says where it listens", line, 30)
        self.url, self.control = match[1], match[2]
        self.port = int(self.url.rsplit(":", 1)[1])

    def _start_second(self, routers):
        if routers > 1:
            first, url, port = self.router, self.url, self.port
            self.first_control = self.control
            self.router = Process("router-2", self.router_command + self.flags, self.folder)
            self._listening()
            self.second, self.second_port = self.router, self.port
            self.router, self.url, self.port = first, url, port
            self.control = f"{self.first_control},{self.control}"

    def _on_router_line(self, line):
        """The supervisor's part: end for good what the router declared dead."""
        if "module=registry" in line and "event=lost" in line:
            self.lost.append(line.strip())
            match = re.search(r"\bpid=(\d+)", line)
            for worker in self.workers.values():
                if self.supervised and match and worker.pid == int(match[1]):
                    self.killed.add(worker)
                    worker.signal(signal.SIGKILL)

    def restart_router(self):
        """kill -9, and at once another one at the same addresses."""
        self.router.signal(signal.SIGKILL)
        self.router.wait()
        self.router = Process("router-again", self.router_command + self.flags
                              + ["--control", self.control.split(",")[0], "--port", str(self.port)],
                              self.folder, self._on_router_line)
        controls = self.control
        self._listening()
        self.control = controls

    def start_worker(self, role, name, flags=()):
        """`flags` come after the cluster's and its role's: the last one of a kind counts."""
        worker = Process(name, [self.forge, "serve", "--model", self.model, "--mode", role,
                                "--name", name, "--router", self.control,
                                "--threads", str(self.threads), *self.flags,
                                *self.role_flags.get(role, ()), *flags], self.folder)
        self.workers[name] = worker
        return worker

    def kill(self, name):
        """kill -9; the moment it happened is returned."""
        worker = self.workers[name]
        self.killed.add(worker)
        worker.signal(signal.SIGKILL)
        return time.monotonic()

    def processes(self):
        return [self.router, *([self.second] if self.second else []), *self.workers.values()]

    def wait_ready(self, timeout_s=60):
        def ready():
            for process in self.processes():
                if process.status is not None and process not in self.killed:
                    raise AssertionError(f"{process.name} ended with {process.status}:\n"
                                         + process.log_tail())
            return get(self.port, "/health")[0] == 200
        wait_for("/health to answer 200", ready, timeout_s)

    def state(self):
        status, body = get(self.port, "/debug/state")
        assert status == 200, f"/debug/state answered {status}"
        return json.loads(body)

    def wait_at_rest(self, timeout_s=WAIT_S, workers=None):
        """Waits until no request is left and every block is free or cached, in a book that adds up."""
        def at_rest():
            state = self.state()
            for worker in state["workers"]:
                blocks = worker["blocks"]
                parts = [blocks[k] for k in ("free", "cached", "held", "pinned", "quarantined")]
                assert sum(parts) == blocks["total"], f"{worker['name']}'s book is wrong: {blocks}"
            busy = [w for w in state["workers"]
                    if w["blocks"]["free"] + w["blocks"]["cached"] != w["blocks"]["total"]
                    or w["running"] or w["waiting"]]
            missing = workers is not None and len(state["workers"]) != workers
            return None if busy or missing or state["requests"] else state
        try:
            return wait_for("rest", at_rest, timeout_s)
        except AssertionError as why:
            raise AssertionError(f"{why}; {self.lost[-2:]}; the state is "
                                 f"{json.dumps(self.state())[:1500]}") from None

    def kill_all(self):
        processes = [p for p in (getattr(self, "router", None), self.second, *self.workers.values()) if p]
        for process in processes:
            self.killed.add(process)
            process.signal(signal.SIGKILL)
        for process in processes:
            process.wait()

    def close(self):
        """SIGTERM for all; each must end well within the deadline."""
        bad = []
        for process in self.processes():
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGTERM)
        for process in self.processes():
            try:
                status = process.wait()
            except AssertionError:
                bad.append(f"{process.name} did not end within {WAIT_S:g} s of SIGTERM")
                self.killed.add(process)
                process.signal(signal.SIGKILL)
                continue
            if status != 0 and process not in self.killed:
                bad.append(f"{process.name} ended with {status}: {process.log_tail()}")
        assert not bad, "; ".join(bad)

    def __enter__(self):
        return self

    def __exit__(self, kind, _value, _trace):
        if kind is None:
            self.close()
            if self.own_folder:  # nobody needs the logs of what went well
                shutil.rmtree(self.folder, ignore_errors=True)
        else:
            for process in self.processes():
                print(f"  # {process.name} ({'ended ' + str(process.status) if process.status is not None else 'running'}),"
                      f" log {process.log_path}:")
                for line in process.log_tail(5).splitlines():
                    print(f"  #   {line}")
            self.kill_all()


def get(port, path, timeout_s=WAIT_S, headers=None):
    """Status and body of a GET; status 0 when nobody answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def counters(port):
    """/metrics as numbers, by name without the prefix, labels as they stand there."""
    status, text = get(port, "/metrics")
    assert status == 200, f"/metrics answered {status}"
    found = {}
    for line in text.decode().splitlines():
        if line.startswith("forge:"):
            name, value = line[6:].rsplit(" ", 1)
            found[name] = float(value)
    return found


def status_port(process):
    """Where a worker with --status-port 0 gives its status."""
    def port():
        for line in process.lines:
            if line.startswith("status http="):
                return int(line.rsplit(":", 1)[1])
        return None
    return wait_for(f"{process.name}'s status line", port)


class Failed(Exception):
    """A request that ended with an error: a status other than 200, or an error chunk."""

    def __init__(self, status, error, text=""):
        super().__init__(f"status {status}: {error}")
        self.status, self.error, self.text = status, error, text


def post(port, path, body, timeout_s=120, headers=None):
    """One request without streaming: the parsed answer, or Failed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        parsed = json.loads(answer.read())
        if answer.status != 200 or "error" in parsed:
            raise Failed(answer.status, parsed.get("error"))
        return parsed
    finally:
        connection.close()


class Stream:
    """One streaming request: iterate over its chunks. `hang_up` closes the connection at once."""

    def __init__(self, port, path, body, timeout_s=120):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        self.connection.request("POST", path, json.dumps({**body, "stream": True}),
                                {"Content-Type": "application/json"})
        self.text, self.finish, self.done, self.times = "", None, False, []
        self.ids, self.digests = [], []

    def chunks(self, single=True):
        """`single`: there is one choice, whose text, ids and ending are noted down here."""
        answer = self.connection.getresponse()
        if answer.status != 200:
            raise Failed(answer.status, json.loads(answer.read()).get("error"))
        for line in answer:
            line = line.strip()
            if not line.startswith(b"data: "):
                assert not line, f"a line that is no event: {line!r}"
                continue
            if line == b"data: [DONE]":
                self.done = True
                continue
            assert not self.done, f"an event after [DONE]: {line!r}"
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise Failed(200, chunk["error"], self.text)
            self.times.append(time.monotonic())
            for choice in chunk["choices"] if single else ():
                assert self.finish is None, "a choice goes on after its finish_reason"
                self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                self.finish = choice.get("finish_reason")
                if "forge" in choice:
                    self.ids += choice["forge"]["token_ids"]
                    self.digests += choice["forge"]["digests"]
            yield chunk
        assert self.done, f"the stream ended without [DONE] after {self.text[-40:]!r}"

    def run(self):
        try:
            for _ in self.chunks():
                pass
        finally:
            self.connection.close()
        return self

    def hang_up(self):
        sock = self.connection.sock
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.connection.close()


def streamed_choices(port, body, path="/v1/completions"):
    """A stream of several choices, taken apart: the answers in the order of their index."""
    stream = Stream(port, path, {**body, "logits_digest": True})
    answers = [{"ids": [], "digests": [], "text": "", "finish": None} for _ in range(body["n"])]
    for chunk in stream.chunks(single=False):
        for choice in chunk["choices"]:
            answer = answers[choice["index"]]
            assert answer["finish"] is None, "a choice goes on after its finish_reason"
            answer["text"] += choice["text"]
            answer["finish"] = choice["finish_reason"]
            if "forge" in choice:
                answer["ids"] += choice["forge"]["token_ids"]
                answer["digests"] += choice["forge"]["digests"]
    stream.connection.close()
    return answers


def run_all(jobs, timeout_s=300):
    """Runs every job in a thread of its own; results in order, an exception as its own result."""
    results = [None] * len(jobs)

    def work(index):
        try:
            results[index] = jobs[index]()
        except Exception as why:  # pylint: disable=broad-except
            results[index] = why

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    assert not stuck, f"{stuck} of {len(jobs)} requests did not end within {timeout_s} s"
    return results


STORY_STARTS = ["", "Once upon a time", "Lily and Tom went to the", "One day, a dog named Spot",
                "The little bird", "Tom had a red ball.", "There was a big tree", "Mom said,",
                "In the park", "A cat and a mouse"]


# What some of the answers are held to: with and without an end of its own before max_tokens.
HELD = [{"regex": "([a-z]{2,9} ){3,30}[a-z]+[.!]"}, {"choice": ["the end", "the dog", "no"]},
        {"json": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 2}},
        {"grammar": 'root ::= "(" (root | [a-z ]+) ")" '}]


def story_requests(rng, count, tokens=(8, 48), words=(0, 120)):
    """Completions for the story model: greedy and seeded, short and long prompts, mixed."""
    filler = ("the little dog ran to the park and saw a big red ball under the tree . she was happy "
              "and said hello to her friend . they played all day and then went home").split()
    requests = []
    for index in range(count):
        prompt = rng.choice(STORY_STARTS)
        extra = [rng.choice(filler) for _ in range(rng.randrange(words[0], words[1] + 1))]
        body = {"model": "any", "prompt": " ".join([prompt, *extra]).strip(),
                "max_tokens": rng.randrange(tokens[0], tokens[1] + 1), "ignore_eos": True,
                "temperature": 0}
        if index % 2:
            body.update(temperature=rng.choice([0.5, 0.8, 1.0, 1.3]), seed=rng.randrange(1 << 31),
                        top_p=rng.choice([1.0, 0.95, 0.8]), top_k=rng.choice([0, 20, 40]),
                        min_p=rng.choice([0.0, 0.02]))
        if index % 5 == 3:
            body.update(frequency_penalty=0.3, presence_penalty=-0.2, repetition_penalty=1.1,
                        logit_bias={str(rng.randrange(512)): 2, "13": -100})
        if index % 7 == 2:
            body.update(logprobs=rng.randrange(4))
        if index % 6 == 4:
            body.pop("ignore_eos")  # a grammar says where an answer ends
            body.update(structured_outputs=rng.choice(HELD))
        requests.append(body)
    return requests


def served_model(cluster):
    return json.loads(get(cluster.port, "/v1/models")[1])["data"][0]["id"]


def answer_of(port, body, logprobs=False):
    """Token ids, logits digests and text of one request, compared as a whole by the suites; and its logprobs."""
    answer = post(port, "/v1/completions", {**body, "logits_digest": True})
    choice = answer["choices"][0]
    forge = choice["forge"]
    assert len(forge["token_ids"]) == answer["usage"]["completion_tokens"] == len(forge["digests"])
    answer = {"ids": forge["token_ids"], "digests": forge["digests"], "text": choice["text"],
              "finish": choice["finish_reason"]}
    return {**answer, "logprobs": choice["logprobs"]} if logprobs else answer


def difference(want, have):
    """Where two answers part, in words."""
    if isinstance(have, Exception):
        return f"it failed: {have}"
    for index, pair in enumerate(zip(want["ids"], have["ids"])):
        if pair[0] != pair[1]:
            return f"token {index} is {pair[1]}, not {pair[0]}"
        if want["digests"][index] != have["digests"][index]:
            return f"same ids, but the logits of token {index} differ"
    return "their lengths, texts, endings or logprobs differ"


def assert_same(requests, want, have, what):
    bad = [f"request {i} ({r['max_tokens']} tokens after {r['prompt'][:30]!r}...): "
           + difference(want[i], have[i])
           for i, r in enumerate(requests) if have[i] != want[i]]
    assert not bad, f"{len(bad)} of {len(requests)} answers {what}: " + "; ".join(bad[:4])
