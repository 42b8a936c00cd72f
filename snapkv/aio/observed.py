"""Keys that other programs write, whose reads are awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snapkv.aio.reads import Reads
from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.model import K

if TYPE_CHECKING:
    from snapkv.reading.observed import Observed as SyncObserved


class Observed(Reads[K, bytes], AsyncClosing):
    """Time travel over keys that other programs write: `snapkv.Observed`, awaited."""

    def __init__(self, runner: Runner, observed: SyncObserved[K]) -> None:
        super().__init__(runner, observed)  # type: ignore[arg-type]  # of each K, it is one
        self._observed: SyncObserved[K] = observed

    def __repr__(self) -> str:
        return f"<aio {repr(self._observed)[1:]}"

    async def aclose(self) -> None:
        """Close it; tasks that wait raise `StoreClosedError`. Takes about a second at most.

        May be repeated.
        """
        await self.end_watches()
        await self._runner.wait(self._observed.close, end=lambda: None)  # the pool may be busy
        await self._runner.end()

    async def resolved(self, *, timeout: float | None = None) -> int:
        """Return the timestamp of the newest tick: at or below it nothing changes any more."""
        return await self._runner.run(self._observed.resolved, timeout=timeout)

    async def info(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return facts about what is observed and its engine, for people, without secrets."""
        return await self._runner.run(self._observed.info, timeout=timeout)
