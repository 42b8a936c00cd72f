"""A trial: recorders follow a day in small while they are killed, and miss and repeat nothing.

`etcdctl watch` follows beside them without being killed. In the end the records must have the same
versions of the same keys. Then etcd is restored from a backup, and the recorder has to notice.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import snapkv
from snapkv.rendering.kubernetes_names import name_of
from tools.kubernetes.cluster import Cluster, ClusterError, running
from tools.kubernetes.day import Day

PREFIX = "/registry/"
KILL_S = 1.0, 8.0
"""The least and the most seconds that a recorder runs before it is killed."""
END_S = 120.0
Versions = dict[tuple[str, int], bytes | None]
"""The value of each key and revision that changed it; None for a removal."""


class Recorder:
    """`snapkv record` as a process, which a thread kills and starts again."""

    def __init__(self, words: list[str], into: str, cluster: Cluster, log: Path) -> None:
        self.words = [sys.executable, "-m", "snapkv", "record", *words, "--into", into]
        self.into, self.kills = into, 0
        self._environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
        self._log, self._stop = log, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self, seed: int) -> None:
        """Start the recorder, and kill it at times that the seed decides."""
        self._random = random.Random(seed)
        self._thread.start()

    def _run(self) -> None:
        with self._log.open("ab") as log:
            while not self._stop.is_set():
                process = subprocess.Popen(
                    [*self.words, "--flush", "1s"], stdout=log, stderr=log, env=self._environment
                )
                self._stop.wait(self._random.uniform(*KILL_S))
                process.kill()
                process.wait()
                self.kills += 1

    def finish(self) -> None:
        """Kill it once more, and record what is left."""
        self._stop.set()
        self._thread.join()
        self.once()

    def once(self) -> None:
        """Record what exists now. Raises `ClusterError` with what the recorder says."""
        words = [*self.words, "--once"]
        done = subprocess.run(
            words, capture_output=True, text=True, env=self._environment, timeout=END_S, check=False
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(words)}: {done.stderr.strip()}")

    def versions(self) -> tuple[Versions, dict[str, bytes]]:
        """Return what is recorded after the first state, and that state."""
        is_store = self.into.startswith("lmdb:")
        with snapkv.open(self.into) if is_store else snapkv.open_archive(self.into) as kept:
            first = next(iter(kept.commits()))
            state = dict(kept.at(first.ts).items())
            found: Versions = {}
            newest = kept.resolved()
            for changes in kept.watch(since=first.ts, timeout=1.0):
                for change in changes:
                    commit = change.commit  # an archive keeps the revisions of its source
                    revision = commit.source_revision if is_store else commit.revision
                    assert revision is not None, f"{commit} has no source revision"
                    assert (change.key, revision) not in found, f"{change.key} twice in {revision}"
                    found[change.key, revision] = change.value
                if changes.commit.ts >= newest:
                    break
        return found, state


class RawWatch:
    """`etcdctl watch` of everything, into a file."""

    def __init__(self, cluster: Cluster, path: Path) -> None:
        self.path = path
        program, endpoint = cluster.programs / "etcdctl", f"127.0.0.1:{cluster.etcd_port}"
        words = [str(program), "--endpoints", endpoint, "watch", "/", "--prefix", "--rev", "1"]
        with path.open("wb") as out:
            self._process = subprocess.Popen([*words, "-w", "json"], stdout=out)

    def wait_for(self, revision: int) -> None:
        """Wait until it has seen a revision."""
        until = monotonic() + END_S
        while max((found for _, found in self.versions()), default=0) < revision:
            if monotonic() > until:
                raise ClusterError(f"etcdctl watch has not seen revision {revision}")
            sleep(0.2)

    def versions(self) -> Versions:
        """Return what it has seen."""
        found: Versions = {}
        for line in self.path.read_bytes().splitlines():
            if not line.endswith(b"}"):
                break  # it is being written
            for event in json.loads(line)["Events"] or ():
                kv = event["kv"]
                value = None if event.get("type") else base64.b64decode(kv.get("value", ""))
                found[base64.b64decode(kv["key"]).decode(), kv["mod_revision"]] = value
        return found

    def close(self) -> None:
        """End the watch."""
        self._process.kill()
        self._process.wait()


class Trial(NamedTuple):
    """What a trial plays on, and what follows it."""

    cluster: Cluster
    raw: RawWatch
    etcd: list[Recorder]
    api: Recorder


def run(folder: Path, seed: int) -> None:
    """Play a day, and compare. Raises `AssertionError` or `ClusterError` for what is wrong."""
    print(f"seed {seed}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    with trial_in(folder, seed) as trial:
        cluster, chance = trial.cluster, random.Random(seed)

        def between(step: str) -> None:
            if chance.random() < 1 / 3:
                cluster.restart_api(kill=True)
            revision = cluster.revision
            trial.raw.wait_for(revision - 1)
            print(f"{step}: revision {revision}", flush=True)

        Day(cluster, chance).play(between)
        cluster.stop("kube-controller-manager")
        trial.api.finish()
        cluster.stop("kube-apiserver")  # else it writes its leases while records end
        for each in trial.etcd:
            each.finish()
        _compare(trial)
        _restore(trial, folder)


@contextmanager
def trial_in(folder: Path, seed: int) -> Iterator[Trial]:
    """Start a cluster with a raw watch and all recorders."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running(folder))
        observed = ["--store", cluster.etcd_url, "--observe", PREFIX]
        etcd = [
            Recorder(observed, f"lmdb:{folder}/record", cluster, folder / "record.log"),
            Recorder(observed, f"{folder}/archive", cluster, folder / "archive.log"),
        ]
        words, into = ["--kubernetes", "--secrets"], f"lmdb:{folder}/api-record"
        api = Recorder(words, into, cluster, folder / "api-record.log")
        for number, each in enumerate((*etcd, api)):
            each.once()
            each.start(seed + number)
            stack.callback(each._stop.set)
        raw = RawWatch(cluster, folder / "watch.json")
        stack.callback(raw.close)
        yield Trial(cluster, raw, etcd, api)


