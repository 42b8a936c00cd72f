"""Scans in bounded ranges: etcd counts the whole rest of a range for each limited page.

Paging 1,000,000 keys by `limit` alone was measured ten times as slow as 50 bounded ranges. So a
range of many keys is cut where its keys part, by counting, until each piece is small.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from snapkv.engine.base import ALL_KEYS_END, KeyValue, Range, RangeResult
from snapkv.engine.etcd.refusals import OversizedAnswerError
from snapkv.records import prefix_end

Ask = Callable[[Sequence[Range]], list[RangeResult]]
"""Answers ranges in one round trip."""

PIECE_ROWS = 10_000
"""A range with no more keys is read as it is."""
PAGE_ROWS_UNKNOWN = 4
"""The first page of all: the values may be of the largest size."""
PAGE_ROWS_FIRST = 256
PAGE_ROWS_MAX = 5_000
PAGE_BYTES = 4 << 20
"""What a page is meant to take: its number of rows follows the size of those before."""
GROWTH_MAX = 64
COUNTS_MAX = 128


class PageSize:
    """How many rows the first page of a scan asks for: about what the rows before took.

    Shared by the scans of an engine, in any thread: a wrong guess costs time or memory only.
    """

    def __init__(self, page_bytes: int = PAGE_BYTES) -> None:
        self.page_bytes = page_bytes
        self.first_rows = PAGE_ROWS_UNKNOWN

    def fitting(self, page: Sequence[KeyValue]) -> int:
        """Return how many rows like those of a page fit one; the next scan begins with that."""
        row_bytes = sum(len(kv.key) + len(kv.value) for kv in page) // len(page) + 32
        rows = min(PAGE_ROWS_MAX, max(1, self.page_bytes // row_bytes))
        self.first_rows = min(PAGE_ROWS_FIRST, rows)
        return rows


class Scan:
    """One pass over [key, range_end) at one revision."""

    def __init__(self, ask: Ask, revision: int, keys_only: bool, size: PageSize) -> None:
        self._ask, self._revision, self._keys_only = ask, revision, keys_only
        self._size = size
        self._page_rows = PAGE_ROWS_FIRST if keys_only else size.first_rows

    def pages(self, key: bytes, range_end: bytes) -> Iterator[list[KeyValue]]:
        """Yield pages in key order; one round trip each, and a few to cut a large range."""
        pieces = [(key, range_end)]  # the next one last
        while pieces:
            key, range_end = pieces.pop()
            page = self._read(key, range_end)
            if page.kvs:
                yield page.kvs
            if not page.more:
                continue
            # A page first: keys that are prefixes of others come before those, and would be cut
            # off one by one.
            rest = page.kvs[-1].key + b"\0"
            large = page.count - len(page.kvs) > PIECE_ROWS
            pieces += reversed(self._cut(rest, range_end)) if large else [(rest, range_end)]

    def _read(self, key: bytes, range_end: bytes) -> RangeResult:
        while True:
            wanted = Range(key, range_end, self._revision, self._page_rows, self._keys_only)
            try:
                page = self._ask([wanted])[0]
                break
            except OversizedAnswerError:
                if self._page_rows == 1:
                    raise
                self._page_rows = max(1, self._page_rows // 8)
        if page.kvs:
            fitting = PAGE_ROWS_MAX if self._keys_only else self._size.fitting(page.kvs)
            self._page_rows = min(fitting, self._page_rows * GROWTH_MAX)
        return page

    def _cut(self, key: bytes, range_end: bytes) -> list[tuple[bytes, bytes]]:
        """Return pieces (start, end) that hold all keys of a range, in order.

        How long a prefix do all its keys share, by halving, for each question counts them all;
        and how many keys follow each next byte. One piece comes back when the keys do not part.
        """
        found = self._ask([Range(key, range_end, self._revision, 1, True)])[0]
        if not found.kvs:
            return []
        first = found.kvs[0].key
        prefix = self._shared_prefix(first, key, range_end, found.count)
        bounds = [prefix + bytes([b]) for b in range(256)]
        starts = [start for start in bounds if start > key and _below(start, range_end)]
        edges = [key, *starts, range_end]
        pieces = list(itertools.pairwise(edges))
        counts: list[int] = []
        for at in range(0, len(pieces), COUNTS_MAX):
            wanted = [
                Range(start, end, self._revision, count_only=True)
                for start, end in pieces[at : at + COUNTS_MAX]
            ]
            counts += [result.count for result in self._ask(wanted)]
        return [piece for piece, count in zip(pieces, counts, strict=True) if count]

    def _shared_prefix(self, first: bytes, key: bytes, range_end: bytes, count: int) -> bytes:
        """Return the longest prefix of `first` that all `count` keys share; O(log) round trips."""
        shared, parted = 0, len(first) + 1
        while parted - shared > 1:
            length = (shared + parted) // 2
            start, end = max(key, first[:length]), prefix_end(first[:length])
            if end == ALL_KEYS_END or not _below(end, range_end):
                end = range_end
            wanted = Range(start, end, self._revision, count_only=True)
            if self._ask([wanted])[0].count < count:
                parted = length
            else:
                shared = length
        return first[:shared]


def _below(key: bytes, range_end: bytes) -> bool:
    return range_end == ALL_KEYS_END or key < range_end
