"""The reads that a store, each of its spaces and an observed prefix share, awaited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from snapkv.aio.methods import awaited, iterated
from snapkv.aio.resources import AsyncClosing, Shown
from snapkv.aio.runners import Runner
from snapkv.aio.snapshot import Snapshot
from snapkv.aio.watch import SharedWatch, Watch
from snapkv.model import K, KeysAndValues, V
from snapkv.reading.observed_prefix import Observed as SyncObserved
from snapkv.reading.view import KeyspaceReads, View
from snapkv.times import When

if TYPE_CHECKING:
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
        self._shared: SharedWatch[K] = SharedWatch(runner, view) if raw is None else raw._shared

    load = awaited(KeyspaceReads[K, V].load)

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

    entry = awaited(KeyspaceReads[K, V].entry)
    entries_of = awaited(KeyspaceReads[K, V].entries_of)
    load_with_prefix = awaited(KeyspaceReads[K, V].load_with_prefix)
    diff = iterated(KeyspaceReads[K, V].diff)
    history = iterated(View[K, V].history)

    async def end_watches(self) -> None:
        """End all watches of these keys; tasks that wait in one raise `StoreClosedError`."""
        await self._shared.close()

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

    timestamp_of = awaited(KeyspaceReads[K, V].timestamp_of)
    changes_to_arrow = awaited(KeyspaceReads[K, V].changes_to_arrow)
    history_to_arrow = awaited(KeyspaceReads[K, V].history_to_arrow)

    def watch(
        self, prefix: K | None = None, since: When | None = None, *, timeout: float | None = None
    ) -> Watch[K, V]:
        """Return an asynchronous iterator of the commits after `since` (None: after its beginning).

        All watches of this object share one watch of the engine, so a thousand cost little more
        than one. `await` begins it; otherwise its first step does.
        """
        return Watch(self._shared, prefix, since, timeout, self._sync._decoding)


class Observed(Shown, Reads[K, bytes], AsyncClosing):
    """Time travel over keys that other programs write: `snapkv.Observed`, awaited."""

    _sync: SyncObserved[K]  # type: ignore[assignment]  # it has the reads of a view

    def __init__(self, runner: Runner, observed: SyncObserved[K]) -> None:
        super().__init__(runner, observed)  # type: ignore[arg-type]  # of each K, it is one

    async def aclose(self) -> None:
        """Close it; tasks that wait raise `StoreClosedError`. Takes about a second at most.

        May be repeated.
        """
        await self.end_watches()
        await self._runner.wait(self._sync.close, end=lambda: None)  # the pool may be busy
        await self._runner.end()

    resolved = awaited(SyncObserved[K].resolved)
    info = awaited(SyncObserved[K].info)
