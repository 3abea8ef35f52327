#!/usr/bin/env python3
"""The manifests of deploy/kubernetes: what their schema says, what every pod must have, and a life of the cluster
that they describe. No Kubernetes runs here: each pod is a process in a network and a read-only root of its own, as a
user that is not root, with the volumes, Secrets, probes and ends of life of its manifest."""
# needs: kubernetes-validate pyyaml
import base64
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import http.client

import kubernetes_validate
import yaml
from _forge import ROOT, Skip, Suite, answer_of, served_model, wait_for

FOLDER = ROOT / "deploy/kubernetes"
VERSION = "1.34"
USER = 65532
MIB = {"Mi": 1, "Gi": 1024}
PART = "app.kubernetes.io/part-of"
ASKED = [{"prompt": [1, 403, 407, 261 + i], "max_tokens": 24, "temperature": 0, "ignore_eos": True} for i in range(6)]


def documents(text):
    return [document for document in yaml.safe_load_all(text) if document]


def manifests():
    files = documents((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))[0]["resources"]
    assert sorted(files) == sorted(f.name for f in FOLDER.glob("*.yaml") if f.name != "kustomization.yaml"), files
    return [d for name in files for d in documents((FOLDER / name).read_text(encoding="utf-8"))]


def make_secrets(suite):
    made = subprocess.run([FOLDER / "make-keys"], capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "FORGE_BIN": suite.options.forge})
    assert made.returncode == 0, made.stderr
    return documents(made.stdout), made.stderr.split()[-1]


def workloads(all_documents):
    return {d["metadata"]["name"]: d for d in all_documents if d["kind"] in ("Deployment", "StatefulSet")}


# --- what they say -------------------------------------------------------------------------------

def schema(all_documents):
    for document in all_documents:
        kubernetes_validate.validate(document, VERSION, strict=True)
    broken = json.loads(json.dumps(all_documents[-1]))
    broken["specs"] = broken.pop("spec", None)
    try:
        kubernetes_validate.validate(broken, VERSION, strict=True)
    except kubernetes_validate.ValidationError:
        return f"{len(all_documents)} objects of {VERSION}"
    raise AssertionError("the check lets everything pass")


def selects(selector, labels):
    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items())


def check_pod(name, workload, all_documents, secret_names):
    """What is asked of every pod, by name of what is missing."""
    pod = workload["spec"]["template"]
    spec, labels = pod["spec"], pod["metadata"]["labels"]
    container, = spec["containers"]
    assert selects(workload["spec"]["selector"], labels), name
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert path == ("/health" if probe == "readinessProbe" else "/live"), (name, probe)
    drain = int(option(container, "--drain-seconds"))
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 1 and spec["terminationGracePeriodSeconds"] >= pause + drain + 10, name
    assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"], name
    restricted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == restricted, name
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, name
    budgets = [d for d in all_documents if d["kind"] == "PodDisruptionBudget" and selects(d["spec"]["selector"], labels)]
    assert len(budgets) == 1 and budgets[0]["spec"]["maxUnavailable"] == 1, name
    policies = [d for d in all_documents if d["kind"] == "NetworkPolicy" and selects(d["spec"]["podSelector"], labels)]
    deny = [d for d in policies if not d["spec"].get("ingress") and not d["spec"].get("egress")]
    assert len(deny) == 1 and len(policies) == 2, name
    opened = {port["port"] for d in policies for rule in d["spec"].get("ingress", []) for port in rule.get("ports", [])}
    assert opened == {port["name"] for port in container["ports"]}, (name, opened)
    for volume in spec["volumes"]:
        assert "secret" not in volume or volume["secret"]["secretName"] in secret_names, volume
        assert volume["name"] in {mount["name"] for mount in container["volumeMounts"]}, volume
    flags = " ".join(container["args"])
    assert "insecure" not in flags and "--keys=" in flags and "--api-key-file=" in flags, name


