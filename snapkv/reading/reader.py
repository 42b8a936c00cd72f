"""The parts that reading needs, the same for an open store and an observed prefix."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from snapkv.base.arguments import check_int, wrong_type
from snapkv.base.lifecycle import renew_in_children
from snapkv.clock import HybridClock
from snapkv.engine.contract import REVISION_MAX, Engine, KeyValue, Range, RangeResult
from snapkv.errors import (
    CompactedError,
    InvalidOptionError,
    InvalidTimeError,
    StoreClosedError,
    StoreRestoredError,
)
from snapkv.hooks import FailoverEvent, Notifier, WatchEvent
from snapkv.layout import FormatRecord, Layout
from snapkv.model import Changes
from snapkv.reading.metered import Meter
from snapkv.reading.sources import Source
from snapkv.timeline import RESTORES_MAX, RevisionPolicy, Timeline
from snapkv.times import (
    When,
    is_likely,
    is_number,
    pack,
    physical_ms,
    resolve,
    revision_of,
    unlikely,
)

# --- counting what the watches of a store return, and how late that is ---


class Deliveries:
    """Counts of the commits and changes that watches returned; safe for threads."""

    def __init__(self, clock: HybridClock, notify: Notifier | None) -> None:
        self._clock, self._notify = clock, notify
        self.commits = self.changes = 0
        self.lag_s: float | None = None
        """How old the newest commit was that a watch returned; None before the first one."""
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def note(self, changes: Changes[Any]) -> None:
        """Count the changes of a commit that a watch is about to return."""
        timestamp, count = changes.commit.ts, len(changes.changes)
        lag_s = max(0.0, (self._clock.now_ms() - physical_ms(timestamp)) / 1_000)
        with self._lock:
            self.commits += 1
            self.changes += count
            self.lag_s = lag_s
        if self._notify is not None:
            self._notify(WatchEvent(self._notify.store, timestamp, count, lag_s))


# --- reader ---


class Closable(Protocol):
    """An object that is closed with the store."""

    def close(self) -> None:
        """Close it; may be repeated."""
        ...


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
    deliveries: Deliveries = field(init=False)
    closed: bool = field(default=False, kw_only=True)
    failovers: int = field(default=0, kw_only=True)
    followers: weakref.WeakSet[Closable] = field(default_factory=weakref.WeakSet, kw_only=True)
    lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)

    def __post_init__(self) -> None:
        self.policy = self.make_policy()
        self.deliveries = Deliveries(self.clock, self.notify)
        renew_in_children(self)

    def make_policy(self) -> RevisionPolicy:
        """Return the policy of the keys: the time line itself for keys of its own store."""
        return self.timeline

    def after_fork(self) -> None:
        """Renew the lock."""
        self.lock = threading.Lock()

    def follow(self, follower: Closable) -> None:
        """Close an object with the store; `StoreClosedError` if that is closed already."""
        with self.lock:
            if not self.closed:
                self.followers.add(follower)
                return
        follower.close()
        raise StoreClosedError("the store was closed")

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
        if (revision := revision_of(when)) is not None:
            self.check_open()
            return self.policy.at_revision(revision).timestamp
        timestamp = resolve(when, self.clock.now_ms())
        if is_number(when):
            self._check_likely(timestamp)
        return timestamp

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

    def source(self, when: When | None, revision: int | None, final: bool) -> Source:
        """Return the state at a moment."""
        self.check_open()
        if not isinstance(final, bool):
            raise wrong_type("final", "True or False", final)
        if revision is not None and when is not None:
            raise InvalidOptionError("give a time or a revision, not both")
        if revision is None:
            revision = revision_of(when)
        if revision is not None:
            if final:
                raise InvalidOptionError("the state at a revision is final: leave final=True out")
            return self._source_of_revision(revision)
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

    def _source_of_revision(self, revision: int) -> Source:
        check_int("revision", revision)
        if not 1 <= revision <= REVISION_MAX:
            raise InvalidTimeError(f"revisions are 1 to 2^63 - 1, not {revision}", revision)
        return self.policy.at_revision(revision)

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
    """Return the versions in answers of one key each."""
    return [result.kvs[0] if result.kvs else None for result in results]
