#!/usr/bin/env python3
"""`forge top` against real processes: in a terminal, as text, as JSON, and with nobody there.

The terminal is a pseudo terminal with a shell in it, as a user has: keys are typed, the window changes its
size, the program is stopped and continued, and afterwards the terminal must be as it was.
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

from _forge import Suite, post, wait_for

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, columns=80, rows=24):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(PS1="ready> ", TERM="xterm")
            os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
        self.resize(columns, rows)
        self.expect("ready> ")

    def resize(self, columns, rows):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                return
            if not data:
                return
            self.text += data.decode("utf-8", "replace")

    def type(self, text):
        self.read()
        self.text = ""
        os.write(self.fd, text.encode())

    def expect(self, *wanted):
        def there():
            self.read()
            return all(w in self.text for w in wanted)
        try:
            wait_for("the terminal", there, 10)
        except AssertionError as why:
            raise AssertionError(f"{why}: want {wanted!r}, have {self.text[-800:]!r}") from None

    def raw(self):
        return not termios.tcgetattr(self.fd)[3] & (termios.ECHO | termios.ICANON)

    def settings(self):
        """As commands find it: the shell has its own while it reads a line."""
        self.type("stty -g; echo do''ne\n")
        self.expect("done\r\n")
        return re.search(r"[0-9a-f]+(?::[0-9a-f]+){10,}", self.text)[0]

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def run(suite, *flags, timeout=30):
    return subprocess.run([suite.options.forge, "top", *flags], capture_output=True, text=True,
                          timeout=timeout, check=False, stdin=subprocess.DEVNULL)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def bad_flags_and_nobody(suite):
    url = f"http://127.0.0.1:{free_port()}"
    for flags in (["--once"], ["--once", "--json"]):
        ended = run(suite, "--url", url, *flags)
        assert ended.returncode == 1 and ended.stdout == "", ended
        assert ended.stderr.count("\n") == 1 and url in ended.stderr, ended.stderr
    for flags in (["--url", "ftp://x"], ["--url", ""], ["--interval", "0"], ["--interval", "x"],
                  ["--interval", "-1"], ["word"], ["--nonsense"], ["--", "x"]):
        ended = run(suite, *flags)
        assert ended.returncode == 2 and ended.stderr.count("\n") == 1, (flags, ended)
    assert run(suite, "--help").returncode == 0


def hostile_servers(suite):
    """Answers that are no Forge's: one line and exit code 1, never a crash."""
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
               b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
               b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
               b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"workers",
               b"\xff\xfe\x00", b""]
    for answer in answers:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(8)

            def serve(server=server, answer=answer):
                while True:
                    try:
                        connection, _ = server.accept()
                    except OSError:
                        return
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)
            threading.Thread(target=serve, daemon=True).start()
            ended = run(suite, "--once", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
            server.shutdown(socket.SHUT_RDWR)
        assert ended.returncode == 1 and ended.stderr.count("\n") == 1, (answer, ended)


def text_and_json(suite):
    with suite.cluster(model=suite.stories(), prefill=1, decode=1) as cluster:
        working = threading.Thread(target=lambda: post(cluster.port, "/v1/completions", {
            "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}))
        working.start()
        ended = run(suite, "--once", "--url", f":{cluster.port}", "--interval", "0.5")
        working.join()
        assert ended.returncode == 0 and "\x1b" not in ended.stdout, ended
        assert re.search(r"^prefill-0 +prefill +up ", ended.stdout, re.M), ended.stdout
        assert re.search(r"^decode-0 +decode +up ", ended.stdout, re.M), ended.stdout
        ended = run(suite, "--once", "--json", "--url", cluster.url + "/", "--interval", "0.2")
        parsed = json.loads(ended.stdout)
        assert parsed["ready"] and {w["name"] for w in parsed["workers"]} == {"prefill-0", "decode-0"}
        assert parsed["ended"] == 1 and parsed["uptime_ms"] > 0, parsed
        state = cluster.state()
        assert state["router"]["ready"] is True and state["queue"]["requests"] == 0, state
        # No terminal and no --once: a page each time, until the reader leaves.
        lines = subprocess.Popen([suite.options.forge, "top", "--json", "--interval", "0.1",
                                  "--url", cluster.url], stdout=subprocess.PIPE, text=True)
        for _ in range(3):
            assert json.loads(lines.stdout.readline())["ready"]
        lines.stdout.close()
        lines.wait(10)


def terminal(suite):
    with suite.cluster(model=suite.stories(), standalone=True, flags=["--name", "solo"]) as cluster:
        t = Terminal()
        try:
            before = t.settings()
            command = f"{suite.options.forge} top --interval 0.1 --url {cluster.url}\n"
            for leave in ("q", "\x03", "\x04"):
                t.type(command)
                t.expect(ENTER, "solo", "q quit")
                assert t.raw(), "keys are not raw"
                t.type(leave)
                t.expect(LEAVE, "\x1b[?25h", "ready> ")
                assert t.settings() == before, "the terminal is not as it was"
            t.type(command)
            t.expect("solo", "sort (name)")
            t.type("s")
            t.expect("sort (busy)")
            t.type("?")
            t.expect("prefix cache")
            t.type("?p")
            t.expect("(paused)")
            t.type("pé\x1b[A")  # keys that mean nothing
            t.expect("p pause")
            t.resize(40, 9)
            t.text = ""
            t.expect("q quit")
            time.sleep(0.3)
            t.read()
            frame = t.text.split("\x1b[H")[-2]
            lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", frame).replace("\r", "").split("\n")
            assert len(lines) <= 9 and all(len(line) <= 40 for line in lines), lines
            t.type("\x1a")  # Ctrl-Z
            t.expect(LEAVE, "Stopped", "ready> ")
            assert t.settings() == before, "not as it was while stopped"
            t.type("fg\n")
            t.expect(ENTER, "q quit")
            assert t.raw(), "keys are not raw again"
            t.type("q")
            t.expect(LEAVE, "ready> ")
            t.type("echo code=$?\n")
            t.expect("code=0")
            assert t.settings() == before
            # The server goes and comes back to nobody: it is said, and the program stays.
            t.resize(80, 24)
            t.type(command)
            t.expect("solo")
            cluster.router.signal(signal.SIGTERM)
            t.expect("AWAY", "asked again in 2 s")
            t.type("q")
            t.expect(LEAVE, "ready> ")
            assert t.settings() == before
        finally:
            t.close()


def main():
    suite = Suite(__doc__)
    suite.case("bad flags, and nobody there", bad_flags_and_nobody, suite)
    suite.case("servers that are no Forge", hostile_servers, suite)
    suite.case("text and JSON", text_and_json, suite)
    suite.case("a terminal, as it was found", terminal, suite)
    suite.end()


if __name__ == "__main__":
    main()
