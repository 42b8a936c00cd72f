r"""Pages of a listing: the first keys of a range, without counting the rest of it.

etcd counts a whole range for each limited read of it: 0.25 us a key, so 100 ms for 400,000 keys. A
page of a long listing shows how far a page reaches. Later pages read a bounded range first, and
more only if that has too few keys. For example, pages of 50 of the 400,000 keys of users/:

    read [users/, users0)                     counts all; the last key is users/00000049, so keys
                                              of a page share 12 bytes: users/000000
    read [users/00000049\0, users/000001)     50 of 50 keys
    read [users/00000099\0, users/000001)     none
    read [users/000001, users/00001)          a byte less deep: 50 of 900 keys

If that has too few keys, too, the next ranges are two, four, eight bytes less deep. So a page costs
one or two round trips mostly, and never more than the logarithm of a key's length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from operator import eq

from snapkv.engine.contract import ALL_KEYS_END, KeyValue, Range, RangeResult
from snapkv.layout import prefix_end

COUNTED_KEYS = 10_000
"""The keys of a range that is counted in 2.5 ms: less than a second round trip costs."""
LISTINGS_MAX = 256


class Listings:
    """The reach of the pages of some listings, and their beginning, by the bounds of the ranges.

    What it remembers makes reads cheap, never wrong. Safe for threads.
    """

    def __init__(self) -> None:
        self._depths: dict[bytes, int] = {}
        self._firsts: dict[tuple[bytes, bytes], bytes] = {}

    def page(
        self, read: Callable[[Range], RangeResult], wanted: Range, *, limit: int
    ) -> list[KeyValue]:
        """Return the first `limit` keys of a range; `read` answers ranges of one state."""
        found: list[KeyValue] = []
        for start, end in self._spans(wanted.key, wanted.range_end):
            left = limit - len(found)
            answer = read(wanted._replace(key=start, range_end=end, limit=left))
            found += answer.kvs
            if answer.count > COUNTED_KEYS:
                self._learn(wanted, found)
            if len(found) >= limit:
                break
        return found

    def _spans(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield ranges without gaps that together are [start, end), short ones first."""
        known, less = self._depths.get(end), 0
        if known is not None:
            path = self._firsts.get((start, end), start)
            while (depth := known - less) > 0:
                bound = prefix_end(path[:depth])
                less = 2 * less or 1
                if bound == ALL_KEYS_END or (end != ALL_KEYS_END and bound >= end):
                    break
                if start < bound:
                    yield start, bound
                    start = bound
        yield start, end

    def _learn(self, wanted: Range, found: list[KeyValue]) -> None:
        """Remember how many bytes the keys of a page share, and with which key it began."""
        if not found:
            return
        if max(len(self._depths), len(self._firsts)) >= LISTINGS_MAX:
            self._depths.clear()
            self._firsts.clear()
        first, last = found[0].key, found[-1].key
        shared = sum(takewhile(bool, map(eq, first, last)))
        self._depths[wanted.range_end] = min(shared, len(first) - 1)
        self._firsts[wanted.key, wanted.range_end] = first
