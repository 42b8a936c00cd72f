"""Marks that are not in the ring: anchors first, then a search of the timestamp key's history."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

from snapkv.engine.contract import Engine, Range, RangeResult
from snapkv.errors import CompactedError, SnapKVError, StoreRestoredError
from snapkv.layout import Mark, stamp_of
from snapkv.timeline.anchors import Anchors
from snapkv.timeline.blocks import Blocks
from snapkv.timeline.feed import mark_of
from snapkv.timeline.search import TIMESTAMP, Block, Bracket, search, search_blocks
from snapkv.timeline.witness import Witness

BLOCK_MARKS = 128
"""So many marks are read at once in an embedded engine."""


class Lookup:
    """Finds marks in the engine; safe for threads, holds no lock while it reads.

    `creation` stands for the time before the first commit; it is set when the store is opened.
    """

    def __init__(self, engine: Engine, key: bytes, witness: Witness) -> None:
        self._engine, self._key, self._witness = engine, key, witness
        self._anchors, self.blocks = Anchors(), Blocks()
        self._lock = threading.Lock()
        self.creation = Mark(0, 0, 1)

    @property
    def generation(self) -> int:
        """The number of the history: what was found in another one is not kept."""
        return self._witness.generation

    def between(self, field: int, wanted: int, known: Iterable[Mark]) -> tuple[Mark, Mark]:
        """Return the newest mark with `mark[field] <= wanted`, and the one after it.

        `known` are marks at hand, one of them above `wanted`; 0 to 5 round trips, or some blocks
        of an embedded engine: see `search` and `search_blocks`.
        Raises `CompactedError` when that part of the history is gone. What it finds means nothing
        when the engine was restored meanwhile.
        """
        bracket = Bracket(field, wanted, *self._bounds(field, wanted, known))
        try:
            return self._search(bracket)
        except CompactedError as e:
            return self._from_compaction(bracket, e)

    def _search(self, bracket: Bracket) -> tuple[Mark, Mark]:
        if self._engine.remote:
            return search(bracket, self.probe)
        return search_blocks(bracket, self._read_block)

    def _read_block(self, revision: int) -> Block:
        """Return the mark in force at a revision and those before it, and keep them."""
        generation = self._witness.generation
        found = self._engine.versions(self._key, revision, BLOCK_MARKS)
        if found.create_revision != self.creation.revision:
            return Block(revision, 0, (), ())
        timestamps, revisions = [*map(stamp_of, reversed(found.values))], found.revisions[::-1]
        ordinal = found.version - len(revisions) + 1
        if ordinal == 1:  # the creation, which is no commit
            del timestamps[0], revisions[0]
            ordinal = 2
        block = Block(revision, ordinal, timestamps, revisions)
        if timestamps:
            self.keep_block(ordinal, timestamps, revisions, generation)
            self.keep((block.mark(0), block.mark(len(revisions) - 1)), generation)
        return block

    def probe(self, revisions: Sequence[int]) -> list[Mark]:
        """Return the marks in force at some revisions, and keep them as anchors; one round trip."""
        generation = self._witness.generation
        ranges = [Range(self._key, revision=r) for r in revisions]
        answer = self._witness.read(ranges, serializable=True)
        marks = [self.mark_in(result) or self.creation for result in answer.results]
        self.keep(marks, generation)
        return marks

    def mark_in(self, result: RangeResult) -> Mark | None:
        """Return the mark that was read, None before this store was made.

        What stood under its name before, another store that was removed, has no marks of ours.
        """
        kv = result.kvs[0] if result.kvs else None
        ours = kv is not None and kv.create_revision == self.creation.revision
        return mark_of(kv) if kv is not None and ours else None

    def keep(self, marks: Iterable[Mark], generation: int) -> None:
        """Keep marks as anchors; not those found in a generation that is over."""
        with self._lock:
            if generation != self._witness.generation:
                return
            for mark in marks:
                if mark.ordinal > 1:
                    self._anchors.add(mark)

    def learn(self, floor: Mark, after: Mark, generation: int) -> None:
        """Keep two marks that follow each other, so that the next lookup there reads nothing.

        In an embedded engine a search has read the marks around them, too; where none was needed,
        a block is read now.
        """
        if self.blocks.find(floor.timestamp) is not None:
            return
        marks = [after]
        if floor.timestamp:  # the creation's is 0: it is no commit
            marks.insert(0, floor)
            if not self._engine.remote:
                with suppress(SnapKVError):  # the lookup itself has succeeded
                    self._read_block(floor.revision)
        timestamps, revisions = [m.timestamp for m in marks], [m.revision for m in marks]
        self.keep_block(marks[0].ordinal, timestamps, revisions, generation)

    def keep_block(
        self, ordinal: int, timestamps: Sequence[int], revisions: Sequence[int], generation: int
    ) -> None:
        """Keep marks that follow each other, oldest first; `ordinal` is that of the first.

        Not those found in a generation that is over.
        """
        with self._lock:
            if generation == self._witness.generation:
                self.blocks.add(ordinal, timestamps, revisions)

    def after_fork(self) -> None:
        """Renew the lock, and forget what another thread may have left half-changed."""
        self._lock, self._anchors, self.blocks = threading.Lock(), Anchors(), Blocks()

    def clear(self) -> None:
        """Forget what was found."""
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
        if high is None:  # only what is older than the newest is searched: that is gone
            raise StoreRestoredError("the engine was restored or replaced before a search")
        return low, high

    def _from_compaction(self, bracket: Bracket, error: CompactedError) -> tuple[Mark, Mark]:
        """Search again from the oldest revision that is left, if that is not too new."""
        while True:
            compacted = error.earliest or self._engine.compacted_revision()
            try:
                oldest = self.probe([compacted])[0]
                if oldest[bracket.field] > bracket.wanted:
                    by_time = bracket.field == TIMESTAMP
                    requested = bracket.wanted if by_time else bracket.low.timestamp
                    raise CompactedError(requested, oldest.timestamp) from error
                again = Bracket(bracket.field, bracket.wanted, oldest, bracket.high, compacted)
                return self._search(again)
            except CompactedError as e:
                if e.unit == "timestamp" or e.earliest == error.earliest:
                    raise
                error = e  # compaction went on meanwhile: it only rises, and ends at head
