#!/usr/bin/env python3
"""deploy/monitoring with a real Prometheus: it collects from a cluster with API keys as its sample configuration says, every
expression of the dashboard has an answer there, and every alert goes off when, and only when, its time has come."""
# needs: pyyaml
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import urllib.parse

import yaml
from _forge import ROOT, Skip, Suite, get, plain_environment, post, status_port, wait_for

FOLDER = ROOT / "deploy/monitoring"
WINDOW = "10s"  # for $__rate_interval, which Grafana makes from the time between two looks


def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))


def targets():
    """(panel, expression) of the whole dashboard."""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", [])]


def alerts():
    return [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
            for rule in group["rules"]]


def well_laid_out():
    """Every panel has a number and a place of its own, a unit, and words that say what it is."""
    seen, cells = set(), set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert panel["id"] not in seen and not mine & cells and place["x"] + place["w"] <= 24, panel["title"]
        seen.add(panel["id"])
        cells |= mine
        if panel["type"] != "row":
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"] and panel["targets"], panel["title"]
            assert all(t["legendFormat"] and t["datasource"]["uid"] == "${datasource}" for t in panel["targets"])
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["action"], rule
    return f"{len(seen)} panels, {len(alerts())} alerts"


# --- a real Prometheus ---------------------------------------------------------------------------

