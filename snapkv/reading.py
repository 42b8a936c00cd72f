"""What reading takes: the parts that an open store and an observed prefix have in common."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from snapkv.clock import HybridClock
from snapkv.engine.base import REVISION_MAX, Engine
from snapkv.errors import (
    CompactedError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    StoreClosedError,
)
from snapkv.forks import renew_in_children
from snapkv.records import FormatRecord, Layout, Mark
from snapkv.snapshot import LiveSource
from snapkv.sources import Past, Source
from snapkv.timeline import Pin, Reads, Timeline
from snapkv.times import When, is_likely, is_number, pack, resolve, revision_of, unlikely


class Closable(Protocol):
    """What is closed with the store."""

    def close(self) -> None:
        """Close it; twice is fine."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Reader:
    """An engine, a time line in it, and the reads of one kind of keys at its moments."""

    url: str
    engine: Engine
    layout: Layout
    format: FormatRecord
    clock: HybridClock
    timeline: Timeline
    reads: Reads = field(init=False)
    past: Past | None = field(default=None, kw_only=True)
    read_timeout: float | None = field(default=None, kw_only=True)
    closed: bool = field(default=False, kw_only=True)
    followers: weakref.WeakSet[Closable] = field(default_factory=weakref.WeakSet, kw_only=True)
    lock: threading.Lock = field(default_factory=threading.Lock, kw_only=True)

    def __post_init__(self) -> None:
        self.reads = self.make_reads()
        renew_in_children(self)

    def make_reads(self) -> Reads:
        """Return the reads of the keys: of the store's own, whose time line it is."""
        return self.timeline.reads

    def after_fork(self) -> None:
        """Renew the lock."""
        self.lock = threading.Lock()

    def follow(self, follower: Closable) -> None:
        """Close something with the store; `StoreClosedError` when that is closed already."""
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
        A number that hardly is a timestamp costs one more than others, to look at the head.
        """
        newest = self.timeline.newest_known().timestamp
        if type(when) is int and newest // 100 <= when <= newest:  # a hot path
            return when
        if (revision := revision_of(when)) is not None:
            self.check_open()
            return self.reads.showing.pin_revision(revision).timestamp
        timestamp = resolve(when, self.clock.now_ms())
        if is_number(when):
            self._check_likely(timestamp)
        return timestamp

    def _check_likely(self, number: int) -> None:
        """Raise `InvalidTimeError` for a number that cannot be a timestamp of this store.

        What is not before the first commit can, however old that is.
        """
        now = pack(self.clock.now_ms())
        newest = max(self.timeline.newest_known().timestamp, now)
        if is_likely(number, newest, now):
            return
        self.check_open()
        head = self.timeline.head()
        if is_likely(number, head.timestamp, now):
            return
        with suppress(CompactedError):
            if number <= head.timestamp and self.timeline.pin(number).mark.ordinal > 1:
                return
        raise unlikely(number, head.timestamp, head.revision)

    def source(self, when: When | None, revision: int | None, final: bool) -> Source:
        """Return the state at a moment: from the engine, or where compaction took it, the past."""
        self.check_open()
        if not isinstance(final, bool):
            raise InvalidTypeError(f"final is a bool, not {type(final).__name__}")
        if revision is not None and when is not None:
            raise InvalidOptionError("give a time or a revision, not both")
        if revision is None:
            revision = revision_of(when)
        if revision is not None:
            if final:
                raise InvalidOptionError("the state at a revision is final: leave final=True out")
            return self._source_of_revision(revision)
        if when is None:
            return LiveSource(self.reads, self.reads.showing.pin_head())
        timestamp = self.resolve(when)
        if final:
            self.finish(timestamp)
        try:
            pin = self.reads.showing.pin(timestamp)
            if self.past is not None:  # a moment found in memory may be compacted by now
                self.reads.hold(pin)
            return LiveSource(self.reads, pin)
        except CompactedError:
            past = self.past.source(timestamp) if self.past is not None else None
            if past is None:
                raise
            return past

    def _source_of_revision(self, revision: int) -> Source:
        if isinstance(revision, bool) or not isinstance(revision, int):
            raise InvalidTypeError(f"a revision is an int, not {type(revision).__name__}")
        if not 1 <= revision <= REVISION_MAX:
            raise InvalidTimeError(f"revisions are 1 to 2^63 - 1, not {revision}", revision)
        return LiveSource(self.reads, self.reads.showing.pin_revision(revision))

    def moment(self, mark: Mark) -> Source:
        """Return the state at a mark that is known; no round trip."""
        pin = Pin(mark.timestamp, mark, True, self.timeline.epoch, mark.revision)
        return LiveSource(self.reads, pin)

    def finish(self, timestamp: int) -> None:
        """Make sure that nothing can commit at or below a timestamp any more."""
        raise InvalidOptionError(
            "final=True commits a tick, and this only reads: leave that to `snapkv tick`"
        )

    def stop(self) -> None:
        """End what waits, beside followers; reading alone leaves nothing waiting."""

    def close(self) -> None:
        """Close everything, in the order that lets waiting threads go; twice is fine."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            followers = list(self.followers)
        for follower in followers:
            follower.close()
        self.stop()
        self.timeline.close()
        self.engine.close()
