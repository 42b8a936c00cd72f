"""What does it cost to record a cluster through its API?

`tools/kubernetes/build build/kubernetes` comes first. `python -m benchmarks.kubernetes_api SECONDS`
takes another time than a minute for each follower.
"""

from __future__ import annotations

import json
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import snapkv
from benchmarks.harness import RESULTS, machine, quantile, seeded, show
from tools.kubernetes.cluster import Cluster, running

OBJECTS, RATE, SECONDS, WARMUP_S = 10_000, 200, 60, 10
VALUE_BYTES = 1_000
SAMPLE_S = 1.0
PATH = "/api/v1/namespaces/default/configmaps"
FOLLOWERS = {
    "bare: the lines of a watch, parsed as JSON": "lines",
    "the official client's Watch": "watch",
    "recorder into lmdb": "lmdb:{folder}/record",
    "recorder into an archive": "{folder}/archive",
}


def main(seconds: int) -> None:
    """Let each follower in turn follow a writer; write what it took."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "cluster") as cluster:
        cluster.stop("kube-controller-manager")
        _create(cluster)
        for number, (name, into) in enumerate(FOLLOWERS.items()):
            show(number, len(FOLLOWERS))
            found[name] = _followed(cluster, into.format(folder=folder), seconds)
    floor = next(iter(found.values()))["CPU, of one core"]
    for each in found.values():
        each["x bare"] = round(each["CPU, of one core"] / floor, 2)
    question = "What does it cost to record a cluster through its API?"
    facts = machine()
    notes = (
        f"{OBJECTS:,} ConfigMaps of {VALUE_BYTES:,} bytes; for each follower {seconds} seconds of "
        f"{RATE} replacements a second, of one object after another, while a process follows: the "
        "bare ones the ConfigMaps, a recorder all resources that the API server has, from its "
        "first state on. CPU is that of its process while the writer writes, the first "
        f"{WARMUP_S} seconds apart. Memory is the process's own (RssAnon). kube-apiserver and etcd "
        "run on the same two cores."
    )
    columns = list(next(iter(found.values())))
    lines = [f"# {question}", "", ", ".join(f"{k} {v}" for k, v in facts.items()), ""]
    lines += [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(map(str, each.values()))} |" for name, each in found.items()]
    text = "\n".join([*lines, "", notes, ""])
    print(text)
    (RESULTS / "kubernetes_api.md").write_text(text)
    data = {"question": question, "machine": facts, "followers": found, "notes": notes}
    (RESULTS / "kubernetes_api.json").write_text(json.dumps(data, indent=1) + "\n")


def _object(number: int, text: str) -> dict[str, Any]:
    metadata = {"name": f"c-{number:05}", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


class Sender:
    """Sends requests to an API server, with a connection for each thread."""

    def __init__(self, cluster: Cluster) -> None:
        context = json.loads(cluster.kubeconfig.read_text())
        self._token, self._port = context["users"][0]["user"]["token"], cluster.api_port
        self._own = threading.local()

    def send(self, method: str, path: str, body: Any) -> None:
        """Send a request; raise `HTTPException` unless it succeeds."""
        if not hasattr(self._own, "connection"):
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = HTTPSConnection("127.0.0.1", self._port, timeout=30, context=context)
            self._own.connection = connection
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        self._own.connection.request(method, path, json.dumps(body), headers)
        answer = self._own.connection.getresponse()
        text = answer.read()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise HTTPException(f"{method} {path}: {answer.status} {text[:200]!r}")


def _create(cluster: Cluster) -> None:
    chance, sender = seeded("kubernetes_api"), Sender(cluster)

    def create(number: int) -> None:
        body = _object(number, chance.randbytes(VALUE_BYTES // 2).hex())
        sender.send("POST", PATH, body)

    with ThreadPoolExecutor(8) as pool:
        for number, _ in enumerate(pool.map(create, range(OBJECTS))):
            show(number, OBJECTS)


def _followed(cluster: Cluster, into: str, seconds: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.kubernetes_api", "follow", into]
    pipe, environment = subprocess.PIPE, {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment["KUBECONFIG"] = str(cluster.kubeconfig)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdout.readline()
            started = time.time()
            _write(cluster, seconds)
            ended = time.time()
            child.stdin.close()
            samples = json.loads(child.stdout.readline())
        finally:
            child.kill()
    during = [each for each in samples if started + WARMUP_S <= each[0] <= ended]
    (first, *_, before), (last, *_, after) = during[0], during[-1]
    changes = during[-1][1] - during[0][1]
    memory = [each[2] for each in during]
    return {
        "changes/s": round(changes / (last - first)),
        "CPU, of one core": round((after - before) / (last - first), 3),
        "memory MB, median": round(quantile(memory, 0.5)),
        "at the end": round(memory[-1]),
    }


def _write(cluster: Cluster, seconds: int) -> None:
    """Replace objects at the rate, with eight requests at a time."""
    chance, sender, started = seeded("kubernetes_api"), Sender(cluster), time.time()

    def put(number: int) -> None:
        ahead = started + number / RATE - time.time()
        if ahead > 0:
            time.sleep(ahead)
        text = f"{started}: {chance.randbytes(VALUE_BYTES // 2).hex()}"  # else nothing changes
        body = _object(number % OBJECTS, text)
        sender.send("PUT", f"{PATH}/c-{number % OBJECTS:05}", body)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(RATE * seconds)))


# --- the process that follows ---


def follow(into: str) -> None:
    """Follow until the standard input ends, and print the samples."""
    count = {"lines": _lines, "watch": _watch}.get(into, lambda: _record(into))()
    samples: list[tuple[float, int, float, float]] = []
    stop = threading.Event()
    sampler = threading.Thread(target=_sample, args=(count, samples, stop))
    sampler.start()
    print("ready", flush=True)
    sys.stdin.read()
    stop.set()
    sampler.join()
    print(json.dumps(samples), flush=True)
    os._exit(0)


def _sample(count: Callable[[], int], samples: list[Any], stop: threading.Event) -> None:
    while not stop.wait(SAMPLE_S):
        used = resource.getrusage(resource.RUSAGE_SELF)
        status = Path("/proc/self/status").read_text()
        kib = int(status.partition("RssAnon:")[2].split()[0])
        samples.append((time.time(), count(), kib / 1_024, used.ru_utime + used.ru_stime))


def _api() -> Any:
    from kubernetes import client, config

    config.load_kube_config()
    return client.CoreV1Api()


def _in_thread(events: Iterator[Any]) -> Callable[[], int]:
    seen = [0]

    def read() -> None:
        for _ in events:
            seen[0] += 1

    threading.Thread(target=read, daemon=True).start()
    return lambda: seen[0]


def _lines() -> Callable[[], int]:
    """Watch with the official client's connection, and parse each line as JSON."""
    api = _api()
    newest = api.list_namespaced_config_map("default", limit=1).metadata.resource_version
    answer = api.list_namespaced_config_map(
        "default", watch=True, resource_version=newest, _preload_content=False
    )

    def events() -> Iterator[Any]:
        rest = b""
        for chunk in answer.stream(None, decode_content=False):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, whole)

    return _in_thread(events())


def _watch() -> Callable[[], int]:
    """Watch with the official client's Watch, which makes objects of its models."""
    from kubernetes import watch

    api = _api()
    newest = api.list_namespaced_config_map("default", limit=1).metadata.resource_version
    stream = watch.Watch().stream(
        api.list_namespaced_config_map, "default", resource_version=newest
    )
    return _in_thread(stream)


def _record(into: str) -> Callable[[], int]:
    started = threading.Event()

    def note(status: Any) -> None:
        if status.state == "recording":
            started.set()

    recorder = snapkv.record("kubernetes:", into=into, report=note)
    threading.Thread(target=recorder.run, args=(threading.Event(),), daemon=True).start()
    started.wait(120)
    return lambda: recorder.status.changes


if __name__ == "__main__":
    if sys.argv[1:2] == ["follow"]:
        follow(*sys.argv[2:])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
