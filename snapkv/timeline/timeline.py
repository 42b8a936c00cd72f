"""The time line: from a time to a revision, by ring, blocks and search."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from snapkv.base.waiting import check_in_time
from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import REVISION_MAX, KeyValue, Range
from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.hooks import Path
from snapkv.layout import CREATION_ORDINAL, Mark, StampRecord, stamps_of
from snapkv.timeline.blocks import MARKS_MAX
from snapkv.timeline.continuity import RESTORED, ContinuousWatcher
from snapkv.timeline.moment import Moment, compaction_error
from snapkv.timeline.ring import StepFunction
from snapkv.timeline.search import ORDINAL, READS_MAX, TIMESTAMP, mark_of
from snapkv.timeline.tracker import RESTORES_MAX, Tracker
from snapkv.times import TIMESTAMP_MAX

SEARCH_MARKS = 256
"""The number of consecutive marks that cost about as much to read as one search."""
COPIED_MAX = 16
"""The number of marks of blocks that cost about as much to copy as one lookup in the blocks."""
PAGE_MARKS = 4_096
"""The most marks that are in memory at once while consecutive marks are read."""

Answer = TypeVar("Answer")

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.integer[Any]]
    Timestamps: TypeAlias = NDArray[np.uint64]
    Revisions: TypeAlias = NDArray[np.int64]

AHEAD_MAX = 1 << 59
"""The distance above the newest mark (69 years) at which a number is looked at more closely."""


class TakenPath(threading.local):
    """The path of this thread's newest lookup: see `LookupEvent`; empty for one of a revision."""

    path: Path | Literal[""] = "head"


