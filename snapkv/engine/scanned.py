"""Pairs, columns and versions made from an engine's scan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from snapkv.engine.contract import Columns, KeyValue, Pairs, Versions


class Scanned(ABC):
    """The listings of an engine whose `scan` is its fastest listing."""

    @abstractmethod
    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range in pages."""

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the pages of a scan as keys and values."""
        for page in self.scan(key, range_end, revision=revision, keys_only=keys_only):
            yield Pairs([kv.key for kv in page], [] if keys_only else [kv.value for kv in page])

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield the pages of a scan as columns."""
        from snapkv.engine.version_columns import columns_in

        return columns_in(self.scan(key, range_end, revision=revision, keys_only=keys_only))


def versions_of(kvs: Sequence[KeyValue]) -> Versions:
    """Return versions of a key, newest first, as columns."""
    if not kvs:
        return Versions([], [])
    newest = kvs[0]
    revisions, values = [kv.mod_revision for kv in kvs], [kv.value for kv in kvs]
    return Versions(revisions, values, newest.version, newest.create_revision)
