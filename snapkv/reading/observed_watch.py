"""Watches of foreign keys: their changes wait for the tick that stamps them."""

from __future__ import annotations

from itertools import chain

from snapkv.base.waiting import monotonic
from snapkv.engine.contract import WatchBatch
from snapkv.errors import CompactedError
from snapkv.layout import Keyspace, Mark, StampRecord
from snapkv.model import Changes, Commit, K
from snapkv.reading.deadline import check_wait
from snapkv.reading.history import commit_of
from snapkv.reading.reader import Reader
from snapkv.reading.watch import Watch, changed_at, deadline_of, left_of, mark_after
from snapkv.timeline.continuity import ContinuousWatcher
from snapkv.timeline.moment import compaction_error

PROGRESS_WAIT_S = 1.0
"""How long a tick waits, whatever the timeout, until the engine reports that all changes before it
were delivered. That report is on its way."""
LOOK_S = 5.0
"""Without a tick, changes are fetched this often, so that the engine does not have to keep them."""


class ObservedWatch(Watch[K]):
    """A watch of foreign keys: one `Changes` for each tick that stamps some.

    Ticks and changes come from two watchers. A tick is returned once the watcher of changes has
    delivered everything up to the tick's revision, which a later event or a progress report proves.
    All writes since the tick before are held in memory.
    """

    def __init__(
        self,
        core: Reader,
        space: Keyspace,
        prefix: K | None,
        mark: Mark,
        first: int,
        after: int,
        timeout: float | None,
    ) -> None:
        """Follow from revision `first` on the ticks after `mark` that are newer than `after`."""
        super().__init__(timeout)
        self._core, self._space = core, space
        self.timestamp = max(after, mark.timestamp)
        start, end = space.range_of(space.whole if prefix is None else prefix)
        self._mark = mark  # the newest tick taken, and the next one once it is known
        self._tick: tuple[Mark, StampRecord] | None = None
        self._held: list[WatchBatch] = []  # changes up to `_taken`, after `_mark`, by revision
        self._ahead: WatchBatch | None = None  # the changes of one revision, not yet taken
        self._ticked, self._taken = max(mark.revision, first - 1), first - 1  # known up to here
        self._closed = False
        self._ticks = self._watch_ticks()
        self._changes = core.timeline.watch(start, end, first, self._verify)
        core.follow(self)

    def _watch_ticks(self) -> ContinuousWatcher:
        timeline = self._core.timeline
        return timeline.watch(timeline.tracker.key, b"", self._ticked + 1, self._verify)

    def _verify(self) -> None:
        self._core.timeline.verify(self._mark)

    def next(self, timeout: float | None = None) -> Changes[K] | None:
        """Return the next tick's changes; None when `timeout` seconds (None: ever) had none."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        while (found := self.step(deadline)) is not None:
            if found.changes:
                self._core.deliveries.note(found)
                return found
        return None

    @property
    def mark(self) -> Mark:
        """The mark of the newest tick that was taken."""
        return self._mark

    def step(self, deadline: float | None) -> Changes[K] | None:
        """Return the next tick, also one without changes; None after the deadline.

        For layers of this package that follow how far a watch is.
        """
        while True:
            over = self._tick is None and not self._look_for_tick(deadline)
            if self._tick is None:
                self._take_changes(self._ticked, 0.0)
                if over:
                    return None
            elif self._take_changes(self._tick[0].revision, self._patience(deadline)):
                if (found := self._emit(*self._tick)) is not None:
                    return found
            elif deadline is not None and monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._ended, self._closed = self._ended or not self._core.closed, True
        self._ticks.close()
        self._changes.close()

    def _look_for_tick(self, deadline: float | None) -> bool:
        """Wait a while for a new tick; return False when the deadline has passed."""
        left = left_of(deadline)
        try:
            batch = self._ticks.next(LOOK_S if left is None else min(left, LOOK_S))
        except CompactedError:
            self._skip_compacted()
            return True
        if batch is None:
            return deadline is None or monotonic() < deadline
        for event in batch.events:
            mark = mark_after(self._core, self._mark, event)
            self._tick = mark, StampRecord.decode(event.kv.value)
        self._ticked = batch.revision
        return True

    def _skip_compacted(self) -> None:
        """Follow the time line from the compaction point on, if no tick was compacted."""
        try:
            after = self._core.timeline.moment(self._mark).next_revision()
        except CompactedError as e:
            raise self._lost() from e
        self._ticks.close()
        self._ticked = max(self._ticked, after - 1)
        self._ticks = self._watch_ticks()
        if self._closed:
            self._ticks.close()

    @staticmethod
    def _patience(deadline: float | None) -> float:
        left = left_of(deadline)
        return PROGRESS_WAIT_S if left is None else max(left, PROGRESS_WAIT_S)

    def _take_changes(self, until: int, wait_s: float) -> bool:
        """Take the changes up to a revision; return False if some are missing after `wait_s`."""
        deadline = deadline_of(wait_s)
        while self._taken < until:
            if self._ahead is None:
                try:
                    batch = self._changes.next(left_of(deadline))
                except CompactedError as e:
                    raise self._lost() from e
                if batch is None:
                    return False
                if not batch.events:
                    self._taken = max(self._taken, batch.revision)
                    continue
                self._ahead = batch
            if self._ahead.revision > until:
                self._taken = self._ahead.revision - 1
                break
            self._held.append(self._ahead)
            self._taken, self._ahead = self._ahead.revision, None
        return True

    def _emit(self, mark: Mark, stamp: StampRecord) -> Changes[K] | None:
        """Return the changes that a tick stamps; None if the tick is not wanted."""
        self._mark, self._tick = mark, None
        held, self._held = self._held, []
        if mark.timestamp <= self.timestamp:
            return None
        self.timestamp = mark.timestamp
        found = [changed_at(mark, stamp, batch.events, self._space) for batch in held]
        if not found:
            return Changes(commit_of(mark, stamp), ())
        commit = found[-1][-1].commit
        if len(found) > 1:
            commit = Commit(mark.timestamp, 0, commit.revision, None)
        return Changes(commit, tuple(chain.from_iterable(found)))

    def _lost(self) -> CompactedError:
        return compaction_error(self._core.policy, self.timestamp)
