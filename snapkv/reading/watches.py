"""Watches of a store: commits in order with their changes, none twice, none missing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from snapkv.base.lifecycle import Closing
from snapkv.base.waiting import monotonic
from snapkv.engine.bulk_reads import REPLAY_WAIT_S
from snapkv.engine.contract import KeyEvent, WatchBatch
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    StoreClosedError,
    StoreRestoredError,
)
from snapkv.layout import Keyspace, Mark, StampRecord, prefix_end
from snapkv.model import Change, Changes, Commit, K, KeysAndValues, V
from snapkv.reading.deadline import WAIT_S_MAX, check_wait
from snapkv.reading.decoding import Decoding
from snapkv.reading.history import commit_of
from snapkv.reading.reader import Reader
from snapkv.timeline.continuity import ContinuousWatcher

T = TypeVar("T")

CATCH_UP_S = 0.05


class Steps(Closing, Generic[T]):
    """An iterator of what `next` waits for; it ends after `timeout` seconds without a step."""

    def __init__(self, timeout: float | None) -> None:
        check_wait(timeout)
        self._timeout = timeout
        self._ended = False  # by close(), while the store was open

    @abstractmethod
    def next(self, timeout: float | None = None) -> T | None:
        """Return the next step; None if `timeout` seconds (None: no bound) bring none."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            found = self._next_or_end()
        except StoreClosedError:
            if not self._ended:
                raise
            found = None
        if found is None:
            raise StopIteration
        return found

    def _next_or_end(self) -> T | None:
        """Return the next step of the iteration, None at its end."""
        return self.next(self._timeout)


class Watch(Steps["Changes[K, V]"], KeysAndValues[K, V]):
    """An iterator of `Changes`, one for each commit that changed a key with the prefix.

    `timestamp` is the timestamp of the newest commit seen, matching or not: a new watch from there
    continues without gap or repetition. Iteration waits for ever, or ends after `timeout` seconds
    without a change; `next(timeout=...)` waits so long once. Use it from one thread. Any thread may
    call `close()`, which ends the iteration; `next` then raises `StoreClosedError`. If the store is
    closed instead, the iteration raises it, too, because further changes were not returned. If a
    codec does not read a value, `DecodeError` is raised; the next call continues after that commit.

    Errors: `CompactedError` if the next changes were compacted, `StoreRestoredError` if the engine
    was restored (no change of the other history is returned), `StoreRecreatedError`,
    `StoreClosedError`.
    """

    timestamp: int

    _mark: Mark  # of the newest commit that was taken
    _head: Mark  # the head when the watch was made: events up to it must come

    def __init__(self, timeout: float | None, decoding: Decoding[V] | None = None) -> None:
        super().__init__(timeout)
        self._decoding: Decoding[V] | None = decoding

    @abstractmethod
    def next(self, timeout: float | None = None) -> Changes[K, V] | None:
        """Return the next commit's changes; None if `timeout` seconds bring none."""

    def _next_or_end(self) -> Changes[K, V] | None:
        found = self.next(self._timeout)
        deadline = monotonic() + REPLAY_WAIT_S
        while found is None and self._mark.ordinal < self._head.ordinal:
            if monotonic() >= deadline:
                raise EngineUnavailableError(f"no event within {REPLAY_WAIT_S:.0f} s")
            found = self.next(CATCH_UP_S)  # in slices: the next commits may not match
        return found


class WatchRequest(NamedTuple):
    """What a watch follows: the keys with a prefix (None: all of the keyspace), after a mark.

    `head` is the newest mark, `after` the timestamp up to which the caller has seen all.
    """

    core: Reader
    space: Keyspace
    prefix: str | bytes | None
    mark: Mark
    head: Mark
    after: int
    timeout: float | None
    decoding: Decoding[Any] | None = None


class MarkedWatch(Watch[K, V]):
    """A watch along the marks of a time line, which its `step` takes one by one."""

    def __init__(self, wanted: WatchRequest) -> None:
        core, space, prefix, mark, head, after, timeout, decoding = wanted
        super().__init__(timeout, decoding)
        self._core, self._space, self._mark, self._head = core, space, mark, head
        self._range = space.range_of(space.default_prefix if prefix is None else prefix)
        self.timestamp = max(after, mark.timestamp)
        self._closed = False

    def next(self, timeout: float | None = None) -> Changes[K, V] | None:
        """Return the next commit's changes; None if `timeout` seconds bring none."""
        check_wait(timeout)
        deadline = deadline_of(timeout)
        while (found := self.step(deadline)) is not None:
            if found.changes:
                self._core.count_watched(found)
                if self._decoding is not None:
                    return self._decoding.changes(found)
                return found  # type: ignore[return-value]  # of bytes
        return None

    @abstractmethod
    def step(self, deadline: float | None) -> Changes[K] | None:
        """Return the next commit, also one without matching changes; None after the deadline.

        Values are bytes. For layers of this package that follow how far a watch is.
        """

    @property
    def mark(self) -> Mark:
        """The mark of the newest commit that was taken."""
        return self._mark

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
        return not self._closed

    def _note_closed(self) -> None:
        self._ended, self._closed = self._ended or not self._core.closed, True


