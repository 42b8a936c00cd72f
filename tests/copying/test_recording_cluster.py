"""A cluster in small: an etcd that compacts by itself, writers, and a recorder that is killed.

What etcd had at each revision is known from a watch by `etcdctl`, which shares no code with ours.
"""

import base64
import json
import random
import re
import signal
import subprocess
import threading
import time

import pytest
from etcd_server import EtcdServer, GatewayError, eventually
from etcd_server.programs import etcdctl
from sampling import SOAK, first_of

import snapkv

from .recorders import PAUSE_S, Recorders

KILLS = 10 if SOAK else 3
RETENTION_S = 10
"""Etcd compacts this often, to the revision that it had then."""
COMPACTING = ["--auto-compaction-mode=periodic", f"--auto-compaction-retention={RETENTION_S}s"]
PREFIX = b"/registry/"
KEYS = 500
SEED = 11
WAIT_S = 60
GAP = re.compile(r"gap: revisions (\d+) to (\d+) were compacted")


class Writer(threading.Thread):
    """Changes keys one by one until it is stopped."""

    def __init__(self, gateway):
        super().__init__(daemon=True)
        self._gateway, self._rng = gateway, random.Random(SEED)
        self._stop_it = threading.Event()
        self.newest = 0

    def run(self):
        while not self._stop_it.wait(0.01):
            key = PREFIX + b"pods/%d" % self._rng.randrange(KEYS)
            if self._rng.random() < 0.2:
                self._gateway.delete(key)
                self.newest = self._gateway.revision()
            else:
                self.newest = self._gateway.put(key, self._rng.randbytes(20))

    def stop(self):
        self._stop_it.set()
        self.join(WAIT_S)
        assert not self.is_alive()


class Watched:
    """The changes that `etcdctl watch` printed: what the prefix held at each revision."""

    def __init__(self, endpoint):
        command = [etcdctl(), f"--endpoints={endpoint}", "watch", "--prefix", PREFIX.decode()]
        self._process = subprocess.Popen(
            [*map(str, command), "-w", "json", "--rev=1"], stdout=subprocess.PIPE
        )
        self._state = {}
        self.states = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            for event in json.loads(line).get("Events", ()):
                kv = event["kv"]
                key = base64.b64decode(kv["key"]).decode()
                if event.get("type"):
                    self._state.pop(key, None)
                else:
                    self._state[key] = base64.b64decode(kv.get("value", ""))
                self.states[kv["mod_revision"]] = dict(self._state)

    def close(self):
        self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        self._process.stdout.close()


def compacted(gateway, revision):
    time.sleep(PAUSE_S)
    try:
        gateway.get(PREFIX, revision=revision)
    except GatewayError as e:
        return "compacted" in str(e)
    return False


@pytest.mark.long
@pytest.mark.parametrize("into", first_of(["archive", "lmdb"], one_in=2))
def test_a_recorder_that_is_killed_beside_an_etcd_that_compacts(tmp_path, into):
    place = tmp_path / "record"
    with EtcdServer(tmp_path / "etcd", flags=COMPACTING) as server:
        for n in range(KEYS):
            server.gateway.put(PREFIX + b"pods/%d" % n, b"0")
        watched, writer = Watched(server.endpoint), Writer(server.gateway)
        target = f"lmdb:{place}" if into == "lmdb" else str(place)
        words = ["--store", server.url, "--observe", PREFIX.decode(), "--flush", "1s"]
        recorders = Recorders([*words, "--into", target], tmp_path)
        recorders.start()
        recorders.reach(server.gateway.revision())
        begun, late = server.gateway.revision(), 0
        try:
            writer.start()
            for n in range(KILLS):
                recorders.reach(writer.newest)
                recorders.end()
                last, ended = recorders.recorded(), time.monotonic()
                if n == KILLS - 1:  # away for too long
                    eventually(lambda at=last: compacted(server.gateway, at + 1), wait_s=WAIT_S)
                recorders.start()
                recorders.reach(writer.newest)
                late += n == KILLS - 1 or time.monotonic() - ended >= RETENTION_S
            writer.stop()
            final = server.gateway.revision()
            recorders.reach(final)
            assert recorders.end(signal.SIGTERM) == 0
            eventually(lambda: max(watched.states) >= writer.newest, wait_s=WAIT_S)
        finally:
            recorders.end()
            watched.close()
    opening = snapkv.open(target) if into == "lmdb" else snapkv.open_archive(target)
    with opening as recorded:
        commits = list(recorded.commits())
        notes = [GAP.match(c.note or "") for c in commits if (c.note or "").startswith("gap")]
        gaps = [tuple(map(int, note.groups())) for note in notes]
        assert 1 <= len(gaps) <= late, "who was away for too long names its gap, and only then"
        assert all(until > first > begun for first, until in gaps)
        known = {r: state for r, state in watched.states.items() if r > begun}
        inside = {r for first, until in gaps for r in range(first, until + 1)}
        outside = {r: state for r, state in known.items() if r not in inside}
        assert len(known) > len(outside) > 100
        times = {}
        for commit in reversed(commits):
            at = commit.revision if into == "archive" else commit.source_revision
            times[at] = commit.ts
        for revision, state in outside.items():
            assert dict(recorded.at(times[revision]).items()) == state, revision
        assert recorded.check().problems == ()
