"""From a time to a revision: ring, blocks, search."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from snapkv.clock import monotonic
from snapkv.engine.contract import Engine, KeyValue, Range
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    SnapKVError,
    StoreClosedError,
    StoreRestoredError,
)
from snapkv.layout import Mark, StampRecord
from snapkv.timeline import bulk
from snapkv.timeline.feed import mark_of, replayed
from snapkv.timeline.moment import Moment
from snapkv.timeline.search import ORDINAL, READS_MAX, TIMESTAMP
from snapkv.timeline.steps import Steps
from snapkv.timeline.tracker import RESTORED, RESTORES_MAX, Marks
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.timeline.arrays import Revisions, Timestamps

AHEAD_MAX = 1 << 59
"""Further above the newest mark (69 years) a number is looked at more closely."""
FEED_RETRY_S = 5.0
"""After the feed failed, lookups search for so long before one of them starts it again."""


class Timeline(Marks):
    """Maps timestamps to revisions for one store; safe for threads, holds no lock while it reads.

    It is the `RevisionPolicy` of the store's own keys: a commit's state is shown by all revisions
    from its own up to the next commit's.
    """

    at_head = True

    def __init__(
        self, engine: Engine, key: bytes, *, ring_slots: int, on_seen: Callable[[int], None]
    ) -> None:
        super().__init__(engine, key, ring_slots=ring_slots, on_seen=on_seen)
        self.marks = self

    # --- the short way ---

    def get(self, key: bytes, timestamp: object) -> KeyValue | None:
        """Return a version of a key: now (None), or at a time in the ring or in a block, or after.

        None where it is not that plain: at times that were never looked up, of other kinds, for
        an absent key, whatever the engine raises. A `Moment` answers then, and raises. Of the
        store's own keys only. One point read, no lock.
        """
        epoch, (newest, shown_at), revision = self.epoch, self._shown, 0
        if timestamp is not None:
            stamp = newest.timestamp
            if type(timestamp) is not int or timestamp < stamp // 100:
                return None
            revision = self.ring.revision_at(timestamp)
            if not revision and timestamp < stamp:
                revision = self._lookup.blocks.revision_at(timestamp)
            if not revision and not stamp <= timestamp <= min(stamp + AHEAD_MAX, TIMESTAMP_MAX):
                return None
        found = self.point(key, revision, epoch)
        if found is None:
            return None
        if timestamp is not None and not revision and found.header.revision != shown_at:
            return None  # something was written after the newest mark that is known
        return found.kv

    # --- moments ---

    def now(self) -> Moment:
        """Return the newest moment; one round trip."""
        return self.moment(self.head())

    def moment(self, mark: Mark) -> Moment:
        """Return the moment of a known mark; no round trip."""
        return Moment(self, mark.timestamp, mark, True, self.epoch, mark.revision)

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp; 0 to 6 round trips (2 to 3 below the ring)."""
        for _ in range(RESTORES_MAX):
            epoch = self.epoch
            with suppress(StoreRestoredError):
                moment = self._at(timestamp)
                if moment.epoch == epoch == self.epoch:
                    return moment
        raise StoreRestoredError(RESTORED)

    def _at(self, timestamp: int) -> Moment:
        with self._lock:
            floor, newest, epoch = self.ring.find(timestamp), self._newest, self.epoch
        if floor is None and timestamp == newest.timestamp > 0:
            floor = newest
        if floor is None and timestamp >= newest.timestamp:
            newest = self.head()
            if timestamp >= newest.timestamp:
                final = timestamp == newest.timestamp
                return Moment(self, timestamp, newest, final, self.epoch, newest.revision)
        if floor is None:
            floor = self._lookup.blocks.find(timestamp)
        if floor is None:
            floor = self._below(TIMESTAMP, timestamp)[0]
        return Moment(self, timestamp, floor, True, epoch, floor.revision)

    def at_revision(self, revision: int) -> Moment:
        """Return the moment of a revision; one round trip."""
        answer = self.ask([Range(self.key, revision=revision)])
        mark = self._lookup.mark_in(answer.results[0]) or self._lookup.creation
        reading = max(revision, mark.revision)
        return Moment(self, mark.timestamp, mark, True, self.epoch, reading)

    def by_ordinal(self, ordinal: int) -> Mark:
        """Return the mark with that ordinal, which exists; 0 to 6 round trips."""
        newest = self.head()
        return newest if ordinal >= newest.ordinal else self._below(ORDINAL, ordinal)[0]

    def find(self, timestamp: int) -> tuple[Mark, StampRecord] | None:
        """Return the commit that carries exactly this timestamp, None when none does.

        Raises `CompactedError` when the history that would tell is gone.
        """
        moment = self.at(timestamp)
        self.assure()
        if moment.epoch != self.epoch:
            moment = self.at(timestamp)
        mark = moment.mark
        if mark.timestamp != timestamp or mark.ordinal == 1:
            return None
        return mark, self.stamp(mark)

    def oldest(self) -> Mark:
        """Return the mark in force at the compaction point, the oldest that is left."""
        while compacted := self.engine.compacted_revision():
            try:
                return self._lookup.probe([compacted])[0]
            except CompactedError:  # it went on in between; it only rises, and ends at head
                continue
        self.assure()
        return self._lookup.creation

    def earliest(self) -> int:
        """Return the smallest timestamp that the engine can still answer."""
        return self.oldest().timestamp

    def stamp(self, mark: Mark) -> StampRecord:
        """Return who made a commit and why; one round trip unless compaction passed it."""
        (kv,) = self.moment(mark).get([self.key])
        assert kv is not None
        return StampRecord.decode(kv.value)

    def stamps(self, revisions: Sequence[int]) -> list[tuple[Mark, StampRecord] | None]:
        """Return the marks and stamps in force at some revisions; a round trip for each 128."""
        found: list[tuple[Mark, StampRecord] | None] = []
        generation = self._witness.generation
        for at in range(0, len(revisions), READS_MAX):
            ranges = [Range(self.key, revision=r) for r in revisions[at : at + READS_MAX]]
            for result in self.engine.read(ranges, serializable=True).results:
                mark = self._lookup.mark_in(result)
                found.append(mark and (mark, StampRecord.decode(result.kvs[0].value)))
        self._lookup.keep([pair[0] for pair in found if pair is not None], generation)
        return found

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps, in order.

        From one watch, or where they are close, from a read of each revision: a server takes some
        100 ms to bring a new watch up to date.
        """
        if after.ordinal >= until.ordinal:
            return
        if until.revision - after.revision <= READS_MAX:
            with suppress(CompactedError):
                yield from self._read_all(after, until)
                return
        start = self.moment(after).next_revision()
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

    def revisions_of(self, timestamps: Sequence[int]) -> list[int]:
        """Return the revisions of the newest marks at or below some times; see `bulk`."""
        return bulk.revisions_of(self, self._lookup, timestamps)

    def revisions_of_array(self, timestamps: Timestamps) -> Revisions:
        """Return the same of an array, as an array."""
        from snapkv.timeline import arrays

        return arrays.revisions_of(self, self._lookup, timestamps)

    def steps(self) -> Steps:
        """Return the revisions of the times in the ring, copied; no round trip."""
        with self._lock:
            return self.ring.steps()

    # --- which revisions show a commit's state: see `RevisionPolicy` ---

    def until(self, moment: Moment) -> int:
        """Return the last revision known to show a moment's state; 1 to 6 round trips."""
        answer = self.ask([Range(self.key)])
        newest = self._newest_in(answer.results[0])
        if newest.ordinal == moment.mark.ordinal:
            return answer.header.revision
        with self._lock:
            self._see(newest)
        return self._after(moment.mark).revision - 1

    # --- marks ---

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
        """Return the mark of `wanted`, which is older than the newest, and the one after it.

        `StoreRestoredError` when the engine turns out to hold another history meanwhile.
        """
        epoch = self.epoch
        self._follow()
        with self._lock:
            if epoch == self.epoch and field == TIMESTAMP and (floor := self.ring.find(wanted)):
                after = self.ring.after(floor)
                if after is not None:
                    return floor, after
        generation = self._witness.generation
        try:
            found = self._lookup.between(field, wanted, self._known())
            if field == TIMESTAMP:
                self._lookup.learn(*found, generation)
        except FutureRevisionError:
            self.head()
            if epoch == self.epoch:
                raise
        if epoch != self.epoch:
            raise StoreRestoredError(RESTORED)
        return found

    def _follow(self) -> None:
        """Bring the ring up to date from the feed, starting it on the first need."""
        if not self._feed_lock.acquire(blocking=False):
            return  # another thread is at it; the search goes without
        try:
            if self._feed.running or monotonic() >= self._feed_after:
                self._drain_feed()
        except StoreClosedError:
            raise
        except StoreRestoredError:
            self._feed.stop()
        except SnapKVError:  # the search goes without; who may not read is told there
            self._feed.stop()
            self._feed_after = monotonic() + FEED_RETRY_S
        finally:
            self._feed_lock.release()

    def _drain_feed(self) -> None:
        newest = self._newest
        if not self._feed.running or self._feed.is_far_behind(newest, self.ring.slots):
            self._start_feed(newest)
        try:
            for mark in self._feed.drain():
                self._fed(mark)
        except CompactedError:
            self._start_feed(newest)

    def _start_feed(self, newest: Mark) -> None:
        """Watch from the oldest version that fits the ring, or that compaction left."""
        epoch = self.epoch
        first = max(1, newest.ordinal - self.ring.slots + 1)
        start = newest.revision
        if first < newest.ordinal:
            try:
                found = self._lookup.between(ORDINAL, first, [newest, *self._known()])
                start = found[0].revision
            except CompactedError:
                start = 0
        if epoch != self.epoch:
            raise StoreRestoredError(RESTORED)
        self._feed.start(max(start, self.engine.compacted_revision()), first)
        with self._lock:
            self.ring.clear()
