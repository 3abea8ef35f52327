#!/usr/bin/env python3
"""What Forge's processes do with what their host does to them: signals, terminals that close, folders that
cannot be written."""
import contextlib
import fcntl
import http.client
import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import termios
import threading
import time
import uuid

from _forge import (ROOT, WAIT_S, Cluster, Skip, Stream, Suite, answer_of, assert_same, get,
                    plain_environment, run_all, story_requests, wait_for)

MARK = "HOST_TEST_MARK"  # in the environment of everything that a case starts


def marked(mark):
    """The processes that carry this mark and have not ended."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if f"{MARK}={mark}".encode() in environment.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            pass  # it ended meanwhile, or is somebody else's
    return found


def hears_ctrl_c():
    """Tests that a shell started with "&" ignore SIGINT, what they start inherits it, and bash cannot undo it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Script:
    """deploy/cluster with one worker of each role, as a terminal would start it: in a group of its own."""

    def __init__(self, suite, flags=(), **environment):
        self.mark = uuid.uuid4().hex
        self.log, self.lines = [], []
        self.child = subprocess.Popen(
            [str(ROOT / "deploy/cluster"), "--model", suite.stories(), "--port", "0", "--", "--threads", "1",
             "--split", "always", "--lease-ms", "60000", "--served-model-name", "any", *flags],
            text=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=hears_ctrl_c,  # pylint: disable=subprocess-popen-preexec-fn
            # Of a locale that is not installed bash itself would warn.
            env=plain_environment(FORGE_BIN=suite.options.forge, LC_ALL="C", **{MARK: self.mark},
                                  **environment))
        self.readers = [threading.Thread(target=kept.extend, args=(pipe,), daemon=True) for kept, pipe in
                        ((self.log, self.child.stderr), (self.lines, self.child.stdout))]
        for reader in self.readers:
            reader.start()

    def ready(self):
        """Waits for its line, and returns port and pids by name."""
        def line():
            assert self.child.poll() is None, f"it ended with {self.child.returncode}: {self.log[-5:]}"
            return self.lines
        wait_for("the ready line", line, 60)
        port = int(self.lines[0].rsplit(":", 1)[1])
        said = wait_for("the pids", lambda: [text for text in self.log if "processes:" in text])[0]
        pairs = (word.split("=") for word in said.split("processes:")[1].split())
        return port, {name: int(pid) for name, pid in pairs}

    def end(self, within_s):
        """Waits for its end and looks whether anything of it is left."""
        try:
            status = self.child.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {within_s:g} s: {self.log[-5:]}") from None
        wait_for("all of its processes to be gone", lambda: not marked(self.mark))
        for reader in self.readers:  # what it said last may still be on its way
            reader.join(WAIT_S)
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_why):
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.child.wait()


class Slowed:
    """A process that is frozen but for moments, each too short for much and long enough for a sign of life."""

    def __init__(self, pid):
        self.pid, self.stopped = pid, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        with contextlib.suppress(ProcessLookupError):
            while not self.stopped.is_set():
                os.kill(self.pid, signal.SIGSTOP)
                self.stopped.wait(1.0)
                os.kill(self.pid, signal.SIGCONT)
                time.sleep(0.02)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_why):
        self.stopped.set()
        self.thread.join()


def drained(suite, number, to_group):
    """The cluster is ended while answers are written that take longer than a moment: they come whole."""
    with Script(suite, ["--drain-seconds", "60"]) as script:
        port, pids = script.ready()
        bodies = [{**r, "max_tokens": 400} for r in story_requests(suite.random, 8, words=(0, 10))]
        want = [answer_of(port, body)["text"] for body in bodies]
        streams = [Stream(port, "/v1/completions", body) for body in bodies]
        began = threading.Barrier(len(streams) + 1)
        errors = []

        def read(stream):
            chunks = stream.chunks()
            next(chunks)
            began.wait(60)
            try:
                for _ in chunks:
                    pass
            except Exception as why:  # pylint: disable=broad-except
                errors.append(why)
        threads = [threading.Thread(target=read, args=(s,), daemon=True) for s in streams]
        with Slowed(pids["decode-0"]) as slow:
            for thread in threads:
                thread.start()
            began.wait(60)
            asked_at = time.monotonic()
            (os.killpg if to_group else os.kill)(script.child.pid, number)
            slow.stopped.wait(6.0)
        for thread in threads:
            thread.join(60)
        took = time.monotonic() - asked_at
        assert not errors, f"{len(errors)} of {len(streams)} streams were cut: {errors[:2]}, {script.log[-5:]}"
        assert [s.text for s in streams] == want, "a text is another one"
        assert script.end(3 * WAIT_S) == 0, f"exit status {script.child.returncode}: {script.log[-5:]}"
        return f"the last word came {took:.1f} s after the signal"


