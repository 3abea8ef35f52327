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


class Absent(Exception):
    """A server that does not start or does not answer; the text is the reason."""


class Server:
    """A server process and where it listens."""

    def __init__(self, command, find_address):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace")
        self.lines, self.port = [], None
        late = threading.Timer(READY_S, self.process.kill)
        late.start()
        for line in self.process.stdout:
            self.lines.append(line.strip())
            self.port = find_address(line)
            if self.port:
                break
        late.cancel()
        if not self.port:
            raise Absent(f"ended with {self.process.wait()} before it listened: {self.last_words()}")
        threading.Thread(target=self.drain, daemon=True).start()

    def last_words(self):
        words = [line for line in self.lines if line]
        return " | ".join(words[-2:])[-300:] or "it said nothing"

    def drain(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def wait_ready(self, path):
        until = time.monotonic() + READY_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if self.request("GET", path)[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.1)
        raise Absent(f"did not become ready: {self.last_words()}")

    def instructions(self):
        """What it says that it computes with."""
        found = re.search(r"isa=(\S+)|\"instructions\": \"([^\"]*)\"", "\n".join(self.lines))
        return found[1] or found[2] if found else "it does not say"

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
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


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
    seconds, wrong, lock = [], [], threading.Lock()

    def client(number):
        ids = [17 + (7919 * i + 104729 * turn + 13 * number) % 480 for i in range(options.prompt)]
        path, body = body_of(ids, options.generate)
        began = time.perf_counter()
        try:
            status, text = server.request("POST", path, body)
            count = answered_tokens(text) if status == 200 else 0
            why = "" if count == options.generate else f"{status}, {count} tokens: {text[:200]!r}"
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            why = f"{type(error).__name__}: {error}"
        took = time.perf_counter() - began
        with lock:
            seconds.append(took)
            if why:
                wrong.append(why)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    if wrong:
        raise Absent(f"{len(wrong)} of {clients} requests had no whole answer: {wrong[0]}")
    return clients * options.generate / took, statistics.median(seconds)


def servers(options, engines, most):
    room = options.prompt + options.generate + 64
    blocks = most * (room // 16 + 2)
    found = {"forge": (
        [options.forge, "serve", "--model", options.model, "--port", "0", "--threads",
         str(options.threads), "--kv-blocks", str(blocks), "--max-seqs", str(most),
         "--served-model-name", "bench", "--prefix-cache", "off", "--speculate", "off"],
        forge_port, "/health", forge_body)}
    for name, command in engines.commands.items():
        if name == "xllamacpp":
            found["llama.cpp server"] = (command + ["--serve", str(most)], peer_port, "/health",
                                         llama_body)
        elif name != "forge":
            engines.absent[name] = "no server here that answers several clients at once"
    return found


def measure(row, counts, options, turn):
    """[(clients, tokens per second, seconds of a request)] and the instruction set of one server."""
    command, find_port, health, body_of = row
    server = Server(command, find_port)
    try:
        server.wait_ready(health)
        load(server, body_of, 1, options, -1)
        return ([(clients, *load(server, body_of, clients, options, turn)) for clients in counts],
                server.instructions())
    finally:
        server.close()


def rounds(options, engines, keep):
    """{name: {clients: samples}} and what each computes with; who fails is skipped from then on."""
    counts = [int(b) for b in options.batch.split(",")]
    found = servers(options, engines, max(counts))
    rates, sets = {name: {} for name in found}, {}
    for turn in range(options.rounds):
        for name in list(rates):
            try:
                samples, sets[name] = measure(found[name], counts, options, turn)
            except Absent as why:
                if name == "forge":
                    sys.exit(f"peers: forge serve {why}")
                engines.absent[name] = str(why)
                del rates[name]
                continue
            for clients, rate, seconds in samples:
                rates[name].setdefault(clients, []).append((rate, seconds))
                keep({"round": turn, "engine": name, "clients": clients, "tokens_per_s": rate,
                      "request_s": seconds})
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    return rates, sets


def compare(options, engines, keep, spread):
    rates, sets = rounds(options, engines, keep)
    names = list(rates)
    print(f"\n{options.prompt} prompt tokens and {options.generate} answered ones per request.\n")
    print("| clients | " + " | ".join(f"{n} t/s | request s" for n in names) + " | forge / peer |")
    print("| --: |" + " --: | --: |" * len(names) + " --: |")
    for clients in rates["forge"]:
        row = [str(clients)]
        for name in names:
            row += [spread([r for r, _ in rates[name][clients]]),
                    spread([s for _, s in rates[name][clients]], 2)]
        ratios = [a[0] / b[0] for a, b in zip(rates["forge"][clients], rates[names[-1]][clients])]
        print("| " + " | ".join(row + [spread(ratios, 2) if len(names) > 1 else "-"]) + " |")
    print("\nInstruction sets: " + "; ".join(f"{name}: {sets[name]}" for name in names) + ".")
