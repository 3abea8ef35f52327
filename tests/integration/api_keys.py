#!/usr/bin/env python3
"""Clients show API keys: who has none, another one or one for something else is turned away before a body is
received; keys come and go with SIGHUP; Forge's own clients have keys too; the unmodified openai package
understands what it is told."""
# needs: openai
import json
import os
import re
import signal
import socket
import subprocess
import tempfile

import openai
from _forge import Process, Skip, Suite, get, plain_environment, status_port, wait_for

ROUTES = [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/forge/v1/batch"),
          ("GET", "/forge/v1/cache/stats"), ("POST", "/forge/v1/cache/clear"), ("POST", "/forge/v1/admin/role"),
          ("POST", "/reset_prefix_cache"), ("POST", "/flush_cache"), ("POST", "/tokenize"), ("POST", "/detokenize"),
          ("GET", "/v1/models"), ("GET", "/v1/models/x"), ("GET", "/metrics"), ("GET", "/debug/state"),
          ("GET", "/debug/trace"), ("GET", "/debug/flight"), ("GET", "/no/such/route"), ("DELETE", "/v1/models")]
ASKED = {"prompt": [1, 403], "max_tokens": 4, "temperature": 0}


def keygen(suite, file, *words):
    done = subprocess.run([suite.options.forge, "keygen", "--api", file, *words], capture_output=True, text=True,
                          check=False, env=plain_environment())
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def raw(port, text):
    """All that comes back for these bytes, until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as door:
        door.sendall(text.encode())
        answer = b""
        while True:
            try:
                more = door.recv(65536)
            except ConnectionResetError:
                break
            if not more:
                break
            answer += more
    return answer.decode()


def model_of(cluster, keys):
    status, text = get(cluster.port, "/v1/models", headers=bearer(keys["team"]))
    assert status == 200, (status, text)
    return json.loads(text)["data"][0]["id"]


def client(cluster, key):
    return openai.OpenAI(base_url=cluster.url + "/v1", api_key=key, max_retries=0)


def denied_everywhere(cluster):
    """The same words for no key and for a wrong one, whatever is asked for; nobody waits for a body."""
    bodies = set()
    for method, path in ROUTES:
        for header in ("", "Authorization: Bearer wrong\r\n", "Authorization: Basic d3Jvbmc=\r\n"):
            answer = raw(cluster.port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}"
                                       f"Content-Length: 8000000\r\n\r\n")
            assert answer.startswith("HTTP/1.1 401 Unauthorized\r\n"), (path, header, answer[:200])
            assert "www-authenticate: bearer" in answer.lower(), answer
            assert "connection: close" in answer.lower(), answer
            bodies.add(answer.split("\r\n\r\n", 1)[1])
    assert len(bodies) == 1, bodies
    error = json.loads(bodies.pop())["error"]
    assert error["code"] == "invalid_api_key" and error["type"] == "authentication_error", error
    for path in ("/health", "/live"):
        assert get(cluster.port, path)[0] == 200, path
    return f"{len(ROUTES)} routes"


def openai_client(cluster, keys):
    assert client(cluster, keys["team"]).completions.create(model=model_of(cluster, keys), **ASKED).choices[0].finish_reason
    assert client(cluster, keys["team"]).models.list().data
    for key, kind in (("wrong", openai.AuthenticationError), (keys["watch"], openai.PermissionDeniedError)):
        try:
            client(cluster, key).completions.create(model=model_of(cluster, keys), **ASKED)
        except kind as why:
            assert why.code in ("invalid_api_key", "insufficient_scope"), why
        else:
            raise AssertionError(f"{key} was let in")


def scopes(cluster, keys):
    opens = {"team": {"/v1/models"}, "watch": {"/metrics", "/debug/state", "/forge/v1/cache/stats"},
             "boss": {"/v1/models", "/metrics", "/debug/state", "/debug/trace", "/forge/v1/cache/stats"},
             "ended": set(), "plain": {"/v1/models", "/metrics", "/debug/trace"}}
    for name, paths in opens.items():
        for path in ("/v1/models", "/metrics", "/debug/state", "/debug/trace", "/forge/v1/cache/stats"):
            status = get(cluster.port, path, headers=bearer(keys[name]))[0]
            want = 200 if path in paths or name == "plain" else 401 if name == "ended" else 403
            assert status == want, (name, path, status)
    counted = get(cluster.port, "/metrics", headers=bearer(keys["watch"]))[1].decode()
    assert re.search(r'http_requests_total\{route="/metrics",code="403"\} [1-9]', counted), "403 is not counted"


def reloaded(cluster, file, keys, suite):
    """A new key, then one taken away; a file with an error changes nothing."""
    def says(event, count):
        wait_for(event, lambda: sum(event in line for line in log(cluster)) >= count)
    assert get(cluster.port, "/v1/models", headers=bearer("late"))[0] == 401
    late = keygen(suite, file, "--name", "late")[0]
    assert get(cluster.port, "/v1/models", headers=bearer(late))[0] == 401
    cluster.router.signal(signal.SIGHUP)
    says("event=api_keys_reloaded", 1)
    assert get(cluster.port, "/v1/models", headers=bearer(late))[0] == 200
    lines = open(file, encoding="utf-8").read().splitlines(keepends=True)
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(lines + ["key oops\n"])
    cluster.router.signal(signal.SIGHUP)
    says("event=api_keys_not_reloaded", 1)
    assert get(cluster.port, "/v1/models", headers=bearer(late))[0] == 200
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(line for line in lines if " late " not in line)
    cluster.router.signal(signal.SIGHUP)
    says("event=api_keys_reloaded", 2)
    assert get(cluster.port, "/v1/models", headers=bearer(late))[0] == 401
    assert get(cluster.port, "/v1/models", headers=bearer(keys["team"]))[0] == 200


def log(cluster):
    with open(cluster.router.log_path, encoding="utf-8") as file:
        return file.readlines()


def own_clients(suite, cluster, keys):
    """batch, top and trace: with the environment's key, with a flag, and without."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w", encoding="utf-8") as file:
            file.write(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": ASKED}) + "\n")
        batch = ["batch", "--url", cluster.url, f"{folder}/in.jsonl", f"{folder}/out.jsonl"]
        top = ["top", "--url", cluster.url, "--once"]
        trace = ["trace", "--out", f"{folder}/trace.json", cluster.url]
        for command, key in ((batch, "team"), (top, "watch"), (trace, "boss")):
            def run(*more, **environment):
                return subprocess.run([suite.options.forge, command[0], *more, *command[1:]], capture_output=True,
                                      text=True, timeout=60, check=False, env=plain_environment(**environment))
            bare = run()
            assert bare.returncode != 0 and ("401" in bare.stderr or "API key" in bare.stderr), (command, bare)
            flagged = run("--api-key", keys[key])
            assert flagged.returncode == 0, (command, flagged.stderr)
            if command is batch:
                os.remove(f"{folder}/out.jsonl")
            kept = run(FORGE_API_KEY=keys[key])
            assert kept.returncode == 0, (command, kept.stderr)


def secret(cluster, keys):
    text = "".join(log(cluster))
    for name, key in keys.items():
        assert key not in text, f"the log shows {name}'s key"


def standalone(suite):
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/keys"
        keys = {"team": keygen(suite, file, "--name", "team")[0],
                "watch": keygen(suite, file, "--name", "watch", "--scopes", "metrics")[0],
                "boss": keygen(suite, file, "--name", "boss", "--scopes", "all", "--until", "2099-12-31")[0],
                "ended": keygen(suite, file, "--name", "ended", "--scopes", "all", "--until", "2020-01-01")[0],
                "plain": "a-plain-key-of-good-length"}
        with suite.cluster(model=suite.stories(), standalone=True,
                           flags=["--api-key-file", file, "--api-key", keys["plain"]]) as cluster:
            suite.case("nobody without a key", denied_everywhere, cluster)
            suite.case("the openai package", openai_client, cluster, keys)
            suite.case("a key opens what it is for", scopes, cluster, keys)
            suite.case("batch, top and trace", own_clients, suite, cluster, keys)
            suite.case("keys come and go", reloaded, cluster, file, keys, suite)
            suite.case("no key is logged", secret, cluster, keys)


def in_cluster(suite):
    """Workers' status pages ask for keys too; the router's own bus does not."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/keys"
        team, watch, boss = (keygen(suite, file, "--name", name, "--scopes", scope)[0]
                             for name, scope in (("team", "infer"), ("watch", "metrics"), ("boss", "admin")))
        with suite.cluster(model=suite.stories(), prefill=1, decode=1,
                           flags=["--api-key-file", file, "--status-port", "0"]) as cluster:
            assert client(cluster, team).completions.create(model=model_of(cluster, {"team": team}), **ASKED).usage.completion_tokens == 4
            for worker in cluster.workers.values():
                port = status_port(worker)
                answer = raw(port, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
                assert answer.startswith("HTTP/1.1 401 "), answer
                for path, opened in (("/live", None), ("/health", None), ("/metrics", watch), ("/debug/trace", boss),
                                     ("/debug/flight", boss), ("/nowhere", boss)):
                    statuses = [get(port, path, headers=headers)[0]
                                for headers in ({}, bearer("x"), bearer(team), bearer(watch), bearer(boss))]
                    want = [200] * 5 if opened is None else [
                        401, 401, 403, 200 if opened == watch else 403, 200 if opened == boss else 403]
                    want = [404 if path == "/nowhere" and status == 200 else status for status in want]
                    assert statuses == want, (path, statuses)


def beyond_loopback(suite):
    """Without keys nobody outside is served by mistake; with them a line says what is missing."""
    command = [suite.options.forge, "serve", "--model", suite.stories(), "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=plain_environment())
    assert done.returncode == 2 and "--api-key-file" in done.stderr and done.stderr.count("\n") == 1, done
    for flags, why in ((["--api-key-file", "/nowhere"], "forge keygen --api"), (["--api-key", "a b"], "no spaces")):
        done = subprocess.run(command + flags, capture_output=True, text=True, timeout=30, check=False,
                              env=plain_environment())
        assert done.returncode == 2 and why in done.stderr, done
    with tempfile.TemporaryDirectory() as folder:
        process = Process("open", command, folder, environment={"FORGE_API_KEY": "a-plain-key-of-good-length"})
        try:
            wait_for("the line that says where it listens", lambda: any("listening" in line for line in process.lines))
            port = int(re.search(r"listening http=\S+:(\d+)", " ".join(process.lines))[1])
            assert get(port, "/v1/models")[0] == 401
            assert get(port, "/v1/models", headers=bearer("a-plain-key-of-good-length"))[0] == 200
            assert "event=plain_http" in process.log_tail(100)
        finally:
            process.signal(signal.SIGTERM)
            process.wait()


def main():
    suite = Suite(__doc__)
    try:
        standalone(suite)
    except Skip as why:
        suite.skip("one server", why)
    suite.case("1P+1D, and the workers' status pages", in_cluster, suite)
    suite.case("beyond loopback", beyond_loopback, suite)
    suite.end()


if __name__ == "__main__":
    main()
