"""The plan of an import: the writes that make a store's keys equal to those of a source.

Both sides are read at one moment and merged in order; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from snapkv.committer.group import MEMBERS_MAX, STAMP_BYTES_MAX
from snapkv.engine.contract import Delete, Put, Txn
from snapkv.engine.rules import OP_OVERHEAD_BYTES, op_bytes
from snapkv.errors import CommitTooLargeError, InvalidKeyError, StoreNotEmptyError
from snapkv.importing.source import Names, Source
from snapkv.model import Commit
from snapkv.reading.snapshot import Snapshot
from snapkv.store.store import SnapshotKV

GUARD_BYTES = 512
"""The most bytes that the guard of a commit takes of its request."""
SHOWN_CHARS = 80

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
    bytes_max: int = field(init=False)
    ops_max: int | None = field(init=False)

    def __post_init__(self) -> None:
        limits = self.store._core.engine.limits
        self.bytes_max = limits.request_bytes - STAMP_BYTES_MAX - GUARD_BYTES
        fan = None if limits.ops_per_list is None else (limits.ops_per_list - 1 - MEMBERS_MAX) // 3
        self.ops_max = None if fan is None else fan**3  # the room of `operations.nest`
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
            if bytes_all > self.bytes_max or self.ops_max is None:
                raise CommitTooLargeError("the import in bytes", bytes_all, self.bytes_max)
            writes = counted.saved + counted.removed
            raise CommitTooLargeError("the import in keys", writes, self.ops_max)
        return counted

    def batches(self) -> Iterator[tuple[list[Write], int]]:
        """Yield the writes in batches that each fit into a commit, with their bytes.

        Each call yields the same ones, because both sides are read at one moment.
        """
        ops: list[Write] = []
        size = 0
        for write in self._writes():
            more = self._size(write)
            if ops and (size + more > self.bytes_max or len(ops) == self.ops_max):
                yield ops, size
                ops, size = [], 0
            ops.append(write)
            size += more
        if ops:
            yield ops, size

    def _size(self, write: Write) -> int:
        """Return the most bytes that a write takes of a request; raises when it is too large."""
        key, value = write
        stored = self.store._core.layout.data.encode(key)
        if value is None:
            return op_bytes(Delete(stored)) + OP_OVERHEAD_BYTES
        put = Put(stored, value)
        try:
            self.store._core.engine.check_limits(Txn(success=(put,)))
        except CommitTooLargeError as e:
            raise CommitTooLargeError(f"{key[:SHOWN_CHARS]!r}: {e.what}", e.size, e.limit) from e
        except InvalidKeyError as e:
            raise InvalidKeyError(f"{key[:SHOWN_CHARS]!r}: {e}", key) from e
        size = op_bytes(put) + OP_OVERHEAD_BYTES
        if size > self.bytes_max:
            what = f"{key[:SHOWN_CHARS]!r}: the commit in bytes"
            raise CommitTooLargeError(what, size, self.bytes_max)
        return size

    def _writes(self) -> Iterator[Write]:
        """Yield the differences in key order; raises `StoreNotEmptyError` without `replace`."""
        ours, theirs = self.head.items(self.target), self.source.pairs(self.names)
        old, new = next(ours, None), next(theirs, None)
        while old is not None or new is not None:
            if new is None or (old is not None and old[0] < new[0]):
                assert old is not None
                self._check_replace(old[0], removes=True)
                yield old[0], None
                old = next(ours, None)
            elif old is None or new[0] < old[0]:
                yield new
                new = next(theirs, None)
            else:
                if old[1] != new[1]:
                    self._check_replace(old[0])
                    yield new
                old, new = next(ours, None), next(theirs, None)

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
