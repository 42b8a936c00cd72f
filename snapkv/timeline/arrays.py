"""Lookups of many times at once, in numpy arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snapkv.timeline.many_times import TimeLine, in_one_history, searched_for

Integers: TypeAlias = NDArray[np.integer[Any]]
Timestamps: TypeAlias = NDArray[np.uint64]
Revisions: TypeAlias = NDArray[np.int64]


def revisions_of(line: TimeLine, timestamps: Timestamps) -> Revisions:
    """Return the revisions of the newest marks at or below some times, as `bulk.revisions_of`."""

    def answer() -> Revisions:
        times, revisions = _known(line, timestamps)
        found = revisions[np.searchsorted(times, timestamps, side="right")]
        if not found.all():
            unknown = found == 0
            rest, inverse = np.unique(timestamps[unknown], return_inverse=True)
            searched = searched_for(line, rest.tolist())
            found[unknown] = np.array(searched, np.int64)[inverse]
        return found

    return in_one_history(line, answer)


def _known(line: TimeLine, timestamps: Timestamps) -> tuple[Timestamps, Revisions]:
    """Return the known marks as steps: the ring, and the blocks if a time is below the ring."""
    steps = line.tracker.steps()
    times, revisions = np.array(steps.times, np.uint64), np.array(steps.revisions, np.int64)
    if len(times) and timestamps.min() >= times[0]:
        return times, revisions
    marks, shown = (np.frombuffer(each, np.uint64) for each in line.tracker.lookup.blocks.copy())
    below = np.searchsorted(marks, times[0]) if len(times) else len(marks)
    in_force: Revisions = np.zeros(len(marks) + 1, np.int64)
    in_force[1:] = shown
    return (
        np.concatenate((marks[:below], times)),
        np.concatenate((in_force[: below + 1], revisions[1:])),
    )
