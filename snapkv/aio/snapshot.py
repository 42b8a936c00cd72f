"""A snapshot whose reads are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Self, TypeVar

from snapkv.aio.methods import awaited, items_of, iterated, same
from snapkv.aio.resources import Shown
from snapkv.aio.runners import Runner
from snapkv.errors import InvalidTypeError
from snapkv.model import Difference, K, KeysAndValues, V
from snapkv.reading.snapshot import Snapshot as SyncSnapshot

D = TypeVar("D")


class Snapshot(Shown, KeysAndValues[K, V]):
    """All keys at one moment: `snapkv.Snapshot` with awaited reads.

    `await snapshot["key"]` reads a value; iteration yields keys. Each method costs and raises as
    the method of `snapkv.Snapshot`.
    """

    def __init__(self, runner: Runner, snapshot: SyncSnapshot[K, V]) -> None:
        self._runner = runner
        self._sync: SyncSnapshot[K, V] = snapshot

    @property
    def raw(self) -> Snapshot[K]:
        """The same moment with its bytes."""
        return Snapshot(self._runner, self._sync.raw)

    timestamp: int = same(SyncSnapshot.timestamp)
    revision: int = same(SyncSnapshot.revision)
    final: bool = same(SyncSnapshot.final)

    def __copy__(self) -> Self:
        return self  # a value

    def __deepcopy__(self, memo: object) -> Self:
        return self

    async def __getitem__(self, key: K) -> V:
        return await self._runner.run(self._sync.__getitem__, key)

    def __aiter__(self) -> AsyncIterator[K]:
        return self.keys()

    async def contains(self, key: K) -> bool:
        """Return whether a key exists."""
        return await self._runner.run(self._sync.__contains__, key)

    async def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return a value, or `default` if the key is absent."""
        return await self._runner.run(self._sync.get, key, default)

    entry = awaited(SyncSnapshot[K, V].entry)
    entries_of = awaited(SyncSnapshot[K, V].entries_of)
    count = awaited(SyncSnapshot[K, V].count)
    entries = iterated(SyncSnapshot[K, V].entries)
    items = iterated(SyncSnapshot[K, V].items)
    keys = iterated(SyncSnapshot[K, V].keys)
    search = iterated(SyncSnapshot[K, V].search)
    values = iterated(SyncSnapshot[K, V].values)
    items_of = awaited(SyncSnapshot[K, V].items_of)
    to_arrow = awaited(SyncSnapshot[K, V].to_arrow)

    def diff(
        self, other: Snapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order."""
        if not isinstance(other, Snapshot):
            raise InvalidTypeError(f"diff needs a snapshot of the same keys, not {other!r}")
        diff = partial(self._sync.diff, other._sync, prefix, timeout=timeout)
        return items_of(self._runner, diff)