def _compare(trial: Trial) -> None:
    """Compare all records with the raw watch."""
    raw = {
        each: value for each, value in trial.raw.versions().items() if each[0].startswith(PREFIX)
    }
    for recorder in trial.etcd:
        found, state = recorder.versions()
        first = min((revision for _, revision in found), default=0)
        wanted = {each: value for each, value in raw.items() if each[1] >= first}
        _same(f"{recorder.into} ({recorder.kills} kills)", found, wanted)
        assert state == _state(raw, first - 1), f"{recorder.into} began with another state"
    _compare_api(trial.api, raw)


def _compare_api(recorder: Recorder, raw: Versions) -> None:
    """Compare names, resourceVersions and removals of the record through the API.

    An API server that starts has no older changes than that: what a killed recorder had not read
    until then may be missing, if a gap says so.
    """
    found, _ = recorder.versions()
    gaps = _gaps(recorder.into)
    seen = {(key, _resource_version(value)) for (key, _), value in found.items() if value}
    first, newest = min(found, key=_revision)[1], max(found, key=_revision)[1]
    resources = {key.partition("/")[0] for key, _ in found}
    wanted = {
        (name, revision)
        for (key, revision), value in raw.items()
        if value is not None
        and first <= revision <= newest
        and (name := name_of(key)) is not None
        and name.partition("/")[0] in resources
    }
    missing = {
        each for each in wanted - seen if not any(low < each[1] <= high for low, high in gaps)
    }
    more = {each for each in seen - wanted if each[1] >= first}
    assert not missing, f"{recorder.into}: {len(missing)} missing, as {sorted(missing)[:5]}"
    assert not more, f"{recorder.into}: {len(more)} of its own, as {sorted(more)[:5]}"
    kills = f"{recorder.kills} kills, {len(gaps)} gaps"
    print(f"{recorder.into} ({kills}): {len(seen)} versions, all there", flush=True)


def _gaps(url: str) -> list[tuple[int, int]]:
    """Return the revisions before and at the end of each gap in the record of an API."""
    found = []
    with snapkv.open(url) as kept:
        for commit in kept.commits():
            since = re.match(r"gap: .* since (\S+);", commit.note or "")
            if since is not None:
                before = next(iter(kept.commits(until=since[1], newest_first=True)))
                assert before.source_revision is not None
                assert commit.source_revision is not None
                found.append((before.source_revision, commit.source_revision))
    return found


def _revision(each: tuple[str, int]) -> int:
    return each[1]


def _resource_version(value: bytes) -> int:
    found: dict[str, Any] = json.loads(value)["metadata"]
    return int(found["resourceVersion"])


def _same(what: str, found: Versions, wanted: Versions) -> None:
    missing, more = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    assert not missing, f"{what}: {len(missing)} missing, as {sorted(missing)[:5]}"
    assert not more, f"{what}: {len(more)} of its own, as {sorted(more)[:5]}"
    other = [each for each, value in found.items() if wanted[each] != value]
    assert not other, f"{what}: {len(other)} other values, as {other[:5]}"
    print(f"{what}: {len(found)} versions, all equal", flush=True)


def _state(versions: Versions, revision: int) -> dict[str, bytes]:
    newest: dict[str, bytes | None] = {}
    for (key, at), value in sorted(versions.items(), key=lambda each: each[0][1]):
        if at <= revision:
            newest[key] = value
    return {key: value for key, value in sorted(newest.items()) if value is not None}


def _restore(trial: Trial, folder: Path) -> None:
    """Restore etcd from a backup, write past what was recorded, and let the recorders notice."""
    cluster = trial.cluster
    cluster.start_api()
    cluster.etcdctl("snapshot", "save", str(folder / "backup.db"))
    recorded = cluster.revision
    for number in range(20):
        cluster.kubectl("create", "configmap", f"lost-{number}")
    for recorder in trial.etcd:
        recorder.once()
    cluster.stop()
    cluster.restore(folder / "backup.db")
    cluster.start()
    number = 0
    while cluster.revision <= recorded + 60:
        cluster.kubectl("create", "configmap", f"other-{number}")
        number += 1
    for recorder in trial.etcd:
        error = ""
        try:
            recorder.once()
        except ClusterError as e:
            error = str(e)
        assert "restored" in error, f"{recorder.into} did not notice the restored etcd: {error!r}"
        print(f"{recorder.into} noticed the restored etcd", flush=True)
