"""The time line: from a time to a revision, by ring, blocks and search."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal
from weakref import ref

from snapkv.clock import Unmarked
from snapkv.engine.contract import Engine, KeyValue, Range
from snapkv.engine.replay import replayed
from snapkv.errors import (
    CompactedError,
    StoreRestoredError,
)
from snapkv.hooks import Path
from snapkv.layout import Mark, StampRecord
from snapkv.timeline import many_times
from snapkv.timeline.continuity import RESTORED, ContinuousWatcher
from snapkv.timeline.moment import Moment, compaction_error
from snapkv.timeline.search import ORDINAL, READS_MAX, TIMESTAMP, mark_of
from snapkv.timeline.tracker import RESTORES_MAX, Tracker
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.timeline.arrays import Revisions, Timestamps

AHEAD_MAX = 1 << 59
"""Further above the newest mark (69 years) a number is looked at more closely."""


class TakenPath(threading.local):
    """The path of this thread's newest lookup: see `LookupEvent`; empty for one of a revision."""

    path: Path | Literal[""] = "head"


class Timeline:
    """Maps timestamps to revisions for one store; safe for threads, holds no lock while it reads.

    It is the `RevisionPolicy` of the store's own keys: each revision from a commit's own up to the
    one before the next commit shows the commit's state.
    """

    at_head = True

    def __init__(
        self,
        engine: Engine,
        key: bytes,
        *,
        ring_slots: int,
        on_seen: Callable[[int], None],
        unmarked: set[ref[Unmarked]] | None = None,
    ) -> None:
        self.tracker = Tracker(
            engine, key, ring_slots=ring_slots, on_seen=on_seen, unmarked=unmarked
        )
        self.taken: TakenPath | None = None
        """Where the paths of lookups are noted, if they are counted."""

    # --- the newest mark, and continuity ---

    def head(self) -> Mark:
        """Return the newest mark; one round trip, linearizable."""
        return self.tracker.head()

    def verify(self, mark: Mark) -> None:
        """Raise `StoreRestoredError` if a mark is not of the engine's history; 1 or 2 round trips.

        If the mark was compacted, the marks that are left must be able to follow it.
        """
        self.tracker.continuity.verify(mark)

    def watch(
        self, key: bytes, range_end: bytes, start: int, verify: Callable[[], None]
    ) -> ContinuousWatcher:
        """Watch a range from a revision on; `verify` raises if it is of another history."""
        return self.tracker.continuity.watch(key, range_end, start, verify)

    # --- the short way ---

    def get(self, key: bytes, timestamp: object) -> KeyValue | None:
        """Return a version of a key now (None), or at a known time: in the ring, in a block, after.

        None in all other cases: for times that are not known or not timestamps, for an absent key,
        and if the engine raises. Then a `Moment` answers, or raises. Only for the store's own keys.
        One point read, no lock.
        """
        tracker, revision = self.tracker, 0
        epoch, (newest, shown_at) = tracker.continuity.epoch, tracker.shown
        if timestamp is not None:
            stamp = newest.timestamp
            if type(timestamp) is not int or timestamp < stamp // 100:
                return None
            revision = tracker.ring.revision_at(timestamp)
            if not revision and timestamp < stamp:
                revision = tracker.lookup.blocks.revision_at(timestamp)
            if not revision and not stamp <= timestamp <= min(stamp + AHEAD_MAX, TIMESTAMP_MAX):
                return None
        found = tracker.point(key, revision, epoch)
        if found is None:
            return None
        header, kv = found
        if timestamp is None:
            if (header.revision if kv is None else kv.mod_revision) > shown_at:
                tracker.unmarked.note(header, (kv,))
        elif not revision and header.revision != shown_at:
            return None  # something was written after the newest mark that is known
        return kv

    # --- moments ---

    def now(self) -> Moment:
        """Return the newest moment; one round trip."""
        return self.moment(self.tracker.head())

    def moment(self, mark: Mark) -> Moment:
        """Return the moment of a known mark; no round trip."""
        return Moment(
            self, mark.timestamp, mark, True, self.tracker.continuity.epoch, mark.revision
        )

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp.

        No round trip in the ring and in blocks. One reads the newest mark if the timestamp is at or
        above the newest one known; a search costs 0 to 5 (2 to 3 on average, see `search`).
        """
        for _ in range(RESTORES_MAX):
            epoch = self.tracker.continuity.epoch
            with suppress(StoreRestoredError):
                moment = self._at(timestamp)
                if moment.epoch == epoch == self.tracker.continuity.epoch:
                    return moment
        raise StoreRestoredError(RESTORED)

    def _at(self, timestamp: int) -> Moment:
        tracker = self.tracker
        floor, newest, epoch = tracker.floor(timestamp)
        if floor is None and timestamp >= newest.timestamp:
            newest = tracker.head()
            if timestamp >= newest.timestamp:
                final, epoch = timestamp == newest.timestamp, tracker.continuity.epoch
                return Moment(self, timestamp, newest, final, epoch, newest.revision)
        path: Path = "ring"
        if floor is None:
            path, floor = "block", tracker.lookup.blocks.find(timestamp)
        if floor is None:
            path, floor = "search", tracker.between(TIMESTAMP, timestamp)[0]
        if self.taken is not None:
            self.taken.path = path
        return Moment(self, timestamp, floor, True, epoch, floor.revision)

    def at_revision(self, revision: int) -> Moment:
        """Return the moment of a revision; one round trip."""
        if self.taken is not None:
            self.taken.path = ""
        answer = self.tracker.read([Range(self.tracker.key, revision=revision)])
        mark = self.tracker.lookup.mark_in(answer.results[0]) or self.tracker.lookup.creation
        self.tracker.on_seen(mark.timestamp)
        reading = max(revision, mark.revision)
        return Moment(self, mark.timestamp, mark, True, self.tracker.continuity.epoch, reading)

    def by_ordinal(self, ordinal: int) -> Mark:
        """Return the mark with that ordinal, which exists; 1 to 6 round trips."""
        newest = self.tracker.head()
        return newest if ordinal >= newest.ordinal else self.tracker.between(ORDINAL, ordinal)[0]

    def find(self, timestamp: int) -> tuple[Mark, StampRecord] | None:
        """Return the commit with exactly this timestamp, None if there is none.

        Raises `CompactedError` if the history that shows it is gone.
        """
        moment = self.at(timestamp)
        self.tracker.continuity.assure()
        if moment.epoch != self.tracker.continuity.epoch:
            moment = self.at(timestamp)
        mark = moment.mark
        if mark.timestamp != timestamp or mark.ordinal == 1:
            return None
        return mark, self.stamp(mark)

    def oldest(self) -> Mark:
        """Return the mark in force at the compaction point, the oldest that is left."""
        while compacted := self.tracker.engine.compacted_revision():
            try:
                return self.tracker.lookup.probe([compacted])[0]
            except CompactedError:  # compaction went on; it only rises, and ends at the head
                continue
        self.tracker.continuity.assure()
        return self.tracker.lookup.creation

    def earliest(self) -> int:
        """Return the smallest timestamp that the engine can still answer."""
        return self.oldest().timestamp

    def stamp(self, mark: Mark) -> StampRecord:
        """Return the stamp of a commit; one round trip unless compaction passed it."""
        (kv,) = self.moment(mark).get([self.tracker.key])
        assert kv is not None
        return StampRecord.decode(kv.value)

    def stamps(self, revisions: Sequence[int]) -> list[tuple[Mark, StampRecord] | None]:
        """Return the marks and stamps in force at some revisions; a round trip for each 128."""
        found: list[tuple[Mark, StampRecord] | None] = []
        epoch = self.tracker.continuity.epoch
        for at in range(0, len(revisions), READS_MAX):
            ranges = [Range(self.tracker.key, revision=r) for r in revisions[at : at + READS_MAX]]
            for result in self.tracker.engine.read(ranges, serializable=True).results:
                mark = self.tracker.lookup.mark_in(result)
                found.append(mark and (mark, StampRecord.decode(result.kvs[0].value)))
        self.tracker.lookup.keep([pair[0] for pair in found if pair is not None], epoch)
        return found

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps, in order.

        From one watch, or, if the two are close, from a read of each revision in between: a server
        takes some 100 ms to bring a new watch up to date.
        """
        if after.ordinal >= until.ordinal:
            return
        if until.revision - after.revision <= READS_MAX:
            with suppress(CompactedError):
                yield from self._read_all(after, until)
                return
        start = self.moment(after).next_revision()
        try:
            for batch in replayed(
                self.tracker.engine, self.tracker.key, b"", start, until.revision
            ):
                for event in batch.events:
                    yield mark_of(event.kv), StampRecord.decode(event.kv.value)
        except CompactedError as e:
            raise compaction_error(self, after.timestamp) from e

    def _read_all(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps; one round trip."""
        ordinal = after.ordinal
        for found in self.stamps(range(after.revision + 1, until.revision + 1)):
            if found is not None and found[0].ordinal > ordinal:
                ordinal = found[0].ordinal
                yield found

    def revisions_of(self, timestamps: Sequence[int]) -> list[int]:
        """Return the revisions of the newest marks at or below some times; see `bulk`."""
        return many_times.revisions_of(self, timestamps)

    def revisions_of_array(self, timestamps: Timestamps) -> Revisions:
        """Return the same for an array, as an array."""
        from snapkv.timeline import arrays

        return arrays.revisions_of(self, timestamps)

    # --- which revisions show a commit's state: see `RevisionPolicy` ---

    def until(self, moment: Moment) -> int:
        """Return the last revision known to show a moment's state; 1 to 6 round trips."""
        answer = self.tracker.read([Range(self.tracker.key)])
        newest = self.tracker.newest_in(answer.results[0])
        if newest.ordinal == moment.mark.ordinal:
            return answer.header.revision
        self.tracker.see(newest)
        following = self.tracker.after(moment.mark)
        return (self.stamp(following).began or following.revision) - 1

    # --- marks ---

    def following(self, mark: Mark) -> Mark | None:
        """Return the mark after a mark, None if that is the newest; 0 to 6 round trips."""
        if (
            mark.ordinal >= self.tracker.newest.ordinal
            and mark.ordinal >= self.tracker.head().ordinal
        ):
            return None
        return self.tracker.after(mark)