def frozen(suite, name):
    """A frozen process is killed when it had its time."""
    with Script(suite, ["--drain-seconds", "1"]) as script:
        _, pids = script.ready()
        os.kill(pids[name], signal.SIGSTOP)
        asked_at = time.monotonic()
        os.kill(script.child.pid, signal.SIGTERM)
        assert script.end(WAIT_S + 7) == 0, f"exit status {script.child.returncode}: {script.log[-5:]}"
        assert any(f"{name} did not end in time" in line for line in script.log), script.log[-5:]
        return f"took {time.monotonic() - asked_at:.1f} s"


def again_until_ended(child, signal_it):
    """On a busy machine a signal may come before whoever shall see it is ready for it."""
    if child.poll() is None:
        signal_it()
        time.sleep(0.3)
    return child.poll() is not None


def impatient(suite):
    """A second Ctrl-C ends everything at once; one that comes with the first is the same."""
    with Script(suite, ["--drain-seconds", "600"]) as script:
        _, pids = script.ready()
        os.kill(pids["router"], signal.SIGSTOP)
        sent_at = time.monotonic()
        os.killpg(script.child.pid, signal.SIGINT)
        time.sleep(0.2)  # a supervisor's own
        os.killpg(script.child.pid, signal.SIGTERM)
        apart_s = time.monotonic() - sent_at
        time.sleep(1.5)
        if script.child.poll() is not None and apart_s > 0.5:
            raise Skip(f"this machine is too busy: two signals at a time were {apart_s:.1f} s apart")
        assert script.child.poll() is None, "two signals at a time ended it at once"
        asked_at = time.monotonic()
        wait_for("its end", lambda: again_until_ended(
            script.child, lambda: os.killpg(script.child.pid, signal.SIGINT)))
        assert script.end(WAIT_S) == 0, f"exit status {script.child.returncode}: {script.log[-5:]}"
        return f"took {time.monotonic() - asked_at:.1f} s"


def without_clock(suite):
    """bash before 5 counts seconds only; it ends its processes all the same."""
    with tempfile.NamedTemporaryFile("w") as first:
        first.write("unset EPOCHREALTIME\n")
        first.flush()
        with Script(suite, BASH_ENV=first.name) as script:
            script.ready()
            script.child.send_signal(signal.SIGTERM)
            assert script.end(WAIT_S) == 0, f"exit status {script.child.returncode}: {script.log[-5:]}"


def ended_early(suite):
    """SIGTERM while it starts, at many moments, leaves nothing behind."""
    random = [suite.random.uniform(0.0, 1.0) for _ in range(5)]
    moments = [*range(1, 8), *random] if suite.options.full else [1, 4, *random[:2]]
    for moment in moments:
        with tempfile.TemporaryDirectory() as folder, Script(suite, TMPDIR=folder) as script:
            if isinstance(moment, int):  # when there are so many processes
                wait_for("processes", lambda s=script, n=moment: len(marked(s.mark)) >= n or s.lines)
            else:
                time.sleep(moment)
            script.child.send_signal(signal.SIGTERM)
            status = script.end(WAIT_S)
            assert status in (0, -signal.SIGTERM), f"exit status {status} at {moment}: {script.log[-5:]}"
            left = os.listdir(folder)
            assert not left, f"{left} is left at {moment}"


def stillborn(suite):
    """A router that dies before it wrote a word, and before anybody listens for it, leaves nothing behind."""
    with tempfile.NamedTemporaryFile("w") as first:
        first.write("""set -T\ntrap 'if [[ $BASH_COMMAND == watch_router* ]]; then kill -KILL "${routers[0]}"; fi' DEBUG\n""")
        first.flush()
        with Script(suite, BASH_ENV=first.name) as script:
            assert script.end(WAIT_S) == 1, f"exit status {script.child.returncode}: {script.log[-5:]}"
            assert any("the router ended" in line for line in script.log), script.log[-5:]


def no_scratch(suite):
    """Without a folder for its files it says so and writes nowhere else."""
    before = sorted(os.listdir("/"))
    for folder in ("/nowhere/at/all", "/proc", "/dev/null"):
        with Script(suite, TMPDIR=folder) as script:
            status = script.end(WAIT_S)
            assert status == 1, f"TMPDIR={folder}: exit status {status}"
            assert len(script.log) == 1 and folder in script.log[0], script.log
            assert not script.lines, script.lines
    assert sorted(os.listdir("/")) == before, "it wrote into /"


