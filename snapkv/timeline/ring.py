"""The ring: the newest marks of the time line, in a circular array that is bisected."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from snapkv.base.arguments import check_int
from snapkv.layout import Mark


class StepFunction(NamedTuple):
    """The revisions of times: `revisions[i]` from `times[i - 1]` until before `times[i]`.

    A revision is 0 where it is not known, for example before the first of the `times`. There is one
    more revision than there are times.
    """

    times: list[int]
    revisions: list[int]

    def revisions_of(self, timestamps: Iterable[int]) -> list[int]:
        """Return the revisions of some times, 0 where not known; O(log times) for each.

        >>> StepFunction([10, 20], [0, 3, 4]).revisions_of([9, 10, 19, 20])
        [0, 3, 3, 4]
        """
        at = map(partial(bisect_right, self.times), timestamps)
        return list(map(self.revisions.__getitem__, at))

    def after(self, older: StepFunction) -> StepFunction:
        """Return an older step function followed by this one, which replaces what it overlaps.

        >>> older = StepFunction([10, 15], [0, 3, 0])
        >>> StepFunction([20], [0, 4]).after(older).revisions_of([9, 10, 15, 20])
        [0, 3, 0, 4]
        """
        if not self.times:
            return older
        at = bisect_left(older.times, self.times[0])
        revisions = [*older.revisions[: at + 1], *self.revisions[1:]]
        return StepFunction([*older.times[:at], *self.times], revisions)


RING_SLOTS = 1_024
RING_SLOTS_MAX = 1 << 20
_new = tuple.__new__  # of a named tuple, without the call of its own constructor


class Ring:
    """The newest marks, at most `slots`, with consecutive ordinals.

    `0..max_pos` and, once it has wrapped, `min_pos..slots-1` are two rising runs. With 4 slots,
    after marks 1 to 6:

        slot       0   1   2   3
        ordinal    5   6   3   4        max_pos = 1, min_pos = 2

    Source: Milvus's metaSnapshot (2021); unlike it, the ring is right when it fills from empty.
    """

    def __init__(self, slots: int = RING_SLOTS) -> None:
        self.slots = check_int("ring_slots", slots, 1, RING_SLOTS_MAX)
        self._timestamps = [0] * slots
        self._revisions = [0] * slots
        self._changes = 0  # odd during a change, for readers without the lock
        self.clear()

    def clear(self) -> None:
        """Drop all marks."""
        self._changes |= 1
        self.min_pos = 0
        self.max_pos = -1
        self._size = 0
        self._newest_ordinal = 0
        self._changes += 1

    def __len__(self) -> int:
        """Return the number of marks held."""
        return self._size

    @property
    def newest(self) -> Mark | None:
        """The newest mark, None when empty."""
        if not self._size:
            return None
        at = self.max_pos
        return _new(Mark, (self._timestamps[at], self._revisions[at], self._newest_ordinal))

    @property
    def oldest(self) -> Mark | None:
        """The oldest mark, None when empty."""
        return self._mark(self.min_pos) if self._size else None

    def append(self, mark: Mark) -> bool:
        """Add the mark that follows the newest; return False, and change nothing, for any other.

        An empty ring takes any mark. O(1).
        """
        if self._size and mark.ordinal != self._newest_ordinal + 1:
            return False
        self._changes |= 1
        self.max_pos = (self.max_pos + 1) % self.slots
        if self._size == self.slots:
            self.min_pos = (self.min_pos + 1) % self.slots
        else:
            self._size += 1
        self._timestamps[self.max_pos] = mark.timestamp
        self._revisions[self.max_pos] = mark.revision
        self._newest_ordinal = mark.ordinal
        self._changes += 1
        return True

    def restart(self, *marks: Mark) -> None:
        """Drop all marks and hold these consecutive ones."""
        self.clear()
        for mark in marks:
            self.append(mark)

    def find(self, timestamp: int) -> Mark | None:
        """Return the newest mark at or below `timestamp`; None unless oldest <= it <= newest.

        O(log slots), one bisection in C.
        """
        if not self._size or timestamp > self._timestamps[self.max_pos]:
            return None
        if timestamp >= self._timestamps[0]:
            at = bisect_right(self._timestamps, timestamp, 0, self.max_pos + 1) - 1
        elif timestamp < self._timestamps[self.min_pos]:
            return None
        else:
            at = bisect_right(self._timestamps, timestamp, self.min_pos, self._size) - 1
        return self._mark(at)

    def revision_at(self, timestamp: int) -> int:
        """Return the revision of the newest mark at or below `timestamp`.

        0 unless oldest <= timestamp <= newest, and while another thread changes the ring: this is
        the one method that needs no lock. O(log slots), one bisection in C.
        """
        changes, timestamps, max_pos = self._changes, self._timestamps, self.max_pos
        if changes & 1 or not self._size or timestamp > timestamps[max_pos]:
            return 0
        if timestamp >= timestamps[0]:
            at = bisect_right(timestamps, timestamp, 0, max_pos + 1) - 1
        elif timestamp < timestamps[self.min_pos]:
            return 0
        else:
            at = bisect_right(timestamps, timestamp, self.min_pos, self._size) - 1
        revision = self._revisions[at]
        return revision if changes == self._changes else 0

    def step_function(self) -> StepFunction:
        """Return the revisions of all times in the ring; O(slots)."""
        if not self._size:
            return StepFunction([], [0])
        split, size, ended = self.min_pos, self._size, self._timestamps[self.max_pos] + 1
        return StepFunction(
            [*self._timestamps[split:size], *self._timestamps[:split], ended],
            [0, *self._revisions[split:size], *self._revisions[:split], 0],
        )

    def after(self, mark: Mark) -> Mark | None:
        """Return the mark after another one, None if the ring does not hold it."""
        back = self._newest_ordinal - mark.ordinal - 1
        if not 0 <= back < self._size:
            return None
        return self._mark((self.max_pos - back) % self.slots)

    def _mark(self, at: int) -> Mark:
        back = (self.max_pos - at) % self.slots
        return Mark(self._timestamps[at], self._revisions[at], self._newest_ordinal - back)

    def check(self) -> None:
        """Assert every invariant."""
        assert 0 <= self._size <= self.slots
        if not self._size:
            return
        # One run from slot 0 until it wraps; then the oldest follows the newest.
        wrapped = self._size == self.slots
        assert self.min_pos == ((self.max_pos + 1) % self.slots if wrapped else 0)
        order = [(self.min_pos + i) % self.slots for i in range(self._size)]
        assert order[-1] == self.max_pos
        # Times and revisions rise strictly, in the same order.
        for values in (self._timestamps, self._revisions):
            run = [values[at] for at in order]
            assert all(a < b for a, b in itertools.pairwise(run))
        # No ordinal below the creation of the store.
        assert self._newest_ordinal >= self._size
