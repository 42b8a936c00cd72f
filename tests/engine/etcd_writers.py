"""Writers that commit under load, in threads and in a process of its own, and note what they hear.

Run as a program it is that process: `python etcd_writers.py URL STORE NAME`. It prints a line for
each outcome, until its input ends.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import NamedTuple

import snapkv
from snapkv import CommitTimeoutError, CommitUnknownError, SnapshotKV
from snapkv.errors import EngineUnavailableError


class Heard(NamedTuple):
    """An outcome: (ts, revision) of a commit, None when it never happened."""

    token: str
    landed: tuple[int, int] | None
    waited_s: float


class Writer:
    """Commits one value after the other to a key of its own, until it is stopped."""

    def __init__(self, store: SnapshotKV, name: str) -> None:
        self.store, self.name = store, name
        self.heard: list[Heard] = []
        self.stopped = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Commit; what is unknown is resolved at once, or noted as an error."""
        number = 0
        try:
            while not self.stopped:
                number += 1
                self._one(f"{self.name}.{number}")
        except BaseException as e:
            self.error = e

    def _one(self, token: str) -> None:
        started = time.monotonic()
        landed = None
        try:
            done = self.store.commit(puts={self.name: token.encode()})
            landed = (done.ts, done.revision)
        except CommitUnknownError as e:
            found = self.store.resolve(e.timestamp, e.nonce, guards=e.guards)
            landed = (found.ts, found.revision) if found is not None else None
        except (CommitTimeoutError, EngineUnavailableError):
            pass  # it never happened
        self.heard.append(Heard(token, landed, time.monotonic() - started))

    @property
    def acknowledged(self) -> int:
        """How many commits landed."""
        return sum(heard.landed is not None for heard in self.heard)


class ThreadWriter(Writer):
    """A writer in a thread."""

    def __init__(self, store: SnapshotKV, name: str) -> None:
        super().__init__(store, name)
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Stop after the commit in flight; raises what went wrong."""
        self.stopped = True
        self._thread.join(wait_s)
        assert not self._thread.is_alive(), f"writer {self.name} hangs"
        if self.error is not None:
            raise self.error


class ProcessWriter:
    """A writer in a process of its own."""

    def __init__(self, url: str, store: str, name: str) -> None:
        self.name = name
        self.heard: list[Heard] = []
        command = [sys.executable, __file__, url, store, name]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            token, ts, revision, waited = line.split()
            landed = None if ts == "-" else (int(ts), int(revision))
            self.heard.append(Heard(token, landed, float(waited)))

    @property
    def acknowledged(self) -> int:
        """How many commits landed."""
        return sum(heard.landed is not None for heard in list(self.heard))

    def stop(self, wait_s: float) -> None:
        """End the process after the commit in flight; AssertionError when it failed."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            assert self._child.wait(wait_s) == 0, f"writer {self.name} failed"
        finally:
            self._child.kill()
            self._child.wait()
            self._reader.join(wait_s)
            assert self._child.stdout is not None
            self._child.stdout.close()


def main(url: str, store_name: str, name: str) -> None:
    """Be the process."""
    with snapkv.open(url, name=store_name, writer=name) as store:
        writer, printed = ThreadWriter(store, name), 0
        ended = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        while not ended.wait(0.02):
            if writer.error is not None:
                raise writer.error
            printed = _print(writer, printed)
        writer.stop(30)
        _print(writer, printed)


def _print(writer: Writer, first: int) -> int:
    heard = list(writer.heard)
    for token, landed, waited in heard[first:]:
        ts, revision = landed or ("-", "-")
        print(token, ts, revision, waited, flush=True)
    return len(heard)


if __name__ == "__main__":
    main(*sys.argv[1:])
