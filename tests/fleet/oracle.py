"""What three servers had at each time, from `etcdctl watch`; nothing here is code of snapkv.

`etcdctl` prints every event of a server from revision 1 on. A version of the timestamp key begins
with 8 bytes: the timestamp, the largest byte first. That and the names of the keys are all that
this file knows of a store.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from etcd_server import EtcdServer, eventually
from etcd_server.programs import etcdctl

State = dict[str, bytes]
Writes = tuple[tuple[str, bytes | None], ...]
"""Keys and their values in order, None for removals."""


class Event(NamedTuple):
    """One write of a server."""

    revision: int
    key: bytes
    value: bytes | None


class Recording:
    """All that a server does, as `etcdctl watch` prints it into a file, from a revision on.

    It goes on when the server is killed and started again. Closed with its block.
    """

    def __init__(self, server: EtcdServer, folder: Path, *, first: int = 1) -> None:
        self._server, self._file = server, folder / f"watched-{server.name}.json"
        command = [str(etcdctl()), f"--endpoints={server.endpoint}", "watch", "--prefix", ""]
        with self._file.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, f"--rev={first}", "-w", "json"], stdout=output
            )

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def events(self, revision: int | None = None) -> list[Event]:
        """Return all events, once those up to a revision have come (None: up to the newest)."""
        wanted = self._server.gateway.revision() if revision is None else revision

        def reached() -> list[Event] | None:
            found = list(_events(self._file))
            return found if found and found[-1].revision >= wanted else None

        return eventually(reached, f"etcdctl to print revision {wanted}", wait_s=30)


def events_of(server: EtcdServer, folder: Path, *, first: int = 1) -> list[Event]:
    """Return what a server shows of its history now, from a revision on."""
    with Recording(server, folder, first=first) as recording:
        return recording.events()


def _events(file: Path) -> Iterator[Event]:
    lines = file.read_bytes().splitlines(keepends=True)
    for line in lines:
        if not line.endswith(b"\n"):
            return  # the rest of it is on its way
        answer = json.loads(line)
        assert not answer.get("Canceled"), f"etcdctl's watch has ended: {answer}"
        for event in answer.get("Events") or ():
            kv = event["kv"]
            value = None if event.get("type") else b64decode(kv.get("value", ""))
            yield Event(kv["mod_revision"], b64decode(kv["key"]), value)


class History:
    """What one member had at each timestamp: a store, or the keys below a prefix.

    The keys of a store are those below `NAME/data/`, without that. Those of a prefix have their
    full names, and a write counts at the first timestamp of the store at or after it.
    """

    def __init__(
        self, events: list[Event], prefix: str | None = None, *, name: str = "default"
    ) -> None:
        time_key, data = f"{name}/sys/ts".encode(), f"{name}/data/".encode()
        whole, cut = (data, len(data)) if prefix is None else (prefix.encode(), 0)
        self.timestamps: list[int] = []
        self.revisions: list[int] = []
        self.writes: list[Writes] = []
        """The writes since the timestamp before, for each timestamp."""
        pending: list[tuple[str, bytes | None]] = []
        stamp = at = 0
        for event in [*events, None]:
            if (event is None or event.revision != at) and stamp:
                self.timestamps.append(stamp)
                self.revisions.append(at)
                self.writes.append(tuple(sorted(pending) if prefix is None else pending))
                pending, stamp = [], 0
            if event is None:
                break
            at = event.revision
            if event.key == time_key:
                assert event.value is not None
                stamp = int.from_bytes(event.value[:8], "big")  # that of the creation is 0
            elif event.key.startswith(whole):
                pending.append((event.key[cut:].decode(), event.value))

    @cached_property
    def states(self) -> list[State]:
        """The state at each timestamp."""
        state: State = {}
        found = []
        for writes in self.writes:
            state = dict(state)
            for key, value in writes:
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
            found.append(state)
        return found

    def place(self, timestamp: int) -> tuple[int, int]:
        """Return the newest timestamp at or below one, and its revision; zeros without one."""
        at = bisect_right(self.timestamps, timestamp) - 1
        return (0, 0) if at < 0 else (self.timestamps[at], self.revisions[at])

    def state(self, timestamp: int) -> State:
        """Return the state at a timestamp."""
        at = bisect_right(self.timestamps, timestamp) - 1
        return {} if at < 0 else self.states[at]

    def changes(self, since: int, until: int) -> list[tuple[int, Writes]]:
        """Return the timestamps in (since, until] at which something was written, and what."""
        first, end = (bisect_right(self.timestamps, each) for each in (since, until))
        found = zip(self.timestamps[first:end], self.writes[first:end], strict=True)
        return [(timestamp, writes) for timestamp, writes in found if writes]


def merged(
    histories: dict[str, History], since: int, until: int
) -> list[tuple[int, dict[str, Writes]]]:
    """Return the changes of all members in (since, until] by timestamp, in order."""
    found: dict[int, dict[str, Writes]] = {}
    for name, history in histories.items():
        for timestamp, writes in history.changes(since, until):
            found.setdefault(timestamp, {})[name] = writes
    return sorted(found.items())
