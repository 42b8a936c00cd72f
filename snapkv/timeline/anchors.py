"""Anchors: single marks that searches found, kept because history does not change."""

from __future__ import annotations

import itertools
from bisect import bisect_right

from sortedcontainers import SortedDict

from snapkv.layout import Mark

ANCHORS_MAX = 65_536


class Anchors:
    """A sorted set of marks that bound later searches; at most `ANCHORS_MAX`, then it thins out."""

    def __init__(self) -> None:
        self._by_timestamp: SortedDict[int, Mark] = SortedDict()

    def __len__(self) -> int:
        """Return the number of anchors."""
        return len(self._by_timestamp)

    def add(self, mark: Mark) -> None:
        """Keep a mark; O(log n)."""
        self._by_timestamp[mark.timestamp] = mark
        if len(self._by_timestamp) > ANCHORS_MAX:
            for timestamp in list(self._by_timestamp)[1::2]:
                del self._by_timestamp[timestamp]

    def around(self, field: int, wanted: int) -> tuple[Mark | None, Mark | None]:
        """Return the nearest marks with `mark[field] <= wanted` and `> wanted`; O(log n).

        `field` is an index into `Mark`: timestamp, revision and ordinal rise together.
        """
        marks = self._by_timestamp.values()
        if field == 0:
            at = self._by_timestamp.bisect_right(wanted)
        else:
            at = bisect_right(marks, wanted, key=lambda mark: mark[field])
        return (marks[at - 1] if at else None), (marks[at] if at < len(marks) else None)

    def clear(self) -> None:
        """Forget all anchors."""
        self._by_timestamp.clear()

    def check(self) -> None:
        """Assert that all three fields rise together."""
        marks = list(self._by_timestamp.values())
        for old, new in itertools.pairwise(marks):
            assert all(a < b for a, b in zip(old, new, strict=True))
