"""A snapshot whose reads are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from snapkv.aio.iterating import steps_of
from snapkv.aio.runners import Runner
from snapkv.errors import InvalidTypeError
from snapkv.model import Difference, Entry, K, KeysAndValues, V

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table
    from snapkv.reading.snapshot import Snapshot as SyncSnapshot

D = TypeVar("D")


class Snapshot(KeysAndValues[K, V]):
    """All keys at one moment: `snapkv.Snapshot` with awaited reads.

    `await snapshot["key"]` reads a value; iteration yields keys. Each method costs and raises as
    that of `snapkv.Snapshot`.
    """

    def __init__(self, runner: Runner, snapshot: SyncSnapshot[K, V]) -> None:
        self._runner = runner
        self._sync: SyncSnapshot[K, V] = snapshot

    @property
    def raw(self) -> Snapshot[K]:
        """The same moment with its bytes."""
        return Snapshot(self._runner, self._sync.raw)

    @property
    def timestamp(self) -> int:
        """The moment."""
        return self._sync.timestamp

    @property
    def revision(self) -> int:
        """The revision of the newest commit at that moment."""
        return self._sync.revision

    @property
    def final(self) -> bool:
        """Whether no commit can land at or below this moment any more."""
        return self._sync.final

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync)[1:]}"

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

    async def entry(self, key: K, *, timeout: float | None = None) -> Entry[V]:
        """Return a key's value with the revisions it was written and created at."""
        return await self._runner.run(self._sync.entry, key, timeout=timeout)

    async def entries_of(
        self, keys: Iterable[K], *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of some keys, None for absent ones."""
        return await self._runner.run(self._sync.entries_of, keys, timeout=timeout)

    async def count(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        timeout: float | None = None,
    ) -> int:
        """Return the number of keys, bounded as `items`."""
        count = self._sync.count
        return await self._runner.run(count, prefix, start=start, end=end, timeout=timeout)

    def entries(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, Entry[V]]]:
        """Yield (key, entry) pairs in key order; bounded as `items`."""
        entries = partial(self._sync.entries, start=start, end=end, after=after, limit=limit)
        return self._steps(entries, prefix, timeout=timeout)

    def items(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[K, V]]:
        """Yield (key, value) pairs in key order.

        `start` (inclusive), `end`, `after` (both exclusive) and `limit` bound them.
        """
        items = partial(self._sync.items, start=start, end=end, after=after, limit=limit)
        return self._steps(items, prefix, timeout=timeout)

    def keys(
        self,
        prefix: K | None = None,
        *,
        start: K | None = None,
        end: K | None = None,
        after: K | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[K]:
        """Yield keys in order, without reading values; bounded as `items`."""
        keys = partial(self._sync.keys, start=start, end=end, after=after, limit=limit)
        return self._steps(keys, prefix, timeout=timeout)

    def values(self, prefix: K | None = None, *, timeout: float | None = None) -> AsyncIterator[V]:
        """Yield values in key order."""
        return self._steps(self._sync.values, prefix, timeout=timeout)

    async def items_of(
        self,
        ranges: Iterable[tuple[K, K]],
        *,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> list[list[tuple[K, V]]]:
        """Return the keys and values in each of some short ranges [start, end)."""
        return await self._runner.run(self._sync.items_of, ranges, limit=limit, timeout=timeout)

    async def to_arrow(self, prefix: K | None = None, *, timeout: float | None = None) -> Table:
        """Return the keys, with a prefix or all, as an Arrow table in key order."""
        return await self._runner.run(self._sync.to_arrow, prefix, timeout=timeout)

    def diff(
        self, other: Snapshot[K, V], prefix: K | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[Difference[K, V]]:
        """Yield the differences from this snapshot to `other`, in key order."""
        if not isinstance(other, Snapshot):
            raise InvalidTypeError(f"diff needs a snapshot of the same keys, not {other!r}")
        return self._steps(self._sync.diff, other._sync, prefix, timeout=timeout)

    def _steps(self, make: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        return steps_of(self._runner, partial(make, *args, **options))
