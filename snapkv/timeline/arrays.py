"""Many times at once in a numpy array, which this module alone imports for lookups."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snapkv.timeline.bulk import TimeLine, in_one_history, searched_for
from snapkv.timeline.lookup import Lookup

Integers: TypeAlias = NDArray[np.integer[Any]]
Timestamps: TypeAlias = NDArray[np.uint64]
Revisions: TypeAlias = NDArray[np.int64]


def revisions_of(line: TimeLine, lookup: Lookup, timestamps: Timestamps) -> Revisions:
    """Return the revisions of the newest marks at or below some times, as `bulk.revisions_of`."""

    def answer() -> Revisions:
        times, revisions = _known(line, lookup, timestamps)
        found = revisions[np.searchsorted(times, timestamps, side="right")]
        if not found.all():
            unknown = found == 0
            rest, inverse = np.unique(timestamps[unknown], return_inverse=True)
            searched = searched_for(line, lookup, rest.tolist())
            found[unknown] = np.array(searched, np.int64)[inverse]
        return found

    return in_one_history(line, answer)


def _known(line: TimeLine, lookup: Lookup, timestamps: Timestamps) -> tuple[Timestamps, Revisions]:
    """Return what is known as steps: of the ring, and below it, where that is asked, of blocks."""
    steps = line.steps()
    times, revisions = np.array(steps.times, np.uint64), np.array(steps.revisions, np.int64)
    if len(times) and timestamps.min() >= times[0]:
        return times, revisions
    marks, shown = (np.frombuffer(each, np.uint64) for each in lookup.blocks.copy())
    below = np.searchsorted(marks, times[0]) if len(times) else len(marks)
    in_force: Revisions = np.zeros(len(marks) + 1, np.int64)
    in_force[1:] = shown
    return (
        np.concatenate((marks[:below], times)),
        np.concatenate((in_force[: below + 1], revisions[1:])),
    )
