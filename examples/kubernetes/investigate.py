"""Find out what broke a deployment, in the terminal and on the page.

It starts an etcd of its own in a temporary folder, fills it with a small registry as the API server
of Kubernetes does (here as JSON, so that etcdctl can write it), breaks a deployment, and asks: what
changed, when, and what was it before? Nothing but etcd and snapkv is needed:

    pip install 'snapkv[ui]'
    python examples/kubernetes/investigate.py            # walk through it, and end
    python examples/kubernetes/investigate.py --keep     # leave the page open, until Ctrl-C

The programs `etcd` (3.5.8 or newer) and `etcdctl` must be on the PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

REGISTRY = "/registry/"
DEPLOYMENT = f"{REGISTRY}deployments/shop/web"
WAIT_S = 30.0


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def started(*words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program for a block."""
    process = subprocess.Popen(words, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def deployment(image: str, replicas: int, generation: int) -> dict[str, Any]:
    """Return a deployment as the API server stores it, in short."""
    return {
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "generation": generation},
        "spec": {
            "replicas": replicas,
            "template": {"spec": {"containers": [{"name": "web", "image": image}]}},
        },
    }


def pod(name: str, image: str, phase: str, reason: str = "") -> dict[str, Any]:
    """Return a pod with its status."""
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": image}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "web", "state": state}]},
    }


class Cluster:
    """The etcd, and what the programs of a cluster write into it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.store = endpoint, f"etcd://{endpoint}"

    def etcdctl(self, *words: str) -> None:
        """Write as another program does: snapkv takes no part in it."""
        command = ["etcdctl", f"--endpoints={self.endpoint}", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Write an object."""
        self.etcdctl("put", f"{REGISTRY}{key}", json.dumps(value))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.etcdctl("del", f"{REGISTRY}{key}")

    def fill(self) -> None:
        """Write a working deployment with its pods, and what surrounds it."""
        for name in ("default", "kube-system", "shop"):
            self.put(f"namespaces/{name}", {"kind": "Namespace", "metadata": {"name": name}})
        self.put("services/specs/shop/web", {"kind": "Service", "spec": {"ports": [{"port": 80}]}})
        self.put("configmaps/shop/web", {"kind": "ConfigMap", "data": {"LOG": "info"}})
        self.put("deployments/shop/web", deployment("nginx:1.27.2", 2, 1))
        for name in ("web-7d4b9-a1", "web-7d4b9-b2"):
            self.put(f"pods/shop/{name}", pod(name, "nginx:1.27.2", "Running"))

    def break_it(self) -> None:
        """Roll out an image that does not exist: the new pods never start."""
        self.put("configmaps/shop/web", {"kind": "ConfigMap", "data": {"LOG": "debug"}})
        self.put("deployments/shop/web", deployment("nginx:1.72.3", 2, 2))
        self.delete("pods/shop/web-7d4b9-b2")
        self.put("pods/shop/web-5f6c8-c3", pod("web-5f6c8-c3", "nginx:1.72.3", "Pending"))
        broken = pod("web-5f6c8-c3", "nginx:1.72.3", "Pending", "ImagePullBackOff")
        self.put("pods/shop/web-5f6c8-c3", broken)


def snapkv(cluster: Cluster, *words: str) -> str:
    """Run a command of snapkv; print it and what it answers."""
    shown = ["snapkv", *words, "--store", cluster.store]
    print(f"\n$ {shlex.join(shown)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", *shown], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    print(done.stdout + done.stderr, end="", flush=True)
    if done.returncode:
        sys.exit(f"it ended with {done.returncode}")
    return done.stdout


def newest_tick(cluster: Cluster) -> int:
    """Return the newest tick, 0 before the first one."""
    command = [sys.executable, "-m", "snapkv", "status", "--json", "--store", cluster.store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return int(json.loads(done.stdout)["newest"]["timestamp"]) if done.returncode == 0 else 0


def wait_for_tick(cluster: Cluster) -> int:
    """Wait until a tick has stamped everything that was written so far; return it."""
    before, deadline = newest_tick(cluster), time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if (found := newest_tick(cluster)) > before:
            return found
        time.sleep(0.05)
    sys.exit("no tick: does `snapkv tick` run?")


def ask(url: str) -> Any:
    """Return the plain data of a view of the page."""
    with urlopen(url, timeout=WAIT_S) as answer:  # of this machine
        return json.load(answer)["data"]


def investigate(cluster: Cluster, before: int, page: str) -> None:
    """Find out what happened since a moment when all was well."""
    observe = ("--observe", REGISTRY)
    print("\n1. What changed since all was well?")
    snapkv(cluster, "diff", str(before), *observe)
    print("\n2. What became of the deployment?")
    snapkv(cluster, "history", DEPLOYMENT, *observe)
    print("\n3. What was it before?")
    snapkv(cluster, "get", DEPLOYMENT, "--at", str(before), *observe)

    print(f"\n4. The same on the page: {page}changes?from={before}")
    for row in ask(f"{page}changes.json?from={before}")["rows"]:
        print(f"   {row['kind']} {row['key']}")
    versions = ask(f"{page}key.json?key={DEPLOYMENT}")["versions"]
    last = versions[0]
    print(f"   {page}key?key={DEPLOYMENT} has {len(versions)} versions")
    commit = ask(f"{page}commit.json?at=rev:{last['revision']}")
    (row,) = commit["rows"]
    images = [
        json.loads(row[side])["spec"]["template"]["spec"]["containers"][0]["image"]
        for side in ("before", "after")
    ]
    print(f"   {page}commit?at=rev:{last['revision']} changed {row['key']}:")
    print(f"   image {images[0]} -> {images[1]}: that tag does not exist")
    near = ask(f"{page}commits.json?at=rev:{last['revision']}&limit=2")["steps"]
    print(f"   the write before it: {near[1]['names'][0][1]}")


def main() -> None:
    """Walk through it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", action="store_true", help="leave the page open until Ctrl-C")
    keep = parser.parse_args().keep
    client, peer = free_port(), free_port()
    cluster = Cluster(f"127.0.0.1:{client}")
    python = (sys.executable, "-m", "snapkv")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as programs:
        urls = [f"http://127.0.0.1:{port}" for port in (client, peer)]
        programs.enter_context(
            started(
                *("etcd", "--data-dir", folder, "--initial-cluster", f"default={urls[1]}"),
                *("--listen-client-urls", urls[0], "--advertise-client-urls", urls[0]),
                *("--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1]),
                **quiet,
            )
        )
        cluster.etcdctl("--dial-timeout=20s", "--command-timeout=20s", "get", "x")
        print(f"etcd listens at {cluster.endpoint}; snapkv ticks beside it")
        tick = (*python, "tick", "--every", "200ms", "--store", cluster.store)
        programs.enter_context(started(*tick, **quiet))
        cluster.fill()
        before = wait_for_tick(cluster)
        cluster.break_it()
        wait_for_tick(cluster)
        ui = (*python, "ui", "--port", "0", "--store", cluster.store, "--observe", REGISTRY)
        page = programs.enter_context(started(*ui, stderr=subprocess.PIPE))
        assert page.stderr is not None
        url = page.stderr.readline().rpartition(" ")[2].strip()
        investigate(cluster, before, url)
        if keep:
            print(f"\nOpen {url}changes?from={before} in a browser; Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                page.wait()


if __name__ == "__main__":
    main()
