"""Half-open ranges of bytes: merging them, cutting keys out of them, asking what they cover."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[bytes, bytes]
"""[start, end), never empty."""


def point(key: bytes) -> Interval:
    """Return the range that holds one key only."""
    return key, key + b"\0"


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same set of keys as sorted, separate ranges; O(n log n).

    >>> merge([(b"a", b"c"), (b"b", b"d"), (b"x", b"y")])
    [(b'a', b'd'), (b'x', b'y')]
    """
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def cut(intervals: Sequence[Interval], keys: Sequence[bytes]) -> list[Interval]:
    r"""Return merged `intervals` without the sorted `keys`; O(n + m log m).

    >>> cut([(b"a/", b"a0")], [b"a/new"])
    [(b'a/', b'a/new'), (b'a/new\x00', b'a0')]
    """
    left: list[Interval] = []
    for start, end in intervals:
        for key in keys[bisect_left(keys, start) : bisect_left(keys, end)]:
            if start < key:
                left.append((start, key))
            start = key + b"\0"
        if start < end:
            left.append((start, end))
    return left


def covers(intervals: Sequence[Interval], key: bytes) -> bool:
    """Return whether merged `intervals` hold `key`; O(log n)."""
    at = bisect_right(intervals, key, key=lambda interval: interval[0])
    return at > 0 and key < intervals[at - 1][1]


def overlap(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    """Return whether two merged lists share a key; O(len(a) log len(b))."""
    for start, end in a:
        at = bisect_left(b, end, key=lambda interval: interval[0])
        if at > 0 and b[at - 1][1] > start:
            return True
    return False