class Server:
    """One forge process, started as nohup or a terminal does it."""

    def __init__(self, suite, mode, nohup=False, terminal=False, files=None, stack=None,
                 piped=False, flags=()):
        self.out = tempfile.TemporaryFile("a+")  # its end is where the child writes, wherever a test reads
        self.master = None
        output = {"stdout": subprocess.PIPE if piped else self.out, "stderr": self.out}
        if terminal:
            self.master, slave = pty.openpty()

        def prepare():
            signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
            if stack:
                resource.setrlimit(resource.RLIMIT_STACK, stack)
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, files)
            if terminal:
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
                os.dup2(slave, 2)
        ports = {"standalone": [], "router": ["--control", "tcp://127.0.0.1:0"],
                 "decode": ["--router", "127.0.0.1:1", "--status-port", "0"]}
        # pylint: disable-next=subprocess-popen-preexec-fn
        self.child = subprocess.Popen(
            [suite.options.forge, "serve", "--model", suite.stories(), "--mode", mode, "--port", "0",
             "--threads", "1", "--served-model-name", "any", *ports[mode], *flags],
            stdin=subprocess.DEVNULL, start_new_session=terminal, preexec_fn=prepare,
            # What the environment takes of a small stack is not there for the program.
            env={"HOME": tempfile.gettempdir()} if stack else plain_environment(), **output)
        if terminal:
            os.close(slave)
        self.port = None

    def said(self):
        self.out.seek(0)
        return self.out.read()

    def ready(self):
        def port():
            assert self.child.poll() is None, f"it ended with {self.child.returncode}: {self.said()}"
            return re.search(r"http=http://127.0.0.1:(\d+)", self.said())
        self.port = int(wait_for("the line that says where it listens", port, 30)[1])
        wait_for("an answer", lambda: get(self.port, "/live")[0] == 200)

    def end(self):
        wait_for("its end", lambda: self.child.poll() is not None)
        assert self.child.returncode == 0, f"exit status {self.child.returncode}: {self.said()}"

    def __enter__(self):
        return self

    def __exit__(self, *_why):
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()
        if self.master is not None:
            os.close(self.master)


def hung_up(suite, mode):
    """SIGHUP is as good as SIGTERM."""
    with Server(suite, mode) as server:
        server.ready()
        server.child.send_signal(signal.SIGHUP)
        server.end()
        assert "event=ending finished_all=yes" in server.said(), server.said()


def stays(suite, mode):
    """Started by nohup it outlives SIGHUP, and SIGTERM still ends it."""
    with Server(suite, mode, nohup=True) as server:
        server.ready()
        for _ in range(3):
            server.child.send_signal(signal.SIGHUP)
            assert get(server.port, "/live")[0] == 200
        assert "event=draining" not in server.said(), server.said()
        server.child.send_signal(signal.SIGTERM)
        server.end()


def terminal_closed(suite):
    """A terminal that closes ends the server that was started in it."""
    with Server(suite, "standalone", terminal=True) as server:
        server.ready()
        os.close(server.master)
        server.master = None
        server.end()


def command_hung_up(suite):
    """Other commands end as any program does, and stay under nohup."""
    command = [suite.options.forge, "sim", "--seeds", "1000000"]
    for ignored in (False, True):
        mark = uuid.uuid4().hex
        with tempfile.TemporaryFile() as out, subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
                command, stdout=out, stderr=out, env=plain_environment(**{MARK: mark}),
                preexec_fn=lambda i=ignored: signal.signal(
                    signal.SIGHUP, signal.SIG_IGN if i else signal.SIG_DFL)) as child:
            try:
                # Its worlds run in processes of their own: its first lines are behind it by then.
                wait_for("a world", lambda m=mark: len(marked(m)) > 1)
                child.send_signal(signal.SIGHUP)
                if not ignored:
                    assert child.wait(WAIT_S) == -signal.SIGHUP, f"exit status {child.returncode}"
                    continue
                time.sleep(0.3)
                assert child.poll() is None, f"it ended with {child.returncode} under nohup"
            finally:
                child.kill()


