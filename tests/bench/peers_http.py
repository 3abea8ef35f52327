"""The same over HTTP: forge serve against llama.cpp's server (the one in xllamacpp), with several clients at
once that each wait for their answer. Imported by peers.py.

Each server alone is up while it is measured. A prompt is fresh for each request, so that no cache helps;
answers go on past end tokens. Counted are answered tokens per second of all clients together, and the time
of a whole request."""
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
READY_S = 300


class Server:
    """A server process and where it listens."""

    def __init__(self, command, find_address):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.port = None
        for line in self.process.stdout:
            self.port = find_address(line)
            if self.port:
                break
        if not self.port:
            sys.exit(f"peers: {command[0]} did not start")
        threading.Thread(target=self.drain, daemon=True).start()

    def drain(self):
        for _line in self.process.stdout:
            pass

    def wait_ready(self, path):
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            try:
                if self.request("GET", path)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit("peers: a server did not become ready")

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request(method, path, json.dumps(body) if body else None,
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, text

    def close(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait(60)


def forge_port(line):
    found = re.search(r"http://[^ :]+:(\d+)", line)
    return int(found[1]) if found else None


def peer_port(line):
    return urllib.parse.urlparse(json.loads(line)["address"]).port if line.startswith("{") else None


def forge_body(ids, count):
    return "/v1/completions", {"model": "bench", "prompt": ids, "max_tokens": count,
                               "temperature": 0, "ignore_eos": True}


def llama_body(ids, count):
    return "/completion", {"prompt": ids, "n_predict": count, "temperature": 0, "ignore_eos": True,
                           "cache_prompt": False}


def answered_tokens(text):
    parsed = json.loads(text)
    return parsed["usage"]["completion_tokens"] if "usage" in parsed else parsed["tokens_predicted"]


def load(server, body_of, clients, options, turn):
    """Tokens per second of all clients, and the median seconds of a request."""
    seconds, tokens, lock = [], [], threading.Lock()

    def client(number):
        ids = [17 + (7919 * i + 104729 * turn + 13 * number) % 480 for i in range(options.prompt)]
        path, body = body_of(ids, options.generate)
        began = time.perf_counter()
        status, text = server.request("POST", path, body)
        took = time.perf_counter() - began
        if status != 200:
            sys.exit(f"peers: {status} {text[:300]!r}")
        with lock:
            seconds.append(took)
            tokens.append(answered_tokens(text))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(tokens) / (time.perf_counter() - began), statistics.median(seconds)


def servers(options, engines, most):
    room = options.prompt + options.generate + 64
    blocks = most * (room // 16 + 2)
    found = {"forge": (
        [options.forge, "serve", "--model", options.model, "--port", "0", "--threads",
         str(options.threads), "--kv-blocks", str(blocks), "--max-seqs", str(most),
         "--served-model-name", "bench", "--prefix-cache", "off"],
        forge_port, "/health", forge_body)}
    if "xllamacpp" in engines.commands:
        found["llama.cpp server"] = (engines.commands["xllamacpp"] + ["--serve", str(most)],
                                     peer_port, "/health", llama_body)
    return found


def compare(options, engines, keep, spread):
    counts = [int(b) for b in options.batch.split(",")]
    found = servers(options, engines, max(counts))
    rates = {}
    for turn in range(options.rounds):
        for name, (command, find_port, health, body_of) in found.items():
            server = Server(command, find_port)
            server.wait_ready(health)
            load(server, body_of, 1, options, -1)
            for clients in counts:
                rate, seconds = load(server, body_of, clients, options, turn)
                rates.setdefault(clients, {}).setdefault(name, []).append((rate, seconds))
                keep({"round": turn, "engine": name, "clients": clients, "tokens_per_s": rate,
                      "request_s": seconds})
            server.close()
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    names = list(found)
    print(f"\n{options.prompt} prompt tokens and {options.generate} answered ones per request.\n")
    print("| clients | " + " | ".join(f"{n} t/s | request s" for n in names) + " | forge / peer |")
    print("| --: |" + " --: | --: |" * len(names) + " --: |")
    for clients in counts:
        row = [str(clients)]
        for name in names:
            row += [spread([r for r, _ in rates[clients][name]]),
                    spread([s for _, s in rates[clients][name]], 2)]
        ratios = [a[0] / b[0] for a, b in zip(rates[clients]["forge"], rates[clients][names[-1]])]
        print("| " + " | ".join(row + [spread(ratios, 2) if len(names) > 1 else "-"]) + " |")
