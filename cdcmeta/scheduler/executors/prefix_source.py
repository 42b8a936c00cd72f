"""Prefixes of a store as tables: a row is a key with its value."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

from cdcmeta.argument_checks import bounded_batches
from cdcmeta.scheduler.executors.contracts import Part, TableSource, WatchFeed
from cdcmeta.scheduler.executors.loop_prevention import RECORDS, metas_of
from snapkv import Change, Changes, Commit, Entry, SnapshotKV

V = TypeVar("V")
PAGE_KEYS, PAGE_BYTES = 100, 1 << 20
"""How large one part of a state is at most, but for one key."""


class Router:
    """Finds the table of a key; tables are prefixes, none the beginning of another."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        """Take the prefix of each table."""
        self._tables = {prefix: table for table, prefix in prefixes.items()}
        self._sorted = sorted(self._tables)

    def table_of(self, key: str) -> str | None:
        """Return the table of a key, None outside of all. O(log tables)."""
        at = bisect_right(self._sorted, key) - 1
        if at >= 0 and key.startswith(self._sorted[at]):
            return self._tables[self._sorted[at]]
        return None

    def split(self, changes: Changes[str]) -> dict[str, Part]:
        """Return the part of each table in a commit. O(changes x log tables)."""
        parts: dict[str, list[Change[str]]] = {}
        for change in changes.changes:
            table = self.table_of(change.key)
            if table is not None:
                parts.setdefault(table, []).append(change)
        return {table: Changes(changes.commit, tuple(part)) for table, part in parts.items()}


class PrefixTableSource(TableSource):
    """Reads prefixes of a store, by table; none is the beginning of another."""

    def __init__(
        self, store: SnapshotKV, prefixes: Mapping[str, str], *, restarts: bool = False
    ) -> None:
        """Take the prefix of each table, and whether a table may get its state once more."""
        self._store, self._prefixes, self._router = store, dict(prefixes), Router(prefixes)
        self.restarts = restarts

    def feed(self, since: int | None) -> WatchFeed[str]:
        """Return the commits after a timestamp."""
        return WatchFeed(self._store.watch(since=since), self._router.split)

    def state(
        self, table: str, since: int, at: int, kept: Iterable[str] = ()
    ) -> Iterator[Changes[str]]:
        """Yield the keys of a table as of a timestamp, in parts; of `kept`, those to remove.

        If changefeeds write into the store, each key has the route of the commit that wrote it, as
        far as that is not compacted; that costs a read for each 100 keys.
        """
        snapshot = self._store.at(at)
        commit = Commit(at, 0, snapshot.revision, None)
        has_routes = next(self._store.spaces(RECORDS), None) is not None
        found = with_removals(snapshot.entries(self._prefixes[table]), kept)
        for page in bounded_batches(found, _size_of, PAGE_KEYS, PAGE_BYTES):
            revisions = {entry.revision for _, entry in page if entry is not None}
            metas = metas_of(self._store, revisions) if has_routes else {}
            commits = {each: replace(commit, meta=meta) for each, meta in metas.items()}
            yield Changes(commit, tuple(_change(*each, commit, commits) for each in page))


def _size_of(found: tuple[str, Entry | None]) -> int:
    key, entry = found
    return len(key) + (0 if entry is None else len(entry.value))


def _change(
    key: str, entry: Entry | None, commit: Commit, commits: Mapping[int, Commit]
) -> Change[str]:
    if entry is None:
        return Change(key, None, commit)
    return Change(key, entry.value, commits.get(entry.revision, commit))


def with_removals(
    items: Iterable[tuple[str, V]], kept: Iterable[str]
) -> Iterator[tuple[str, V | None]]:
    """Yield items in the order of their keys, and None for each kept key that they lack.

    >>> list(with_removals([("b", b"1"), ("d", b"2")], ["a", "b", "c", "e"]))
    [('a', None), ('b', b'1'), ('c', None), ('d', b'2'), ('e', None)]
    """
    removals = ((key, None) for key in kept)
    found: Iterator[tuple[str, V | None]] = merge(items, removals, key=itemgetter(0))
    return (next(same) for _, same in groupby(found, itemgetter(0)))
