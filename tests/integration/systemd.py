#!/usr/bin/env python3
"""The units of deploy/systemd: what systemd says of them, and a cluster that is started by nothing but their
environment. No systemd runs here."""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile

from _forge import ROOT, Process, Skip, Suite, get, post, wait_for

FOLDER = ROOT / "deploy/systemd"
UNIT = FOLDER / "forge@.service"
NAMES = ("router", "prefill-0", "decode-0")
EXPOSED_MOST = 25  # of 100, as systemd counts


def values(text):
    """KEY=VALUE lines, without comments."""
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


def unit(name):
    """The lines of the unit for one process: (key, value), in order."""
    return [tuple(line.replace("%i", name).split("=", 1)) for line in UNIT.read_text(encoding="utf-8").splitlines()
            if "=" in line and not line.startswith("#")]


def settings(name):
    return dict(unit(name))


def systemd_likes_it(suite):
    if not shutil.which("systemd-analyze"):
        raise Skip("no systemd-analyze here: apt-get install systemd")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "forge@.service")
        text = UNIT.read_text(encoding="utf-8").replace("/usr/local/bin/forge", os.path.realpath(suite.options.forge))
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "--man=no", "verify", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "forge@" not in done.stderr, done.stderr
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSED_MOST}", "--no-pager", path],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-300:] + done.stderr
        path.write_text(text.replace("Restart=always", "Restart=allways").replace("[Service]", "[Service]\nType=exce"),
                        encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "--man=no", "verify", path], capture_output=True, text=True, check=False)
        assert "allways" in done.stderr, "it says nothing of a unit that is wrong"


def times_fit(suite):
    """Nobody is killed while it finishes its requests, nor tried again when a flag is wrong."""
    drain = int(values((FOLDER / "common.env").read_text(encoding="utf-8"))["FORGE_DRAIN_SECONDS"])
    assert int(settings("router")["TimeoutStopSec"]) >= drain + 10
    bad = settings("router")["RestartPreventExitStatus"]
    for flags in (["--model", "/nowhere"], ["--modell"], ["--model", suite.stories(), "--host", "0.0.0.0"]):
        done = subprocess.run([suite.options.forge, "serve", *flags], capture_output=True, check=False)
        assert done.returncode == int(bad), (flags, done)


def environment(suite, name, folder, ports):
    """What the unit of that name gives its process."""
    given = {}
    for key, value in unit(name):
        if key == "Environment":
            given.update(values(value))
        elif key == "EnvironmentFile":
            given.update(values((FOLDER / os.path.basename(value)).read_text(encoding="utf-8")))
    for variable, value in given.items():
        given[variable] = re.sub(r"\b80[89]\d\b", lambda m: str(ports[m[0]]), value)
    given.update(FORGE_MODEL=suite.stories(), FORGE_WEIGHTS_CACHE=f"{folder}/cache", FORGE_FLIGHT_DIR=folder)
    return given


def free_ports(numbers):
    doors = [socket.socket() for _ in numbers]
    for door in doors:
        door.bind(("127.0.0.1", 0))
    found = {number: door.getsockname()[1] for number, door in zip(numbers, doors)}
    for door in doors:
        door.close()
    return found


def cluster_of_units(suite):
    ports = free_ports(["8080", "8081", "8082", "8090"])
    with tempfile.TemporaryDirectory() as folder:
        command = settings("router")["ExecStart"].split()
        assert command == ["/usr/local/bin/forge", "serve"], command
        os.mkdir(f"{folder}/cache")
        processes = {name: Process(name, [suite.options.forge, "serve"], folder,
                                   environment=environment(suite, name, folder, ports)) for name in NAMES}
        try:
            wait_for("a cluster", lambda: get(ports["8080"], "/health")[0] == 200, 60)
            answer = post(ports["8080"], "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8})
            assert answer["usage"]["completion_tokens"] == 8, answer
            for port in ("8081", "8082"):
                assert get(ports[port], "/health")[0] == 200, port
        finally:
            for process in processes.values():
                process.signal(signal.SIGTERM)
        for name, process in processes.items():
            assert process.wait() == 0, name
            assert "unknown_environment" not in process.log_tail(1000), process.log_tail(1000)


def main():
    suite = Suite(__doc__)
    suite.case("systemd has nothing to say against the unit", systemd_likes_it, suite)
    suite.case("times and exit statuses fit", times_fit, suite)
    suite.case("a cluster of their environment", cluster_of_units, suite)
    suite.end()


if __name__ == "__main__":
    main()
