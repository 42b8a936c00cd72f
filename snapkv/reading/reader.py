"""The parts that reading needs, the same for an open store and an observed prefix."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from snapkv.base.arguments import check_int, wrong_type
from snapkv.base.lifecycle import Closing, renew_in_children
from snapkv.clock import HybridClock
from snapkv.engine.contract import REVISION_MAX, Engine, KeyValue, Range, RangeResult
from snapkv.errors import (
    CompactedError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    StoreClosedError,
    StoreRestoredError,
)
from snapkv.hooks import FailoverEvent, Notifier, WatchEvent
from snapkv.layout import CREATION_ORDINAL, FormatRecord, Keyspace, Layout, SourceId
from snapkv.model import Changes
from snapkv.reading.lookup_meter import Meter
from snapkv.reading.snapshot import StateReads
from snapkv.timeline import RESTORES_MAX, RevisionPolicy, Timeline
from snapkv.timeline.lookup import recorded_of
from snapkv.times import (
    When,
    check_timestamp,
    is_likely,
    is_number,
    names_revision,
    pack,
    physical_ms,
    resolve,
    revision_of,
    source_revision_of,
    unlikely,
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Reader:
    """An engine, a time line in it, and the moments of one kind of keys."""

    url: str
    engine: Engine
    layout: Layout
    format: FormatRecord
    clock: HybridClock
    timeline: Timeline
    policy: RevisionPolicy = field(init=False)
    read_timeout: float | None = field(default=None, kw_only=True)
    notify: Notifier | None = field(default=None, kw_only=True)
    meter: Meter | None = field(default=None, kw_only=True)
    watch_commits: int = field(default=0, kw_only=True)
    """Commits that watches returned; `lock` is held when it changes."""
    watch_changes: int = field(default=0, kw_only=True)
    watch_lag_s: float | None = field(default=None, kw_only=True)
    """The age of the newest of these commits, in seconds; None before the first one."""
    closed: bool = field(default=False, kw_only=True)
    failovers: int = field(default=0, kw_only=True)
    followers: weakref.WeakSet[Closing] = field(default_factory=weakref.WeakSet, kw_only=True)
    lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)
    _recorded: list[SourceId | None] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.policy = self.make_policy()
        renew_in_children(self)

    def make_policy(self) -> RevisionPolicy:
        """Return the policy of the keys: the time line itself for keys of its own store."""
        return self.timeline

    def after_fork(self) -> None:
        """Renew the lock."""
        self.lock = threading.Lock()

    def follow(self, follower: Closing) -> None:
        """Close an object with the store; `StoreClosedError` if that is closed already."""
        with self.lock:
            if not self.closed:
                self.followers.add(follower)
                return
        follower.close()
        raise StoreClosedError("the store was closed")

    def count_watched(self, changes: Changes[Any]) -> None:
        """Count and report the changes of a commit that a watch is about to return."""
        timestamp, count = changes.commit.ts, len(changes.changes)
        lag_s = max(0.0, (self.clock.now_ms() - physical_ms(timestamp)) / 1_000)
        with self.lock:
            self.watch_commits += 1
            self.watch_changes += count
            self.watch_lag_s = lag_s
        if self.notify is not None:
            self.notify(WatchEvent(self.notify.store, timestamp, count, lag_s))

    def age_s(self, timestamp: int) -> float | None:
        """Return the age of a timestamp by the local clock, in seconds; None for 0, no commit."""
        age_s = max(0.0, (self.clock.now_ms() - physical_ms(timestamp)) / 1_000)
        return age_s if timestamp else None

    def check_open(self) -> None:
        """Raise `StoreClosedError` after `close()`."""
        if self.closed:
            raise StoreClosedError("the store was closed")

    def resolve(self, when: When) -> int:
        """Return the timestamp of a moment as callers name it.

        That of a revision is the timestamp of the newest commit at or below it; one round trip.
        A number that is unlikely a timestamp costs one round trip more, to read the head.
        """
        newest = self.timeline.tracker.newest.timestamp
        if type(when) is int and newest // 100 <= when <= newest:  # a hot path
            return when
        if (revision := self.revision_of(when)) is not None:
            self.check_open()
            return self.policy.at_revision(revision).timestamp
        timestamp = resolve(when, self.clock.now_ms())
        if is_number(when):
            self._check_likely(timestamp)
        return timestamp

    def revision_of(self, when: When | None) -> int | None:
        """Return the revision that `rev:4`, or `rv:4` of a record, names; None for other times.

        `rv:4` is the commit that recorded revision 4 of the source, or the newest before it: a
        round trip for each factor of 128 commits. Of observed keys it is `rev:4`. Raises
        `InvalidTimeError` for `rv:4` of a store that is not a record, or whose record is newer.
        """
        if (source := source_revision_of(when)) is None:
            return revision_of(when)
        self.check_open()
        archive = getattr(self.engine, "manifest", None)
        if not self.policy.at_head or (archive and archive.source.observed is not None):
            return source  # the revisions are the revisions of the engine that it is of
        found = self.timeline.of_source(source)
        if found is not None and found.ordinal > CREATION_ORDINAL:
            return found.revision
        if found is None:
            why = f"{self.url} is not a record, so its commits have no other revision: write"
            raise InvalidTimeError(f"{when!r}: {why} rev:{source}, or a time", when)
        raise InvalidTimeError(
            f"{when!r} is before what the record {self.url} has: write a later one, or a time", when
        )

    @property
    def recorded(self) -> SourceId | None:
        """What this is a record of, or an archive of; None for a store. One round trip, once."""
        if not self._recorded:
            self._recorded.append(recorded_of(self.engine, self.layout.ts))
        return self._recorded[0]

    def source_revisions(self, revisions: Sequence[int]) -> list[int | None]:
        """Return what the commits of some revisions recorded, None for a commit of the store.

        None, too, for revisions that were compacted. A round trip for each 128.
        """
        lowest = max(1, self.engine.compacted_revision())
        stamps = self.timeline.stamps([max(each, lowest) for each in revisions])
        return [
            found[1].source_revision if found and found[0].revision == each else None
            for each, found in zip(revisions, stamps, strict=True)
        ]

    def foreign_prefix(self, space: Keyspace) -> bytes | None:
        """Return below which prefix other programs wrote the keys of a space; None: none did.

        One round trip, once.
        """
        if not self.policy.at_head:
            return space.prefix
        recorded = None if self.recorded is None else self.recorded.observed
        return None if recorded is None else recorded.hull

    def _check_likely(self, number: int) -> None:
        """Raise `InvalidTimeError` for a number that cannot be a timestamp of this store.

        A number at or above the first commit's timestamp is always valid, however old that is.
        """
        now = pack(self.clock.now_ms())
        newest = max(self.timeline.tracker.newest.timestamp, now)
        if is_likely(number, newest, now):
            return
        self.check_open()
        head = self.timeline.head()
        if is_likely(number, head.timestamp, now):
            return
        with suppress(CompactedError):
            if number <= head.timestamp and self.timeline.at(number).mark.ordinal > 1:
                return
        raise unlikely(number, head.timestamp, head.revision)

    def source(self, when: When | None, revision: int | None, final: bool) -> StateReads:
        """Return the state at a moment."""
        self.check_open()
        if not isinstance(final, bool):
            raise wrong_type("final", "True or False", final)
        if revision is not None and when is not None:
            raise InvalidOptionError("give a time or a revision, not both")
        if revision is None and isinstance(when, str):
            revision = self.revision_of(when)
        if revision is not None:
            if final:
                raise InvalidOptionError("the state at a revision is final: leave final=True out")
            check_int("revision", revision)
            if not 1 <= revision <= REVISION_MAX:
                raise InvalidTimeError(f"revisions are 1 to 2^63 - 1, not {revision}", revision)
            return self.policy.at_revision(revision)
        if when is None:
            return self.policy.now()
        timestamp = self.resolve(when)
        if final:
            self.finish(timestamp)
        return self.policy.at(timestamp)

    def get(self, keys: Sequence[bytes], when: When | None) -> list[KeyValue | None]:
        """Return the versions of fewer than 128 stored keys at a time (None: now), of one state.

        None where a key is absent. One round trip for now, for times at or above the newest
        commit and for times in the ring, else as `source`. Raises as that.
        """
        timeline, at_head = self.timeline, self.policy.at_head
        if when is None and not at_head:
            return self.policy.now().get(keys)
        if when is None:
            return self._newest(keys)
        timestamp = self.resolve(when)
        if at_head and timestamp >= timeline.tracker.newest.timestamp:
            mark, results = timeline.tracker.head_and([Range(key) for key in keys])
            if mark.timestamp <= timestamp:
                return _versions(results)
        for left in reversed(range(RESTORES_MAX)):
            try:
                return self.policy.at(timestamp).get(keys)
            except StoreRestoredError:  # between the two, or it was noticed only now
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _newest(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the newest versions of some stored keys; one round trip."""
        tracker = self.timeline.tracker
        if len(keys) == 1:
            found = tracker.point(keys[0], 0, tracker.continuity.epoch)
            if found is not None:
                tracker.unmarked.note(found.header, [found.kv])
                return [found.kv]
        answer = tracker.read([Range(key) for key in keys])
        versions = _versions(answer.results)
        tracker.unmarked.note(answer.header, versions)
        return versions

    def finish(self, timestamp: int) -> None:
        """Make sure that nothing can commit at or below a timestamp any more."""
        raise InvalidOptionError(
            "final=True commits a tick, and this only reads: leave that to `snapkv tick`"
        )

    def failed_over(self, left: str, entered: str, reason: str) -> None:
        """Count and report that another endpoint of the engine answers."""
        self.failovers += 1
        if self.notify is not None:
            self.notify(FailoverEvent(self.notify.store, left, entered, reason))

    def stop(self) -> None:
        """Wake waiting threads; a reader has no threads but its followers' threads."""

    def close(self) -> None:
        """Close everything, in the order that frees waiting threads; may be repeated."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            followers = list(self.followers)
        for follower in followers:
            follower.close()
        self.stop()
        self.timeline.tracker.close()
        self.engine.close()


def _versions(results: Sequence[RangeResult]) -> list[KeyValue | None]:
    return [result.kvs[0] if result.kvs else None for result in results]


# --- many moments at once: all arguments are checked before the first read ---

if TYPE_CHECKING:
    from snapkv.timeline.timeline import Integers, Revisions


def revisions_at(core: Reader, timestamps: Any) -> Any:
    """Return the revisions of moments: an array for a numpy array, a list for an iterable.

    Raises `InvalidTypeError` and `InvalidTimeError` for an invalid one, as `Reader.source` does,
    before anything is read.
    """
    core.check_open()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(timestamps, numpy.ndarray):
        if isinstance(timestamps, numpy.ma.MaskedArray):
            raise InvalidTypeError("timestamps is a masked array: give its compressed()")
        return _of_array(core, timestamps)
    if isinstance(timestamps, str | bytes):
        given = type(timestamps).__name__
        raise InvalidTypeError(f"timestamps is an iterable of times, not one {given}: use at()")
    try:
        moments = iter(timestamps)
    except TypeError:
        given = type(timestamps).__name__
        raise InvalidTypeError(
            f"timestamps is an iterable of times or an array, not {given}: give a list"
        ) from None
    listed = list(moments)
    if set(map(type, listed)) <= {int}:
        return _of_numbers(core, listed)
    return _of_moments(core, listed)


def _of_array(core: Reader, timestamps: Integers) -> Revisions:
    if timestamps.dtype.kind not in "iu":
        raise InvalidTypeError(
            f"timestamps is an array of {timestamps.dtype}: give an array of integers, "
            "or a list of dates"
        )
    if not timestamps.size:
        return timestamps.astype("int64")
    lowest, highest = int(timestamps.min()), int(timestamps.max())
    positive = timestamps if lowest else timestamps[timestamps > 0]
    _check(core, lowest, int(positive.min()) if positive.size else 0, highest)
    core.source(lowest, None, False)
    flat = timestamps.ravel().astype("uint64", copy=False)
    return core.timeline.revisions_of_array(flat).reshape(timestamps.shape)


def _of_numbers(core: Reader, numbers: list[int]) -> list[int]:
    if not numbers:
        return []
    lowest = min(numbers)
    _check(core, lowest, lowest or min(filter(None, numbers), default=0), max(numbers))
    return _read(core, numbers)


def _of_moments(core: Reader, moments: Sequence[When]) -> list[int]:
    """Answer moments of any kind; a moment that names a revision costs a round trip."""
    now_ms = core.clock.now_ms()
    # None: it names a revision
    resolved = [None if names_revision(each) else resolve(each, now_ms) for each in moments]
    if numbers := [resolve(when, now_ms) for when in moments if is_number(when)]:
        _check(core, min(numbers), min(filter(None, numbers), default=0), max(numbers))
    times = [timestamp for timestamp in resolved if timestamp is not None]
    found = iter(_read(core, times) if times else ())
    named = {when for when, time in zip(moments, resolved, strict=True) if time is None}
    of_named = {when: core.source(when, None, False).revision for when in named}
    return [
        of_named[when] if time is None else next(found)
        for when, time in zip(moments, resolved, strict=True)
    ]


def _check(core: Reader, lowest: int, lowest_positive: int, highest: int) -> None:
    """Raise for numbers that are not timestamps, or not of this store.

    If the lowest above 0, which is always one, and the highest are, so are all in between.
    """
    for number in (lowest, highest):
        check_timestamp(number)
    for number in (lowest_positive, highest):
        core.resolve(number)


def _read(core: Reader, timestamps: Sequence[int]) -> list[int]:
    core.source(min(timestamps), None, False)  # raises where there is nothing to see
    return core.timeline.revisions_of(timestamps)
