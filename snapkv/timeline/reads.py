"""Pinned reads: everything read through one pin sees the state of one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from snapkv.clock import check_in_time
from snapkv.engine.base import (
    Columns,
    Engine,
    GetResult,
    KeyValue,
    Pairs,
    Range,
    RangeResult,
    ReadResult,
)
from snapkv.errors import CompactedError, FutureRevisionError, StoreRestoredError
from snapkv.records import Mark
from snapkv.timeline.feed import replayed

Page = TypeVar("Page")


@dataclass(slots=True)
class Pin:
    """A moment, resolved: reads through one pin all see the state of one revision.

    `reading` is where to read it; it moves up within the same state when compaction passes it
    and a newer revision still shows that state.
    """

    timestamp: int
    mark: Mark
    final: bool
    epoch: int
    reading: int


class Showing(Protocol):
    """Which moments can be told, and which revisions show the state of one.

    A store's keys change only at marks: every revision from a commit up to the next commit - 1
    shows the same state, and the head shows that of the newest mark. Among keys that others
    write, only a mark's own revision shows its state.
    """

    at_head: bool
    """Whether the engine's newest state is that of the newest mark."""

    def pin_head(self) -> Pin:
        """Return the newest moment."""
        ...

    def pin(self, timestamp: int) -> Pin:
        """Return the moment of a timestamp."""
        ...

    def pin_revision(self, revision: int) -> Pin:
        """Return the moment of a revision."""
        ...

    def until(self, pin: Pin) -> int:
        """Return the last revision known to show the pinned state; `CompactedError` if gone."""
        ...

    def earliest(self) -> int | None:
        """Return the smallest timestamp that can still be answered, None when none can."""
        ...


class Line(Protocol):
    """What pinned reads need of a time line."""

    engine: Engine
    epoch: int

    def point(self, key: bytes, revision: int, epoch: int) -> GetResult | None:
        """Answer one key by the short way, None where `ask` has to."""
        ...

    def ask(self, ranges: Sequence[Range]) -> ReadResult:
        """Read linearizably, and notice an engine that went back."""
        ...

    def assure(self) -> None:
        """Notice an engine that went back, where nothing is asked that would tell."""
        ...

    def head_and(self, ranges: Sequence[Range]) -> tuple[Mark, list[RangeResult]]:
        """Return the newest mark and the newest state of `ranges`, read together."""
        ...

    def newest_known(self) -> Mark:
        """Return the newest mark seen so far."""
        ...


