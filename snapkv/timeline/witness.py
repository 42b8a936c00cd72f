"""Whether an engine still holds the history that was learned: one mark of it, read along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapkv.clock import monotonic
from snapkv.engine.contract import (
    Engine,
    GetResult,
    Header,
    KeyValue,
    Range,
    RangeResult,
    ReadResult,
)
from snapkv.errors import CompactedError, FutureRevisionError
from snapkv.layout import Mark
from snapkv.timeline.feed import mark_of
from snapkv.timeline.search import READS_MAX

GAP_S = 0.03
"""Nobody can exchange a server in less: within so long of an answer it is still the same. A small
one on a memory disk was killed, set back and started in 0.08 s."""

Lost = Callable[[int, Header], None]
"""Takes the generation in which the loss was seen, and what the engine says now."""


class Witness:
    """Reads, and notices that the engine holds another history than before.

    A cluster that was set back to a backup and written to since cannot be told by its revision.
    So the newest mark seen while that was certain, the *witness*, is read again in the same round
    trip, at its revision, whenever more than `GAP_S` passed since the last answer. Where it is
    not the same any more, `lost` is called. Engines that nobody can exchange cost nothing.
    """

    def __init__(self, engine: Engine, key: bytes, lost: Lost) -> None:
        self._engine, self._key, self._lost = engine, key, lost
        self._seen: tuple[Mark, int] | None = None  # the witness, and a revision that shows it
        self.generation = 0  # of histories: what was learned in one is nothing in the next
        self._certain_at = float("-inf")  # when the newest request was sent that was answered
        self._took_s = 0.0  # what the last request took: a slow one needs the witness, too

    @property
    def mark(self) -> Mark | None:
        """The witness."""
        return None if self._seen is None else self._seen[0]

    def see(self, mark: Mark) -> None:
        """Take in a mark of the same history."""
        if self._seen is None or mark.ordinal > self._seen[0].ordinal:
            self._seen = mark, mark.revision

    def forget(self) -> None:
        """Begin another history."""
        self._seen = None
        self.generation += 1

    @property
    def in_doubt(self) -> bool:
        """Whether the engine may be another one by now."""
        return self._engine.remote and monotonic() - self._certain_at > GAP_S

    def get(self, key: bytes, revision: int) -> GetResult | None:
        """Answer a point read of a remote engine; None when the witness is due with it or before.

        One round trip, and one more when it was so slow that the engine may have been exchanged.
        """
        sent, certain_at = monotonic(), self._certain_at
        if sent - certain_at + self._took_s > GAP_S:
            return None
        found = self._engine.get(key, revision)
        self._took_s = monotonic() - sent
        if sent + self._took_s - certain_at > GAP_S:
            self.attended(())
        else:
            self._certain_at = max(self._certain_at, sent)
        return found

    def read(self, ranges: Sequence[Range], *, serializable: bool = False) -> ReadResult:
        """Answer ranges as the engine does, with the witness when it is due; one round trip.

        Two when the answer was so slow that the engine may have been exchanged meanwhile.
        """
        if not self._engine.remote:
            return self._engine.read(ranges, serializable=serializable)
        sent = monotonic()
        if sent - self._certain_at + self._took_s > GAP_S:
            if len(ranges) < READS_MAX:
                return self.attended(ranges, serializable=serializable)
            self.attended(())
            sent = monotonic()
        certain_at = self._certain_at
        answer = self._engine.read(ranges, serializable=serializable)
        self._took_s = monotonic() - sent
        if sent + self._took_s - certain_at > GAP_S:
            self.attended(())
        else:
            self._certain_at = max(self._certain_at, sent)
        return answer

    def assure(self) -> None:
        """Look at the witness alone, if it is due; for what is answered without a read."""
        if self.in_doubt:
            self.attended(())

    def attended(self, ranges: Sequence[Range], *, serializable: bool = False) -> ReadResult:
        """Answer ranges together with the witness, whatever the time; one round trip.

        Two when the witness is in the future, three when it was compacted. `CompactedError` and
        `FutureRevisionError` when `ranges` are.
        """
        while True:
            sent, generation, seen = monotonic(), self.generation, self._seen
            again = Range(self._key, revision=0 if seen is None else seen[1])
            try:
                answer = self._engine.read([*ranges, again], serializable=serializable)
            except CompactedError as e:
                if seen is None or (e.earliest is not None and e.earliest <= seen[1]):
                    raise  # it is the others that were
                self._replace(generation, seen, e)
                continue
            except FutureRevisionError:
                if seen is None:
                    raise
                behind = self._engine.read([*ranges, Range(self._key)])
                self._lost(generation, behind.header)
                return ReadResult(behind.header, behind.results[:-1])
            kv = _kv_in(answer.results[-1])
            if seen is None:  # the newest mark is the next one
                if kv is not None and generation == self.generation and self._seen is None:
                    self._seen = mark_of(kv), kv.mod_revision
            elif kv is None or mark_of(kv) != seen[0]:
                self._lost(generation, answer.header)
            self._certain_at = max(self._certain_at, sent)
            self._took_s = monotonic() - sent
            return ReadResult(answer.header, answer.results[:-1])

    def outlived(self, mark: Mark, error: CompactedError) -> bool:
        """Tell whether the engine's history may be the one of a mark that it has compacted.

        One round trip, as long as compaction does not go on.
        """
        return _may_follow(mark, self._left(error)[2:])

    def _replace(self, generation: int, seen: tuple[Mark, int], error: CompactedError) -> None:
        """Take the newest mark for a witness that is gone, unless that shows another history.

        Where compaction has passed that one, too, its own revision still shows it.
        """
        header, compacted, *left = self._left(error)
        newest = left[-1]
        if newest is None or not _may_follow(seen[0], left):
            self._lost(generation, header)
        elif generation == self.generation and self._seen is seen:
            self._seen = newest, max(newest.revision, compacted)

    def _left(self, error: CompactedError) -> tuple[Header, int, Mark | None, Mark | None]:
        """Return the compaction point, the mark in force there, and the newest one."""
        compacted = error.earliest or self._engine.compacted_revision()
        while True:
            ranges = [Range(self._key, revision=compacted), Range(self._key)]
            try:
                answer = self._engine.read(ranges)
            except CompactedError as e:  # it went on in between; it only rises, and ends at head
                compacted = e.earliest or self._engine.compacted_revision()
                continue
            kvs = map(_kv_in, answer.results)
            marks = [None if kv is None else mark_of(kv) for kv in kvs]
            return answer.header, compacted, marks[0], marks[1]


def _may_follow(mark: Mark, left: Sequence[Mark | None]) -> bool:
    """Tell whether what compaction left can be of the history in which it took a mark.

    There, the mark in force at the compaction point is that one or a newer one. In a backup that
    was restored with its revisions raised, all of which are compacted, it is older.
    """
    return all(
        other is not None and (other.ordinal > mark.ordinal or other == mark) for other in left
    )


def _kv_in(result: RangeResult) -> KeyValue | None:
    return result.kvs[0] if result.kvs else None
