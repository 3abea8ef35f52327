#!/usr/bin/env python3
"""Garbage at both doors of a live router: malformed HTTP (request smuggling forms, oversized, slow)
and malformed frames at the control port. Every probe is refused as the table says, and another
client's stream, running all the while, gets its right answer."""
# needs: pyzmq
import json
import os
import socket
import struct
import threading
import time

from _forge import Skip, Stream, Suite, counters, get, served_model, status_port, wait_for

BODY = b'{"model":"x"}'


def post_with(headers, body=b"", line=b"POST /v1/completions HTTP/1.1"):
    return line + b"\r\n" + headers + b"\r\n" + body


def json_post(body, path=b"/v1/completions"):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return post_with(b"Host: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                     % len(body), body, b"POST " + path + b" HTTP/1.1")


CLOSED = 0  # the connection is closed without an answer
REFUSED = (400, CLOSED)
HOST = b"Host: a\r\n"
# name, bytes, acceptable answers
HTTP = [
    ("both lengths", post_with(HOST + b"Content-Length: 13\r\nTransfer-Encoding: chunked\r\n",
                               b"0\r\n\r\n"), REFUSED),
    ("both lengths, the other way round",
     post_with(HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n"), REFUSED),
    ("two lengths", post_with(HOST + b"Content-Length: 13\r\nContent-Length: 14\r\n", BODY), REFUSED),
    ("two equal lengths", post_with(HOST + b"Content-Length: 13\r\nContent-Length: 13\r\n", BODY),
     REFUSED),
    ("length with a sign", post_with(HOST + b"Content-Length: +13\r\n", BODY), REFUSED),
    ("negative length", post_with(HOST + b"Content-Length: -1\r\n"), REFUSED),
    ("list of lengths", post_with(HOST + b"Content-Length: 13, 13\r\n", BODY), REFUSED),
    ("length beyond 64 bits", post_with(HOST + b"Content-Length: 18446744073709551629\r\n", BODY),
     (400, 413, CLOSED)),
    ("hexadecimal length", post_with(HOST + b"Content-Length: 0xd\r\n", BODY), REFUSED),
    ("unknown transfer coding", post_with(HOST + b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
     (400, 501, CLOSED)),
    ("chunked is not last", post_with(HOST + b"Transfer-Encoding: chunked, identity\r\n",
                                      b"0\r\n\r\n"), (400, 501, CLOSED)),
    ("space before the colon", post_with(b"Host : a\r\nContent-Length: 0\r\n"), REFUSED),
    ("bare line feeds", b"GET /live HTTP/1.1\nHost: a\n\n", REFUSED),
    ("bare carriage return in a header", b"GET /live HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n", REFUSED),
    ("NUL in a header", b"GET /live HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", REFUSED),
    ("folded header", b"GET /live HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", REFUSED),
    ("header line that starts with a space", b"GET /live HTTP/1.1\r\n Host: a\r\n\r\n", REFUSED),
    ("no Host", b"GET /live HTTP/1.1\r\n\r\n", REFUSED),
    ("two Hosts", b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", REFUSED),
    ("empty header name", b"GET /live HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n", REFUSED),
    ("bad chunk size", post_with(HOST + b"Transfer-Encoding: chunked\r\n", b"xyz\r\n"), REFUSED),
    ("chunk size beyond 64 bits", post_with(HOST + b"Transfer-Encoding: chunked\r\n",
                                            b"10000000000000007\r\nabcdefg\r\n0\r\n\r\n"),
     (400, 413, CLOSED)),
    ("negative chunk size", post_with(HOST + b"Transfer-Encoding: chunked\r\n", b"-1\r\n"), REFUSED),
    ("100 KiB header", b"GET /live HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 102400 + b"\r\n\r\n",
     (431, 400, CLOSED)),
    ("2000 headers", b"GET /live HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
     (431, 400, CLOSED)),
    ("100 KiB address", b"GET /" + b"a" * 102400 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
     (400, 414, 431, CLOSED)),
    ("body of 9 MiB announced", post_with(HOST + b"Content-Type: application/json\r\n"
                                          b"Content-Length: 9437184\r\n"), (413,)),
    ("unknown method", b"BREW /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", (400, 405, 501, CLOSED)),
    ("HTTP/3.7", b"GET /live HTTP/3.7\r\nHost: a\r\n\r\n", (400, 505, CLOSED)),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 405, 505, CLOSED)),
    ("TLS hello", bytes.fromhex("1603010200010001fc0303") + b"\0" * 64, REFUSED),
    ("random bytes", bytes((i * 197 + 31) % 256 for i in range(4096)), REFUSED),
    ("absolute target", b"GET http://a:80/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
     (200,)),
    ("no such route", b"GET /v1/nothing HTTP/1.1\r\nHost: a\r\n\r\n", (404,)),
    ("wrong method", b"GET /v1/completions HTTP/1.1\r\nHost: a\r\n\r\n", (405,)),
    ("path that climbs", b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", (400, 404)),
    ("empty body", json_post(b""), (400,)),
    ("half of a JSON text", json_post(b'{"model":'), (400,)),
    ("JSON list", json_post(b"[]"), (400,)),
    ("text after the JSON", json_post(b"{} {}"), (400,)),
    ("double key", json_post(b'{"prompt":"a","prompt":"b"}'), (400,)),
    ("deep JSON", json_post(b"[" * 100000 + b"]" * 100000), (400,)),
    ("invalid UTF-8", json_post(b'{"prompt":"\xff\xfe"}'), (400,)),
    ("lone surrogate", json_post(b'{"prompt":"\\ud800"}'), (400,)),
    ("NaN", json_post(b'{"prompt":"a","temperature":NaN}'), (400,)),
]

PARAMETERS = [  # each must be a 400 that names the parameter
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("temperature", 1e300),
    ("top_p", 0), ("top_p", 1.5), ("top_p", "all"), ("top_k", -5),
    ("top_k", 1 << 40), ("min_p", -1), ("min_p", 2), ("max_tokens", 0), ("max_tokens", -1),
    ("max_tokens", 1 << 40), ("max_tokens", 1.5), ("seed", "x"), ("stop", 5),
    ("stop", ["x"] * 1000), ("stream", "yes"), ("n", 0), ("n", 65), ("n", 1 << 31),
    ("prompt", 5), ("prompt", {}), ("prompt", [-1]), ("prompt", [1 << 31]), ("prompt", [512]),
    ("logprobs", 21), ("best_of", 3), ("logit_bias", {"x": 1}), ("presence_penalty", 3.0),
]


def answer_to(port, data, timeout_s=15):
    """Status of the first answer to raw bytes; CLOSED when there is none; None when it hangs."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        got = b""
        try:
            sock.sendall(data)
        except OSError:
            pass  # refused before everything was sent
        try:
            while b"\r\n\r\n" not in got:
                part = sock.recv(65536)
                if not part:
                    break
                got += part
        except TimeoutError:
            return None, got
        except OSError:
            pass
        return (int(got.split()[1]) if got.startswith(b"HTTP/1.") else CLOSED), got


def probe(port, data, allowed):
    status, got = answer_to(port, data)
    assert status is not None, "no answer and no close within 15 s"
    assert status in allowed, f"answered {status}, not one of {allowed}: {got[:200]!r}"
    assert get(port, "/live")[0] == 200, "the router is gone"


def parameter(port, model, name, value):
    body = {"model": model, "prompt": "a", "max_tokens": 1, name: value}
    status, got = answer_to(port, json_post(body))
    assert status == 400, f"{name}={value!r} answered {status}"
    error = json.loads(http_body(port, body))["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert error["param"] == name or name in error["message"], f"{name} is not named: {error}"
    assert got


def http_body(port, body):
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    text = connection.getresponse().read()
    connection.close()
    return text


def slow_clients(port, count=50):
    """Connections that never finish their headers cost nobody else anything."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for sock in socks:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-")
    assert get(port, "/live")[0] == 200
    # The header deadline ends them, one way or the other.
    for sock in socks:
        sock.settimeout(30)
        try:
            data = sock.recv(4096)
            while data and sock.recv(4096):
                pass
        except OSError as why:
            assert not isinstance(why, TimeoutError), "still open after 30 s"
        sock.close()


def pipelined(port):
    """Two requests in one write: two answers, in order."""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as sock:
        sock.sendall(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n"
                     b"GET /v1/nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        got = b""
        while True:
            part = sock.recv(65536)
            if not part:
                break
            got += part
    first, second = got.find(b"HTTP/1.1 200"), got.find(b"HTTP/1.1 404")
    assert 0 <= first < second, got[:300]
    assert got.count(b"HTTP/1.1 ") == 2, "not two answers"


def never_reading(port, model):
    """A client that asks for a stream and never reads it stops only itself."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.sendall(json_post({"model": model, "prompt": "Once", "max_tokens": 400,
                                "stream": True, "ignore_eos": True}))
        stream = Stream(port, "/v1/completions", {"model": model, "prompt": "Once",
                                                  "max_tokens": 100, "ignore_eos": True}).run()
        assert stream.done


def random_frames(rng):
    yield []
    yield [b""]
    yield [b"", b""]
    yield [os.urandom(1)]
    for size in (2, 7, 8, 16, 64, 500, 4096, 65536, 1 << 20):
        yield [bytes(rng.randrange(256) for _ in range(min(size, 4096))) * max(1, size // 4096)]
    yield [b"\xff" * 100]
    yield [b"\x0a\xff\xff\xff\xff\x0f" + b"\0" * 10]  # a length of 4 GiB in six bytes
    yield [b"\x08\x01" * 1000]
    yield [b"\x08\x63"]  # a protocol version nobody speaks
    yield [b"\x08\x01\x10\x7f"]  # an unknown kind
    yield [b"a"] * 50  # many parts
    yield [b"\x0b" * 10000]  # groups within groups
    yield [bytes(9 << 20)]  # beyond the frame limit


def control_frames(suite, cluster):
    try:
        import zmq
    except ImportError:
        raise Skip("pyzmq is not installed") from None
    context = zmq.Context()
    count = 0
    try:
        # Names of live workers too: nobody takes over a name by claiming it.
        names = [b"stranger", b"decode-0", b"prefill-0", b"x" * 200, b"\1\2\3",
                 cluster.state()["workers"][0]["name"].encode() + b".1"]
        for name in names:
            sock = context.socket(zmq.DEALER)
            sock.setsockopt(zmq.IDENTITY, name)
            sock.setsockopt(zmq.LINGER, 1000)
            sock.setsockopt(zmq.SNDTIMEO, 5000)
            sock.connect(cluster.control)
            for frames in random_frames(suite.random):
                if frames:
                    try:
                        sock.send_multipart(frames)
                        count += 1
                    except zmq.Again:
                        break
            sock.close()
        other = context.socket(zmq.SUB)  # the wrong kind of socket
        other.setsockopt(zmq.SUBSCRIBE, b"")
        other.connect(cluster.control)
        time.sleep(0.2)
        other.close(0)
    finally:
        context.destroy(1000)
    wait_for("all four workers to be there still", lambda: len(cluster.state()["workers"]) == 4)
    return f"{count} messages"


def control_bytes(cluster):
    """Raw TCP at the control port: half a greeting, wrong greetings, HTTP, and silence."""
    host, port = cluster.control.removeprefix("tcp://").rsplit(":", 1)
    greeting = b"\xff" + b"\0" * 8 + b"\x7f\x03\0NULL" + b"\0" * 48
    payloads = [b"", b"\xff", greeting[:9], greeting[:33], greeting[:63], greeting,
                greeting + b"\x04\xff" + b"\xff" * 20,
                greeting + b"\x06" + struct.pack(">Q", 1 << 62),
                b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(range(256)) * 64]
    socks = []
    for payload in payloads * 4:
        sock = socket.create_connection((host, int(port)), timeout=5)
        try:
            sock.sendall(payload)
        except OSError:
            pass
        socks.append(sock)
    assert len(cluster.state()["workers"]) == 4
    for sock in socks:
        sock.close()
    assert len(cluster.state()["workers"]) == 4


def counted(port):
    """What never became a request is counted where all answers are, on a worker's status port too."""
    probes = [("400", b"GET /live HTTP/1.1\r\n\r\n"),
              ("431", b"GET /live HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 2000 + b"\r\n"),
              ("501", b"BREW /live HTTP/1.1\r\nHost: a\r\n\r\n"),
              ("404", b"GET /nothing HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")]
    for code, data in probes:
        name = 'http_requests_total{route="other",code="%s"}' % code
        before = counters(port)[name]
        status, _ = answer_to(port, data)
        assert status == int(code), f"answered {status}, not {code}"
        after = counters(port)[name]
        assert after == before + 1, f"{name}: {before}, then {after}"


class Bystander:
    """A client that streams the same story again and again while the probes run."""

    def __init__(self, port, model):
        self.port = port
        self.body = {"model": model, "prompt": "Once upon a time", "max_tokens": 300,
                     "temperature": 0, "ignore_eos": True}
        self.want = Stream(port, "/v1/completions", self.body).run().text
        self.count, self.error, self.gap_s, self.stopping = 0, None, 0.0, False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stopping and self.error is None:
            try:
                stream = Stream(self.port, "/v1/completions", self.body).run()
                assert stream.text == self.want, "its text changed"
                self.gap_s = max([self.gap_s] + [b - a for a, b in
                                                 zip(stream.times, stream.times[1:])])
                self.count += 1
            except Exception as why:  # pylint: disable=broad-except
                self.error = why

    def undisturbed(self):
        self.stopping = True
        self.thread.join(60)
        assert self.error is None, f"the other client: {self.error}"
        assert self.count > 0, "the other client got nothing"
        return f"{self.count} stories, longest gap {self.gap_s * 1000:.0f} ms"


def doors(suite):
    with suite.cluster(model=suite.stories(), prefill=2, decode=2,
                       flags=["--status-port", "0"]) as cluster:
        model = served_model(cluster)
        bystander = Bystander(cluster.port, model)
        for name, data, allowed in HTTP:
            suite.case(f"http: {name}", probe, cluster.port, data, allowed)
        for name, value in PARAMETERS:
            suite.case(f"parameter: {name}={str(value)[:20]}", parameter, cluster.port, model, name,
                       value)
        suite.case("http: pipelined", pipelined, cluster.port)
        suite.case("http: headers that never end", slow_clients, cluster.port)
        suite.case("http: a reader that never reads", never_reading, cluster.port, model)
        suite.case("control: frames", control_frames, suite, cluster)
        suite.case("control: raw bytes", control_bytes, cluster)
        suite.case("what was refused is counted, at the router", counted, cluster.port)
        worker = status_port(next(iter(cluster.workers.values())))
        suite.case("what was refused is counted, at a worker", counted, worker)
        suite.case("the other client saw nothing", bystander.undisturbed)
        cluster.wait_at_rest(workers=4)


def main():
    suite = Suite(__doc__)
    suite.case("a cluster of four workers lives through it", doors, suite)
    suite.end()


if __name__ == "__main__":
    main()
