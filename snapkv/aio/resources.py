"""Resources that `await` or `async with` opens, also when the call is cancelled."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Self, TypeVar

from snapkv.base.lifecycle import Closing


class AsyncClosing(ABC):
    """An asynchronous context manager that ends with its own `aclose()`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close it; a second call does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class Shown:
    """A class whose objects have the representation of what they await, `_sync`."""

    def __repr__(self) -> str:
        return f"<aio {repr(self._sync)[1:]}"  # type: ignore[attr-defined]


S = TypeVar("S", bound=AsyncClosing)
C = TypeVar("C", bound=Closing)


class Opening(Coroutine[Any, Any, S]):
    """A store, a session or a candidate that `await` or `async with` opens, once.

    It is the coroutine that opens it, so that `asyncio.create_task` takes it.
    """

    def __init__(self, opening: Coroutine[Any, Any, S]) -> None:
        self._opening = opening
        self._resource: S | None = None

    def __await__(self) -> Generator[Any, Any, S]:
        return self._opening.__await__()

    async def __aenter__(self) -> S:
        self._resource = await self._opening
        return self._resource

    async def __aexit__(self, *error: object) -> None:
        if self._resource is not None:
            await self._resource.aclose()

    # --- what a task calls ---

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error at the present wait."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """End it: it cannot be awaited any more."""
        self._opening.close()


async def made(run: Callable[[Callable[[], C]], Awaitable[C]], call: Callable[[], C]) -> C:
    """Return what a call makes, which `run` runs.

    If this is cancelled, what the call has made, or will make in its thread, is closed.
    """
    found: list[C] = []
    is_left = False

    def make() -> C:
        found.append(call())
        if is_left:
            found[0].close()
        return found[0]

    def close() -> C:
        found[0].close()
        return found[0]

    try:
        return await run(make)
    except BaseException:
        is_left = True
        if found:
            await asyncio.shield(run(close))  # also if this is cancelled once more
        raise