def rules(all_documents, secrets):
    names = {d["metadata"]["name"] for d in secrets}
    found = workloads(all_documents)
    assert set(found) == {"forge-router", "forge-prefill", "forge-decode"}
    for name, workload in found.items():
        check_pod(name, workload, all_documents, names)
    for service in (d for d in all_documents if d["kind"] == "Service"):
        chosen = [w for w in found.values()
                  if selects({"matchLabels": service["spec"]["selector"]}, w["spec"]["template"]["metadata"]["labels"])]
        assert chosen, service
        for workload, port in itertools.product(chosen, service["spec"]["ports"]):
            ports = {p["name"] for p in workload["spec"]["template"]["spec"]["containers"][0]["ports"]}
            assert port["targetPort"] in ports, service
    assert all(d["metadata"]["labels"][PART] == "forge" for d in all_documents)
    return f"{len(found)} kinds of pods"


def image(suite):
    """The packages of the image's last stage hold every library that the program needs."""
    said = subprocess.run(["bash", "-c", '. "$0" && printf "%s\\n" "${FORGE_RUN_PACKAGES[@]}"', str(ROOT / "deploy/lib.sh")],
                          capture_output=True, text=True, check=True).stdout.split()
    needed = subprocess.run(["readelf", "-d", suite.options.forge], capture_output=True, text=True, check=True).stdout
    libraries = [line.split("[")[1].split("]")[0] for line in needed.splitlines() if "(NEEDED)" in line]
    owners = set()
    for library in libraries:
        path, = {os.path.realpath(word) for word in subprocess.run(
            ["ldd", suite.options.forge], capture_output=True, text=True, check=True).stdout.split()
            if word.startswith("/") and os.path.basename(word) == library}
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False).stdout
        if not found:  # with /usr merged into the root
            found = subprocess.run(["dpkg", "-S", path.removeprefix("/usr")], capture_output=True, text=True,
                                   check=True).stdout
        owners.add(found.split(":")[0])
    missing = owners - set(said) - {"libc6"}
    assert not missing, f"FORGE_RUN_PACKAGES lacks {missing}"
    text = (ROOT / "deploy/Containerfile").read_text(encoding="utf-8")
    assert "FORGE_RUN_PACKAGES" in text and "USER 65532:65532" in text and 'ENTRYPOINT ["/usr/local/bin/forge"]' in text
    return f"{len(libraries)} libraries of {len(owners)} packages"


def option(container, name):
    found, = [arg.split("=", 1)[1] for arg in container["args"] if arg.startswith(name + "=")]
    return found


# --- what becomes of them ------------------------------------------------------------------------

def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)


