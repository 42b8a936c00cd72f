"""From a time to a revision: ring, anchors, search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from snapkv.engine.base import Engine, Header, KeyValue, Range, RangeResult, ReadResult
from snapkv.errors import CompactedError, StoreRecreatedError
from snapkv.forks import renew_in_children
from snapkv.records import Mark, StampRecord
from snapkv.timeline.feed import Feed, mark_of, replayed
from snapkv.timeline.lookup import Lookup
from snapkv.timeline.reads import Pin, Reads
from snapkv.timeline.ring import Ring
from snapkv.timeline.search import ORDINAL, PROBES_MAX, TIMESTAMP


class Timeline:
    """Maps timestamps to revisions for one store; safe for threads, holds no lock while it reads.

    A mark is one version of the timestamp key. The ring holds the newest marks, anchors hold what
    searches found; both only ever speed things up. `reads` are those of the store's own keys: the
    time line itself tells which revisions show a commit's state.
    """

    at_head = True

    def __init__(
        self, engine: Engine, key: bytes, *, ring_slots: int, on_seen: Callable[[int], None]
    ) -> None:
        self.engine, self.key, self._on_seen = engine, key, on_seen
        self.reads = Reads(self, self)
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
        self._feed = Feed(self.engine, self.key)
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

    def ask(self, ranges: Sequence[Range]) -> ReadResult:
        """Read linearizably, and notice an engine that went back since before the request."""
        before = self._header
        answer = self.engine.read(ranges)
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
        answer = self.ask([Range(self.key), *ranges])
        mark = self._newest_in(answer.results[0])
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
        answer = self.ask([Range(self.key, revision=revision)])
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
        while compacted := self.engine.compacted_revision():
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
        return StampRecord.decode(self.reads.read(pin, [Range(self.key)])[0].kvs[0].value)

    def stamps(self, revisions: Sequence[int]) -> list[tuple[Mark, StampRecord] | None]:
        """Return the marks and stamps in force at some revisions; a round trip for each 128."""
        found: list[tuple[Mark, StampRecord] | None] = []
        for at in range(0, len(revisions), PROBES_MAX):
            ranges = [Range(self.key, revision=r) for r in revisions[at : at + PROBES_MAX]]
            for result in self.engine.read(ranges, serializable=True).results:
                kv = result.kvs[0] if result.kvs else None  # None: before the store was made
                found.append(kv and (mark_of(kv), StampRecord.decode(kv.value)))
        self._lookup.keep([pair[0] for pair in found if pair is not None])
        return found

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps, in order.

        From one watch, or where they are close, from a read of each revision: a server takes some
        100 ms to bring a new watch up to date.
        """
        if after.ordinal >= until.ordinal:
            return
        if until.revision - after.revision <= PROBES_MAX:
            with suppress(CompactedError):
                yield from self._read_all(after, until)
                return
        start = self.reads.start_after(after)
        try:
            for batch in replayed(self.engine, self.key, b"", start, until.revision):
                for event in batch.events:
                    yield mark_of(event.kv), StampRecord.decode(event.kv.value)
        except CompactedError as e:
            raise CompactedError(after.timestamp, self.earliest()) from e

    def _read_all(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps; one round trip."""
        ordinal = after.ordinal
        for found in self.stamps(range(after.revision + 1, until.revision + 1)):
            if found is not None and found[0].ordinal > ordinal:
                ordinal = found[0].ordinal
                yield found

    # --- which revisions show a commit's state: see `Showing` ---

    def until(self, pin: Pin) -> int:
        """Return the last revision known to show the pinned state; 1 to 6 round trips."""
        answer = self.ask([Range(self.key)])
        newest = self._newest_in(answer.results[0])
        if newest.ordinal == pin.mark.ordinal:
            return answer.header.revision
        with self._lock:
            self._see(newest)
        return self._after(pin.mark).revision - 1

    # --- marks ---

    @property
    def creation(self) -> Mark:
        """The mark of the store's creation: no commit, it stands for the time before the first."""
        return self._lookup.creation

    def following(self, mark: Mark) -> Mark | None:
        """Return the mark after a mark, None when that is the newest; 0 to 7 round trips."""
        if mark.ordinal >= self._newest.ordinal and mark.ordinal >= self.head().ordinal:
            return None
        return self._after(mark)

    def _after(self, mark: Mark) -> Mark:
        """Return the mark after one that is older than the newest known; 0 to 6 round trips."""
        with self._lock:
            after = self.ring.after(mark)
        return after if after is not None else self._below(ORDINAL, mark.ordinal)[1]

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
        self._feed.start(max(start, self.engine.compacted_revision()), first)
        with self._lock:
            self.ring.clear()

    def _newest_in(self, result: RangeResult) -> Mark:
        return self.mark_in(result.kvs[0] if result.kvs else None)

    def mark_in(self, kv: KeyValue | None) -> Mark:
        """Return the mark of a version of the timestamp key, if it is the key that was opened.

        Raises `StoreRecreatedError` when it is not, or was removed (None).
        """
        if kv is None or kv.create_revision != self._lookup.creation.revision:
            raise StoreRecreatedError("the timestamp key was deleted or made again")
        return mark_of(kv)

    def check(self) -> None:
        """Assert the invariants of ring and anchors."""
        with self._lock:
            self.ring.check()
            self._lookup.check()
