"""Lookups of marks below the ring: in anchors first, then in the timestamp key's history."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from sortedcontainers import SortedDict

from snapkv.engine.contract import Engine, Range, RangeResult
from snapkv.errors import CompactedError, SnapKVError, StoreRestoredError
from snapkv.layout import Mark, SourceId, source_key, stamps_of
from snapkv.timeline.blocks import Blocks
from snapkv.timeline.continuity import Continuity
from snapkv.timeline.search import TIMESTAMP, Block, Bracket, mark_of, search, search_blocks

# --- anchors: single marks that searches found, kept because history does not change ---

ANCHORS_MAX = 65_536


class Anchors:
    """A sorted set of marks that bound later searches; at most `ANCHORS_MAX`, then it thins out."""

    def __init__(self) -> None:
        self._by_timestamp: SortedDict[int, Mark] = SortedDict()

    def __len__(self) -> int:
        """Return the number of anchors."""
        return len(self._by_timestamp)

    def add(self, mark: Mark) -> None:
        """Keep a mark; O(log n)."""
        self._by_timestamp[mark.timestamp] = mark
        if len(self._by_timestamp) > ANCHORS_MAX:
            for timestamp in list(self._by_timestamp)[1::2]:
                del self._by_timestamp[timestamp]

    def around(self, field: int, wanted: int) -> tuple[Mark | None, Mark | None]:
        """Return the nearest marks with `mark[field] <= wanted` and `> wanted`; O(log n).

        `field` is an index into `Mark`: timestamp, revision and ordinal rise together.
        """
        marks = self._by_timestamp.values()
        if field == 0:
            at = self._by_timestamp.bisect_right(wanted)
        else:
            at = bisect_right(marks, wanted, key=lambda mark: mark[field])
        return (marks[at - 1] if at else None), (marks[at] if at < len(marks) else None)

    def clear(self) -> None:
        """Forget all anchors."""
        self._by_timestamp.clear()

    def check(self) -> None:
        """Assert that all three fields rise together."""
        marks = list(self._by_timestamp.values())
        for old, new in itertools.pairwise(marks):
            assert all(a < b for a, b in zip(old, new, strict=True))


# --- lookup ---

BLOCK_MARKS = 128
"""The number of marks that one read of an embedded engine returns."""


def kept_by(engine: Engine, ts: bytes) -> str | None:
    """Return what has the history of a store, for errors: its archive, or that it is a record.

    None for any other store. `ts` is its timestamp key. One round trip without an archive.
    """
    archive: str | None = getattr(engine, "archived", None)
    if archive is None and engine.get(source_key(ts)).kv is not None:
        return "this store is a record, which begins later"
    return archive


def recorded_of(engine: Engine, ts: bytes) -> SourceId | None:
    """Return what a record records, or what an archive is of; None for any other store.

    `ts` is its timestamp key. One round trip without an archive.
    """
    manifest = getattr(engine, "manifest", None)
    if manifest is not None:
        found: SourceId = manifest.source
        return found
    kv = engine.get(source_key(ts)).kv
    return None if kv is None else SourceId.decode(kv.value)


class Lookup:
    """Finds marks in the engine; safe for threads, holds no lock while it reads.

    `creation` is the mark of the time before the first commit; it is set when the store is opened.
    """

    def __init__(self, engine: Engine, key: bytes, continuity: Continuity) -> None:
        self._engine, self._key, self._continuity = engine, key, continuity
        self._anchors, self.blocks = Anchors(), Blocks()
        self._lock = threading.Lock()
        self.creation = Mark(0, 0, 1)

    def between(
        self, field: int, wanted: int, known: Iterable[Mark], epoch: int
    ) -> tuple[Mark, Mark]:
        """Return the newest mark with `mark[field] <= wanted`, and the one after it.

        `known` are marks of an epoch that bound the search, one of them above `wanted`. Costs 0 to
        5 round trips for 16 million revisions, or some blocks of an embedded engine: see `search`
        and `search_blocks`. Raises `CompactedError` if that part of the history is gone. The caller
        must discard the result if the engine was restored meanwhile.
        """
        bracket = Bracket(field, wanted, *self._bounds(field, wanted, known))
        try:
            return self._search(bracket, epoch)
        except CompactedError as e:
            return self._from_compaction(bracket, epoch, e)

    def _search(self, bracket: Bracket, epoch: int) -> tuple[Mark, Mark]:
        if self._engine.remote:
            return search(bracket, self.probe)
        return search_blocks(bracket, partial(self._read_block, bracket, epoch))

    def _read_block(self, bracket: Bracket, epoch: int, revision: int) -> Block:
        """Read the mark in force at a revision and those before it; keep them as a block.

        If the upper end of the bracket is the mark after these, the block contains it, too.
        """
        found = self._engine.versions(self._key, revision, BLOCK_MARKS)
        if found.create_revision != self.creation.revision:
            return Block(revision, 0, (), ())
        timestamps, revisions = stamps_of(found.values)[::-1], found.revisions[::-1]
        ordinal = found.version - len(revisions) + 1
        if ordinal == 1:  # the creation is not a commit
            del timestamps[0], revisions[0]
            ordinal = 2
        block = Block(revision, ordinal, timestamps, revisions)
        if timestamps:
            first = Mark(timestamps[0], revisions[0], ordinal)
            last = Mark(timestamps[-1], revisions[-1], found.version)
            self.keep((first, last), epoch)
            if bracket.high.ordinal == ordinal + len(revisions):
                timestamps.append(bracket.high.timestamp)
                revisions.append(bracket.high.revision)
            self.keep_block(ordinal, timestamps, revisions, epoch)
        return block

    def probe(self, revisions: Sequence[int]) -> list[Mark]:
        """Read the marks in force at some revisions; keep them as anchors; one round trip."""
        epoch = self._continuity.epoch
        ranges = [Range(self._key, revision=r) for r in revisions]
        answer = self._continuity.read(ranges, serializable=True)
        marks = [self.mark_in(result) or self.creation for result in answer.results]
        self.keep(marks, epoch)
        return marks

    def mark_in(self, result: RangeResult) -> Mark | None:
        """Return the mark that was read, None before this store was created.

        The timestamp key of an earlier store with the same name has no marks of this one.
        """
        kv = result.kvs[0] if result.kvs else None
        ours = kv is not None and kv.create_revision == self.creation.revision
        return mark_of(kv) if kv is not None and ours else None

    def keep(self, marks: Iterable[Mark], epoch: int) -> None:
        """Keep marks as anchors, unless the epoch in which they were found is over."""
        with self._lock:
            for mark in marks if epoch == self._continuity.epoch else ():
                if mark.ordinal > 1:
                    self._anchors.add(mark)

    def learn(self, floor: Mark, after: Mark, epoch: int) -> None:
        """Keep two consecutive marks, so that the next lookup between them reads nothing.

        In an embedded engine a search has also read the marks around them; if no search was needed,
        a block is read now.
        """
        if self.blocks.find(floor.timestamp) is not None:
            return
        if floor.timestamp and not self._engine.remote:
            with suppress(SnapKVError):  # the lookup itself has succeeded already
                bracket = Bracket(TIMESTAMP, floor.timestamp, floor, after)
                self._read_block(bracket, epoch, floor.revision)
        marks = [floor, after] if floor.timestamp else [after]  # the creation is not a commit
        timestamps, revisions, _ = zip(*marks, strict=True)
        self.keep_block(marks[0].ordinal, timestamps, revisions, epoch)

    def keep_block(
        self, ordinal: int, timestamps: Sequence[int], revisions: Sequence[int], epoch: int
    ) -> None:
        """Keep consecutive marks, oldest first, unless their epoch is over.

        `ordinal` is the ordinal of the first mark.
        """
        with self._lock:
            if epoch == self._continuity.epoch:
                self.blocks.add(ordinal, timestamps, revisions)

    def after_fork(self) -> None:
        """Renew the lock; drop what another thread may have left half-changed."""
        self._lock, self._anchors, self.blocks = threading.Lock(), Anchors(), Blocks()

    def clear(self) -> None:
        """Drop all marks."""
        with self._lock:
            self._anchors.clear()
            self.blocks.clear()

    def check(self) -> None:
        """Assert the invariants of anchors and blocks."""
        with self._lock:
            self._anchors.check()
            self.blocks.check()

    def _bounds(self, field: int, wanted: int, known: Iterable[Mark]) -> tuple[Mark, Mark]:
        with self._lock:
            low, high = self._anchors.around(field, wanted)
        for mark in (self.creation, *known):
            if mark[field] <= wanted:
                low = mark if low is None or mark.ordinal > low.ordinal else low
            else:
                high = mark if high is None or mark.ordinal < high.ordinal else high
        assert low is not None
        if high is None:  # searches are for marks older than the newest: that one is gone
            raise StoreRestoredError("the engine was restored or replaced before a search")
        return low, high

    def _from_compaction(
        self, bracket: Bracket, epoch: int, error: CompactedError
    ) -> tuple[Mark, Mark]:
        """Search again from the compaction point, if `wanted` is not older than that."""
        while True:
            compacted = error.earliest or self._engine.compacted_revision()
            try:
                oldest = self.probe([compacted])[0]
                if oldest[bracket.field] > bracket.wanted:
                    by_time = bracket.field == TIMESTAMP
                    requested = bracket.wanted if by_time else bracket.low.timestamp
                    kept = kept_by(self._engine, self._key)
                    raise CompactedError(requested, oldest.timestamp, archive=kept) from error
                again = Bracket(bracket.field, bracket.wanted, oldest, bracket.high, compacted)
                return self._search(again, epoch)
            except CompactedError as e:
                if e.unit == "timestamp" or e.earliest == error.earliest:
                    raise
                error = e  # compaction went on; it only rises, and ends at the head
