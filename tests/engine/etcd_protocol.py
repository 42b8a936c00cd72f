"""Stores of several processes on one server, and what really stands there, read past snapkv."""

from __future__ import annotations

import http.client
import json
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from etcd_server import WAIT_S, EtcdProxy, EtcdServer, Gateway, eventually
from etcd_server.faults import CutAfter

import snapkv
from snapkv import CommitUnknownError, ManualClock, SnapshotKV
from snapkv.layout import FormatRecord, StampRecord

TS_KEY = b"default/sys/ts"
COMMIT = b"\xa1n\xc4\x10"
"""In every commit and in no fence: the name and the length of its nonce."""
FENCE = b"\xa1f\xc4\x10"
"""In every fence: the name and the length of what it fences."""
GIVES_UP_S = 0.8
"""A deadline that passes while a request hangs."""
CLOSE_S = 0.6
"""What `TRY_S` is cut to where a test waits until it has passed."""


class Change(NamedTuple):
    """One event of etcd; `value` is None for a removal."""

    revision: int
    key: bytes
    value: bytes | None
    created: int


class Stamp(NamedTuple):
    """A version of the timestamp key."""

    revision: int
    created: int
    record: StampRecord


class History:
    """Everything that was ever written to a node, from revision `first` on, by its own watch."""

    def __init__(self, gateway: Gateway, port: int, *, first: int = 1) -> None:
        self.head = gateway.revision()
        self.changes: list[Change] = []
        everything = {"key": "AA==", "range_end": "AA==", "start_revision": str(first)}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        try:
            connection.request("POST", "/v3/watch", json.dumps({"create_request": everything}))
            answer = connection.getresponse()
            seen = first - 1
            while seen < self.head:
                result = json.loads(answer.readline())["result"]
                assert "compact_revision" not in result, f"compacted beyond {first}"
                for event in result.get("events", ()):
                    self.changes.append(_change(event))
                    seen = self.changes[-1].revision
        finally:
            connection.close()

    def written(self, key: str) -> list[tuple[int, bytes | None]]:
        """Return (revision, value) of all writes of a user's key."""
        stored = b"default/data/" + key.encode()
        return [(c.revision, c.value) for c in self.changes if c.key == stored]

    @property
    def stamps(self) -> list[Stamp]:
        """All versions of the timestamp key, the creation first."""
        return [
            Stamp(c.revision, c.created, StampRecord.decode(c.value))
            for c in self.changes
            if c.key == TS_KEY and c.value is not None
        ]

    def check(self) -> None:
        """Assert that timestamps rise strictly with revisions, and that no nonce comes twice."""
        stamps = self.stamps
        times = [stamp.record.timestamp for stamp in stamps]
        assert times == sorted(set(times)), "timestamps do not rise strictly"
        nonces = [stamp.record.nonce for stamp in stamps if stamp.record.nonce]
        assert len(nonces) == len(set(nonces)), "a commit landed twice"


def _change(event: dict[str, Any]) -> Change:
    kv = event["kv"]
    value = None if event.get("type") == "DELETE" else b64decode(kv.get("value", ""))
    created = int(kv.get("create_revision", 0))
    return Change(int(kv["mod_revision"]), b64decode(kv["key"]), value, created)


