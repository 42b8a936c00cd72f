"""Whether an engine still holds the history that was learned: one mark of it, read along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snapkv.clock import monotonic
from snapkv.engine.base import Engine, Header, KeyValue, Range, RangeResult, ReadResult
from snapkv.errors import CompactedError, FutureRevisionError
from snapkv.records import Mark
from snapkv.timeline.feed import mark_of
from snapkv.timeline.search import PROBES_MAX

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
        self.mark: Mark | None = None
        self.generation = 0  # of histories: what was learned in one is nothing in the next
        self._certain_at = float("-inf")  # when the newest request was sent that was answered
        self._took_s = 0.0  # what the last request took: a slow one needs the witness, too

    def see(self, mark: Mark) -> None:
        """Take in a mark of the same history."""
        if self.mark is None or mark.ordinal > self.mark.ordinal:
            self.mark = mark

    def forget(self) -> None:
        """Begin another history."""
        self.mark = None
        self.generation += 1

    @property
    def in_doubt(self) -> bool:
        """Whether the engine may be another one by now."""
        return self._engine.remote and monotonic() - self._certain_at > GAP_S

    def read(self, ranges: Sequence[Range], *, serializable: bool = False) -> ReadResult:
        """Answer ranges as the engine does, with the witness when it is due; one round trip.

        Two when the answer was so slow that the engine may have been exchanged meanwhile.
        """
        if not self._engine.remote:
            return self._engine.read(ranges, serializable=serializable)
        sent = monotonic()
        if sent - self._certain_at + self._took_s > GAP_S:
            if len(ranges) < PROBES_MAX:
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

        Two when the witness was compacted, or is in the future. `CompactedError` and
        `FutureRevisionError` when `ranges` are.
        """
        sent, generation, witness = monotonic(), self.generation, self.mark
        answer: ReadResult | None = None
        if witness is not None:
            again = Range(self._key, revision=witness.revision)
            try:
                answer = self._engine.read([*ranges, again], serializable=serializable)
            except CompactedError as e:
                if e.earliest is not None and e.earliest <= witness.revision:
                    raise  # it is the others that were
            except FutureRevisionError:
                behind = self._engine.read([*ranges, Range(self._key)])
                self._lost(generation, behind.header)
                return ReadResult(behind.header, behind.results[:-1])
        if answer is not None:
            kv = _kv_in(answer.results[-1])
            held = kv is not None and mark_of(kv) == witness
        else:  # nothing to compare with: the newest mark is the next witness
            answer = self._engine.read([*ranges, Range(self._key)])
            kv = _kv_in(answer.results[-1])
            held = kv is None or self._renew(generation, witness, mark_of(kv))
        if not held:
            self._lost(generation, answer.header)
        self._certain_at = max(self._certain_at, sent)
        self._took_s = monotonic() - sent
        return ReadResult(answer.header, answer.results[:-1])

    def _renew(self, generation: int, compacted: Mark | None, newest: Mark) -> bool:
        """Take the newest mark for a witness that is gone; False when it cannot follow that one."""
        if compacted is not None:
            if newest.ordinal < compacted.ordinal:
                return False
            if newest.ordinal == compacted.ordinal and newest != compacted:
                return False
        if generation == self.generation and self.mark is compacted:
            self.mark = newest
        return True


def _kv_in(result: RangeResult) -> KeyValue | None:
    return result.kvs[0] if result.kvs else None
