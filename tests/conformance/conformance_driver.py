"""Short words for the tests: a driver says in one call what the contract says in three.

Nothing here assumes that `prepare` is shown the key it peeks at (a remote engine shows None),
or at which revision an engine starts: tests count from `db.head()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from chains import check_ends

from snapkv.base.waiting import monotonic, pause
from snapkv.committer.operations import nest
from snapkv.engine.contract import (
    Compare,
    Delete,
    Engine,
    GetResult,
    KeyValue,
    Op,
    Put,
    Range,
    RangeResult,
    Refused,
    Txn,
    TxnResult,
    WatchBatch,
    Watcher,
    one_of,
)
from snapkv.errors import SnapKVError, StoreClosedError

WAIT_SECONDS_MAX = 20.0
TTL_SECONDS = 0.6
"""Asked for where a lease is to end by itself; an engine may make it longer."""
LONG_TTL_SECONDS = 600.0
"""Asked for where it is not."""
FIRST = b"\0"
ALL = b"\0"


class Driver:
    """An engine, and the calls tests make."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def txn(
        self,
        *success: Op,
        compare: tuple[Compare, ...] = (),
        failure: tuple[Op, ...] = (),
    ) -> TxnResult:
        """Run a transaction; a list too long for the engine is nested, as the committer does it."""
        limit = self.engine.limits.ops_per_list
        if limit is not None and len(success) > limit:
            success = nest(success, limit)
        return self.run(Txn(compare, success, failure))

    def run(self, txn: Txn) -> TxnResult:
        return self.engine.transact(lambda _: txn, b"peek", timeout=WAIT_SECONDS_MAX)

    def put(self, key: bytes, value: bytes = b"v", lease: int = 0) -> int:
        """Return the revision."""
        return self.txn(Put(key, value, lease=lease)).header.revision

    def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """Return the revision."""
        return self.txn(Delete(key, range_end)).header.revision

    def head(self) -> int:
        return self.engine.read([Range(b"k", count_only=True)]).header.revision

    def range(self, key: bytes, range_end: bytes = b"", **options: Any) -> RangeResult:
        return self.engine.read([Range(key, range_end, **options)]).results[0]

    def get(self, key: bytes, revision: int = 0) -> KeyValue | None:
        """Return a version; a point read and a range of one key return and raise the same."""

        def by_range() -> GetResult:
            return one_of(self.engine.read([Range(key, revision=revision)]))

        before = outcome_of(by_range)
        got = outcome_of(lambda: self.engine.get(key, revision))
        if got != before:  # another thread writes, or a lease has ended: it is not older, though
            after = outcome_of(by_range)
            assert got == after or not isinstance(after, GetResult) or after.header != before[0]
        return by_range().kv

    def value(self, key: bytes, revision: int = 0) -> bytes | None:
        found = self.get(key, revision)
        return None if found is None else found.value

    def keys(self, key: bytes = FIRST, range_end: bytes = ALL, **options: Any) -> list[bytes]:
        return [kv.key for kv in self.range(key, range_end, **options).kvs]

    def grant(self, ttl_s: float = LONG_TTL_SECONDS) -> int:
        """Return the id of a new lease."""
        return self.engine.grant(ttl_s, timeout=WAIT_SECONDS_MAX).id

    def revoke(self, lease: int) -> None:
        self.engine.revoke(lease, timeout=WAIT_SECONDS_MAX)

    def refused(self, txn: Txn) -> SnapKVError:
        """Return the error behind the refusal of a transaction."""
        with pytest.raises(Refused) as caught:
            self.run(txn)
        return caught.value.error

    def watch(self, start: int, key: bytes | None = None, range_end: bytes = b"") -> Watcher:
        """Watch a key, a range, or (without a key) everything."""
        if key is None:
            key, range_end = FIRST, ALL
        return self.engine.watch(key, range_end, start_revision=start)

    def finish(self) -> None:
        """Check every rule of what is stored, then close."""
        try:
            problems = self.engine.check()
        except StoreClosedError:
            problems = []
        self.engine.close()
        assert problems == []


def outcome_of(read: Callable[[], GetResult]) -> GetResult | tuple[type[SnapKVError], str]:
    """Return what a read returned, or the kind and the words of its error."""
    try:
        return read()
    except SnapKVError as e:
        check_ends(e)
        return type(e), str(e)


def take(watcher: Watcher, until: int) -> list[WatchBatch]:
    """Return the batches with events up to revision `until`; checks the rules of their order."""
    taken: list[WatchBatch] = []
    last = told = 0
    deadline = monotonic() + WAIT_SECONDS_MAX
    while told < until:
        assert monotonic() < deadline, f"no news beyond {told} while waiting for {until}"
        batch = watcher.next(0.5)
        if batch is None:
            continue
        assert batch.revision >= told
        told = batch.revision
        if batch.events:
            assert batch.revision > last
            last = batch.revision
            taken.append(batch)
            keys = [event.kv.key for event in batch.events]
            assert keys == sorted(set(keys))
            assert {event.kv.mod_revision for event in batch.events} == {batch.revision}
    return taken


def brief(batches: list[WatchBatch]) -> list[tuple[int, bytes, bytes | None]]:
    """Return (revision, key, value; None when removed) of all events."""
    return [
        (batch.revision, event.kv.key, None if event.is_delete else event.kv.value)
        for batch in batches
        for event in batch.events
    ]


def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, bounded."""
    deadline = monotonic() + WAIT_SECONDS_MAX
    while not holds():
        assert monotonic() < deadline, "waited too long"
        pause(5e-3)


class Background:
    """A function in a thread; `result()` waits, bounded, and raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as e:
            self._error = e

    def result(self) -> Any:
        self._thread.join(WAIT_SECONDS_MAX)
        assert not self._thread.is_alive(), "a background thread does not end"
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def running(self) -> bool:
        return self._thread.is_alive()