class Network:
    """A bridge; each pod has an address of it, and no other way to anybody."""

    def __init__(self):
        self.name = f"fg{os.getpid() % 100000}"
        self.subnet = f"10.213.{os.getpid() % 250 + 1}"
        self.next, self.links = 2, {}
        try:
            run("ip", "link", "add", self.name, "type", "bridge")
        except (AssertionError, FileNotFoundError) as why:
            raise Skip(f"no networks of their own can be made here: {why}") from None
        # Left to itself a bridge has the least address of those on it, and another one when a pod comes or goes.
        run("ip", "link", "set", self.name, "address", "02:00:00:00:00:01")
        run("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self.name)
        run("ip", "link", "set", self.name, "up")

    def join(self, namespace):
        address, link = f"{self.subnet}.{self.next}", f"{self.name}v{self.next}"
        self.next += 1
        run("ip", "netns", "add", namespace)
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run("ip", "link", "set", link, "master", self.name, "up")
        self.links[namespace] = link
        run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", device, "up")
        return address

    def cut(self, namespace):
        """No byte comes or goes any more, and nobody is told."""
        run("ip", "link", "set", self.links[namespace], "nomaster", "down")

    def close(self):
        subprocess.run(["ip", "link", "del", self.name], capture_output=True, check=False)


ENTER = r"""
set -eu
r=$1 && shift
mount -t tmpfs -o mode=755 tmpfs "$r"
mkdir "$r"/{usr,proc,sys,dev,etc}
for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$r/$dir"; done
for dir in usr proc sys; do mount --rbind "/$dir" "$r/$dir"; done
for file in null zero urandom; do touch "$r/dev/$file" && mount --bind "/dev/$file" "$r/dev/$file"; done
mkdir "$r/dev/shm" && mount -t tmpfs -o size=64m,mode=1777 tmpfs "$r/dev/shm"
touch "$r/etc/hosts" "$r/etc/ld.so.cache" "$r/forge"
mount --bind "$1" "$r/etc/hosts" && mount --bind /etc/ld.so.cache "$r/etc/ld.so.cache" && shift
mount --bind "$1" "$r/forge" && shift
while [ "$1" != -- ]; do
    mkdir -p "$r$2"
    case $1 in
    tmpfs:*) mount -t tmpfs -o "size=${1#tmpfs:},mode=3777,gid=65532" tmpfs "$r$2" ;;
    *) mount --bind "$1" "$r$2" && mount -o remount,bind,ro "$r$2" ;;
    esac
    shift 2
done
shift
mount -o remount,ro "$r"
exec env -i PATH=/usr/sbin:/usr/bin HOME=/ chroot --userspec=65532:65532 --groups=65532 "$r" "$@"
"""


class Pod:
    """One pod of a workload, from its first process to its last."""

    def __init__(self, cluster, name, spec):
        self.cluster, self.name, self.spec = cluster, name, spec
        self.container = spec["containers"][0]
        self.log = open(cluster.folder / f"{name}.log", "a", encoding="utf-8")
        self.child = None
        self.start()

    def start(self):
        """A new process, and with it a new address: a pod that was deleted comes back as another one."""
        self.namespace = f"{self.cluster.network.name}-{self.cluster.network.next}"
        self.address = self.cluster.network.join(self.namespace)
        self.cluster.tell_addresses(self)
        known = {"POD_NAME": self.name, "POD_IP": self.address}
        assert {e["name"] for e in self.container.get("env", [])} <= set(known)
        words = [self.expand(arg, known) for arg in self.container["args"]]
        root = self.cluster.folder / f"root-{self.namespace}"
        root.mkdir()
        command = ["ip", "netns", "exec", self.namespace, "unshare", "--mount", "--propagation", "private", "bash", "-c",
                   ENTER, "pod", root, self.cluster.hosts, self.cluster.forge, *self.volumes(), "--", "/forge", *words]
        self.child = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=self.log,
                                      start_new_session=True)

    @staticmethod
    def expand(text, known):
        for name, value in known.items():
            text = text.replace(f"$({name})", value)
        assert "$(" not in text, text
        return text

    def volumes(self):
        sources = {volume["name"]: volume for volume in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            volume = sources[mount["name"]]
            if "emptyDir" in volume:
                size = volume["emptyDir"]["sizeLimit"]
                yield f"tmpfs:{int(size[:-2]) * MIB[size[-2:]]}m"
            else:
                assert mount["readOnly"]
                yield self.cluster.volume(volume)
            yield mount["mountPath"]

    def probe(self, kind):
        http_get = self.container[kind]["httpGet"]
        port, = [p["containerPort"] for p in self.container["ports"] if p["name"] == http_get["port"]]
        try:
            connection = http.client.HTTPConnection(self.address, port, timeout=5)
            connection.request("GET", http_get["path"])
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def wait_for(self, kind):
        def there():
            assert self.child.poll() is None, f"{self.name} ended with {self.child.returncode}:\n{self.log_tail()}"
            return self.probe(kind)
        wait_for(f"{kind} of {self.name}", there, 60)

    def log_tail(self):
        return "".join(open(self.log.name, encoding="utf-8").readlines()[-12:])

    def leave(self):
        run("ip", "netns", "del", self.namespace)

    def delete(self):
        """preStop, SIGTERM, and a time in which it must be gone."""
        pause = self.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        time.sleep(pause)
        self.child.send_signal(signal.SIGTERM)
        status = self.child.wait(self.spec["terminationGracePeriodSeconds"] - pause)
        assert status == 0, f"{self.name} ended with {status}:\n{self.log_tail()}"
        self.leave()

    def crash(self):
        self.child.kill()
        self.child.wait()
        self.leave()

    def end(self):
        if self.child is not None and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        self.log.close()
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)


