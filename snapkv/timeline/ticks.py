"""Moments of keys that others write without timestamps: only a mark's own revision shows one."""

from __future__ import annotations

from snapkv.engine.base import Range
from snapkv.errors import CompactedError, NotObservedError
from snapkv.records import Mark
from snapkv.timeline.feed import mark_of
from snapkv.timeline.reads import Pin
from snapkv.timeline.timeline import Timeline

CREATION_ORDINAL = 1
"""The mark of the time line's creation, which observes nothing."""


class Ticks:
    """What an observed prefix shows: see `Showing`.

    A foreign write carries the first mark at or after its revision. So a moment is read at the
    revision of the newest mark at or before it, also when that is the newest of all: behind it
    stand writes that no mark has stamped yet. Never at the revision before the next mark.
    """

    at_head = False

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def pin_head(self) -> Pin:
        """Return the newest mark's moment; one round trip.

        Raises `NotObservedError` before the first tick.
        """
        return self._observed(self._timeline.pin_head())

    def pin(self, timestamp: int) -> Pin:
        """Return the moment of a timestamp; costs as that of a store.

        Raises `NotObservedError` before the first tick, `CompactedError`.
        """
        try:
            return self._observed(self._timeline.pin(timestamp))
        except CompactedError as e:
            if e.unit != "timestamp":
                raise
            oldest = self._timeline.oldest()
            if oldest.ordinal == CREATION_ORDINAL + 1 and timestamp < oldest.timestamp:
                raise NotObservedError(timestamp, oldest.timestamp) from e
            raise CompactedError(timestamp, self.earliest()) from e

    def pin_revision(self, revision: int) -> Pin:
        """Return the state at a revision, whether or not it has a mark; one round trip."""
        answer = self._timeline.ask([Range(self._timeline.key, revision=revision)])
        kvs = answer.results[0].kvs
        at_or_before = mark_of(kvs[0]) if kvs else self._timeline.creation
        mark = at_or_before._replace(revision=revision)
        return Pin(mark.timestamp, mark, True, self._timeline.epoch, revision)

    def until(self, pin: Pin) -> int:
        """Return the pinned revision: a foreign write may stand at the next one."""
        return pin.reading

    def earliest(self) -> int | None:
        """Return the timestamp of the first mark whose own revision is still readable."""
        while True:
            mark: Mark | None = self._timeline.oldest()
            try:
                while mark is not None and not self._readable(mark):
                    mark = self._timeline.following(mark)
            except CompactedError:  # it went on in between; it only rises, and ends at head
                continue
            return None if mark is None else mark.timestamp

    def _readable(self, mark: Mark) -> bool:
        compacted = self._timeline.engine.compacted_revision()
        return mark.ordinal > CREATION_ORDINAL and mark.revision >= compacted

    def _observed(self, pin: Pin) -> Pin:
        if pin.mark.ordinal > CREATION_ORDINAL:
            return pin
        first = self._timeline.following(pin.mark)
        raise NotObservedError(pin.timestamp, None if first is None else first.timestamp)
