#!/usr/bin/env python3
"""A cluster with keys: it answers, strangers of every kind are refused and told why while it goes on, the
list of keys changes while it runs, and nothing binds beyond loopback without keys."""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

from _forge import (Process, Suite, answer_of, assert_same, counters, served_model, story_requests,
                    wait_for)


def keygen(suite, folder, *flags):
    subprocess.run([suite.options.forge, "keygen", str(folder), *flags], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def log_of(process):
    return pathlib.Path(process.log_path).read_text(encoding="utf-8", errors="replace")


def refusals(cluster):
    values = counters(cluster.port)
    return {reason: values[f'bus_refused_total{{reason="{reason}"}}']
            for reason in ("unknown_key", "other_name", "handshake")}


def names(cluster):
    return sorted(worker["name"] for worker in cluster.state()["workers"])


def answers(cluster, requests, want):
    for request in requests:
        request["model"] = served_model(cluster)
    have = [answer_of(cluster.port, request) for request in requests]
    assert_same(requests, want, have, "differ from the answers of one process")
    assert refusals(cluster) == {"unknown_key": 0, "other_name": 0, "handshake": 0}
    for process in cluster.processes():
        assert "secret" not in log_of(process), f"{process.name} logs of secrets"


def stranger(cluster, name, keys, metric, router_says, it_says, request):
    """A worker that must not get in: the router counts and says so, the worker says why."""
    before = refusals(cluster)
    members = names(cluster)
    flags = ["--keys", str(keys)] if keys else []
    worker = Process(name, [cluster.forge, "serve", "--model", cluster.model, "--mode", "prefill",
                            "--name", name, "--router", cluster.control, "--threads", "1", *flags],
                     cluster.folder)
    cluster.workers[name] = worker
    wait_for(f"{metric} to rise", lambda: refusals(cluster)[metric] > before[metric])
    wait_for("the router to say so", lambda: router_says in log_of(cluster.router))
    wait_for("the worker to say why", lambda: it_says in log_of(worker))
    assert names(cluster) == members, f"{name} is in: {names(cluster)}"
    answer_of(cluster.port, request)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log_tail()
    assert names(cluster) == members
    del cluster.workers[name]


def unbound_copy(keys, name, folder):
    """The keys of `name` without the word that says whose they are: only the router knows."""
    shutil.copytree(keys / name, folder)
    secret = folder / "secret"
    secret.write_text(secret.read_text().replace(f" {name}\n", "\n"))
    return folder


def list_changes(cluster, keys, request):
    cluster.router.on_line = None  # no supervisor: who is cut off lives on and says why
    allowed = keys / "router" / "allowed"
    whole = allowed.read_text()
    cluster.router.signal(signal.SIGHUP)
    wait_for("the list to be read", lambda: "event=keys_reloaded" in log_of(cluster.router))
    assert len(names(cluster)) == 2, "reading the same list again changes nothing"

    allowed.write_text(whole + "nonsense\n")
    cluster.router.signal(signal.SIGHUP)
    wait_for("the bad list to be refused", lambda: "event=keys_not_reloaded" in log_of(cluster.router))
    assert len(names(cluster)) == 2, "a bad list changes nothing"

    allowed.write_text("".join(line for line in whole.splitlines(True) if "prefill-0" not in line))
    cluster.router.signal(signal.SIGHUP)
    wait_for("prefill-0 to be cut off", lambda: names(cluster) == ["decode-0"])
    wait_for("prefill-0 to say why",
             lambda: "does not know this worker's key" in log_of(cluster.workers["prefill-0"]))

    allowed.write_text(whole)
    cluster.router.signal(signal.SIGHUP)
    wait_for("prefill-0 to be back", lambda: names(cluster) == ["decode-0", "prefill-0"])
    cluster.wait_ready()
    answer_of(cluster.port, request)
    cluster.workers["decode-0"].signal(signal.SIGHUP)
    wait_for("a worker to outlive SIGHUP", lambda: "event=hangup" in log_of(cluster.workers["decode-0"]))


def refused_at_start(suite, keys, scratch):
    """Exit status 2 and one line that names the flag."""
    lax = scratch / "lax"
    shutil.copytree(keys / "decode-0", lax)
    os.chmod(lax / "secret", 0o640)
    router = ["--mode", "router", "--port", "0"]
    worker = ["--mode", "decode", "--status-port", "none"]
    cases = [
        ("control without keys", [*router, "--control", "tcp://0.0.0.0:0"], "--control 0.0.0.0"),
        ("control on IPv6 without keys", [*router, "--control", "tcp://[::]:0"], "--control ::"),
        ("control by a name like loopback", [*router, "--control", "tcp://127.example:0"],
         "--control 127.example"),
        ("router elsewhere without keys", [*worker, "--router", "192.0.2.1:9"], "--router 192.0.2.1"),
        ("link without keys", [*worker, "--router", "127.0.0.1:9", "--link-host", "0.0.0.0"],
         "--link-host 0.0.0.0"),
        ("HTTP even with keys", [*router, "--host", "0.0.0.0", "--keys", str(keys)], "--host 0.0.0.0"),
        ("readable secret", [*worker, "--router", "127.0.0.1:9", "--keys", str(lax)], "chmod 600"),
        ("keys of another", [*worker, "--router", "127.0.0.1:9", "--name", "x", "--keys",
                             str(keys / "decode-0")], "are for decode-0"),
        ("a worker's keys for a router", [*router, "--keys", str(keys / "decode-0")], "allowed"),
        ("no such keys", [*router, "--keys", str(scratch / "none")], "forge keygen"),
        ("one process alone", ["--port", "0", "--keys", str(keys)], "--mode router"),
    ]
    for name, flags, want in cases:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FORGE_")}
        done = subprocess.run([suite.options.forge, "serve", "--model", suite.stories(), *flags],
                              capture_output=True, text=True, timeout=20, check=False,
                              env=environment)
        assert done.returncode == 2, f"{name}: ended with {done.returncode}: {done.stderr}"
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and want in lines[0], f"{name}: {done.stderr}"
    return f"{len(cases)} cases"


def beyond_loopback(suite, keys):
    """With keys the router may listen everywhere."""
    with tempfile.TemporaryDirectory(prefix="forge-keys-") as folder:
        router = Process("router", [suite.options.forge, "serve", "--model", suite.stories(), "--mode",
                                    "router", "--port", "0", "--control", "tcp://0.0.0.0:0", "--keys",
                                    str(keys)], folder)
        wait_for("it to listen", lambda: any("control=tcp://0.0.0.0:" in line for line in router.lines))
        router.signal(signal.SIGTERM)
        assert router.wait() == 0, router.log_tail()


def listening(process):
    """The addresses (IPv4, IPv6 as hexadecimal digits) that a process listens on, by what the kernel says."""
    own = set()
    for fd in os.listdir(f"/proc/{process.pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
        except FileNotFoundError:
            pass  # closed meanwhile
    found = []
    for family in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{process.pid}/net/{family}").read_text().splitlines()[1:]:
            field = line.split()
            if field[3] == "0A" and f"socket:[{field[9]}]" in own:
                found.append(field[1].split(":")[0])
    return found


def loopback_only(suite):
    """Whatever the flags call loopback, no process without keys listens anywhere else."""
    count = 0
    for host in ("127.0.0.1", "localhost"):
        flags = ["--link-host", host, "--kv-transport", "tcp", "--status-port", "0"]
        with suite.cluster(model=suite.stories(), flags=flags) as cluster:
            for process in cluster.processes():
                addresses = listening(process)
                assert addresses and set(addresses) == {"0100007F"}, \
                    f"{process.name} with {host} listens on {addresses}"
                count += len(addresses)
    return f"{count} sockets"


def main():
    suite = Suite(__doc__)
    requests = story_requests(suite.random, 8, tokens=(8, 32), words=(0, 60))
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="forge-keys-"))
    want = []

    def solo():
        with suite.cluster(model=suite.stories(), standalone=True) as cluster:
            for request in requests:
                request["model"] = served_model(cluster)
            want.extend(answer_of(cluster.port, request) for request in requests)

    def cluster_with_keys(keys, others):
        with suite.cluster(model=suite.stories(), flags=["--keys", keys]) as cluster:
            suite.case("answers are those of one process", answers, cluster, requests, want)
            request = requests[0]
            suite.case("unknown key", stranger, cluster, "odd", mixed, "unknown_key",
                       "event=key_refused", "does not know this worker's key", request)
            suite.case("another cluster's keys", stranger, cluster, "prefill-9",
                       others / "prefill-9", "handshake", "router's public key",
                       "the key of another router", request)
            suite.case("no keys", stranger, cluster, "bare", None, "handshake",
                       "a peer came without keys", "start this worker with --keys", request)
            suite.case("a key under another name", stranger, cluster, "decode-7",
                       unbound_copy(keys, "decode-0", scratch / "renamed"), "other_name",
                       "binds this key or this name otherwise", "waiting_for_router", request)
            suite.case("the list changes", list_changes, cluster, keys, request)

    try:
        suite.case("one process", solo)
        if want:
            keys = keygen(suite, scratch / "keys")
            others = keygen(suite, scratch / "others", "--name", "prefill-9", "--workers", "1")
            # Knows the router, but the router does not know it.
            mixed = scratch / "mixed"
            shutil.copytree(others / "worker-0", mixed)
            shutil.copy(keys / "prefill-0" / "router", mixed / "router")
            suite.case("cluster starts and ends well", cluster_with_keys, keys, others)
            suite.case("refused at start", refused_at_start, suite, keys, scratch)
            suite.case("loopback only without keys", loopback_only, suite)
            suite.case("beyond loopback with keys", beyond_loopback, suite, keys)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    suite.end()


if __name__ == "__main__":
    main()