class StoreWatch(MarkedWatch[K, V]):
    """A watch of a store: changes and their timestamp arrive together."""

    def __init__(self, wanted: WatchRequest) -> None:
        super().__init__(wanted)
        self._unstamped: dict[bytes, KeyEvent] = {}
        self._watcher = self._watch()
        self._core.follow(self)

    def _watch(self) -> ContinuousWatcher:
        """Watch the whole store, so that changes and their timestamp arrive together."""
        root, start = self._core.layout.root, self._core.policy.moment(self._mark).next_revision()
        timeline = self._core.timeline
        return timeline.watch(root, prefix_end(root), start, lambda: timeline.verify(self._mark))

    def step(self, deadline: float | None) -> Changes[K] | None:
        """Return the next commit, also one without matching changes; None after the deadline."""
        while True:
            try:
                batch = self._watcher.next(left_of(deadline))
            except CompactedError:
                self._skip_compacted()
                continue
            if batch is None:
                return None
            if (found := self._take(batch)) is not None:
                return found

    def close(self) -> None:
        """End the watch; may be repeated."""
        self._note_closed()
        self._watcher.close()

    def _skip_compacted(self) -> None:
        """Continue after the compaction point, if no commit of this store was compacted.

        Other stores in the engine move the compaction point, too. Raises `CompactedError`
        if commits were lost.
        """
        self._watcher.close()
        self._watcher = self._watch()
        if self._closed:
            self._watcher.close()

    def _take(self, batch: WatchBatch) -> Changes[K] | None:
        """Turn the events of one revision into a commit's changes.

        Writes of other programs, which have no timestamp, belong to the next commit, as in reads.
        Each change has the commit that wrote it.
        """
        stamped: tuple[Mark, StampRecord] | None = None
        for event in batch.events:
            if event.kv.key == self._core.layout.ts:
                mark = mark_after(self._core, self._mark, event)
                stamped = mark, StampRecord.decode(event.kv.value)
            elif self._range[0] <= event.kv.key < self._range[1]:
                self._unstamped[event.kv.key] = event
        if stamped is None:
            return None
        mark, stamp = stamped
        self._mark = mark
        changes, self._unstamped = self._unstamped, {}
        if mark.timestamp <= self.timestamp:
            return None
        self.timestamp = mark.timestamp
        return Changes(
            commit_of(mark, stamp), changed_at(mark, stamp, changes.values(), self._space)
        )


def mark_after(core: Reader, last: Mark, event: KeyEvent) -> Mark:
    """Return the mark of an event of the timestamp key, which has to follow the last mark.

    Raises `StoreRestoredError` if it does not, and `StoreRecreatedError`.
    """
    mark = core.timeline.tracker.mark_in(None if event.is_delete else event.kv)
    if mark.ordinal != last.ordinal + 1:
        raise StoreRestoredError("the engine was restored or replaced under this watch")
    core.clock.merge(mark.timestamp)
    return mark


def deadline_of(timeout: float | None) -> float | None:
    """Return when a wait ends, None for one without a bound."""
    return None if timeout is None or timeout > WAIT_S_MAX else monotonic() + timeout


def left_of(deadline: float | None) -> float | None:
    """Return the seconds up to a deadline."""
    return None if deadline is None else max(0.0, deadline - monotonic())


def changed_at(
    mark: Mark, stamp: StampRecord, events: Iterable[KeyEvent], space: Keyspace
) -> tuple[Change[Any], ...]:
    """Return events as changes, in key order, with the mark that stamps them.

    Only a write at the mark's own revision has its writer.
    """
    own, changes = commit_of(mark, stamp), []
    for event in sorted(events, key=lambda event: event.kv.key):
        kv, commit = event.kv, own
        if kv.mod_revision != mark.revision:
            commit = Commit(mark.timestamp, 0, kv.mod_revision, None)
        changes.append(Change(space.decode(kv.key), None if event.is_delete else kv.value, commit))
    return tuple(changes)
