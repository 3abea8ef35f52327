"""What the engine room's benches share: streams with the moment of every token, medians, tables."""
import os
import pathlib
import socket
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from _forge import Stream  # noqa: E402  pylint: disable=wrong-import-position

REQUEST_S = 1200.0
SERVED = ["--served-model-name", "bench"]


def ids(rng, count):
    """A prompt of exactly so many tokens that nobody has seen before."""
    return [rng.randrange(1000, 40000) for _ in range(count)]


def body(prompt, tokens, **more):
    """Greedy and of a fixed length, so that every run does the same work."""
    return {"model": SERVED[1], "prompt": prompt, "temperature": 0, "max_tokens": tokens,
            "ignore_eos": True, "logits_digest": True, **more}


class Timed:
    """A stream that runs in a thread of its own; `times` has the moment of each token."""

    def __init__(self, port, request):
        self.port, self.request = port, request
        self.times, self.error, self.usage, self.connection = [], None, None, None
        self.stopped = threading.Event()
        self.sent = time.monotonic()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            request = {**self.request, "stream_options": {"include_usage": True}}
            stream = Stream(self.port, "/v1/completions", request, REQUEST_S)
            self.connection = stream.connection
            for chunk in stream.chunks():
                now = time.monotonic()
                self.usage = chunk.get("usage") or self.usage
                for choice in chunk["choices"]:
                    count = len(choice.get("forge", {}).get("token_ids", []))
                    self.times += [now] * count
                if self.stopped.is_set():
                    stream.hang_up()
                    return
            stream.connection.close()
        except Exception as why:  # pylint: disable=broad-except
            self.error = why

    def wait(self):
        self.thread.join(REQUEST_S)
        assert not self.thread.is_alive(), "a request did not end"
        if self.error:
            raise self.error
        return self

    def stop(self):
        self.stopped.set()
        self.thread.join(REQUEST_S)

    def cut(self):
        """Ends it now, token or no token."""
        if self.thread.is_alive() and self.connection is not None:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(REQUEST_S)

    @property
    def ttft(self):
        return self.times[0] - self.sent

    @property
    def cached(self):
        return ((self.usage or {}).get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def gaps(self, begin=0.0, end=float("inf")):
        """Seconds between neighbouring tokens of which the later one came in that window."""
        return [b - a for a, b in zip(self.times, self.times[1:]) if begin <= b <= end]

    def gaps_over(self, begin, end):
        """Those of which any part lies in that window."""
        return [b - a for a, b in zip(self.times, self.times[1:]) if b >= begin and a <= end]


def run_together(port, requests):
    """All at once; the streams, and the seconds from the first request to the last token."""
    started = time.monotonic()
    streams = [Timed(port, request) for request in requests]
    for stream in streams:
        stream.wait()
    return streams, max(s.times[-1] for s in streams) - started


def processor_s(cluster):
    """Processor time that a standalone server has used so far: other work on the machine changes it
    less than it changes the time on the clock."""
    fields = pathlib.Path(f"/proc/{cluster.router.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def median(values):
    return statistics.median(values)


def table(head, rows):
    """Markdown; the first column is words, the others are numbers."""
    print("\n| " + " | ".join(head) + " |")
    print("| --- |" + " ---: |" * (len(head) - 1))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def machine():
    """For the line below a table: what else the machine did."""
    load = os.getloadavg()
    return f"{os.cpu_count()} cores, load average {load[0]:.1f} {load[1]:.1f} {load[2]:.1f}"