def output_lost(suite):
    """What could not be printed is an error; a reader that left is none."""
    forge = suite.options.forge
    with Server(suite, "standalone") as server:
        server.ready()
        url = f"http://127.0.0.1:{server.port}"
        commands = [["--help"], ["--version"], ["--config-docs"], ["serve", "--help"], ["bench", "--help"],
                    ["keygen", "--help"], ["sim", "--seeds", "3"], ["sim", "--seed", "3"],
                    ["top", "--once", "--url", url], ["trace", "--out", "-", url],
                    ["bench", "throughput", "--model", suite.stories(), "--prompt", "8",
                     "--generate", "4", "--batch", "1", "--repeat", "1"]]
        for command in commands:
            done = subprocess.run([forge, *command], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0 and done.stdout, f"{command}: {done.returncode}, {done.stderr}"
            for text in (">/dev/full", ">&-") if suite.options.full else (">/dev/full",):
                lost = subprocess.run(["bash", "-c", f'exec "$@" {text}', "bash", forge, *command], text=True,
                                      stderr=subprocess.PIPE, timeout=60, check=False)
                assert lost.returncode == 1, f"{command} {text}: {lost.returncode}, {lost.stderr}"
                assert lost.stderr.count("forge: standard output: ") == 1, lost.stderr
            left = subprocess.run(["bash", "-c", '"$@" | true', "bash", forge, *command], text=True,
                                  stderr=subprocess.PIPE, timeout=60, check=False)
            assert "standard output" not in left.stderr and "ended by" not in left.stderr, \
                f"{command} | true: {left.stderr}"
    request = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
               "body": {"prompt": "Once", "max_tokens": 4}}
    for how, want in (("", 0), (">/dev/full", 1), (">&-", 1)):
        batch = subprocess.run(["bash", "-c", f'exec "$@" {how}', "bash", forge, "batch", "--model",
                                suite.stories(), "-", "-"], input=json.dumps(request), text=True,
                               capture_output=True, timeout=60, check=False)
        assert batch.returncode == want, f"batch {how}: {batch.returncode}, {batch.stderr}"


def unheard(suite):
    """A server whose lines nobody can read serves all the same, and ends as well as others."""
    for how in (">/dev/full", ">&-"):
        command = [suite.options.forge, "serve", "--model", suite.stories(), "--port", "0", "--threads", "1"]
        with tempfile.TemporaryFile("a+") as log, subprocess.Popen(
                ["bash", "-c", f'exec "$@" {how}', "bash", *command], stderr=log,
                stdin=subprocess.DEVNULL, env=plain_environment()) as child:
            def said(out=log):
                out.seek(0)
                return out.read()
            try:
                wait_for("the warning", lambda s=said: "event=output_lost" in s(), 30)
                child.send_signal(signal.SIGTERM)
                assert child.wait(WAIT_S) == 0, f"{how}: exit status {child.returncode}: {said()}"
            finally:
                child.kill()


@contextlib.contextmanager
def small_shm(suite, size):
    """A program that runs forge where /dev/shm has so much room, as in a container."""
    for tool in ("unshare", "nsenter"):
        if shutil.which(tool) is None:
            raise Skip(f"{tool} is not there")
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
            ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && echo ready && exec cat',
             size], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        try:
            if holder.stdout.readline() != b"ready\n":
                raise Skip(f"no mount of one's own: {holder.stderr.read().decode().strip()}")
            program = os.path.join(folder, "forge")
            with open(program, "w", encoding="utf-8") as script:
                script.write(f'#!/bin/sh\nexec nsenter -t {holder.pid} -m -- "{suite.options.forge}" "$@"\n')
            os.chmod(program, 0o755)
            yield program
        finally:
            holder.stdin.close()
            holder.wait()


def shm_too_small(suite):
    """Where /dev/shm has no room, workers start all the same, say so once and answer as ever."""
    requests = [{**r, "model": "any"} for r in story_requests(suite.random, 24, tokens=(20, 60))]
    flags = ["--served-model-name", "any"]
    model = suite.stories()
    with suite.cluster(model=model, standalone=True, flags=flags) as alone:
        want = run_all([lambda r=r: answer_of(alone.port, r) for r in requests])
    notes = []
    for size, warned in (("4k", 2), ("1m", 2), ("12m", None), ("30m", None)):
        with small_shm(suite, size) as program, \
                Cluster(program, model, flags=[*flags, "--kv-blocks", "512"]) as cluster:
            have = run_all([lambda r=r: answer_of(cluster.port, r) for r in requests])
            assert_same(requests, want, have, f"differ with a /dev/shm of {size}")
            cluster.wait_at_rest(workers=2)
            lines = [sum("event=no_shared_memory" in line for line in worker.log_tail(1000).splitlines())
                     for worker in cluster.workers.values()]
            assert max(lines) <= 1 and warned in (None, sum(lines)), f"{size}: {lines} warnings"
            notes.append(f"{size}: {sum(lines)} of 2 over TCP")
    with small_shm(suite, "1m") as program:
        refused = subprocess.run([program, "serve", "--model", model, "--mode", "decode", "--router",
                                  "127.0.0.1:1", "--kv-transport", "shm"], text=True, timeout=30,
                                 stderr=subprocess.PIPE, check=False)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1, refused.stderr
        assert "--shm-size" in refused.stderr, refused.stderr
    return ", ".join(notes)


