"""Blocks of marks below the ring: what lookups found, and the marks around it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from snapkv.records import Mark
from snapkv.timeline.steps import Steps

BLOCK_MARKS = 256
"""So many marks are read with the one that a lookup did not find here."""
MARKS_MAX = 1 << 18
"""At 24 bytes each; beyond that all are forgotten."""


class Blocks:
    """Marks in the order of their times.

    A time between two marks that follow each other is answered; in a gap, what was in force is
    not known. `revision_at` and `find` need no lock; one thread at a time may `add` and `clear`.
    """

    def __init__(self) -> None:
        self._changes = 0  # odd while a change is under way, for readers without the lock
        self._timestamps, self._revisions, self._ordinals = array("Q"), array("Q"), array("Q")

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self._timestamps)

    def clear(self) -> None:
        """Forget all marks."""
        self._changes |= 1
        del self._timestamps[:], self._revisions[:], self._ordinals[:]
        self._changes += 1

    def add(self, ordinal: int, timestamps: Sequence[int], revisions: Sequence[int]) -> None:
        """Keep marks that follow each other, oldest first; O(marks behind them).

        `ordinal` is that of the first.
        """
        if self._changes & 1 or len(self) + len(timestamps) > MARKS_MAX:
            self.clear()  # where an interrupt cut a change short, too
        low = bisect_left(self._timestamps, timestamps[0])
        high = bisect_right(self._timestamps, timestamps[-1])
        self._changes |= 1
        self._timestamps[low:high] = array("Q", timestamps)
        self._revisions[low:high] = array("Q", revisions)
        self._ordinals[low:high] = array("Q", range(ordinal, ordinal + len(timestamps)))
        self._changes += 1

    def revision_at(self, timestamp: int) -> int:
        """Return the revision of the newest mark at or below `timestamp`; O(log marks).

        0 where that is not known, and while another thread changes them.
        """
        changes, ordinals = self._changes, self._ordinals
        try:
            at = bisect_right(self._timestamps, timestamp) - 1
            if changes & 1 or at < 0 or ordinals[at + 1] != ordinals[at] + 1:
                return 0
            revision = self._revisions[at]
        except IndexError:  # it is the newest, or another thread just forgot all
            return 0
        return revision if changes == self._changes else 0

    def copy(self) -> tuple[array[int], array[int], array[int]]:
        """Return the timestamps, revisions and ordinals of one moment; O(marks).

        None of them while another thread changes them: this needs no lock.
        """
        changes = self._changes
        copied = self._timestamps[:], self._revisions[:], self._ordinals[:]
        if changes & 1 or changes != self._changes:
            return array("Q"), array("Q"), array("Q")
        return copied

    def steps(self) -> Steps:
        """Return the revisions of all times as steps; O(marks), needs no lock."""
        timestamps, revisions, ordinals = self.copy()
        if not timestamps:
            return Steps([], [0])
        following = zip(revisions, ordinals, ordinals[1:], strict=False)
        shown = [revision if after == at + 1 else 0 for revision, at, after in following]
        return Steps(timestamps.tolist(), [0, *shown, 0])

    def find(self, timestamp: int) -> Mark | None:
        """Return the newest mark at or below `timestamp`, None where `revision_at` returns 0."""
        changes = self._changes
        try:
            at = bisect_right(self._timestamps, timestamp) - 1
            found = Mark(self._timestamps[at], self._revisions[at], self._ordinals[at])
        except IndexError:
            return None
        is_known = self.revision_at(timestamp) == found.revision
        return found if is_known and changes == self._changes else None

    def check(self) -> None:
        """Assert every invariant."""
        times, revisions = list(self._timestamps), list(self._revisions)
        for values in (times, revisions, list(self._ordinals)):
            assert len(values) == len(times)
            assert values == sorted(set(values))
