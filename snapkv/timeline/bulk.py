"""Many times at once: the marks that they need are read once, not by a search for each time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from snapkv.clock import check_in_time
from snapkv.engine.contract import Engine
from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.layout import Mark, StampRecord, stamp_of
from snapkv.timeline.blocks import MARKS_MAX
from snapkv.timeline.lookup import Lookup
from snapkv.timeline.moment import Moment
from snapkv.timeline.steps import Steps
from snapkv.timeline.tracker import RESTORED, RESTORES_MAX

SEARCH_MARKS = 256
"""To read so many marks in a row costs about as much as to search for one."""
COPIED_MAX = 16
"""To copy so many marks in blocks costs about as much as to ask the blocks for one time."""
PAGE_MARKS = 4_096
"""So many marks are held at once while they are read in a row."""

Answer = TypeVar("Answer")


class TimeLine(Protocol):
    """What a lookup of many times needs of a time line."""

    engine: Engine
    key: bytes
    epoch: int

    def steps(self) -> Steps:
        """Return the revisions of the times in the ring."""
        ...

    def at(self, timestamp: int) -> Moment:
        """Return the moment of a timestamp."""
        ...

    def replay(self, after: Mark, until: Mark) -> Iterator[tuple[Mark, StampRecord]]:
        """Yield the marks in (after, until] with their stamps."""
        ...

    def earliest(self) -> int:
        """Return the smallest timestamp that the engine can still answer."""
        ...

    def assure(self) -> None:
        """Notice an engine that went back."""
        ...


def revisions_of(line: TimeLine, lookup: Lookup, timestamps: Sequence[int]) -> list[int]:
    """Return the revisions of the newest marks at or below some times, in any order.

    No round trip for those in the ring and in blocks. The others cost the searches for the first
    and the last of them, and then the cheaper of two: one watch over the marks in between, or a
    search for each. Of a local engine the marks in between are read in pages.

    Raises `CompactedError`, `StoreRestoredError`, `EngineUnavailableError`.
    """

    def answer() -> list[int]:
        steps, blocks = line.steps(), lookup.blocks
        if len(blocks) <= COPIED_MAX * len(timestamps) and (
            not steps.times or min(timestamps) < steps.times[0]
        ):
            steps = steps.after(blocks.steps())
        found = steps.revisions_of(timestamps)
        if 0 not in found:
            return found
        pairs = list(zip(timestamps, found, strict=True))
        rest = sorted({timestamp for timestamp, revision in pairs if not revision})
        searched = dict(zip(rest, searched_for(line, lookup, rest), strict=True))
        return [revision or searched[timestamp] for timestamp, revision in pairs]

    return in_one_history(line, answer)


def in_one_history(line: TimeLine, answer: Callable[[], Answer]) -> Answer:
    """Return what `answer` returns; call it again where the engine was restored meanwhile."""
    for _ in range(RESTORES_MAX):
        epoch = line.epoch
        with suppress(StoreRestoredError):
            found = answer()
            if epoch == line.epoch:
                return found
    raise StoreRestoredError(RESTORED)


def searched_for(line: TimeLine, lookup: Lookup, timestamps: Sequence[int]) -> list[int]:
    """Return the revisions of rising times, of those in blocks without a search."""
    pairs = [(timestamp, lookup.blocks.revision_at(timestamp)) for timestamp in timestamps]
    unknown = [timestamp for timestamp, revision in pairs if not revision]
    found = iter(_Search(line, lookup, unknown).run() if unknown else ())
    return [revision or next(found) for _, revision in pairs]


class _Search:
    """The revisions of rising times that differ from each other."""

    def __init__(self, line: TimeLine, lookup: Lookup, timestamps: Sequence[int]) -> None:
        self._line, self._lookup, self._timestamps = line, lookup, timestamps
        self._generation = lookup.generation
        self._found = [0] * len(timestamps)

    def run(self) -> list[int]:
        """Find all of them."""
        end = len(self._timestamps)
        self._between(0, end, self._mark_of(0), self._mark_of(end - 1))
        self._line.assure()
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
        runs = self._from_server if self._line.engine.remote else self._from_pages
        keep = high.ordinal - low.ordinal < MARKS_MAX // 2
        try:
            for run in runs(low, high):
                check_in_time()
                times, revisions = [mark[0] for mark in run], [mark[1] for mark in run]
                at, until = bisect_left(wanted, times[0]), bisect_left(wanted, times[-1])
                found[at:until] = Steps(times, [0, *revisions]).revisions_of(wanted[at:until])
                if keep:  # without the mark of the store's creation, which is no commit
                    start = 1 if run[0].ordinal == 1 else 0
                    self._lookup.keep_block(
                        run[start].ordinal, times[start:], revisions[start:], self._generation
                    )
        except CompactedError:
            raise CompactedError(wanted[0], self._line.earliest()) from None
        self._found[first:end] = found

    def _from_pages(self, low: Mark, high: Mark) -> Iterator[list[Mark]]:
        """Yield runs of marks, the newest run first; the last of a run is the first of the next."""
        engine, key, after = self._line.engine, self._line.key, high
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
