#!/usr/bin/env python3
"""From exec to the first token: `forge serve` started again and again, one short streamed request each.

  first    no sidecar yet: weights are packed, and kept
  warm     sidecar and page cache are there
  cold     the sidecar is there, but neither it nor the model is in memory (posix_fadvise)
  off      --weights-cache off: every start packs

Times in ms, medians: `listening` until the process says so, `token` until the first event of the stream.
The last part starts several processes one after the other and tells what each added to the memory in
use (PSS: shared pages are divided by their users). Only reports; nothing here passes or fails.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


class Server:
    """A standalone process, listening."""

    def __init__(self, options, cache):
        command = [options.forge, "serve", "--model", options.model, "--port", "0",
                   "--threads", str(options.threads), "--weights-cache", cache]
        self.log = tempfile.TemporaryFile("a+")
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        self.listening_ms = 1000 * (time.monotonic() - self.began)
        assert line.startswith("listening"), self.lines()
        self.port = int(re.search(r"http://[^:]+:(\d+)", line)[1])

    def first_token(self):
        """Sends a streamed request and waits for its first event, in ms since exec."""
        name = pathlib.Path(self.process.args[3]).name.removesuffix(".gguf")
        body = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 2,
                           "temperature": 0, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: "
                               b"application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            text = b""
            while b"data: " not in text:
                got = connection.recv(65536)
                assert got, text
                text += got
            assert b" 200 " in text.split(b"\r\n")[0], text
            return 1000 * (time.monotonic() - self.began)

    def lines(self):
        self.log.seek(0)
        return self.log.read()

    def event(self, name):
        """The fields of an event in the log, as text."""
        line = re.search(rf"event={name} (.*)", self.lines())
        return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line[1])) if line else {}

    def memory_mib(self):
        """PSS of the file and shared pages, and all of it."""
        text = pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        kib = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
        return kib["Rss"] / 1024, kib["Pss"] / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


def forget(path):
    """Takes a file out of the page cache, where nobody maps it."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def rounds(options, folder, how):
    results, last = [], None
    if how in ("warm", "cold") and not list(pathlib.Path(folder).glob("*.fgp")):
        Server(options, folder).stop()
    for _ in range(options.rounds):
        sidecars = list(pathlib.Path(folder).glob("*.fgp"))
        if how == "first":
            for path in sidecars:
                path.unlink()
        if how == "cold":
            for path in [*sidecars, pathlib.Path(options.model)]:
                forget(path)
        server = Server(options, "off" if how == "off" else folder)
        try:
            results.append((server.listening_ms, server.first_token()))
            last = server.event("start_ms"), server.event("chosen")
        finally:
            server.stop()
    listening, token = (statistics.median(column) for column in zip(*results))
    spread = f"{min(t for _, t in results):.0f}..{max(t for _, t in results):.0f}"
    phases, chosen = last
    print(f"| {how} | {listening:.0f} | {token:.0f} ({spread}) | "
          + " | ".join(f"{float(phases.get(p, 0)):.0f}" for p in PHASES)
          + f" | {chosen.get('weights')}, {chosen.get('pages')} |", flush=True)


PHASES = ("model", "tokenizer", "fingerprint", "router", "kv", "weights", "calibrate", "other")


def added_memory(options, folder):
    servers = []
    try:
        add_servers(options, folder, servers)
    finally:
        for server in servers:
            server.stop()


def add_servers(options, folder, servers):
    print("\n| processes | RSS of the newest, MiB | sum of PSS | added |\n| ---: | ---: | ---: | ---: |")
    before = 0
    for count in range(1, options.processes + 1):
        servers.append(Server(options, folder))
        servers[-1].first_token()
        total = sum(server.memory_mib()[1] for server in servers)
        print(f"| {count} | {servers[-1].memory_mib()[0]:.0f} | {total:.0f} | {total - before:.0f} |",
              flush=True)
        before = total


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forge", default=os.environ.get("FORGE_BIN")
                        or str(ROOT / "build/release/forge"))
    parser.add_argument("--model",
                        default=str(CACHE / "forge/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--cases", default="first,warm,cold,off")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="forge-start-", dir=CACHE / "forge" if CACHE.is_dir() else None)
    try:
        print(f"{pathlib.Path(options.model).name}, {options.threads} threads, "
              f"{options.rounds} rounds, ms; phases of the last round\n")
        print("| start | listening | token | " + " | ".join(PHASES) + " | weights |")
        print("| --- |" + " ---: |" * (len(PHASES) + 2) + " --- |")
        for how in options.cases.split(","):
            rounds(options, folder, how)
        if options.processes > 0:
            added_memory(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