class Reads:
    """Reads of one kind of keys, at moments of a time line; safe for threads."""

    def __init__(self, line: Line, showing: Showing) -> None:
        self._line, self.showing = line, showing

    def get(self, pin: Pin, key: bytes) -> KeyValue | None:
        """Return a version of a key at a pinned moment, None where it is absent."""
        if (found := self._line.point(key, pin.reading, pin.epoch)) is not None:
            return found.kv
        kvs = self.read(pin, [Range(key)])[0].kvs
        return kvs[0] if kvs else None

    def get_now(self, key: bytes) -> KeyValue | None:
        """Return the newest version of a key, None where it is absent; one round trip."""
        if self.showing.at_head:
            found = self._line.point(key, 0, self._line.epoch)
            if found is not None:
                return found.kv
        kvs = self.read_now([Range(key)])[0].kvs
        return kvs[0] if kvs else None

    def read(self, pin: Pin, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at a pinned moment; one round trip unless compaction moved it.

        Raises `CompactedError`, `StoreRestoredError`.
        """
        self._check_epoch(pin)
        while True:
            reading = pin.reading
            try:
                answer = self._line.ask([_at(r, reading) for r in ranges])
                break
            except CompactedError:
                self._move_up(pin, reading)
            except FutureRevisionError:
                self._look_for_restore(pin)
                raise
        self._check_epoch(pin)
        return answer.results

    def read_now(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at the newest moment; one round trip, two where the head is not it."""
        if self.showing.at_head:
            return self._line.ask(ranges).results
        return self.read(self.showing.pin_head(), ranges)

    def read_at(self, timestamp: int, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at a timestamp; at or above the newest mark it costs as `read_now`."""
        if self.showing.at_head and timestamp >= self._line.newest_known().timestamp:
            mark, results = self._line.head_and(ranges)
            if mark.timestamp <= timestamp:
                return results
        return self.read(self.showing.pin(timestamp), ranges)

    def scan(
        self, pin: Pin, key: bytes, range_end: bytes, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range at a pinned moment in pages; a compaction in between moves or ends it.

        Pages do not tell whose they are: before the first and after the last one, a remote engine
        that was not asked for a while is, in a round trip more.
        """

        def pages(engine: Engine, start: bytes, revision: int) -> Iterator[list[KeyValue]]:
            return engine.scan(start, range_end, revision=revision, keys_only=keys_only)

        return self._held(pin, key, pages, lambda page: page[-1].key)

    def pairs(
        self, pin: Pin, key: bytes, range_end: bytes, *, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the same as keys and values alone."""

        def pages(engine: Engine, start: bytes, revision: int) -> Iterator[Pairs]:
            return engine.pairs(start, range_end, revision=revision, keys_only=keys_only)

        return self._held(pin, key, pages, lambda page: page.keys[-1])

    def columns(
        self, pin: Pin, key: bytes, range_end: bytes, *, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield the same as columns of Arrow."""

        def chunks(engine: Engine, start: bytes, revision: int) -> Iterator[Columns]:
            return engine.columns(start, range_end, revision=revision, keys_only=keys_only)

        return self._held(pin, key, chunks, lambda chunk: chunk.keys[-1].as_py())

    def _held(
        self,
        pin: Pin,
        key: bytes,
        read: Callable[[Engine, bytes, int], Iterator[Page]],
        last_of: Callable[[Page], bytes],
    ) -> Iterator[Page]:
        while True:
            self._line.assure()
            self._check_epoch(pin)
            reading = pin.reading
            try:
                for page in read(self._line.engine, key, reading):
                    check_in_time()
                    yield page
                    key = last_of(page) + b"\0"
                    self._check_epoch(pin)
                self._line.assure()
                self._check_epoch(pin)
                return
            except CompactedError:
                self._move_up(pin, reading)
            except FutureRevisionError:
                self._look_for_restore(pin)
                raise

    def keys_written(
        self, low: Pin, high: Pin, start: bytes, end: bytes, events_max: int
    ) -> list[bytes] | None:
        """Return the sorted keys of a range with events between two pins.

        None when that is compacted, or has more than `events_max` events.
        """
        self._check_epoch(low)
        self._check_epoch(high)
        written: set[bytes] = set()
        events = 0
        try:
            for batch in replayed(self._line.engine, start, end, low.reading + 1, high.reading):
                written.update(event.kv.key for event in batch.events)
                events += len(batch.events)
                if events > events_max:
                    return None
        except CompactedError:
            return None
        if not written:  # else the keys are read next, which tells
            self._line.assure()
        self._check_epoch(low)
        self._check_epoch(high)
        return sorted(written)

    def hold(self, pin: Pin) -> None:
        """Make sure that a moment, found without asking the engine, can still be read there."""
        reading = pin.reading
        if reading < self._line.engine.compacted_revision():
            self._move_up(pin, reading)

    def start_after(self, mark: Mark) -> int:
        """Return the revision from which a watch misses no change after `mark`.

        Above `mark` as long as that is left, else behind the last revision of the same state.
        `CompactedError` when changes after it are gone.
        """
        start = mark.revision + 1
        engine = self._line.engine
        if start >= engine.compacted_revision():
            return start
        pin = Pin(mark.timestamp, mark, True, self._line.epoch, mark.revision)
        try:
            following = self.showing.until(pin) + 1
        except CompactedError:
            following = 0
        if following < engine.compacted_revision():
            raise CompactedError(pin.timestamp, self.showing.earliest()) from None
        return following

    def _move_up(self, pin: Pin, failed: int) -> None:
        """Read the same state at a newer revision than the one that failed, or tell what is left.

        Another thread may have moved the pin up already.
        """
        try:
            until = self.showing.until(pin)
        except CompactedError:
            until = 0
        self._check_epoch(pin)
        if until <= failed or until < self._line.engine.compacted_revision():
            raise CompactedError(pin.timestamp, self.showing.earliest()) from None
        pin.reading = max(pin.reading, until)

    def _look_for_restore(self, pin: Pin) -> None:
        """Raise `StoreRestoredError` when a revision once read is in the future now."""
        self._line.head_and(())
        self._check_epoch(pin)

    def _check_epoch(self, pin: Pin) -> None:
        if pin.epoch != self._line.epoch:
            raise StoreRestoredError("the engine was restored or replaced since this was pinned")


def _at(wanted: Range, revision: int) -> Range:
    """Return a range at a revision; a hot path, where `_replace` would cost more than the rest."""
    key, end, _, limit, keys_only, count_only = wanted
    return Range(key, end, revision, limit, keys_only, count_only)
