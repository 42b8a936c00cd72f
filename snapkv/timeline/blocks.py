"""Blocks: marks below the ring that lookups read, with the marks around them."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from snapkv.layout import Mark
from snapkv.timeline.ring import StepFunction

MARKS_MAX = 1 << 18
"""The most marks in blocks, of about 20 bytes each; when there are more, all are dropped."""
RUN_MARKS_MAX = 512
"""The most marks of a run. Longer runs are split, so that adding to one copies few marks."""


class _Run(NamedTuple):
    """Consecutive marks; immutable, so that it is read without a lock.

    The last of `revisions` is 0, because the mark after the last one is not known; the last mark's
    own revision is `last_revision`. `ordinal` is the ordinal of the first mark.
    """

    timestamps: array[int]
    revisions: array[int]
    ordinal: int
    last_revision: int

    @property
    def last_ordinal(self) -> int:
        return self.ordinal + len(self.timestamps) - 1


class Blocks:
    """Runs of consecutive marks, in the order of their times.

    A time between two consecutive marks is answered; in a gap between runs the mark in force is
    not known. `revision_at` and `find` need no lock: while another thread adds a run they may pick
    a wrong run, but that one does not contain the time. One thread at a time may `add` and `clear`.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # the first timestamp of each run
        self._runs: list[_Run] = []
        self._marks = 0
        self._changing = False  # stays set if an interrupt cut a change short

    def __len__(self) -> int:
        """Return the number of marks."""
        return self._marks

    def clear(self) -> None:
        """Drop all marks."""
        self._changing = True
        self._starts, self._runs, self._marks = [], [], 0
        self._changing = False

    def add(self, ordinal: int, timestamps: Sequence[int], revisions: Sequence[int]) -> None:
        """Add consecutive marks, oldest first; O(runs behind them).

        `ordinal` is the ordinal of the first mark. Runs that overlap or touch them are joined with
        them.
        """
        if self._changing or self._marks + len(timestamps) > MARKS_MAX:
            self.clear()
        runs = self._runs
        low = bisect_left(self._starts, timestamps[0])
        if low and runs[low - 1].last_ordinal >= ordinal - 1:
            low -= 1
        high, last = low, ordinal + len(timestamps) - 1
        while high < len(runs) and runs[high].ordinal <= last + 1:
            high += 1
        made = _runs_of(*_joined(runs[low:high], ordinal, timestamps, revisions))
        marks = self._marks
        for run in runs[low:high]:
            marks -= len(run.timestamps)
        for run in made:
            marks += len(run.timestamps)
        self._changing = True
        self._starts[low:high] = [run.timestamps[0] for run in made]
        runs[low:high] = made
        self._marks = marks
        self._changing = False

    def revision_at(self, timestamp: int) -> int:
        """Return the revision of the newest mark at or below `timestamp`; O(log marks).

        0 if that is not known, and sometimes while another thread changes the blocks.
        """
        try:
            timestamps, revisions, _, _ = self._runs[bisect_right(self._starts, timestamp) - 1]
        except IndexError:
            return 0
        return revisions[bisect_right(timestamps, timestamp) - 1]  # below the first: the last, 0

    def copy(self) -> tuple[array[int], array[int]]:
        """Return a copy of all timestamps and revisions, 0 where not known; O(marks), no lock.

        If a run begins with the last mark of the run before it, that mark is contained twice, the
        second time with its revision.
        """
        timestamps, revisions = array("Q"), array("Q")
        for run in self._runs.copy():
            timestamps += run.timestamps
            revisions += run.revisions
        return timestamps, revisions

    def step_function(self) -> StepFunction:
        """Return the revisions of all times; O(marks), no lock."""
        timestamps, revisions = self.copy()
        return StepFunction(timestamps.tolist(), [0, *revisions])

    def find(self, timestamp: int) -> Mark | None:
        """Return the newest mark at or below `timestamp`, None if `revision_at` returns 0."""
        try:
            run = self._runs[bisect_right(self._starts, timestamp) - 1]
        except IndexError:
            return None
        at = bisect_right(run.timestamps, timestamp) - 1
        revision = run.revisions[at]
        return Mark(run.timestamps[at], revision, run.ordinal + at) if revision else None

    def check(self) -> None:
        """Assert every invariant."""
        assert self._starts == [run.timestamps[0] for run in self._runs]
        assert self._marks == sum(len(run.timestamps) for run in self._runs)
        for run in self._runs:
            revisions = [*run.revisions[:-1], run.last_revision]
            assert len(revisions) == len(run.timestamps) <= RUN_MARKS_MAX
            assert run.revisions[-1] == 0
            for values in (list(run.timestamps), revisions):
                assert values == sorted(set(values))
        for run, after in itertools.pairwise(self._runs):
            assert run.last_ordinal <= after.ordinal
            assert run.timestamps[-1] <= after.timestamps[0]


def _joined(
    runs: Sequence[_Run], ordinal: int, timestamps: Sequence[int], revisions: Sequence[int]
) -> tuple[int, array[int], array[int]]:
    """Return marks joined with the runs that overlap or touch them, as one run."""
    times, at = array("Q", timestamps), array("Q", revisions)
    if not runs:
        return ordinal, times, at
    first, last = runs[0], runs[-1]
    before = max(0, ordinal - first.ordinal)
    behind = ordinal + len(times) - last.ordinal
    if behind < len(last.timestamps):
        times += last.timestamps[behind:]
        at += last.revisions[behind:-1]
        at.append(last.last_revision)
    if before:
        times = first.timestamps[:before] + times
        known = first.revisions[:-1]
        known.append(first.last_revision)
        at = known[:before] + at
    return min(ordinal, first.ordinal), times, at


def _runs_of(ordinal: int, timestamps: array[int], revisions: array[int]) -> list[_Run]:
    """Split marks into runs; each begins with the last mark of the run before it."""
    made = []
    for low in range(0, max(1, len(timestamps) - 1), RUN_MARKS_MAX - 1):
        high = min(low + RUN_MARKS_MAX, len(timestamps))
        shown = revisions[low:high]
        shown[-1] = 0
        made.append(_Run(timestamps[low:high], shown, ordinal + low, revisions[high - 1]))
    return made
