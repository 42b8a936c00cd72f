"""The reads that a store, each of its spaces and an observed prefix share, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from snapkv.aio.iterating import steps_of
from snapkv.aio.runners import Runner
from snapkv.aio.snapshot import Snapshot
from snapkv.aio.watch import Hub, Watch
from snapkv.model import Difference, Entry, K, KeysAndValues, V, Version
from snapkv.times import When

if TYPE_CHECKING:
    from snapkv.reading.arrow import Table
    from snapkv.reading.observed import Observed as SyncObserved
    from snapkv.reading.view import View
    from snapkv.timeline.timeline import Integers, Revisions

D = TypeVar("D")


class Reads(KeysAndValues[K, V]):
    """The reads of one keyspace; each costs and raises as the method of the same name in `snapkv`.

    A cancelled read sends nothing more. The reads of `raw`, which have the bytes, and those with a
    codec share the watch of the engine. A codec is called where the calls of the store run, and for
    watches in the loop: it must not wait.
    """

    def __init__(
        self, runner: Runner, view: View[K, V] | SyncObserved[K], raw: Reads[K] | None = None
    ) -> None:
        self._runner = runner
        self._sync: View[K, V] = view  # type: ignore[assignment]  # it has the same names
        self._hub: Hub[K] = Hub(runner, view) if raw is None else raw._hub

    async def load(self, key: K, ts: When | None = None, *, timeout: float | None = None) -> V:
        """Return the value of a key, now or at a time."""
        return await self._runner.run(self._sync.load, key, ts, timeout=timeout)

    @overload
    async def get(
        self, key: K, default: None = None, ts: When | None = None, *, timeout: float | None = None
    ) -> V | None: ...

    @overload
    async def get(
        self, key: K, default: D, ts: When | None = None, *, timeout: float | None = None
    ) -> V | D: ...

    async def get(
        self, key: K, default: Any = None, ts: When | None = None, *, timeout: float | None = None
    ) -> Any:
        """Return the value of a key, now or at a time, or `default` if the key is absent."""
        return await self._runner.run(self._sync.get, key, default, ts, timeout=timeout)

    async def entry(
        self, key: K, ts: When | None = None, *, timeout: float | None = None
    ) -> Entry[V]:
        """Return a key's value with its revisions, now or at a time."""
        return await self._runner.run(self._sync.entry, key, ts, timeout=timeout)

    async def entries_of(
        self, keys: Iterable[K], ts: When | None = None, *, timeout: float | None = None
    ) -> list[Entry[V] | None]:
        """Return the entries of given keys, None where one is absent, now or at a time."""
        return await self._runner.run(self._sync.entries_of, keys, ts, timeout=timeout)

    async def load_with_prefix(
        self, prefix: K, ts: When | None = None, *, timeout: float | None = None
    ) -> tuple[list[K], list[V]]:
        """Return all keys with a prefix and their values, two lists in key order."""
        return await self._runner.run(self._sync.load_with_prefix, prefix, ts, timeout=timeout)

    def diff(
        self,
        a: When | None,
        b: When | None = None,
        prefix: K | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncIterator[Difference[K, V]]:
        """Yield the differences between two moments (None: now), in key order."""
        return self._steps(self._sync.diff, a, b, prefix, timeout=timeout)

    def history(
        self,
        key: K,
        *,
        since: When | None = None,
        until: When | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Version[V]]:
        """Yield the versions of a key, oldest first: time, value, writer and note."""
        history = partial(self._sync.history, newest_first=newest_first, timeout=timeout)
        return self._steps(history, key, since=since, until=until, limit=limit)

    async def end_watches(self) -> None:
        """End all watches of these keys; tasks that wait in one raise `StoreClosedError`."""
        await self._hub.close()

    async def at(
        self,
        when: When | None = None,
        *,
        revision: int | None = None,
        final: bool = False,
        timeout: float | None = None,
    ) -> Snapshot[K, V]:
        """Return the snapshot of a moment: of now, of a time, or of a revision."""
        at = self._sync.at
        found = await self._runner.run(at, when, revision=revision, final=final, timeout=timeout)
        return Snapshot(self._runner, found)

    @overload
    async def revisions_at(
        self, timestamps: Iterable[When], *, timeout: float | None = None
    ) -> list[int]: ...

    @overload
    async def revisions_at(
        self, timestamps: Integers, *, timeout: float | None = None
    ) -> Revisions: ...

    async def revisions_at(self, timestamps: Any, *, timeout: float | None = None) -> Any:
        """Return the revisions of many moments."""
        return await self._runner.run(self._sync.revisions_at, timestamps, timeout=timeout)

    async def timestamp_of(self, when: When) -> int:
        """Return the timestamp of a time, by this store's clock."""
        return await self._runner.run(self._sync.timestamp_of, when)

    async def changes_to_arrow(
        self,
        prefix: K | None = None,
        since: When | None = None,
        until: When | None = None,
        *,
        preimages: bool = False,
        timeout: float | None = None,
    ) -> Table:
        """Return the changes of the commits in (since, until] as an Arrow table."""
        table = partial(self._sync.changes_to_arrow, preimages=preimages, timeout=timeout)
        return await self._runner.run(table, prefix, since, until)

    async def history_to_arrow(
        self,
        prefix: K | None = None,
        since: When | None = None,
        until: When | None = None,
        *,
        timeout: float | None = None,
    ) -> Table:
        """Return every version in force at some time in [since, until], as an Arrow table."""
        table = self._sync.history_to_arrow
        return await self._runner.run(table, prefix, since, until, timeout=timeout)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K, V]:
        """Return an asynchronous iterator of the commits after `since` (None: after its beginning).

        All watches of this object share one watch of the engine, so a thousand cost little more
        than one. `await` begins it; otherwise its first step does.
        """
        return Watch(self._hub, prefix, since, timeout, self._sync._decoding)

    def _steps(self, make: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        return steps_of(self._runner, partial(make, *args, **options))