def tool(name):
    """This machine's, or Debian's from a package that is unpacked and not installed: installed it would run for ever."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache", "forge", "prometheus")
    found = shutil.which(name) or shutil.which(name, path=cache / "usr/bin")
    if found:
        return found
    cache.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=cache.parent) as folder:
            os.chmod(folder, 0o755)  # apt fetches as somebody else
            subprocess.run(["apt-get", "-o", "APT::Sandbox::User=root", "download", "prometheus"], cwd=folder, check=True,
                           capture_output=True, timeout=300)
            package, = pathlib.Path(folder).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", package, f"{folder}/new"], check=True, capture_output=True)
            os.rename(f"{folder}/new", cache)
    except (OSError, subprocess.SubprocessError, ValueError) as why:
        raise Skip(f"no {name} here, and none from Debian: {why}") from None
    return str(cache / "usr/bin" / name)


def free_port():
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return door.getsockname()[1]


class Prometheus:
    """With the sample configuration, but for addresses, paths and a shorter time between two looks."""

    def __init__(self, folder, ports, key):
        config = yaml.safe_load((FOLDER / "prometheus.yaml").read_text(encoding="utf-8"))
        job, = config["scrape_configs"]
        (folder / "key").write_text(key, encoding="utf-8")
        job["authorization"]["credentials_file"] = str(folder / "key")
        assert len(job["static_configs"]) == len(ports), "a target for each role"
        for entry, port in zip(job["static_configs"], ports):
            entry["targets"] = [f"127.0.0.1:{port}"]
        config["global"]["scrape_interval"] = "500ms"
        config["rule_files"] = [str(FOLDER / "alerts.yaml")]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self.port = free_port()
        self.log = open(folder / "log", "w", encoding="utf-8")
        self.child = subprocess.Popen([tool("prometheus"), f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                                       f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def ask(self, path, **words):
        status, text = get(self.port, f"/api/v1/{path}?{urllib.parse.urlencode(words)}")
        return json.loads(text)["data"] if status == 200 else {"refused": f"{status} {text.decode()}"}

    def close(self):
        self.child.terminate()
        self.child.wait()
        self.log.close()


def collected(prometheus):
    def all_up():
        found = prometheus.ask("targets", state="active").get("activeTargets", [])
        return [t for t in found if t["health"] == "up"] if len(found) == 3 else []
    wait_for("three targets that are up", lambda: len(all_up()) == 3, 60)
    labels = {t["labels"]["role"] for t in all_up()}
    assert labels == {"router", "prefill", "decode"}, labels


def expressions(prometheus):
    """Something stands in every panel, and no expression is one that Prometheus does not take."""
    missing = {}

    def all_there():
        missing.clear()
        for panel, expr in targets():
            answer = prometheus.ask("query", query=expr.replace("$__rate_interval", WINDOW))
            assert "refused" not in answer, (panel, expr, answer)
            if not answer["result"]:
                missing[panel, expr] = answer
        return not missing
    try:
        wait_for("an answer to every expression", all_there, 30)
    except AssertionError:
        raise AssertionError(f"nothing for {sorted(missing)}") from None
    return f"{len(targets())} expressions"


def nothing_goes_off(prometheus):
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in alerts()}
    bad = [(rule["name"], rule["health"], rule.get("lastError")) for rule in rules
           if rule["health"] == "err" or any(a["state"] == "firing" for a in rule["alerts"])]
    assert not bad, bad


def keep_busy(port, key, over):
    body = {"prompt": "Once upon a time there was a dog, a dog, a dog, a", "max_tokens": 60, "temperature": 0}
    while not over.is_set():
        post(port, "/v1/completions", body, headers={"Authorization": f"Bearer {key}"})


def live(suite):
    tool("prometheus")
    with tempfile.TemporaryDirectory(prefix="forge-monitoring-") as name:
        folder = pathlib.Path(name)
        keys = [subprocess.run([suite.options.forge, "keygen", "--api", f"{folder}/keys", "--name", who, "--scopes", scope],
                               capture_output=True, text=True, check=True, env=plain_environment()).stdout.strip()
                for who, scope in (("team", "infer"), ("prometheus", "metrics"))]
        with suite.cluster(model=suite.stories(), prefill=1, decode=1,
                           flags=["--api-key-file", folder / "keys", "--status-port", "0"]) as cluster:
            prometheus = Prometheus(folder, [cluster.port, *map(status_port, cluster.workers.values())], keys[1])
            over = threading.Event()
            busy = threading.Thread(target=keep_busy, args=(cluster.port, keys[0], over))
            busy.start()
            try:
                suite.case("a cluster with keys is collected", collected, prometheus)
                suite.case("every expression of the dashboard has an answer", expressions, prometheus)
                suite.case("a cluster that is well alarms nobody", nothing_goes_off, prometheus)
            finally:
                over.set()
                busy.join()
                prometheus.close()


# --- alerts --------------------------------------------------------------------------------------

def series(name, values, **labels):
    inside = ",".join(f'{k}="{v}"' for k, v in {"job": "forge", "instance": "a:1", **labels}.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


CHAT = {"route": "/v1/chat/completions"}
# What sets each alert off, by when, and what is next to it and does not.
TIMES = {
    "ForgeProcessGone": ("3m", [series("up", "0x60")], [series("up", "1 0 1x60")]),
    "ForgeRoleMissing": ("3m", [series("forge:workers", "0x60", role="decode")],
                         [series("forge:workers", "1x60", role="decode")]),
    "ForgeWorkersDie": ("9m", [series("forge:workers_lost_total", "0 0 1 2 3 4x60")],
                        [series("forge:workers_lost_total", "0x4 1x60")]),
    "ForgeBlocksLeaked": ("2m", [series("forge:kv_leaked_blocks", "0 0 3x60")], [series("forge:kv_leaked_blocks", "0x60")]),
    "ForgeEngineBroken": ("4m", [series("forge:engine_broken_total", "0 0 1x60")],
                          [series("forge:engine_broken_total", "1x60")]),
    "ForgeBlocksDamaged": ("4m", [series("forge:kv_damaged_blocks_total", "0 0 1x60")],
                           [series("forge:kv_damaged_blocks_total", "7x60")]),
    "ForgeRefuses": ("20m", [series("forge:requests_refused_total", "0+60x60", reason="queue_full"),
                             series("forge:http_requests_total", "0+600x60", code="200", **CHAT)],
                     [series("forge:requests_refused_total", "0+20x60", reason="queue_full"),
                      series("forge:http_requests_total", "0+600x60", code="200", **CHAT)]),
    "ForgeErrors": ("20m", [series("forge:http_requests_total", "0+600x60", code="200", **CHAT),
                            series("forge:http_requests_total", "0+12x60", code="500", **CHAT)],
                    [series("forge:http_requests_total", "0+600x60", code="200", **CHAT),
                     series("forge:http_requests_total", "0+3x60", code="503", **CHAT)]),
    "ForgeFirstTokenSlow": ("30m", [series("forge:time_to_first_token_seconds_bucket", "0+90x60", le="5"),
                                    series("forge:time_to_first_token_seconds_bucket", "0+100x60", le="10"),
                                    series("forge:time_to_first_token_seconds_bucket", "0+100x60", le="+Inf")],
                            [series("forge:time_to_first_token_seconds_bucket", "0+96x60", le="5"),
                             series("forge:time_to_first_token_seconds_bucket", "0+100x60", le="10"),
                             series("forge:time_to_first_token_seconds_bucket", "0+100x60", le="+Inf")]),
    "ForgeStrangers": ("20m", [series("forge:http_requests_total", "0+90x60", code="401", route="other")],
                       [series("forge:http_requests_total", "0+30x60", code="401", route="other")]),
}


def alerts_in_time():
    """promtool plays the time: each alert with what sets it off, and with what is just not enough."""
    assert set(TIMES) == {rule["alert"] for rule in alerts()}
    tests = []
    for rule in alerts():
        when, enough, too_little = TIMES[rule["alert"]]
        labels = {"severity": rule["labels"]["severity"]}
        for given, goes_off in ((enough, True), (too_little, False)):
            inside = re.search(r'role="(\w+)"', given[0]["series"])
            own = {"instance": "a:1", **({"role": inside[1]} if inside else {}),
                   **({} if "sum by" in rule["expr"] else {"job": "forge"})}
            tests.append({"interval": "1m", "input_series": given, "alert_rule_test": [
                {"eval_time": when, "alertname": rule["alert"], "exp_alerts": [{"exp_labels": {**labels, **own}}] if goes_off else []}]})
    bare = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    for group in bare["groups"]:
        for rule in group["rules"]:
            rule.pop("annotations")  # their words are not what is tried here
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("rules", bare), ("tests", {"rule_files": [f"{folder}/rules"], "tests": tests})):
            pathlib.Path(folder, name).write_text(yaml.safe_dump(content), encoding="utf-8")
        done = subprocess.run([tool("promtool"), "test", "rules", f"{folder}/tests"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return f"{len(tests)} times"


def main():
    suite = Suite(__doc__)
    suite.case("the dashboard and the alerts are whole", well_laid_out)
    suite.case("alerts go off when their time has come", alerts_in_time)
    suite.case("all end well", live, suite)
    suite.end()


if __name__ == "__main__":
    main()
