"""Moments of keys that others write without timestamps: only a mark's own revision shows one."""

from __future__ import annotations

from snapkv.engine.contract import Range
from snapkv.errors import CompactedError, NotObservedError
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.timeline.feed import mark_of
from snapkv.timeline.moment import Moment
from snapkv.timeline.timeline import Timeline


class Ticks:
    """The `RevisionPolicy` of an observed prefix.

    A foreign write carries the first mark at or after its revision. So a moment is read at the
    revision of the newest mark at or before it, also when that is the newest of all: behind it
    stand writes that no mark has stamped yet. Never at the revision before the next mark.
    """

    at_head = False

    def __init__(self, timeline: Timeline) -> None:
        self.marks = timeline

    def now(self) -> Moment:
        """Return the newest mark's moment; one round trip.

        Raises `NotObservedError` before the first tick.
        """
        return self._observed(self.marks.now())

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp; costs as that of a store.

        Raises `NotObservedError` before the first tick, `CompactedError`.
        """
        try:
            return self._observed(self.marks.at(timestamp))
        except CompactedError as e:
            if e.unit != "timestamp":
                raise
            oldest = self.marks.oldest()
            if oldest.ordinal == CREATION_ORDINAL + 1 and timestamp < oldest.timestamp:
                raise NotObservedError(timestamp, oldest.timestamp) from e
            raise CompactedError(timestamp, self.earliest()) from e

    def at_revision(self, revision: int) -> Moment:
        """Return the state at a revision, whether or not it has a mark; one round trip."""
        answer = self.marks.ask([Range(self.marks.key, revision=revision)])
        kvs = answer.results[0].kvs
        at_or_before = mark_of(kvs[0]) if kvs else self.marks.creation
        mark = at_or_before._replace(revision=revision)
        return self.moment(mark)

    def moment(self, mark: Mark) -> Moment:
        """Return the moment of a known mark; no round trip."""
        return Moment(self, mark.timestamp, mark, True, self.marks.epoch, mark.revision)

    def until(self, moment: Moment) -> int:
        """Return the moment's own revision: a foreign write may follow at the next one."""
        return moment.reading

    def earliest(self) -> int | None:
        """Return the timestamp of the first mark whose own revision is still readable."""
        while True:
            mark: Mark | None = self.marks.oldest()
            try:
                while mark is not None and not self._readable(mark):
                    mark = self.marks.following(mark)
            except CompactedError:  # it went on in between; it only rises, and ends at head
                continue
            return None if mark is None else mark.timestamp

    def _readable(self, mark: Mark) -> bool:
        compacted = self.marks.engine.compacted_revision()
        return mark.ordinal > CREATION_ORDINAL and mark.revision >= compacted

    def _observed(self, found: Moment) -> Moment:
        """Return a moment of the time line as one of the observed keys."""
        timestamp, mark = found.timestamp, found.mark
        if mark.ordinal > CREATION_ORDINAL:
            return Moment(self, timestamp, mark, found.final, found.epoch, found.reading)
        first = self.marks.following(mark)
        raise NotObservedError(timestamp, None if first is None else first.timestamp)
