"""Make tests/vectors/kubernetes/cluster.jsonl.gz: what a real API server stores, and answers.

    python -m tools.kubernetes.fixtures tests/vectors/kubernetes/cluster.jsonl.gz

Each line has a key, the stored bytes (`stored`, in base64), the API server's answer as JSON
(`json`), and its version. The objects are in `fixtures.yaml`; beside
them, all that a cluster has by itself. They are stored three times: as an API server of an
earlier version would (`OLD`), as this
one does, and secrets once with each provider of encryption.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import socket
import sys
import tempfile
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snapkv.rendering.kubernetes_names import name_of
from tools.kubernetes.cluster import Cluster, ClusterError

OLD = "1.34"
"""The earliest version that this API server emulates."""
ALL = ("--runtime-config", "api/all=true")
MANIFESTS = Path(__file__).with_name("fixtures.yaml")
SETTLE_S = 5.0
"""The time without a write after which controllers have done their work, in seconds."""
SECRET = base64.b64encode(bytes(range(32))).decode()
SKIPPED = ("/registry/events/default", "/registry/masterleases", "/registry/peerserverleases")


def main(target: Path) -> None:
    """Make the file."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            lines = [json.dumps(each) for each in _made(cluster)]
        finally:
            cluster.stop()
    with target.open("wb") as out, gzip.GzipFile("", "wb", fileobj=out, mtime=0) as packed:
        packed.write("\n".join([*lines, ""]).encode())
    print(f"{len(lines)} objects, {target.stat().st_size:,} bytes", file=sys.stderr)


def _made(cluster: Cluster) -> Iterator[dict[str, Any]]:
    cluster.start_etcd()
    cluster.start_api(*ALL, "--emulated-version", OLD)
    _create(cluster, "old", 1)
    yield from _stored(cluster, OLD)
    seen = set(_values(cluster))
    cluster.stop("kube-apiserver")
    cluster.start_api(*ALL)
    cluster.start_controllers()
    _create(cluster, "new", 2)
    _wait_until_quiet(cluster)
    cluster.stop("kube-controller-manager")
    found = list(_stored(cluster, "1.37"))
    yield from (each for each in found if each["key"] not in seen)
    providers: list[dict[str, object]] = []
    for provider in ("aescbc", "aesgcm", "secretbox"):
        cluster.stop("kube-apiserver")
        providers.insert(0, {provider: {"keys": [{"name": f"key-{provider}", "secret": SECRET}]}})
        cluster.encrypt_with(*providers)
        cluster.start_api(*ALL)
        for size in (0, 1, 15, 16, 100):
            data = {"password": base64.b64encode(bytes(size)).decode()}
            _api_post(cluster, f"{provider}-{size}", data)
        yield from _stored(cluster, "1.37", f"/registry/secrets/default/{provider}-")


def _api_post(cluster: Cluster, name: str, data: dict[str, str]) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}
    cluster.api("/api/v1/namespaces/default/secrets", method="POST", body=secret)


def _create(cluster: Cluster, name: str, number: int) -> None:
    """Create the objects of a round; name on the error stream what is rejected."""
    text = MANIFESTS.read_text().replace("NS", name).replace("ROUND", str(number))
    for document in text.split("\n---\n"):
        for _ in range(20):  # of a definition, the resource appears later
            try:
                cluster.kubectl("create", "-f", "-", stdin=document)
                break
            except ClusterError as e:
                if "no matches for kind" in str(e) and "example.com" in document.split("\n")[0]:
                    time.sleep(0.5)
                    continue
                print(name, document.split("\n")[1], e, file=sys.stderr)
                break


def _values(cluster: Cluster, prefix: str = "/registry/") -> dict[str, bytes]:
    found = json.loads(cluster.etcdctl("get", "--prefix", prefix, "-w", "json"))
    decode = base64.b64decode
    return {decode(kv["key"]).decode(): decode(kv["value"]) for kv in found["kvs"]}


def _wait_until_quiet(cluster: Cluster) -> None:
    """Wait until nothing but leases is written for a while."""
    before, until = dict[str, bytes](), time.monotonic() + 120
    while time.monotonic() < until:
        now = {k: v for k, v in _values(cluster).items() if "lease" not in k}
        if now == before:
            return
        before = now
        time.sleep(SETTLE_S)


def _stored(cluster: Cluster, server: str, prefix: str = "/registry/") -> Iterator[dict[str, Any]]:
    """Yield the objects below a prefix; of an object that changed meanwhile, the newer one."""
    resources = _resources(cluster)
    for key in sorted(_values(cluster, prefix)):
        if key.startswith(SKIPPED) or (name := name_of(key)) is None:
            continue
        for _ in range(5):
            value = _values(cluster, key)[key]
            answer = _answer(cluster, resources, name, _version_of(value))
            if _values(cluster, key)[key] == value:
                break
        stored = base64.b64encode(_of_any_machine(value)).decode()
        answer = json.loads(_of_any_machine(json.dumps(answer).encode()))
        yield {"server": server, "key": key, "json": answer, "stored": stored}


def _of_any_machine(value: bytes) -> bytes:
    """Return a value without the name of this machine, which holders of leases have; as long."""
    host = socket.gethostname().encode()
    return re.sub(host + rb"_[\w-]{36}", b"h" * len(host) + b"_" + b"0" * 36, value)


def _version_of(value: bytes) -> str:
    """Return the apiVersion that a stored value names."""
    if value.startswith(b"{"):
        version: str = json.loads(value)["apiVersion"]
        return version
    return value[8 : 8 + value[7]].decode() if value.startswith(b"k8s\0") else "v1"


def _resources(cluster: Cluster) -> dict[tuple[str, str], str]:
    """Return for each group and version, and plural, whether it has namespaces: its path."""
    paths = {"v1": "/api/v1"}
    for group in json.loads(cluster.api("/apis"))["groups"]:
        for version in group["versions"]:
            paths[version["groupVersion"]] = f"/apis/{version['groupVersion']}"
    found = {}
    for version, path in paths.items():
        try:
            listed = json.loads(cluster.api(path))["resources"]
        except urllib.error.HTTPError:
            continue  # an APIService without a server
        for resource in listed:
            found[version, resource["name"]] = path + "/NS" * resource["namespaced"]
    return found


def _answer(cluster: Cluster, resources: dict[Any, str], name: str, version: str) -> Any:
    """Return what the API answers for an object in its stored version, else in one that it has."""
    resource, *where = name.split("/")
    plural = resource.partition(".")[0]
    group = version.rpartition("/")[0]
    versions = [version, *(v for v, p in resources if p == plural and v.startswith(f"{group}/"))]
    for each in versions:
        path = resources.get((each, plural))
        if path is None:
            continue
        path = path.replace("/NS", f"/namespaces/{where[0]}")
        return json.loads(cluster.api(f"{path}/{plural}/{where[-1]}"))
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
