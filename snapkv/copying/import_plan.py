"""The plan of an import: the writes that make a store's keys equal to those of a source.

Both sides are read at one moment and merged in order; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from snapkv.copying.import_source import Names, Source
from snapkv.errors import CommitTooLargeError, StoreNotEmptyError
from snapkv.model import Commit
from snapkv.reading.snapshot import Snapshot
from snapkv.reading.sources import paired
from snapkv.store.batches import Room
from snapkv.store.store import SnapshotKV

Write = tuple[str, bytes | None]
"""A key and its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class Todo:
    """The number of writes, and the writes themselves if they are one commit."""

    saved: int = 0
    removed: int = 0
    commits: int = 0
    ops: tuple[Write, ...] | None = ()
    newest: Commit | None = None


@dataclass(slots=True)
class Plan:
    """The writes that make the store's keys below `target` equal to the source's."""

    store: SnapshotKV
    source: Source
    names: Names
    target: str
    replace: bool
    head: Snapshot[str] = field(init=False)
    room: Room[str] = field(init=False)

    def __post_init__(self) -> None:
        self.room = Room(self.store._core, self.store._core.layout.data)
        self.head = self.store.at()

    def count(self, batches: bool) -> Todo:
        """Count all writes; raises for a key or value that cannot be written. Writes nothing."""
        counted = Todo()
        bytes_all = 0
        for ops, size in self.batches():
            removed = sum(value is None for _, value in ops)
            counted = Todo(
                counted.saved + len(ops) - removed,
                counted.removed + removed,
                counted.commits + 1,
                None if counted.commits else tuple(ops),
            )
            bytes_all += size
        if counted.commits > 1 and not batches:
            if bytes_all > self.room.bytes_max or self.room.ops_max is None:
                raise CommitTooLargeError("the import in bytes", bytes_all, self.room.bytes_max)
            writes = counted.saved + counted.removed
            raise CommitTooLargeError("the import in keys", writes, self.room.ops_max)
        return counted

    def batches(self) -> Iterator[tuple[list[Write], int]]:
        """Yield the writes in batches that each fit into a commit, with their bytes.

        Each call yields the same ones, because both sides are read at one moment.
        """
        return self.room.parts(self._writes())

    def _writes(self) -> Iterator[Write]:
        """Yield the differences in key order; raises `StoreNotEmptyError` without `replace`."""
        for old, new in paired(self.head.items(self.target), self.source.pairs(self.names)):
            if old and old != new:
                self._check_replace(old[0], removes=new is None)
                yield new or (old[0], None)
            elif new and not old:
                yield new

    def _check_replace(self, key: str, *, removes: bool = False) -> None:
        if self.replace:
            return
        if removes:
            raise StoreNotEmptyError(
                f"the store has key {key!r}, which the source does not have; "
                "pass replace=True to remove it"
            )
        raise StoreNotEmptyError(
            f"the store has key {key!r} with another value than the source; "
            "pass replace=True to overwrite it"
        )