class Timeline:
    """Maps timestamps to revisions for one store; safe for threads, holds no lock while it reads.

    It is the `RevisionPolicy` of the store's own keys: each revision from a commit's own up to the
    one before the next commit shows the commit's state.
    """

    at_head = True

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.taken: TakenPath | None = None
        """Where the paths of lookups are noted, if they are counted."""

    # --- the newest mark, and continuity ---

    def head(self) -> Mark:
        """Return the newest mark; one round trip, linearizable."""
        return self.tracker.head()

    def verify(self, mark: Mark) -> None:
        """Raise `StoreRestoredError` as `Continuity.verify`; 1 or 2 round trips."""
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

    def of_source(self, revision: int) -> Mark | None:
        """Return the mark that recorded a revision of the source, or the newest one before it.

        The creation's mark if all are newer; None if this is not a record. Source revisions rise
        with commits, so a round trip narrows the search to a 128th. Commits that were not recorded
        count as newer than all that were.
        """
        low, after, after_source = self.tracker.creation, None, REVISION_MAX
        until, high = max(1, self.tracker.engine.compacted_revision()) - 1, self.head().revision + 1
        while (between := high - until - 1) > 0:
            count = min(READS_MAX, between)
            probes = [until + between * (i + 1) // count for i in range(count)]
            for probe, found in zip(probes, self.stamps(probes), strict=True):
                mark, source = _source_of(found) if found else (self.tracker.creation, 0)
                if source >= revision:
                    after, after_source, high = mark, source, mark.revision
                    break
                low, until = mark, probe
        if low.ordinal == CREATION_ORDINAL and after_source == REVISION_MAX:
            return None
        return after if after_source == revision else low

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
        ordinal = after.ordinal
        for found in self.stamps(range(after.revision + 1, until.revision + 1)):
            if found is not None and found[0].ordinal > ordinal:
                ordinal = found[0].ordinal
                yield found

    # --- many times at once: the marks around them are read once, not by many searches ---

    def revisions_of(self, timestamps: Sequence[int]) -> list[int]:
        """Return the revisions of the newest marks at or below some times, in any order.

        Costs and raises as `KeyspaceReads.revisions_at`: the first and the last of the times that
        are not known are searched for, and those between them as `_Search` does.
        """

        def answer() -> list[int]:
            known, blocks = self.tracker.step_function(), self.tracker.lookup.blocks
            if len(blocks) <= COPIED_MAX * len(timestamps) and (
                not known.times or min(timestamps) < known.times[0]
            ):
                known = known.after(blocks.step_function())
            found = known.revisions_of(timestamps)
            if 0 not in found:
                return found
            pairs = list(zip(timestamps, found, strict=True))
            rest = sorted({timestamp for timestamp, revision in pairs if not revision})
            searched = dict(zip(rest, self._searched_for(rest), strict=True))
            return [revision or searched[timestamp] for timestamp, revision in pairs]

        return self._in_one_history(answer)

    def revisions_of_array(self, timestamps: Timestamps) -> Revisions:
        """Return the same for an array, as an array."""
        import numpy as np

        def answer() -> Revisions:
            times, revisions = self._known_arrays(timestamps)
            found = revisions[np.searchsorted(times, timestamps, side="right")]
            if not found.all():
                unknown = found == 0
                rest, inverse = np.unique(timestamps[unknown], return_inverse=True)
                found[unknown] = np.array(self._searched_for(rest.tolist()), np.int64)[inverse]
            return found

        return self._in_one_history(answer)

    def _known_arrays(self, timestamps: Timestamps) -> tuple[Timestamps, Revisions]:
        """Return the known marks: the ring, and the blocks if a time is below the ring."""
        import numpy as np

        ring = self.tracker.step_function()
        times, revisions = np.array(ring.times, np.uint64), np.array(ring.revisions, np.int64)
        if len(times) and timestamps.min() >= times[0]:
            return times, revisions
        marks, shown = (
            np.frombuffer(each, np.uint64) for each in self.tracker.lookup.blocks.copy()
        )
        below = np.searchsorted(marks, times[0]) if len(times) else len(marks)
        in_force: Revisions = np.zeros(len(marks) + 1, np.int64)
        in_force[1:] = shown
        return (
            np.concatenate((marks[:below], times)),
            np.concatenate((in_force[: below + 1], revisions[1:])),
        )

    def _in_one_history(self, answer: Callable[[], Answer]) -> Answer:
        """Return what `answer` returns; call it again if the engine was restored meanwhile."""
        for _ in range(RESTORES_MAX):
            epoch = self.tracker.continuity.epoch
            with suppress(StoreRestoredError):
                found = answer()
                if epoch == self.tracker.continuity.epoch:
                    return found
        raise StoreRestoredError(RESTORED)

    def _searched_for(self, timestamps: Sequence[int]) -> list[int]:
        """Return the revisions of rising times; those in blocks need no search."""
        blocks = self.tracker.lookup.blocks
        pairs = [(timestamp, blocks.revision_at(timestamp)) for timestamp in timestamps]
        unknown = [timestamp for timestamp, revision in pairs if not revision]
        found = iter(_Search(self, unknown).run() if unknown else ())
        return [revision or next(found) for _, revision in pairs]

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


def _source_of(found: tuple[Mark, StampRecord]) -> tuple[Mark, int]:
    """Return a mark, and the revision of the source that it recorded."""
    mark, stamp = found
    if mark.ordinal == CREATION_ORDINAL:
        return mark, 0
    return mark, REVISION_MAX if stamp.source is None else stamp.source[0]


class _Search:
    """Finds the revisions of distinct rising times."""

    def __init__(self, line: Timeline, timestamps: Sequence[int]) -> None:
        self._line, self._timestamps = line, timestamps
        self._lookup = line.tracker.lookup
        self._epoch = line.tracker.continuity.epoch
        self._found = [0] * len(timestamps)

    def run(self) -> list[int]:
        """Find all of them."""
        end = len(self._timestamps)
        self._between(0, end, self._mark_of(0), self._mark_of(end - 1))
        self._line.tracker.continuity.assure()
        return self._found

    def _mark_of(self, at: int) -> Mark:
        mark = self._line.at(self._timestamps[at]).mark
        self._found[at] = mark.revision
        return mark

    def _between(self, first: int, end: int, low: Mark, high: Mark) -> None:
        """Find those in [first, end); `low` and `high` are the marks of the first and the last."""
        count, marks = end - first, high.ordinal - low.ordinal
        if marks <= 0:
            self._found[first:end] = [low.revision] * count
        elif count <= 2:
            return
        elif marks <= SEARCH_MARKS * count:
            self._walk(first, end, low, high)
        else:
            middle = first + count // 2
            mark = self._mark_of(middle)
            self._between(first, middle + 1, low, mark)
            self._between(middle, end, mark, high)

    def _walk(self, first: int, end: int, low: Mark, high: Mark) -> None:
        """Find those in [first, end) from all marks in [low, high]."""
        wanted = self._timestamps[first:end]
        found = [high.revision] * len(wanted)
        runs = self._from_server if self._line.tracker.engine.remote else self._from_pages
        keep = high.ordinal - low.ordinal < MARKS_MAX // 2
        try:
            for run in runs(low, high):
                check_in_time()
                times, revisions = [mark[0] for mark in run], [mark[1] for mark in run]
                at, until = bisect_left(wanted, times[0]), bisect_left(wanted, times[-1])
                shown = StepFunction(times, [0, *revisions])
                found[at:until] = shown.revisions_of(wanted[at:until])
                if keep:  # without the mark of the store's creation: it is not a commit
                    start = 1 if run[0].ordinal == 1 else 0
                    self._lookup.keep_block(
                        run[start].ordinal, times[start:], revisions[start:], self._epoch
                    )
        except CompactedError:
            raise compaction_error(self._line, wanted[0]) from None
        self._found[first:end] = found

    def _from_pages(self, low: Mark, high: Mark) -> Iterator[list[Mark]]:
        """Yield runs of marks, the newest run first; the last of a run is the first of the next."""
        engine, key, after = self._line.tracker.engine, self._line.tracker.key, high
        while after.ordinal > low.ordinal:
            limit = min(PAGE_MARKS, after.ordinal - low.ordinal)
            page = engine.versions(key, after.revision - 1, limit)
            if not page.values or page.version != after.ordinal - 1:
                raise CompactedError(low.timestamp, None)
            ordinals = range(page.version, 0, -1)
            marks = zip(stamps_of(page.values), page.revisions, ordinals, strict=False)
            run = [*map(Mark._make, marks)][::-1]
            yield [*run, after]
            after = run[0]

    def _from_server(self, low: Mark, high: Mark) -> Iterator[list[Mark]]:
        """Yield runs of marks, the oldest run first; the last of a run is the first of the next."""
        run = [low]
        for mark, _ in self._line.replay(low, high):
            if mark.ordinal != run[-1].ordinal + 1:
                raise CompactedError(low.timestamp, None)
            run.append(mark)
            if len(run) > PAGE_MARKS:
                yield run
                run = [mark]
        if len(run) > 1:
            yield run
