"""Sources of a state, and the differences of two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from snapkv.engine.contract import SCAN, KeyValue, Page, PageForm
from snapkv.timeline import READS_MAX

T = TypeVar("T", bound=tuple[Any, ...])
Both = Iterator[tuple[bytes, bytes | None, bytes | None]]


class Source(Protocol):
    """The state of a snapshot."""

    timestamp: int
    revision: int
    final: bool

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None where a key is absent."""
        ...

    def pages(
        self, form: PageForm[Page], start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[Page]:
        """Yield the range [start, end) in pages, ascending."""
        ...

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""
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
    left, right = a.pages(SCAN, start, end), b.pages(SCAN, start, end)
    for before, after in paired(chain.from_iterable(left), chain.from_iterable(right)):
        if before and after:
            if before.mod_revision != after.mod_revision:
                yield before.key, before.value, after.value
        elif before:
            yield before.key, before.value, None
        elif after:
            yield after.key, None, after.value


def paired(left: Iterable[T], right: Iterable[T]) -> Iterator[tuple[T | None, T | None]]:
    """Merge two streams in the order of keys, which are the first fields of their items.

    Yields the items with the same key together, and None for the stream that lacks a key.

    >>> list(paired([("a", 1), ("b", 2)], [("b", 3), ("c", 4)]))
    [(('a', 1), None), (('b', 2), ('b', 3)), (None, ('c', 4))]
    """
    lefts, rights = iter(left), iter(right)
    old, new = next(lefts, None), next(rights, None)
    while old is not None or new is not None:
        if old is not None and new is not None and old[0] == new[0]:
            yield old, new
            old, new = next(lefts, None), next(rights, None)
        elif new is None or (old is not None and old[0] < new[0]):
            yield old, None
            old = next(lefts, None)
        else:
            yield None, new
            new = next(rights, None)
