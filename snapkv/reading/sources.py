"""Sources of a state, and the differences of two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from snapkv.engine.contract import Columns, KeyValue, Pairs
from snapkv.timeline import READS_MAX

Both = Iterator[tuple[bytes, bytes | None, bytes | None]]


class Source(Protocol):
    """The state of a snapshot."""

    timestamp: int
    revision: int
    final: bool

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None where a key is absent."""
        ...

    def scan(
        self, start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the range [start, end) in pages, ascending."""
        ...

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""
        ...

    def pairs(self, start: bytes, end: bytes, *, keys_only: bool = False) -> Iterator[Pairs]:
        """Yield the same as keys and values alone."""
        ...

    def columns(self, start: bytes, end: bytes, *, keys_only: bool = False) -> Iterator[Columns]:
        """Yield the same as columns of Arrow."""
        ...

    def ranges(
        self, wanted: Sequence[tuple[bytes, bytes]], limit: int = 0
    ) -> list[Sequence[KeyValue]]:
        """Return the contents of some short ranges, `limit` keys of each (0: all)."""
        ...

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys in a range."""
        ...

    def changed(self, other: Source, start: bytes, end: bytes) -> list[bytes] | None:
        """Return sorted stored keys that hold all differences; None if scanning is cheaper."""
        ...


def both_read(a: Source, b: Source, keys: Sequence[bytes]) -> Both:
    """Yield (key, value in a, value in b) of given keys."""
    for at in range(0, len(keys), READS_MAX):
        chunk = keys[at : at + READS_MAX]
        for key, before, after in zip(chunk, a.get(chunk), b.get(chunk), strict=True):
            yield key, before and before.value, after and after.value


def both_scanned(a: Source, b: Source, start: bytes, end: bytes) -> Both:
    """Yield (key, value in a, value in b) of a whole range, merging two scans in order."""
    left, right = _rows(a, start, end), _rows(b, start, end)
    before, after = next(left, None), next(right, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before.key < after.key):
            assert before is not None
            yield before.key, before.value, None
            before = next(left, None)
        elif before is None or after.key < before.key:
            yield after.key, None, after.value
            after = next(right, None)
        else:
            if before.mod_revision != after.mod_revision:
                yield before.key, before.value, after.value
            before, after = next(left, None), next(right, None)


def _rows(source: Source, start: bytes, end: bytes) -> Iterator[KeyValue]:
    for page in source.scan(start, end):
        yield from page
