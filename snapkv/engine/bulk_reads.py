"""Answers in bulk made from an engine's scan, from its watch, and from versions of a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from snapkv.base.waiting import bounded, check_in_time, monotonic
from snapkv.engine.contract import (
    ChangeColumns,
    Columns,
    Engine,
    KeyEvent,
    KeyValue,
    Pairs,
    Range,
    Replay,
    Txn,
    TxnResult,
    Versions,
    WatchBatch,
    Watcher,
)
from snapkv.engine.request_checks import check_limits
from snapkv.errors import EngineUnavailableError

REPLAY_WAIT_S = 30.0
"""The longest that a replay of existing history waits for its next event, in seconds."""
CHANGES_ROWS = 4_096
"""The number of changes after which columns end, at the end of a revision."""
CHANGES_BYTES = 16 << 20
"""The number of bytes of their values after which columns end, too."""
READS_MAX = 128
"""The most values before changes that are read in one round trip."""


@dataclass(slots=True)
class KeptWatch:
    """A watch that is read up to one revision, and later up to the next; `beyond` is read already.

    A server takes some 100 ms to bring a new watch up to date.
    """

    watcher: Watcher
    beyond: WatchBatch | None = None


def replayed(
    engine: Engine,
    key: bytes,
    range_end: bytes,
    first: int,
    until: int,
    kept_watch: KeptWatch | None = None,
) -> Iterator[WatchBatch]:
    """Yield the events of a range from revision `first` to `until`, from one watch.

    Without a kept one, from `first` on, a watch is opened for this. Raises `CompactedError` (unit
    "revision") if compaction overtakes it, and `EngineUnavailableError` if nothing comes for
    `REPLAY_WAIT_S`.
    """
    if first > until:
        return
    watch = kept_watch or KeptWatch(engine.watch(key, range_end, start_revision=first))
    try:
        while (batch := watch.beyond or watch.watcher.next(bounded(REPLAY_WAIT_S))) is not None:
            watch.beyond = batch if batch.revision > until else None
            check_in_time()
            if batch.revision <= until and batch.events:
                yield batch
            if batch.revision >= until:
                return
        raise EngineUnavailableError("no event in time")
    finally:
        if kept_watch is None:
            watch.watcher.close()


def changes(engine: Engine, wanted: Replay) -> Iterator[ChangeColumns]:
    """Yield changes as `Engine.changes`, from one watch, and a round trip for 128 values before."""
    from snapkv.engine.version_columns import changes_of

    some: list[KeyEvent] = []
    weight = 0

    def flushed() -> ChangeColumns:
        befores = list(_values_before(engine, some)) if wanted.before else None
        return changes_of(some, keys_only=wanted.keys_only, befores=befores)

    for batch in replayed(engine, *wanted[:4]):
        some += batch.events
        weight += sum(len(event.kv.value) for event in batch.events)
        if len(some) >= CHANGES_ROWS or weight >= CHANGES_BYTES:
            yield flushed()
            some, weight = [], 0
    if some:
        yield flushed()


def _values_before(engine: Engine, events: Sequence[KeyEvent]) -> Iterator[bytes | None]:
    """Yield the value before each event, None for a key that did not exist."""
    for at in range(0, len(events), READS_MAX):
        some = events[at : at + READS_MAX]
        ranges = [
            Range(event.kv.key, revision=event.kv.mod_revision - 1)
            for event in some
            if event.existed
        ]
        results = iter(engine.read(ranges).results if ranges else ())
        for event in some:
            kvs = next(results).kvs if event.existed else ()
            yield kvs[0].value if kvs else None


class EngineBase(Engine, Protocol):
    """The calls that an engine makes of its other ones: bulk reads, and transactions one by one."""

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the pages of a scan as keys and values."""
        for page in self.scan(key, range_end, revision=revision, keys_only=keys_only):
            yield Pairs([kv.key for kv in page], [] if keys_only else [kv.value for kv in page])

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield the pages of a scan as columns."""
        from snapkv.engine.version_columns import columns_in

        return columns_in(self.scan(key, range_end, revision=revision, keys_only=keys_only))

    def changes(self, wanted: Replay) -> Iterator[ChangeColumns]:
        """Yield the events of a watch as columns."""
        return changes(self, wanted)

    def check_limits(self, txn: Txn) -> int:
        """Return the size of `txn`; raise `CommitTooLargeError` when it is over `limits`."""
        return check_limits(txn, self.limits)

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Send transactions in order, each after the answer to the one before."""
        deadline, results = monotonic() + timeout, list[TxnResult]()
        for txn in txns:
            left = max(0.001, deadline - monotonic())
            results.append(self.transact(lambda _, txn=txn: txn, b"", timeout=left))  # type: ignore[misc]
            if not results[-1].succeeded:
                break
        return results


def versions_of(kvs: Sequence[KeyValue]) -> Versions:
    """Return versions of a key, newest first, as columns."""
    if not kvs:
        return Versions([], [])
    newest = kvs[0]
    revisions, values = [kv.mod_revision for kv in kvs], [kv.value for kv in kvs]
    return Versions(revisions, values, newest.version, newest.create_revision)
