"""The marks of a range of commits, as numpy arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from snapkv.engine.contract import Replay
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.timeline import READS_MAX
from snapkv.timeline.moment import compaction_error
from snapkv.timeline.timeline import Timeline
from snapkv.times import LOGICAL_BITS


class Marks(NamedTuple):
    """Consecutive marks, oldest first; 24 bytes for each."""

    timestamps: NDArray[np.uint64]
    revisions: NDArray[np.int64]
    ordinals: NDArray[np.int64]

    def mark(self, at: int) -> Mark:
        """Return one of them."""
        return Mark(int(self.timestamps[at]), int(self.revisions[at]), int(self.ordinals[at]))

    def following(self, mark: Mark) -> Marks:
        """Return them with one more at the end."""
        one = (np.array([part], known.dtype) for part, known in zip(mark, self, strict=True))
        return Marks(*(np.concatenate(pair) for pair in zip(self, one, strict=True)))

    def milliseconds(self) -> NDArray[np.int64]:
        """Return the milliseconds since 1970 of each."""
        return (self.timestamps >> np.uint64(LOGICAL_BITS)).astype(np.int64)


def marks_of(line: Timeline, after: Mark, until: Mark) -> Marks:
    """Return the marks in (after, until]: all versions in between in one call, or each revision.

    The latter if they are close, as `replay` does. Raises `CompactedError`.
    """
    nothing = Marks(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))
    if after.ordinal >= until.ordinal:
        return nothing
    if until.revision - after.revision <= READS_MAX:
        found = [mark for mark, _ in line.replay(after, until)]
        if not found:
            return nothing
        columns, kinds = zip(*found, strict=True), (np.uint64, np.int64, np.int64)
        return Marks(*(np.array(each, kind) for each, kind in zip(columns, kinds, strict=True)))
    first = line.moment(after).next_revision()
    key = line.tracker.key
    try:
        parts = [
            (
                np.array([int.from_bytes(value[:8], "big") for value in part.values.to_pylist()]),
                part.revisions.to_numpy(),
                part.versions.to_numpy(),
            )
            for part in line.tracker.engine.changes(Replay(key, b"", first, until.revision))
        ]
    except CompactedError as e:
        raise compaction_error(line, after.timestamp) from e
    if not parts:
        return nothing
    times, revisions, ordinals = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Marks(times.astype(np.uint64), revisions, ordinals)
