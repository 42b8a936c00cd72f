"""Observed prefixes: read-only time travel over keys that other programs write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

from snapkv.base.lifecycle import Closing
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Range, WatchBatch
from snapkv.errors import CompactedError, NotObservedError
from snapkv.layout import CREATION_ORDINAL, Mark, RawKeyspace, StampRecord
from snapkv.model import Changes, Commit, K, Version
from snapkv.reading import history as _history
from snapkv.reading.change_replay import first_after
from snapkv.reading.deadline import bounds, within
from snapkv.reading.history import commit_of
from snapkv.reading.reader import Reader
from snapkv.reading.view import KeyspaceReads
from snapkv.reading.watches import (
    MarkedWatch,
    Watch,
    WatchRequest,
    changed_at,
    deadline_of,
    left_of,
    mark_after,
)
from snapkv.timeline import RevisionPolicy
from snapkv.timeline.continuity import ContinuousWatcher
from snapkv.timeline.moment import Moment, compaction_error
from snapkv.timeline.search import mark_of
from snapkv.timeline.timeline import Timeline
from snapkv.times import When

# --- moments of observed keys, which have no timestamps: only the revision of a mark shows one ---


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
        """Return the moment of a timestamp; costs as in a store.

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
                while mark is not None and (
                    mark.ordinal == CREATION_ORDINAL
                    or mark.revision < self.tracker.engine.compacted_revision()
                ):
                    mark = self._timeline.following(mark)
            except CompactedError:  # compaction went on; it only rises, and ends at the head
                continue
            return None if mark is None else mark.timestamp

    def _observed(self, found: Moment) -> Moment:
        """Return a moment of the time line as one of the observed keys."""
        timestamp, mark = found.timestamp, found.mark
        if mark.ordinal > CREATION_ORDINAL:
            return Moment(self, timestamp, mark, found.final, found.epoch, found.reading)
        first = self._timeline.following(mark)
        raise NotObservedError(timestamp, None if first is None else first.timestamp)


# --- watches of observed keys: changes wait for the tick that stamps them ---

PROGRESS_WAIT_S = 1.0
"""The longest that a tick waits, whatever the timeout, until the engine reports that all changes
before it were delivered, in seconds. That report is on its way."""
LOOK_S = 5.0
"""The pause between two fetches of changes without a tick, in seconds, so that the engine does not
have to keep them."""


# For example, the tick 10 is at revision 20, and the stream of changes has brought everything up to
# revision 25. The server is restored to revision 22, which nothing of this watch contradicts, and
# its next tick, 11, is at 24. What came after revision 20 belongs to the history that was lost, and
# the stream would go on at 26. So when either stream was opened again, the changes since the newest
# tick are dropped and read anew: 11 has the changes of the present history.
class ObservedWatch(MarkedWatch[K]):
    """A watch of foreign keys: one `Changes` for each tick that stamps some.

    Ticks and changes come from two watchers. A tick is returned once the watcher of changes has
    delivered everything up to the tick's revision, which a later event or a progress report proves.
    All writes since the tick before are held in memory.
    """

    def __init__(self, wanted: WatchRequest, first: int) -> None:
        """Follow the ticks, and the changes from revision `first` on."""
        super().__init__(wanted)
        self._tick: tuple[Mark, StampRecord] | None = None  # the next one once it is known
        self._held: list[WatchBatch] = []  # changes up to `_taken`, after `_mark`, by revision
        self._ahead: WatchBatch | None = None  # the changes of one revision, not yet taken
        self._ticked = max(wanted.mark.revision, first - 1)  # all ticks up to it are known
        self._taken = first - 1  # and all changes up to this
        self._first = first  # of the revisions that the next tick stamps
        self._ticks = self._watch_ticks()
        self._reopened = 0  # of the ticks, when the stream of changes was opened
        self._changes = self._core.timeline.watch(*self._range, first, self._verify)
        self._core.follow(self)

    def _watch_ticks(self) -> ContinuousWatcher:
        timeline = self._core.timeline
        return timeline.watch(timeline.tracker.key, b"", self._ticked + 1, self._verify)

    def _verify(self) -> None:
        self._core.timeline.verify(self._mark if self._tick is None else self._tick[0])

    def _begin_again(self) -> None:
        """Drop the changes since the newest tick that was returned, and read them anew."""
        self._changes.close()
        self._held, self._ahead, self._taken = [], None, self._first - 1
        self._reopened = self._ticks.reopened
        self._changes = self._core.timeline.watch(*self._range, self._first, self._verify)
        if self._closed:
            self._changes.close()

    def step(self, deadline: float | None) -> Changes[K] | None:
        """Return the next tick, also one without changes; None after the deadline."""
        while True:
            over = self._tick is None and not self._look_for_tick(deadline)
            if self._tick is None:
                self._take_changes(self._ticked, 0.0)
                if over:
                    return None
            elif self._take_changes(
                self._tick[0].revision, max(left_of(deadline) or 0.0, PROGRESS_WAIT_S)
            ):
                if (found := self._emit(*self._tick)) is not None:
                    return found
            elif deadline is not None and monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._note_closed()
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
        if self._ticks.reopened != self._reopened:
            self._begin_again()
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
        self._ticks, self._reopened = self._watch_ticks(), -1
        if self._closed:
            self._ticks.close()

    def _take_changes(self, until: int, wait_s: float) -> bool:
        """Take the changes up to a revision; return False if some are missing after `wait_s`."""
        deadline = deadline_of(wait_s)
        while self._taken < until:
            if self._ahead is None:
                try:
                    batch = self._changes.next(left_of(deadline))
                except CompactedError as e:
                    raise self._lost() from e
                if self._changes.reopened:
                    self._begin_again()
                    continue
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
        self._mark, self._tick, self._first = mark, None, mark.revision + 1
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


