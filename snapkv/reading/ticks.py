"""Moments of foreign keys, which have no timestamps: only a mark's own revision shows one."""

from __future__ import annotations

from snapkv.engine.contract import Range
from snapkv.errors import CompactedError, NotObservedError
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.timeline.moment import Moment, compaction_error
from snapkv.timeline.search import mark_of
from snapkv.timeline.timeline import Timeline


class Ticks:
    """The `RevisionPolicy` of an observed prefix.

    A foreign write carries the first mark at or after its revision. So a moment is read at the
    revision of the newest mark at or before it, and never at a later one: revisions after it may
    contain writes that the next mark stamps, or that no mark has stamped yet.
    """

    at_head = False

    def __init__(self, timeline: Timeline) -> None:
        self._timeline, self.tracker = timeline, timeline.tracker

    def now(self) -> Moment:
        """Return the newest mark's moment; one round trip.

        Raises `NotObservedError` before the first tick.
        """
        return self._observed(self._timeline.now())

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp; costs as that of a store.

        Raises `NotObservedError` before the first tick, `CompactedError`.
        """
        try:
            return self._observed(self._timeline.at(timestamp))
        except CompactedError as e:
            if e.unit != "timestamp":
                raise
            oldest = self._timeline.oldest()
            if oldest.ordinal == CREATION_ORDINAL + 1 and timestamp < oldest.timestamp:
                raise NotObservedError(timestamp, oldest.timestamp) from e
            raise compaction_error(self, timestamp) from e

    def at_revision(self, revision: int) -> Moment:
        """Return the state at a revision, whether or not it has a mark; one round trip."""
        answer = self.tracker.read([Range(self.tracker.key, revision=revision)])
        kvs = answer.results[0].kvs
        at_or_before = mark_of(kvs[0]) if kvs else self.tracker.creation
        self.tracker.on_seen(at_or_before.timestamp)
        mark = at_or_before._replace(revision=revision)
        return self.moment(mark)

    def moment(self, mark: Mark) -> Moment:
        """Return the moment of a known mark; no round trip."""
        return Moment(
            self, mark.timestamp, mark, True, self.tracker.continuity.epoch, mark.revision
        )

    def until(self, moment: Moment) -> int:
        """Return the moment's own revision: a foreign write may follow at the next one."""
        return moment.reading

    def earliest(self) -> int | None:
        """Return the timestamp of the first mark whose own revision is still readable."""
        while True:
            mark: Mark | None = self._timeline.oldest()
            try:
                while mark is not None and not self._readable(mark):
                    mark = self._timeline.following(mark)
            except CompactedError:  # compaction went on; it only rises, and ends at the head
                continue
            return None if mark is None else mark.timestamp

    def _readable(self, mark: Mark) -> bool:
        compacted = self.tracker.engine.compacted_revision()
        return mark.ordinal > CREATION_ORDINAL and mark.revision >= compacted

    def _observed(self, found: Moment) -> Moment:
        """Return a moment of the time line as one of the observed keys."""
        timestamp, mark = found.timestamp, found.mark
        if mark.ordinal > CREATION_ORDINAL:
            return Moment(self, timestamp, mark, found.final, found.epoch, found.reading)
        first = self._timeline.following(mark)
        raise NotObservedError(timestamp, None if first is None else first.timestamp)
