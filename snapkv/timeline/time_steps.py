"""The revisions of times as steps: each is in force from one mark up to the next."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple


class Steps(NamedTuple):
    """`revisions[i]` is in force from `times[i - 1]` until before `times[i]`.

    It is 0 where that is not known, for example before the first of the `times`. There is one
    more revision than there are times.
    """

    times: list[int]
    revisions: list[int]

    def revisions_of(self, timestamps: Iterable[int]) -> list[int]:
        """Return the revisions of some times, 0 where not known; O(log times) for each.

        >>> Steps([10, 20], [0, 3, 4]).revisions_of([9, 10, 19, 20])
        [0, 3, 3, 4]
        """
        at = map(partial(bisect_right, self.times), timestamps)
        return list(map(self.revisions.__getitem__, at))

    def after(self, older: Steps) -> Steps:
        """Return `older` steps followed by these, which replace what they overlap.

        >>> Steps([20], [0, 4]).after(Steps([10, 15], [0, 3, 0])).revisions_of([9, 10, 15, 20])
        [0, 3, 0, 4]
        """
        if not self.times:
            return older
        at = bisect_left(older.times, self.times[0])
        revisions = [*older.revisions[: at + 1], *self.revisions[1:]]
        return Steps([*older.times[:at], *self.times], revisions)
