"""The state of one member as the source of a snapshot, whose errors name the member."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from snapkv.engine.contract import Columns, KeyValue, Pairs
from snapkv.fleet.member import naming, steps_named
from snapkv.reading.sources import Source


class MemberSource:
    """A `Source` that reads from another one."""

    def __init__(self, member: str, source: Source) -> None:
        self._member, self._source = member, source
        self.timestamp, self.revision, self.final = source.timestamp, source.revision, source.final

    def get(self, keys: Sequence[bytes]) -> list[KeyValue | None]:
        """Return the versions of stored keys, None where a key is absent."""
        with naming(self._member):
            return self._source.get(keys)

    def ranges(
        self, wanted: Sequence[tuple[bytes, bytes]], limit: int = 0
    ) -> list[Sequence[KeyValue]]:
        """Return the contents of some short ranges, `limit` keys of each (0: all)."""
        with naming(self._member):
            return self._source.ranges(wanted, limit)

    def count(self, start: bytes, end: bytes) -> int:
        """Return the number of keys in a range."""
        with naming(self._member):
            return self._source.count(start, end)

    def changed(self, other: Source, start: bytes, end: bytes) -> list[bytes] | None:
        """Return sorted stored keys that hold all differences; None if scanning is cheaper."""
        inside = other._source if isinstance(other, MemberSource) else other
        with naming(self._member):
            return self._source.changed(inside, start, end)

    def scan(
        self, start: bytes, end: bytes, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the range [start, end) in pages, ascending."""
        return steps_named(self._member, self._source.scan(start, end, keys_only=keys_only))

    def first(
        self, start: bytes, end: bytes, limit: int, *, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield the first `limit` keys of the range [start, end) in pages, and read no more."""
        return steps_named(self._member, self._source.first(start, end, limit, keys_only=keys_only))

    def pairs(self, start: bytes, end: bytes, *, keys_only: bool = False) -> Iterator[Pairs]:
        """Yield the same as keys and values alone."""
        return steps_named(self._member, self._source.pairs(start, end, keys_only=keys_only))

    def columns(self, start: bytes, end: bytes, *, keys_only: bool = False) -> Iterator[Columns]:
        """Yield the same as columns of Arrow."""
        return steps_named(self._member, self._source.columns(start, end, keys_only=keys_only))
