"""The room of one commit: how writes are divided into commits that fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from snapkv.committer.group import MEMBERS_MAX, STAMP_BYTES_MAX
from snapkv.committer.operations import guards_max, nested_max
from snapkv.engine.caller_rules import OP_OVERHEAD_BYTES, blamed, op_bytes
from snapkv.engine.contract import Delete, Put, Txn
from snapkv.errors import CommitTooLargeError
from snapkv.layout import Keyspace
from snapkv.store.core import Core

BESIDE_BYTES = 512
"""The most bytes that the guards of a commit take of its request."""
SHOWN_CHARS = 80

K = TypeVar("K", str, bytes)


class Room(Generic[K]):
    """The room of a commit to one key space; `beside` are bytes for what else it has to say."""

    def __init__(self, core: Core, space: Keyspace, beside: int = BESIDE_BYTES) -> None:
        self._engine, self._space = core.engine, space
        limits = self._engine.limits
        self.bytes_max = limits.request_bytes - STAMP_BYTES_MAX - beside
        budget = guards_max(limits, MEMBERS_MAX)
        self.ops_max = None if budget is None else nested_max(budget)

    def parts(
        self, writes: Iterable[tuple[K, bytes | None]]
    ) -> Iterator[tuple[list[tuple[K, bytes | None]], int]]:
        """Yield writes (None: a removal) in parts that each fit into a commit, with their bytes.

        Raises `CommitTooLargeError` and `InvalidKeyError` for one that never fits.
        """
        part: list[tuple[K, bytes | None]] = []
        size = 0
        for write in writes:
            more = self.size(write)
            if part and (size + more > self.bytes_max or len(part) == self.ops_max):
                yield part, size
                part, size = [], 0
            part.append(write)
            size += more
        if part:
            yield part, size

    def size(self, write: tuple[K, bytes | None]) -> int:
        """Return the most bytes that a write takes of a request; raises when it is too large."""
        key, value = write
        stored = self._space.encode(key)
        if value is None:
            return op_bytes(Delete(stored)) + OP_OVERHEAD_BYTES
        put = Put(stored, value)
        self._engine.check_limits(Txn(success=(put,)))
        size = op_bytes(put) + OP_OVERHEAD_BYTES
        if size > self.bytes_max:
            what = blamed("the commit", Txn(success=(put,)), self._space.prefix)
            raise CommitTooLargeError(what, size, self.bytes_max)
        return size