# --- observed ---


@dataclass(slots=True, eq=False)
class Observer(Reader):
    """The parts of an open observed prefix."""

    def make_policy(self) -> RevisionPolicy:
        """Return the policy of keys that change between marks, too."""
        return Ticks(self.timeline)


class Observed(KeyspaceReads[K, bytes], Closing):
    """Keys that other programs write, as they were at each tick of a time line beside them.

    The reads of a store, with these differences:

    * Keys are the full keys of the engine, as text or bytes like the given prefix. In text, bytes
      that are not valid UTF-8 are escaped (`surrogateescape`).
    * A foreign write carries the timestamp of the first tick (or commit of the store that ticks)
      at or after it. So it happened later than the tick before that one, less skew, and earlier
      than that tick, plus skew and the tick's time of flight. Skew is how far the tickers' clocks
      may differ.
    * Writes that no tick has stamped yet are not seen: "now" is the newest tick. It costs two
      round trips, the tick and then its state.
    * Times before the first tick raise `NotObservedError`; they are not empty.
    * A moment ends when compaction passes its tick: `CompactedError`, whose `earliest` is the
      first tick that can still be read, None if there is none yet.
    * `at(revision=...)` reads exactly that revision, ticked or not; the timestamp is that of the
      newest tick at or before it, 0 if there is none. `at(final=True)` raises: it would have to
      tick.

    Safe for threads and usable as a context manager. Made by `snapkv.observe`.
    """

    _core: Observer
    _space: RawKeyspace

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __repr__(self) -> str:
        core, space = self._core, self._space
        observed = space.selection or f"prefix={space.default_prefix!r}"
        return f"<Observed {core.url} {observed} name={core.layout.name!r}>"

    def close(self) -> None:
        """Close it; watches in other threads end with `StoreClosedError`. May be repeated."""
        self._core.close()

    @bounds
    def history(
        self,
        key: K,
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Version]:
        """Yield the observed versions of a key, oldest first, each with the tick that stamps it.

        The arguments, the beginning and removals are as of `SnapshotKV.history`. Writer and note
        are None, because they are not known, unless the store that ticks made the version with a
        commit of its own. Versions newer than the newest tick are left out. Several may have the
        time of one tick, so pages of a size may divide them. A time `since` before the first tick
        means the engine's beginning. Costs 0 to 6 round trips more for each tick.

        Raises `NotObservedError` before the first tick, `CompactedError`,
        `EngineUnavailableError`, `ReadTimeoutError`.
        """
        wanted = _history.HistoryBounds(since, until, limit, newest_first)
        return _history.versions(self._core, self._space.encode(key), wanted)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K]:
        """Return an iterator of the ticks after `since` (None: after now) with what they stamp.

        As `SnapshotKV.watch`, but each `Changes` holds all writes since the tick before, in the
        order of their revisions, and in memory. Each change has the commit that `history` shows. A
        tick that has arrived may take a second longer, until all its changes have. `since` a time
        before the first tick means from the engine's beginning.

        Raises `CompactedError` when changes after `since` may be gone, `EngineUnavailableError`.
        """
        core = self._core
        core.check_open()
        with within(self._read_timeout):
            head = core.timeline.head()
            mark, first, after = self._watched_from(since, head)
        wanted = WatchRequest(core, self._space, prefix, mark, head, after, timeout)
        return ObservedWatch(wanted, first)

    def _watched_from(self, since: When | None, head: Mark) -> tuple[Mark, int, int]:
        """Return the mark to follow from, the first revision, and the timestamp that was seen."""
        core = self._core
        if since is None:
            return head, core.policy.moment(head).next_revision(), 0
        after = core.resolve(since)
        try:
            mark = core.timeline.at(after).mark
            return mark, first_after(core, mark), after
        except CompactedError as e:
            raise compaction_error(core.policy, after) from e

    @bounds
    def resolved(self, *, timeout: float | None = None) -> int:
        """Return the timestamp of the newest tick: at or below it nothing changes any more.

        0 before the first one. One round trip. Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        self._core.check_open()
        return self._core.timeline.head().timestamp

    @bounds
    def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about what is observed and its engine, for people, without secrets.

        Raises `EngineUnavailableError`, `ReadTimeoutError`.
        """
        core = self._core
        core.check_open()
        head = core.timeline.head()
        return {
            "url": core.url,
            **self._space.facts,
            "name": core.layout.name,
            "store_id": core.format.store_id.hex(),
            "ticks": head.ordinal - CREATION_ORDINAL,
            "newest_timestamp": head.timestamp,
            "newest_age_s": core.age_s(head.timestamp),
            "newest_revision": head.revision,
            "earliest_timestamp": core.policy.earliest(),
            "ring": f"{len(core.timeline.tracker.ring)} of {core.timeline.tracker.ring.slots}",
            "engine": core.engine.info(),
        }
