"""Captures as processes, a load on their source, and what must hold at the end."""

import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

from etcd_server import eventually
from sampling import SOAK

from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.capture import HUNG_EXIT
from cdcmeta.scheduler.runtime.changefeed_records import CHECKPOINT, checkpoint_of, space_of

from . import ledger

WAIT_S = 60
TTL_S = 3
PAUSE_S = 0.01 if SOAK else 0.03
"""Between two commits of a load, each of which costs all captures something."""
TESTS = Path(__file__).parents[2]


class Fleet:
    """Processes of `cdcmeta capture` on one store; each is ended at the end."""

    def __init__(self, url, folder, *, ttl=TTL_S):
        self.url, self.folder, self.ttl = url, folder, ttl
        self.ledger = folder / "ledger"
        self.ledger.mkdir()
        self.processes, self._starts = {}, {}
        self._started = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(WAIT_S)

    def start(self, label, url=None, *, words=(), module="cdcmeta", before=(), **environment):
        """Start a capture; `before` is a command that runs it, `words` are more options."""
        options = {"words": words, "module": module, "before": before, **environment}
        self._starts[label] = partial(self.start, label, url, **options)
        command = [*before, sys.executable, "-m", module, "capture", "--store", url or self.url]
        command += ["-v", "--label", label, "--ttl", str(self.ttl), "--drain", "20"]
        command += ["--function", "ledger=scheduler.runtime.ledger:write", *words]
        path = self.folder / f"{label}-{self._started}.log"
        self._started += 1
        environment |= {ledger.FOLDER: str(self.ledger), "PYTHONPATH": str(TESTS)}
        with path.open("wb") as log:
            self.processes[label] = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | environment
            )

    def supervise(self):
        """Start what has ended because a call to its sink was under way when its session ended."""
        for label, process in list(self.processes.items()):
            if process.poll() == HUNG_EXIT:
                self._starts[label]()

    def signal(self, label, number):
        self.processes[label].send_signal(number)

    def kill(self, label):
        """End a capture with -9."""
        self.signal(label, signal.SIGKILL)
        self.processes.pop(label).wait(WAIT_S)

    def end(self, label):
        """End a capture as an operator does; return its exit code."""
        self.signal(label, signal.SIGTERM)
        return self.processes.pop(label).wait(WAIT_S)

    def log(self, label="*"):
        """What all captures have said, or those with a label."""
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted(self.folder.glob(f"{label}-*.log"))
            for line in path.read_text(errors="replace").splitlines()
        )


class Load:
    """Commits to the tables of a store until it is stopped; knows each commit."""

    def __init__(self, store, tables, seed, pause_s=PAUSE_S):
        self._store, self._tables, self._rng = store, tables, random.Random(seed)
        self._pause_s, self._stop = pause_s, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.commits = {table: [] for table in tables}
        self._present = set()
        self.error = None

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._stop.set()
        self._thread.join(WAIT_S)
        assert self.error is None, self.error

    def step(self):
        table, rng = self._rng.choice(self._tables), self._rng
        key = f"{table}k{rng.randrange(20)}"
        if key in self._present and rng.random() < 0.3:
            self._present.remove(key)
            return table, self._store.remove(key)
        self._present.add(key)
        return table, self._store.save(key, b"%d" % rng.getrandbits(40))

    def _run(self):
        try:
            while not self._stop.wait(self._pause_s):
                table, ts = self.step()
                self.commits[table].append(ts)
        except Exception as e:
            self.error = e


def source_content(store):
    return {key: value.decode() for key, value in store.at().items()}


def until_same(fleet, store, tables, what, wait_s=WAIT_S):
    """Wait until the ledger has what the store has."""

    def same():
        return ledger.content(fleet.ledger, tables) == source_content(store)

    try:
        eventually(same, what, wait_s=wait_s)
    except AssertionError as e:
        have, want = ledger.content(fleet.ledger, tables), source_content(store)
        differ = sorted(key for key in have.keys() | want.keys() if have.get(key) != want.get(key))
        raise AssertionError(f"{e}: {differ[:10]} differ\n{fleet.log()[-8_000:]}") from e


def leader(store):
    """The label of the capture that leads, None without one."""
    found = store.election(space_of("default")).leader()
    name = found.value.decode().removesuffix("#owner") if found is not None else None
    said = Changefeeds(store).captures().get(name)
    return said and said.label


def check_checkpoints(store, feed):
    """Assert that the stored checkpoint never went back."""
    space = store.space(space_of("default"))
    found = [
        checkpoint_of(version.value).watermarks.checkpoint
        for version in space.history(CHECKPOINT + feed.encode())
        if version.value is not None
    ]
    assert found == sorted(found)
    return found
