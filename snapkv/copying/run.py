"""One run of a recorder: steps go from a source to a target while both answer."""

from __future__ import annotations

from collections.abc import Callable

from snapkv.base.waiting import monotonic
from snapkv.copying.options import RecordOptions
from snapkv.copying.sources import Follower, Recorded, StoreSource
from snapkv.copying.status import RecordStatus
from snapkv.copying.targets import Target, gap_note
from snapkv.engine.contract import Compare, KeyValue
from snapkv.errors import CompactedError
from snapkv.store.recorder_watermarks import Watermark, move, watermark_id

WAIT_S = 0.5
"""The longest wait for a step."""
RESUME_TRIES = 8
"""The most times that a state is read again because compaction overtook the scan."""


class Recording:
    """A source and a target that is open, and how far the steps have gone.

    For example, commits of the source are at revisions 5, 7 and 9, and the target has those up to
    7. The recording follows from 8 on, and takes the step of 9. Had the source been compacted at
    11 before, after one more commit at 10, then the commits at 9 and 10 are lost: the states at 7
    and 11 are compared, the differences are recorded with the mark of 10, and the gap is noted.
    """

    def __init__(
        self,
        source: Recorded,
        target: Target,
        guard: Compare | None,
        options: RecordOptions,
        status: RecordStatus,
    ) -> None:
        self._source, self._target, self._guard = source, target, guard
        self._options, self._status = options, status
        self._watermark: Watermark | None = None
        self._overtaken = False
        now = monotonic()
        self._flush_at, self._tick_at = now + options.flush_s, now + options.every_s
        self._last, self._follower = self._resume()

    # --- steps ---

    def take(self, timeout: float) -> None:
        """Take the next step, or a tick when one is due; flush what is due.

        Waits `timeout` seconds at most. Raises what source and target raise.
        """
        if self._overtaken:  # what was taken before is flushed first
            self.flush()
        now = monotonic()
        left = min(timeout, max(0.0, self._flush_at - now), max(0.0, self._tick_at - now))
        try:
            step = self._follower.next(min(left, self._target.settle_in()))
        except CompactedError:
            self._overtaken = True
            return
        if step is None and self._target.settle_in() <= 0.0:
            self._target.settle()
            self._status.note_recorded(self._last)
            return
        if step is None and monotonic() >= self._tick_at:
            self._tick_at = monotonic() + self._options.every_s
            step = self._follower.tick(own_revision=not self._options.is_store)
        if step is not None:
            self._target.add(step)
            self._last = step.mark
            self._status.commits += 1
            self._status.changes += len(step.events)
            self._status.note_seen(step.mark)
            self._tick_at = monotonic() + self._options.every_s
            if not self._target.pending:
                self._status.note_recorded(step.mark)
        self._status.bytes = self._target.pending
        if self._is_due():
            self.flush()

    def catch_up(self, each: Callable[[], None] = lambda: None) -> None:
        """Record all that exists now, durably; call `each` after each step."""
        newest = self._source.newest(self._last).mod_revision
        while max(self._last.mod_revision, self._follower.reached) < newest:
            self.take(WAIT_S)
            each()
        self.flush()

    # --- durability ---

    def _is_due(self) -> bool:
        target = self._target
        if monotonic() < self._flush_at:
            return target.is_full or target.pending >= self._options.flush_bytes
        return True

    def flush(self) -> None:
        """Make all that was taken durable; then let compaction of the source pass it."""
        self._flush_at = monotonic() + self._options.flush_s
        self._target.flush()
        self._status.note_recorded(self._last)
        self._move_watermark()
        if self._overtaken:
            self._follower.close()
            self._last, self._follower = self._resume()
            self._overtaken = False

    def _move_watermark(self) -> None:
        if not isinstance(self._source, StoreSource) or self._source.is_archive:
            return
        into = self._options.place
        at = self._status.recorded
        mark = Watermark(watermark_id(into), into, at, self._status.recorded_revision)
        if mark != self._watermark:
            move(self._source.engine, self._source.layout, mark, self._guard)
            self._watermark = mark

    def tend(self, keep_before_ms: int | None) -> None:
        """Do what is due besides: merge files, drop what is older than a time."""
        self._target.tend(keep_before_ms)

    def close(self) -> None:
        """Stop following."""
        self._follower.close()

    # --- beginning ---

    def _resume(self) -> tuple[KeyValue, Follower]:
        """Follow from the last durable mark, or from the one that ends a gap; return both."""
        for left in reversed(range(RESUME_TRIES)):
            try:
                mark = self._begin()
                follower = self._source.follow(mark)
                break
            except CompactedError:
                if not left:
                    raise
        self._status.note_seen(mark)
        self._status.note_recorded(mark)
        self._move_watermark()
        return mark, follower

    def _begin(self) -> KeyValue:
        """Return the mark to follow from, after recording what compaction has left before it."""
        source, target = self._source, self._target
        last = target.last()
        if last is None:
            mark = source.first()
            target.begin(mark, source.state(mark))
            return mark
        source.check(last)
        compacted = source.engine.compacted_revision()
        if compacted <= last.mod_revision:
            return last
        mark = source.after(last, compacted)
        if mark.version == last.version:  # no commit of the source was lost
            return last
        target.close_gap(last, mark, source.state(mark))
        if mark.version > last.version + 1:
            self._status.gaps.append(gap_note(last, mark))
        return mark
