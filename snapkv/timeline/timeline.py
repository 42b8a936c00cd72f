"""From a time to a revision: ring, anchors, search, and reads pinned to a moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from snapkv.engine.base import Engine, Header, KeyValue, Range, RangeResult, ReadResult
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.forks import renew_in_children
from snapkv.records import Mark, StampRecord
from snapkv.timeline.feed import Feed, mark_of, replayed
from snapkv.timeline.lookup import Lookup
from snapkv.timeline.ring import Ring
from snapkv.timeline.search import ORDINAL, PROBES_MAX, TIMESTAMP


@dataclass(slots=True)
class Pin:
    """A moment, resolved: reads through one pin all see the state of one revision.

    `reading` is where to read it; it moves up within the same state when compaction passes
    `mark.revision` but not the next commit.
    """

    timestamp: int
    mark: Mark
    final: bool
    epoch: int
    reading: int


class Timeline:
    """Maps timestamps to revisions for one store; safe for threads, holds no lock while it reads.

    A mark is one version of the timestamp key. The ring holds the newest marks, anchors hold what
    searches found; both only ever speed things up.
    """

    def __init__(
        self, engine: Engine, key: bytes, *, ring_slots: int, on_seen: Callable[[int], None]
    ) -> None:
        self._engine, self._key, self._on_seen = engine, key, on_seen
        self.ring = Ring(ring_slots)
        self._lookup = Lookup(engine, key)
        self._feed = Feed(engine, key)
        self._lock = threading.Lock()  # ring, anchors, newest, epoch: never held while reading
        self._feed_lock = threading.Lock()  # one thread at a time drains the feed
        self._newest = self._lookup.creation
        self._header = Header(0, 0)
        self.epoch = 0
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the locks, and forget what another thread may have left half-changed."""
        self._lock, self._feed_lock = threading.Lock(), threading.Lock()
        self._feed = Feed(self._engine, self._key)
        self.ring.clear()
        self._lookup.after_fork()

    def open(self, kv: KeyValue, header: Header) -> None:
        """Start from the timestamp key as it is; reads nothing else, never walks history."""
        self._lookup.creation = Mark(0, kv.create_revision, 1)
        self._newest = mark_of(kv)
        self._header = header
        self._on_seen(self._newest.timestamp)

    def close(self) -> None:
        """Stop the feed."""
        self._feed.stop()

    # --- what comes in ---

    def own(self, prev: Mark, own: Mark, header: Header, before: Mark) -> None:
        """Take in a commit of this process, and the mark it replaced.

        `before` is the newest mark known when it was sent: an engine where something older
        stood in that place went back in time.
        """
        with self._lock:
            if prev.ordinal < before.ordinal or (prev.ordinal == before.ordinal and prev != before):
                self._start_over(header)
            known = self._header
            if header.cluster == known.cluster and header.revision > known.revision:
                self._header = header
            self._see(own)
            newest = self.ring.newest
            if newest is not None and (own.ordinal <= newest.ordinal or self.ring.append(own)):
                return
            if not self._feed.running:
                self.ring.restart(prev, own)

    def _see(self, mark: Mark) -> None:
        if mark.ordinal > self._newest.ordinal:
            self._newest = mark
            self._on_seen(mark.timestamp)

    def _fed(self, mark: Mark) -> None:
        with self._lock:
            self._see(mark)
            newest = self.ring.newest
            if newest is not None and (mark.ordinal <= newest.ordinal or self.ring.append(mark)):
                return
            self.ring.restart(mark)

    def _ask(self, ranges: Sequence[Range]) -> ReadResult:
        """Read linearizably, and notice an engine that went back since before the request."""
        before = self._header
        answer = self._engine.read(ranges)
        header = answer.header
        if header == before:
            return answer
        with self._lock:
            known = self._header
            if header.cluster == known.cluster and header.revision >= known.revision:
                self._header = header
            elif header.cluster != before.cluster or header.revision < before.revision:
                self._start_over(header)
        return answer

    def _start_over(self, header: Header) -> None:
        """Drop all that was learned of an engine that is no longer there."""
        self.epoch += 1
        self.ring.clear()
        self._lookup.clear()
        self._feed.stop()
        self._header = header
        self._newest = self._lookup.creation

    # --- moments ---

    def head(self) -> Mark:
        """Return the newest mark; one round trip, linearizable."""
        return self.head_and(())[0]

    def head_and(self, ranges: Sequence[Range]) -> tuple[Mark, list[RangeResult]]:
        """Return the newest mark and the newest state of `ranges`, read together."""
        answer = self._ask([Range(self._key), *ranges])
        mark = self._mark_in(answer.results[0])
        with self._lock:
            self._see(mark)
        return mark, answer.results[1:]

    def pin_head(self) -> Pin:
        """Return the newest moment, pinned; one round trip."""
        mark = self.head()
        return Pin(mark.timestamp, mark, True, self.epoch, mark.revision)

    def pin(self, timestamp: int) -> Pin:
        """Return the moment of a timestamp; 0 to 6 round trips (2 to 3 below the ring)."""
        with self._lock:
            floor, newest, epoch = self.ring.find(timestamp), self._newest, self.epoch
        if floor is None and timestamp == newest.timestamp > 0:
            floor = newest
        if floor is None and timestamp >= newest.timestamp:
            newest = self.head()
            if timestamp >= newest.timestamp:
                final = timestamp == newest.timestamp
                return Pin(timestamp, newest, final, self.epoch, newest.revision)
        if floor is None:
            floor = self._below(TIMESTAMP, timestamp)[0]
        return Pin(timestamp, floor, True, epoch, floor.revision)

    def pin_revision(self, revision: int) -> Pin:
        """Return the moment of a revision; one round trip."""
        answer = self._ask([Range(self._key, revision=revision)])
        kvs = answer.results[0].kvs
        mark = mark_of(kvs[0]) if kvs else self._lookup.creation
        return Pin(mark.timestamp, mark, True, self.epoch, max(revision, mark.revision))

    def by_ordinal(self, ordinal: int) -> Mark:
        """Return the mark with that ordinal, which exists; 0 to 6 round trips."""
        newest = self.head()
        return newest if ordinal >= newest.ordinal else self._below(ORDINAL, ordinal)[0]

    def newest_known(self) -> Mark:
        """Return the newest mark seen so far, without asking the engine."""
        return self._newest

    def find(self, timestamp: int) -> tuple[Mark, StampRecord] | None:
        """Return the commit that carries exactly this timestamp, None when none does.

        Raises `CompactedError` when the history that would tell is gone.
        """
        pin = self.pin(timestamp)
        if pin.mark.timestamp != timestamp or pin.mark.ordinal == 1:
            return None
        return pin.mark, self.stamp(pin.mark)

    def oldest(self) -> Mark:
        """Return the mark in force at the compaction point, the oldest that is left."""
        while compacted := self._engine.compacted_revision():
            try:
                return self._lookup.probe([compacted])[0]
            except CompactedError:  # it went on in between; it only rises, and ends at head
                continue
        return self._lookup.creation

    def earliest(self) -> int:
        """Return the smallest timestamp that the engine can still answer."""
        return self.oldest().timestamp

    def stamp(self, mark: Mark) -> StampRecord:
        """Return who made a commit and why; one round trip unless compaction passed it."""
        pin = Pin(mark.timestamp, mark, True, self.epoch, mark.revision)
        return StampRecord.decode(self.read(pin, [Range(self._key)])[0].kvs[0].value)

    def stamps(self, revisions: Sequence[int]) -> list[tuple[Mark, StampRecord] | None]:
        """Return the marks and stamps in force at some revisions; a round trip for each 128."""
        found: list[tuple[Mark, StampRecord] | None] = []
        for at in range(0, len(revisions), PROBES_MAX):
            ranges = [Range(self._key, revision=r) for r in revisions[at : at + PROBES_MAX]]
            for result in self._engine.read(ranges, serializable=True).results:
                kv = result.kvs[0] if result.kvs else None  # None: before the store was made
                found.append(kv and (mark_of(kv), StampRecord.decode(kv.value)))
        return found

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps, in order, from one watch."""
        if after.ordinal >= until.ordinal:
            return
        start = self.start_after(after)
        try:
            for batch in replayed(self._engine, self._key, b"", start, until.revision):
                for event in batch.events:
                    yield mark_of(event.kv), StampRecord.decode(event.kv.value)
        except CompactedError as e:
            raise CompactedError(after.timestamp, self.earliest()) from e

    def hold(self, pin: Pin) -> None:
        """Make sure that a moment, found without asking the engine, can still be read there."""
        if pin.reading < self._engine.compacted_revision():
            self._move_up(pin)

    def start_after(self, mark: Mark) -> int:
        """Return the revision from which a watch misses no commit after `mark`.

        Above `mark` as long as that is left, else up to the next commit. `CompactedError` when
        commits after it are gone.
        """
        start = mark.revision + 1
        if start >= self._engine.compacted_revision():
            return start
        pin = Pin(mark.timestamp, mark, True, self.epoch, mark.revision)
        try:
            following = self.reach(pin) + 1  # the next commit, or what comes after the newest
        except CompactedError:
            following = 0
        if following < self._engine.compacted_revision():
            raise CompactedError(pin.timestamp, self.earliest()) from None
        return following

    # --- pinned reads ---

    def read(self, pin: Pin, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at a pinned moment; one round trip unless compaction moved it.

        Raises `CompactedError`, `StoreRestoredError`.
        """
        self._check_epoch(pin)
        while True:
            try:
                answer = self._ask([_at(r, pin.reading) for r in ranges])
                break
            except CompactedError:
                self._move_up(pin)
            except FutureRevisionError:
                self._look_for_restore(pin)
                raise
        self._check_epoch(pin)
        return answer.results

    def read_now(self, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges from the newest state; one round trip, linearizable."""
        return self._ask(ranges).results

    def read_at(self, timestamp: int, ranges: Sequence[Range]) -> list[RangeResult]:
        """Answer ranges at a timestamp; at or above the newest commit it takes one round trip."""
        if timestamp >= self._newest.timestamp:
            mark, results = self.head_and(ranges)
            if mark.timestamp <= timestamp:
                return results
        return self.read(self.pin(timestamp), ranges)

    def scan(
        self, pin: Pin, key: bytes, range_end: bytes, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range at a pinned moment in pages; a compaction in between moves or ends it."""
        while True:
            self._check_epoch(pin)
            pages = self._engine.scan(key, range_end, revision=pin.reading, keys_only=keys_only)
            try:
                for page in pages:
                    yield page
                    key = page[-1].key + b"\0"
                    self._check_epoch(pin)
                return
            except CompactedError:
                self._move_up(pin)
            except FutureRevisionError:
                self._look_for_restore(pin)
                raise

    def keys_written(self, low: Pin, high: Pin, start: bytes, end: bytes) -> list[bytes] | None:
        """Return the sorted keys of a range with events between two pins; None when compacted."""
        self._check_epoch(low)
        self._check_epoch(high)
        written: set[bytes] = set()
        try:
            for batch in replayed(self._engine, start, end, low.reading + 1, high.reading):
                written.update(event.kv.key for event in batch.events)
        except CompactedError:
            return None
        return sorted(written)

    def reach(self, pin: Pin) -> int:
        """Return the last revision known to show the pinned state; 1 to 6 round trips."""
        answer = self._ask([Range(self._key)])
        newest = self._mark_in(answer.results[0])
        if newest.ordinal == pin.mark.ordinal:
            return answer.header.revision
        with self._lock:
            self._see(newest)
            after = self.ring.after(pin.mark)
        if after is None:
            after = self._below(ORDINAL, pin.mark.ordinal)[1]
        return after.revision - 1

    def _move_up(self, pin: Pin) -> None:
        """Read the same state at a newer revision, or tell what is left."""
        try:
            reach = self.reach(pin)
        except CompactedError:
            reach = 0
        if reach < self._engine.compacted_revision():
            raise CompactedError(pin.timestamp, self.earliest()) from None
        pin.reading = max(pin.reading, reach)  # another thread may have moved it up already

    def _look_for_restore(self, pin: Pin) -> None:
        """Raise `StoreRestoredError` when a revision once read is in the future now."""
        self.head()
        self._check_epoch(pin)

    def _check_epoch(self, pin: Pin) -> None:
        if pin.epoch != self.epoch:
            raise StoreRestoredError("the engine was restored or replaced since this was pinned")

    # --- below the ring ---

    def _below(self, field: int, wanted: int) -> tuple[Mark, Mark]:
        """Return the mark of `wanted`, which is older than the newest, and the one after it."""
        self._follow()
        with self._lock:
            if field == TIMESTAMP and (floor := self.ring.find(wanted)):
                after = self.ring.after(floor)
                if after is not None:
                    return floor, after
        return self._lookup.between(field, wanted, self._known())

    def _known(self) -> list[Mark]:
        """Return the marks at hand that can bound a search."""
        with self._lock:
            marks = (self.ring.oldest, self.ring.newest, self._newest)
            return [mark for mark in marks if mark is not None]

    def _follow(self) -> None:
        """Bring the ring up to date from the feed, starting it on the first need."""
        if not self._feed_lock.acquire(blocking=False):
            return  # another thread is at it; the search goes without
        try:
            newest = self._newest
            if not self._feed.running or self._feed.is_far_behind(newest, self.ring.slots):
                self._start_feed(newest)
            try:
                for mark in self._feed.drain():
                    self._fed(mark)
            except CompactedError:
                self._start_feed(newest)
        finally:
            self._feed_lock.release()

    def _start_feed(self, newest: Mark) -> None:
        """Watch from the oldest version that fits the ring, or that compaction left."""
        first = max(1, newest.ordinal - self.ring.slots + 1)
        start = newest.revision
        if first < newest.ordinal:
            try:
                found = self._lookup.between(ORDINAL, first, [newest, *self._known()])
                start = found[0].revision
            except CompactedError:
                start = 0
        self._feed.start(max(start, self._engine.compacted_revision()), first)
        with self._lock:
            self.ring.clear()

    def _mark_in(self, result: RangeResult) -> Mark:
        """Return the newest mark, unless the key is not the one that was opened."""
        if not result.kvs or result.kvs[0].create_revision != self._lookup.creation.revision:
            raise StoreRecreatedError("the timestamp key was deleted or made again")
        return mark_of(result.kvs[0])

    def check(self) -> None:
        """Assert the invariants of ring and anchors."""
        with self._lock:
            self.ring.check()
            self._lookup.check()


def _at(wanted: Range, revision: int) -> Range:
    """Return a range at a revision; a hot path, where `_replace` would cost more than the rest."""
    key, end, _, limit, keys_only, count_only = wanted
    return Range(key, end, revision, limit, keys_only, count_only)
