"""Lookups of many times at once: the marks around them are read once, not by many searches."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from snapkv.base.waiting import check_in_time
from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.layout import Mark, StampRecord, stamp_of
from snapkv.timeline.blocks import MARKS_MAX
from snapkv.timeline.continuity import RESTORED
from snapkv.timeline.moment import Moment, compaction_error
from snapkv.timeline.time_steps import Steps
from snapkv.timeline.tracker import RESTORES_MAX, Tracker

SEARCH_MARKS = 256
"""Reading so many consecutive marks costs about as much as one search."""
COPIED_MAX = 16
"""Copying so many marks of blocks costs about as much as one lookup in the blocks."""
PAGE_MARKS = 4_096
"""The most marks that are in memory at once while consecutive marks are read."""

Answer = TypeVar("Answer")


class TimeLine(Protocol):
    """What a lookup of many times needs of a time line."""

    tracker: Tracker

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp."""
        ...

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps."""
        ...

    def earliest(self) -> int:
        """Return the smallest timestamp that the engine can still answer."""
        ...


def revisions_of(line: TimeLine, timestamps: Sequence[int]) -> list[int]:
    """Return the revisions of the newest marks at or below some times, in any order.

    Times in the ring and in blocks cost no round trip. For the rest, the first and the last time
    are searched for, and the times between them cost the cheaper of two: one watch over the marks
    in between, or a search for each. In an embedded engine those marks are read in pages.

    Raises `CompactedError`, `StoreRestoredError`, `EngineUnavailableError`.
    """

    def answer() -> list[int]:
        steps, blocks = line.tracker.steps(), line.tracker.lookup.blocks
        if len(blocks) <= COPIED_MAX * len(timestamps) and (
            not steps.times or min(timestamps) < steps.times[0]
        ):
            steps = steps.after(blocks.steps())
        found = steps.revisions_of(timestamps)
        if 0 not in found:
            return found
        pairs = list(zip(timestamps, found, strict=True))
        rest = sorted({timestamp for timestamp, revision in pairs if not revision})
        searched = dict(zip(rest, searched_for(line, rest), strict=True))
        return [revision or searched[timestamp] for timestamp, revision in pairs]

    return in_one_history(line, answer)


def in_one_history(line: TimeLine, answer: Callable[[], Answer]) -> Answer:
    """Return what `answer` returns; call it again if the engine was restored meanwhile."""
    for _ in range(RESTORES_MAX):
        epoch = line.tracker.continuity.epoch
        with suppress(StoreRestoredError):
            found = answer()
            if epoch == line.tracker.continuity.epoch:
                return found
    raise StoreRestoredError(RESTORED)


def searched_for(line: TimeLine, timestamps: Sequence[int]) -> list[int]:
    """Return the revisions of rising times; those in blocks need no search."""
    blocks = line.tracker.lookup.blocks
    pairs = [(timestamp, blocks.revision_at(timestamp)) for timestamp in timestamps]
    unknown = [timestamp for timestamp, revision in pairs if not revision]
    found = iter(_Search(line, unknown).run() if unknown else ())
    return [revision or next(found) for _, revision in pairs]


class _Search:
    """Finds the revisions of distinct rising times."""

    def __init__(self, line: TimeLine, timestamps: Sequence[int]) -> None:
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
                found[at:until] = Steps(times, [0, *revisions]).revisions_of(wanted[at:until])
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
            marks = zip(map(stamp_of, page.values), page.revisions, ordinals, strict=False)
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
