"""What do a day of an idle cluster and a look back at a larger one cost?

The objects are an API server's own bytes: `tools/kubernetes/build build/kubernetes` comes first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import b64decode
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import snapkv
from benchmarks.harness import RESULTS, machine, quantile, seeded, show
from benchmarks.servers import Bare, etcd_server
from tools.kubernetes.cluster import Cluster, running

NODES, PODS = 3, 5_000
DAY_S = 86_400
CHANGED = 50
"""The pods that change between the two times that a difference is made of."""
ROUNDS = 15
WINDOW = 256
"""The most puts that wait for their answer."""
FLUSH_BYTES = 64 << 10
"""An archive gets files after so many bytes: about a minute of the day, as `flush` says."""
BORN = 1_700_000_000
RENEWED = "2023-11-14T22:13:20.500000Z"
"""The time of `BORN` and half a second: five bytes of protobuf for each of its two numbers."""
Write = tuple[bytes, bytes]


def main() -> None:
    """Answer both questions, and write what came out."""
    with tempfile.TemporaryDirectory() as folder:
        with running(Path(folder) / "cluster") as cluster:
            stored = _objects(cluster)
        disk = [_day(stored, ()), _day(stored, HEARTBEATS)]
        difference = _difference(stored)
    facts = machine()
    question = "What do a day of an idle cluster and a look back at a larger one cost?"
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    for rows in (disk, difference):
        lines += [f"| {' | '.join(rows[0])} |", "|---" * len(rows[0]) + "|"]
        lines += [f"| {' | '.join(map(str, row.values()))} |" for row in rows] + [""]
    pod = len(_pod(stored))
    notes = (
        f"A control plane and {NODES} nodes, {DAY_S // 3_600} hours: leases of nodes and of the "
        "API server each 10 s, of the controller manager and the scheduler each 2 s, the status of "
        "a node each 5 minutes; written as fast as etcd takes them, into an archive that gets "
        "files as each minute of such a day; what merges replaced in the last hour comes on top. "
        f"The difference is of {PODS:,} pods of {pod:,} bytes, "
        f"{CHANGED} of them changed; {ROUNDS} rounds in turn, each command a process of its own, "
        "its modules compiled before. etcd without fsync."
    )
    text = "\n".join([*lines, notes, ""])
    print(text)
    (RESULTS / "kubernetes.md").write_text(text)
    data = {"question": question, "machine": facts, "disk": disk, "difference": difference}
    (RESULTS / "kubernetes.json").write_text(json.dumps(data | {"notes": notes}, indent=1) + "\n")


HEARTBEATS = "/registry/leases/", "/registry/masterleases/", "/registry/peerserverleases/"

# --- objects ---


def _objects(cluster: Cluster) -> dict[str, bytes]:
    """Return the stored bytes of a small cluster, with nodes and leases as kubelets write them."""
    images = [
        {"names": [f"docker.io/library/image-{n}@sha256:{n:064x}"], "sizeBytes": 10_000_000 + n}
        for n in range(40)
    ]
    kinds = "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"
    times = {"lastHeartbeatTime": RENEWED[:19] + "Z", "lastTransitionTime": RENEWED[:19] + "Z"}
    conditions = [{"type": each, "status": "False", "reason": "Fine", **times} for each in kinds]
    nodes = [f"n{each}" for each in range(NODES)]
    objects = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": each}} for each in nodes]
    cluster.kubectl("create", "-f", "-", stdin=_list(objects))
    status = {"status": {"conditions": conditions, "images": images}}
    for each in nodes:
        words = "patch", "node", each, "--subresource=status", "--type=merge"
        cluster.kubectl(*words, "-p", json.dumps(status))
    _run_pod(cluster)
    cluster.stop("kube-controller-manager")  # it removes leases whose owner does not exist
    leases = [_lease(name) for name in ("kube-scheduler", *nodes)]
    cluster.kubectl("create", "-f", "-", stdin=_list(leases))
    found = json.loads(cluster.etcdctl("get", "/registry/", "--prefix", "-w", "json"))["kvs"]
    return {b64decode(kv["key"]).decode(): b64decode(kv["value"]) for kv in found}


def _run_pod(cluster: Cluster) -> None:
    """Let a deployment make a pod, and write its status as the kubelet of its node does."""
    probe = {"httpGet": {"path": "/healthy", "port": 8080}, "periodSeconds": 10}
    names = "app", "proxy"
    containers = [
        {
            "name": name,
            "image": "nginx:1.25",
            "env": [{"name": f"SETTING_{n}", "value": f"value of {n}"} for n in range(12)],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
            "livenessProbe": probe,
            "readinessProbe": probe,
        }
        for name in names
    ]
    labels = {"app": "web", "app.kubernetes.io/part-of": "shop"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"nodeName": "n0", "containers": containers},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": labels},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(deployment))
    cluster.kubectl("wait", "--for=create", "pod", "-l", "app=web", "--timeout=60s")
    pod = cluster.kubectl("get", "pods", "-l", "app=web", "-o", "name").strip()
    then = RENEWED[:19] + "Z"
    states = [
        {
            "name": name,
            "image": "nginx:1.25",
            "imageID": f"docker.io/library/nginx@sha256:{1:064x}",
            "containerID": f"containerd://{2:064x}",
            "ready": True,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": then}},
        }
        for name in names
    ]
    kinds = "PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"
    conditions = [{"type": each, "status": "True", "lastTransitionTime": then} for each in kinds]
    addresses = {"podIP": "10.1.0.7", "podIPs": [{"ip": "10.1.0.7"}], "hostIP": "10.0.0.1"}
    found = {"phase": "Running", "conditions": conditions, "containerStatuses": states, **addresses}
    words = "patch", pod, "--subresource=status", "--field-manager=kubelet", "-p"
    cluster.kubectl(*words, json.dumps({"status": {**found, "startTime": then}}))


def _lease(name: str) -> dict[str, Any]:
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": RENEWED}
    node = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": str(uuid.UUID(int=1 << 100))}
    metadata = {"name": name, "namespace": "kube-node-lease", "ownerReferences": [node]}
    version = "coordination.k8s.io/v1"
    return {"apiVersion": version, "kind": "Lease", "metadata": metadata, "spec": spec}


def _list(objects: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _at(value: bytes, second: int, nanos: int) -> bytes:
    """Return a value whose times are later: the bytes of a number stay five."""
    moved = value.replace(_varint(BORN), _varint(BORN + second))
    return moved.replace(b"\x10" + _varint(500_000_000), b"\x10" + _varint(nanos))


# --- a day ---


def _heartbeats(stored: dict[str, bytes]) -> Iterator[Write]:
    """Yield what an idle cluster writes in a day, in order."""
    chance = seeded("kubernetes")
    every = {f"/registry/leases/kube-node-lease/n{each}": 10 for each in range(NODES)}
    every |= dict.fromkeys((key for key in stored if key.startswith("/registry/peerserver")), 10)
    every |= {"/registry/leases/kube-node-lease/kube-scheduler": 2}
    every |= {f"/registry/minions/n{each}": 300 for each in range(NODES)}
    others = {
        key: stored["/registry/leases/kube-node-lease/n0"]
        for key in stored
        if key.startswith("/registry/leases/kube-system/")
    }
    every |= {key: 2 if "controller" in key else 10 for key in others}
    values = stored | others
    for second in range(DAY_S):
        for number, (key, seconds) in enumerate(every.items()):
            if (second + number) % seconds == 0:
                nanos = chance.randrange(268_436, 999_999) * 1_000
                yield key.encode(), _at(values[key], second, nanos)


def _day(stored: dict[str, bytes], exclude: tuple[str, ...]) -> dict[str, Any]:
    """Record a day into an archive; return its size beside that of the values."""
    with tempfile.TemporaryDirectory() as folder, etcd_server(fsync=False) as server:
        into = Path(folder) / "archive"
        _put(server.endpoint, ((key.encode(), value) for key, value in stored.items()))
        recorder = snapkv.record(
            server.url,
            into=str(into),
            observe="/registry/",
            exclude=exclude,
            flush_bytes=FLUSH_BYTES,
        )
        recorder.catch_up()
        size, count, writes = sum(map(len, stored.values())), 0, list(_heartbeats(stored))
        for start in range(0, len(writes), 1_000):
            show(start, len(writes))
            part = writes[start : start + 1_000]
            _put(server.endpoint, part)
            size, count = size + sum(len(value) for _, value in part), count + len(part)
            recorder.catch_up()
        kept = _bytes_of(into)
    return {
        "heartbeats": "left out" if exclude else "recorded",
        "revisions": f"{count:,}",
        "values, MB": round(size / 1e6, 1),
        "archive, MB": round(kept / 1e6, 2),
        "x values": round(kept / size, 4),
    }


def _bytes_of(archive: Path) -> int:
    """Return the bytes of the newest manifest and of the files that it names."""
    newest = max((archive / "_manifest").glob("*.json"))
    named: list[int] = [each["size"] for each in json.loads(newest.read_text())["files"]]
    return newest.stat().st_size + sum(named)


def _put(endpoint: str, writes: Iterable[Write]) -> None:
    bare, waiting = Bare(endpoint), deque[Callable[[], object]]()
    for key, value in writes:
        waiting.append(bare.put_later(key, value))
        while len(waiting) >= WINDOW:
            waiting.popleft()()
    for answer in waiting:
        answer()
    bare.close()


# --- a difference ---


def _pod(stored: dict[str, bytes]) -> bytes:
    return next(value for key, value in stored.items() if key.startswith("/registry/pods/default/"))


def _difference(stored: dict[str, bytes]) -> list[dict[str, Any]]:
    """Time the difference of two states of many pods as commands."""
    pod = _pod(stored)
    with etcd_server(fsync=False) as server, snapkv.open(server.url) as ticker:
        names = [f"/registry/pods/shop/web-{number:06}".encode() for number in range(PODS)]
        _put(server.endpoint, ((name, pod) for name in names))
        before = ticker.tick()
        changed = pod.replace(b"nginx:1.25", b"nginx:1.26")
        _put(server.endpoint, ((name, changed) for name in names[:: PODS // CHANGED]))
        after = ticker.tick()
        program = str(Path(sys.executable).with_name("snapkv"))
        ours = [program, "diff", str(before.ts), str(after.ts), "--store", server.url]
        theirs = [
            "etcdctl",
            "--endpoints",
            server.endpoint,
            "get",
            "/registry/",
            "--prefix",
            "--rev",
        ]
        rivals = {
            "etcdctl get --prefix at both revisions": [
                [*theirs, str(before.revision)],
                [*theirs, str(after.revision)],
            ],
            "snapkv diff --observe /registry/": [[*ours, "--observe", "/registry/"]],
        }
        times: dict[str, list[float]] = {name: [] for name in rivals}
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        for round_ in range(ROUNDS + 1):
            show(round_, ROUNDS)
            for name in list(rivals) if round_ % 2 else reversed(list(rivals)):
                started = time.perf_counter()
                for words in rivals[name]:
                    subprocess.run(
                        words, check=True, stdout=subprocess.DEVNULL, timeout=60, env=environment
                    )
                if round_:
                    times[name].append(time.perf_counter() - started)
    floor, rows = next(iter(times.values())), []
    for name, each in times.items():
        ratios = [mine / theirs for mine, theirs in zip(each, floor, strict=True)]
        rows.append(
            {
                "": name,
                "median ms": round(quantile(each, 0.5) * 1e3),
                "p99 ms": round(quantile(each, 0.99) * 1e3),
                "x etcdctl": round(quantile(ratios, 0.5), 2),
            }
        )
    return rows


if __name__ == "__main__":
    main()
