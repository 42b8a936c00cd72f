"""Blocks of marks below the ring: what lookups found, and the marks around it."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

BLOCK_MARKS = 256
"""So many marks are read with the one that a lookup did not find here."""
MARKS_MAX = 1 << 18
"""At 17 bytes each; beyond that all are forgotten."""


class Blocks:
    """Marks in the order of their times, each with whether the next one here follows it directly.

    A time between two marks that follow each other is answered; in a gap, what was in force is
    not known. `revision_at` needs no lock; one thread at a time may `add` and `clear`.
    """

    def __init__(self) -> None:
        self._changes = 0  # odd while a change is under way, for readers without the lock
        self._timestamps, self._revisions = array("Q"), array("Q")
        self._followed = bytearray()

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self._timestamps)

    def clear(self) -> None:
        """Forget all marks."""
        self._changes |= 1
        del self._timestamps[:], self._revisions[:], self._followed[:]
        self._changes += 1

    def add(self, timestamps: Sequence[int], revisions: Sequence[int]) -> None:
        """Keep marks that follow each other, oldest first; O(marks behind them)."""
        if len(self) + len(timestamps) > MARKS_MAX:
            self.clear()
        newest = timestamps[-1]
        low = bisect_left(self._timestamps, timestamps[0])
        high = bisect_right(self._timestamps, newest)
        is_known = high > low and self._timestamps[high - 1] == newest
        followed = bytearray(b"\1" * len(timestamps))
        followed[-1] = self._followed[high - 1] if is_known else 0
        self._changes |= 1
        self._timestamps[low:high] = array("Q", timestamps)
        self._revisions[low:high] = array("Q", revisions)
        self._followed[low:high] = followed
        self._changes += 1

    def revision_at(self, timestamp: int) -> int:
        """Return the revision of the newest mark at or below `timestamp`; O(log marks).

        0 where that is not known, and while another thread changes them.
        """
        changes = self._changes
        try:
            at = bisect_right(self._timestamps, timestamp) - 1
            if changes & 1 or at < 0:
                return 0
            revision = self._revisions[at] if self._followed[at] else 0
        except IndexError:  # another thread just forgot all
            return 0
        return revision if changes == self._changes else 0

    def check(self) -> None:
        """Assert every invariant."""
        times, revisions = list(self._timestamps), list(self._revisions)
        assert len(times) == len(revisions) == len(self._followed)
        assert times == sorted(set(times))
        assert revisions == sorted(set(revisions))
        assert not self._followed or self._followed[-1] == 0