class Cluster:
    """What a control plane would make of the manifests."""

    def __init__(self, suite, all_documents, secrets, folder):
        self.folder, self.forge = folder, os.path.realpath(suite.options.forge)
        self.network, self.pods, self.addresses = Network(), {}, {}
        self.documents = all_documents
        self.hosts = folder / "hosts"
        self.hosts.write_text("", encoding="utf-8")
        self.models = folder / "models"
        self.models.mkdir()
        shutil.copy(suite.stories(), self.models / "model.gguf")
        folder.chmod(0o755)
        for secret in secrets:
            self.mount_secret(secret)

    def mount_secret(self, secret):
        """As kubelet mounts it for a pod with an fsGroup: root's, readable by the group, behind links."""
        place = self.folder / secret["metadata"]["name"]
        data = place / "..2026"
        data.mkdir(parents=True)
        for name, value in secret["data"].items():
            (data / name).write_bytes(base64.b64decode(value))
            (data / name).chmod(0o440)
            os.chown(data / name, 0, USER)
            os.symlink(f"..data/{name}", place / name)
        os.symlink("..2026", place / "..data")
        os.chown(place, 0, USER)
        place.chmod(0o3777)
        data.chmod(0o755)

    def volume(self, volume):
        if "persistentVolumeClaim" in volume:
            return self.models
        return self.folder / volume["secret"]["secretName"]

    def tell_addresses(self, pod):
        """What the cluster's DNS would say of Services without an address of their own."""
        self.addresses[pod.name] = pod.address
        lines = []
        for service in (d for d in self.documents if d["kind"] == "Service" and d["spec"].get("clusterIP") == "None"):
            for name, workload in workloads(self.documents).items():
                labels = workload["spec"]["template"]["metadata"]["labels"]
                if selects({"matchLabels": service["spec"]["selector"]}, labels):
                    lines += [f"{address} {service['metadata']['name']}\n" for other, address in self.addresses.items()
                              if other.startswith(name)]
        self.hosts.write_text("".join(lines), encoding="utf-8")

    def add(self, name):
        workload = workloads(self.documents)[name]
        names = [f"{name}-{i}" for i in range(workload["spec"]["replicas"])]
        for pod in names:
            self.pods[pod] = Pod(self, pod, workload["spec"]["template"]["spec"])
        return [self.pods[pod] for pod in names]

    @property
    def router(self):
        return self.pods["forge-router-0"]

    def ask(self, body, key):
        """Through the load balancer: to a router that is ready."""
        connection = http.client.HTTPConnection(self.router.address, 8080, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({**body, "return_token_ids": True}),
                           {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def close(self):
        for pod in self.pods.values():
            pod.end()
        self.network.close()


def want_of(suite):
    with suite.cluster(model=suite.stories(), standalone=True, flags=["--kv-dtype", "f16"]) as alone:
        model = served_model(alone)
        return [answer_of(alone.port, {**body, "model": model})["ids"] for body in ASKED]


class Load:
    """Somebody asks all the time; every answer must be the right one."""

    def __init__(self, cluster, want, key):
        self.cluster, self.want, self.key = cluster, want, key
        self.count, self.wrong, self.over = 0, [], False
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(3)]
        for thread in self.threads:
            thread.start()

    def work(self, first):
        for index in itertools.count(first):
            if self.over or self.wrong:
                return
            body, want = ASKED[index % len(ASKED)], self.want[index % len(ASKED)]
            try:
                status, answer = self.cluster.ask(body, self.key)
                fine = status == 200 and answer["choices"][0]["token_ids"] == want
            except (OSError, http.client.HTTPException, ValueError, KeyError) as why:
                fine, answer = False, why
            self.count += fine
            if not fine:
                self.wrong.append(answer)

    def end(self):
        self.over = True
        for thread in self.threads:
            thread.join()
        assert not self.wrong, self.wrong[0]
        return self.count


def begins(cluster, want, key):
    """The router lives and is not ready until a worker of each kind has joined; strangers get nothing."""
    router, = cluster.add("forge-router")
    router.wait_for("startupProbe")
    assert not router.probe("readinessProbe"), "ready without workers"
    prefill = cluster.add("forge-prefill")
    for pod in prefill:
        pod.wait_for("readinessProbe")
    assert not router.probe("readinessProbe"), "ready without decode workers"
    for pod in cluster.add("forge-decode"):
        pod.wait_for("readinessProbe")
    router.wait_for("readinessProbe")
    assert cluster.ask(ASKED[0], "wrong")[0] == 401
    for body, ids in zip(ASKED, want):
        status, answer = cluster.ask(body, key)
        assert status == 200 and answer["choices"][0]["token_ids"] == ids, answer
    return f"{len(cluster.pods)} pods"


def rolls(cluster, want, key, role):
    """One pod after the other is deleted and made anew, as a StatefulSet does it, while requests come."""
    load = Load(cluster, want, key)
    try:
        for pod in [p for n, p in sorted(cluster.pods.items(), reverse=True) if n.startswith(f"forge-{role}")]:
            pod.delete()
            pod.start()
            pod.wait_for("startupProbe")
            pod.wait_for("readinessProbe")
            seen = load.count
            wait_for("answers", lambda s=seen: load.count >= s + 6 or load.wrong)
    finally:
        count = load.end()
    return f"{count} answers, none lost"


def crashes(cluster, want, key):
    """A worker that dies takes no answer with it, and comes back under its name."""
    load = Load(cluster, want, key)
    try:
        wait_for("answers", lambda: load.count >= 3 or load.wrong)
        pod = cluster.pods["forge-decode-0"]
        pod.crash()
        pod.start()
        pod.wait_for("readinessProbe")
        seen = load.count
        wait_for("answers", lambda: load.count >= seen + 6 or load.wrong)
    finally:
        count = load.end()
    return f"{count} answers, none lost"


def vanishes(cluster, want, key, role):
    """A node is gone from one moment to the next: nobody says so, connections stay open and silent. Another pod takes
    its place meanwhile, under the same name."""
    load = Load(cluster, want, key)
    try:
        wait_for("answers", lambda: load.count >= 3 or load.wrong)
        pod = cluster.pods[f"forge-{role}-1"]
        cluster.network.cut(pod.namespace)
        began = time.monotonic()
        lost, namespace = pod.child, pod.namespace
        pod.start()
        pod.wait_for("readinessProbe")
        seen = load.count
        wait_for("answers", lambda: load.count >= seen + 60 or load.wrong, 60)
        took = time.monotonic() - began
        lost.kill()
        lost.wait()
        run("ip", "netns", "del", namespace)
    finally:
        count = load.end()
    return f"{count} answers, none lost; {took:.1f} s until all was as before"


def router_moves(cluster, want, key):
    """The router is made anew elsewhere: workers find it by the name of its Service."""
    router = cluster.router
    router.delete()
    router.start()
    router.wait_for("startupProbe")
    router.wait_for("readinessProbe")
    status, answer = cluster.ask(ASKED[1], key)
    assert status == 200 and answer["choices"][0]["token_ids"] == want[1], answer


def life(suite, all_documents, secrets, key):
    if os.geteuid() != 0:
        raise Skip("only root can make networks and roots for the pods")
    with tempfile.TemporaryDirectory(prefix="forge-pods-") as folder:
        cluster = Cluster(suite, all_documents, secrets, pathlib.Path(folder))
        try:
            want = want_of(suite)
            suite.case("the cluster begins", begins, cluster, want, key)
            for role in ("prefill", "decode"):
                suite.case(f"{role} is restarted, pod by pod", rolls, cluster, want, key, role)
            suite.case("a decode worker crashes", crashes, cluster, want, key)
            for role in ("prefill", "decode"):
                suite.case(f"a {role} worker's node is cut off", vanishes, cluster, want, key, role)
            suite.case("the router moves", router_moves, cluster, want, key)
            for pod in cluster.pods.values():
                pod.delete()
        finally:
            cluster.close()


def main():
    suite = Suite(__doc__)
    made = {}

    def secrets():
        made["secrets"], made["key"] = make_secrets(suite)
    suite.case("keys are made", secrets)
    everything = manifests()
    suite.case("schema", schema, everything + made["secrets"])
    suite.case("every pod has what it needs", rules, everything, made["secrets"])
    suite.case("the image has every library", image, suite)
    suite.case("all end well", life, suite, everything, made["secrets"], made["key"])
    suite.end()


if __name__ == "__main__":
    main()