def small_stack(suite):
    """A small stack is raised where that is allowed, else one line says so."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    body = {"model": "any", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    with Server(suite, "standalone", stack=(40 * 1024, hard)) as server:
        server.ready()
        assert answer_of(server.port, body)["text"]
        server.child.send_signal(signal.SIGTERM)
        server.end()
    with Server(suite, "standalone", stack=(48 * 1024, 48 * 1024)) as server:
        wait_for("its end", lambda: server.child.poll() is not None)
        said = server.said()
        assert server.child.returncode == 2 and said.count("\n") == 1 and "ulimit -s" in said, said


def answers_at_once(suite):
    """Who reads that a server listens, and asks, gets an answer."""
    body = json.dumps({"model": "any", "prompt": "Once upon a time", "max_tokens": 1})
    for _ in range(10):
        with Server(suite, "standalone", piped=True) as server:
            line = server.child.stdout.readline()
            port = int(re.search(rb"http=http://127.0.0.1:(\d+)", line)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
            assert status == 200, f"status {status} at once after {line!r}"
            connection.close()


def few_descriptors(suite, hard):
    """With few descriptors: a warning and fewer connections; who is refused is counted, and told; then as
    before. A low soft limit alone is raised."""
    body = {"model": "any", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 256:
        raise Skip(f"no more than {most} descriptors are allowed here")
    if soft != resource.RLIM_INFINITY and soft < 256:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    low = (64, 64) if hard else (64, most)
    with Server(suite, "standalone", files=low) as server:
        server.ready()
        assert ("event=few_descriptors limit=64" in server.said()) == hard, server.said()
        first = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)

        def refused():
            first.request("GET", "/metrics")
            text = first.getresponse().read().decode()
            return float(re.search(r"^forge:http_connections_refused_total (\S+)", text, re.M)[1])
        assert refused() == 0
        others = [socket.create_connection(("127.0.0.1", server.port), WAIT_S) for _ in range(100)]
        if hard:
            wait_for("refusals in the metrics", lambda: refused() >= 100 - 64)
            assert server.said().count("event=connections_refused") == 1, server.said()
        else:
            others[-1].sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert others[-1].recv(100).startswith(b"HTTP/1.1 200"), "the last of many has no answer"
            assert refused() == 0
        for other in others:
            other.close()
        wait_for("room again", lambda: get(server.port, "/live")[0] == 200)
        assert answer_of(server.port, body)["text"]
        server.child.send_signal(signal.SIGTERM)
        server.end()


def main():
    suite = Suite(__doc__)
    full = suite.options.full
    suite.case("deploy/cluster: Ctrl-C lets answers finish", drained, suite, signal.SIGINT, True)
    if full:
        suite.case("deploy/cluster: SIGTERM lets answers finish", drained, suite, signal.SIGTERM, False)
        suite.case("deploy/cluster: the terminal closes", drained, suite, signal.SIGHUP, True)
    for name in ("router", "prefill-0"):
        suite.case(f"deploy/cluster: {name} is frozen", frozen, suite, name)
    suite.case("deploy/cluster: a second Ctrl-C", impatient, suite)
    suite.case("deploy/cluster: SIGTERM under an older bash", without_clock, suite)
    suite.case("deploy/cluster: SIGTERM while it starts", ended_early, suite)
    suite.case("deploy/cluster: the router dies at once", stillborn, suite)
    suite.case("deploy/cluster: TMPDIR cannot be used", no_scratch, suite)
    for mode in ("standalone", "router", "decode"):
        suite.case(f"{mode}: SIGHUP", hung_up, suite, mode)
        suite.case(f"{mode}: SIGHUP under nohup", stays, suite, mode)
    suite.case("standalone: the terminal closes", terminal_closed, suite)
    suite.case("forge sim: SIGHUP", command_hung_up, suite)
    suite.case("output that is lost", output_lost, suite)
    suite.case("a server that nobody hears", unheard, suite)
    suite.case("standalone: the first request", answers_at_once, suite)
    suite.case("/dev/shm is too small", shm_too_small, suite)
    suite.case("a small stack", small_stack, suite)
    suite.case("few descriptors", few_descriptors, suite, True)
    suite.case("few descriptors, but more are allowed", few_descriptors, suite, False)
    suite.end()


if __name__ == "__main__":
    main()