class Caller(threading.Thread):
    """A thread that runs one function and keeps its outcome."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._act, self._value, self._error = act, None, None
        self.start()

    def run(self) -> None:
        try:
            self._value = self._act()
        except BaseException as e:
            self._error = e

    def error(self) -> BaseException | None:
        """Return what the function raised, None when it returned."""
        self.join(2 * WAIT_S)
        assert not self.is_alive(), "a caller hangs"
        return self._error

    def value(self) -> Any:
        """Return the value; raise what the function raised."""
        if (error := self.error()) is not None:
            raise error
        return self._value


class Two:
    """Process A behind a proxy, process B beside it, on one server; closes its stores.

    Clocks stand `ahead_ms` after the start of the test, and move when they are told to.
    """

    def __init__(self, proxy: EtcdProxy) -> None:
        self.proxy, self.etcd = proxy, proxy.server
        self.gateway = self.etcd.gateway
        self.start_ms = time.time_ns() // 1_000_000
        self._stores: list[SnapshotKV] = []

    def __enter__(self) -> Two:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self._stores:
            store.close()

    def a(self, ahead_ms: int = 1_000, **options: Any) -> SnapshotKV:
        """Open a store behind the proxy."""
        return self.open(self.proxy.url, ahead_ms, writer="A", **options)

    def b(self, ahead_ms: int = 0, **options: Any) -> SnapshotKV:
        """Open a store beside the proxy."""
        return self.open(self.etcd.url, ahead_ms, **{"writer": "B", **options})

    def open(self, url: str, ahead_ms: int, **options: Any) -> SnapshotKV:
        """Open a store with a clock of its own."""
        settings: dict[str, Any] = {"max_clock_skew": 600.0, **options}
        settings.setdefault("clock", ManualClock(self.start_ms + ahead_ms))
        store = snapkv.open(url, **settings)
        self._stores.append(store)
        return store

    # --- faults ---

    def cut_after(self, needle: bytes, then: Callable[[], object]) -> CutAfter:
        """Lose the answer; do something before the client hears that its connection broke."""

        def when() -> bool:
            fault.wait_answered()
            then()
            return True

        fault = self.proxy.cut_after(needle, when)
        return fault

    def unknown(
        self, store: SnapshotKV, needle: bytes, *, landed: bool, **commit: Any
    ) -> tuple[CommitUnknownError, Any]:
        """Commit what nobody answers until the deadline; return the error and the fault."""
        fault = self.proxy.delay_answer(needle) if landed else self.proxy.hold(needle)
        with pytest.raises(CommitUnknownError) as caught:
            store.commit(**commit, timeout=GIVES_UP_S)
        fault.wait_triggered()
        if landed:
            fault.wait_answered()
        assert caught.value.may_still_land
        return caught.value, fault

    @contextmanager
    def riding(self, store: SnapshotKV, *acts: Callable[[], Any]) -> Iterator[list[Caller]]:
        """Let callers queue behind a stalled commit; they ride together once the block is left."""
        stall = self.proxy.delay_answer(b"stall-value")
        first = Caller(lambda: store.save("stall", b"stall-value"))
        stall.wait_triggered()
        callers: list[Caller] = []
        queue = store._core.committer._queue
        for act in acts:
            callers.append(Caller(act))
            eventually(lambda: len(queue.waiting) == len(callers), "a caller in the queue")
        yield callers
        stall.release()
        first.value()

    # --- what stands there ---

    def history(self, *, first: int = 1) -> History:
        """Return all that was written, checked."""
        return History(self.gateway, self.etcd.client_port, first=first)

    def once(self, key: str) -> int:
        """Return the one revision that wrote a key; nothing landed twice."""
        history = self.history()
        history.check()
        ((revision, _),) = history.written(key)
        return revision

    def never(self, key: str) -> None:
        """Assert that nothing wrote a key."""
        history = self.history()
        history.check()
        assert history.written(key) == []

    def recreate(self) -> None:
        """Delete the timestamp key and make it again, as an administrator might."""
        made = StampRecord(0, bytes(16), "admin").encode()
        self.gateway.delete(TS_KEY)
        self.gateway.put(TS_KEY, made)


def other_store(server: EtcdServer, name: str) -> None:
    """Make a second store on a server, by hand: its timestamp key and its format record."""
    server.gateway.put(f"{name}/sys/ts".encode(), StampRecord(0, bytes(16), "admin").encode())
    server.gateway.put(f"{name}/sys/format".encode(), FormatRecord(bytes(16)).encode())
