"""Watches of the engine as asynchronous iterators: a cancelled `next` loses nothing.

A step is read by a task of its own. A `next` that is cancelled leaves that task to the next call:

    first next()    starts a task, which waits for a change; is cancelled
    (a change)      the task has it
    second next()   finds the task, and returns the change
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

from snapkv.aio.resources import AsyncClosing
from snapkv.aio.runners import Runner
from snapkv.base.waiting import monotonic
from snapkv.errors import StoreClosedError
from snapkv.reading.deadline import check_wait

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LOOK_S = 1.0
"""How long a thread waits before it checks whether its task is still there."""


class Source(Protocol[T_co]):
    """A watch of the engine whose `next` waits."""

    def next(self, timeout: float | None = None) -> T_co | None:
        """Return the next step; None if `timeout` seconds bring none."""
        ...

    def close(self) -> None:
        """End the watch; may be repeated."""
        ...


class Following(AsyncClosing, Generic[T]):
    """The steps of a watch, as an asynchronous iterator. Use it from one task.

    Iteration waits for ever, or ends after `timeout` seconds without a step.
    """

    def __init__(self, runner: Runner, source: Source[T], timeout: float | None) -> None:
        check_wait(timeout)
        self._runner, self._timeout = runner, timeout
        self._source: Source[T] = source
        self._reading: asyncio.Task[T | None] | None = None
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            step = await self.next(self._timeout)
        except StoreClosedError:
            if not self._closed:
                raise
            step = None
        if step is None:
            raise StopAsyncIteration
        return step

    async def next(self, timeout: float | None = None) -> T | None:
        """Return the next step; None if `timeout` seconds (None: no bound) bring none."""
        check_wait(timeout)
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            left_s = LOOK_S if deadline is None else min(LOOK_S, deadline - monotonic())
            if self._reading is None:  # else one that a cancelled call has left
                self._reading = asyncio.create_task(self._read(max(0.0, left_s)))
                self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            step = await self._heard(self._reading)
            if step is not None or (deadline is not None and monotonic() >= deadline):
                return step

    async def _heard(self, reading: asyncio.Task[T | None]) -> T | None:
        """Return what was read; if this call is cancelled, the next one waits for it."""
        await asyncio.wait({reading})
        self._reading = None
        if reading.cancelled():  # by `aclose`
            raise StoreClosedError("the watch was closed")
        return reading.result()

    async def _read(self, seconds: float) -> T | None:
        return await self._runner.wait(partial(self._source.next, seconds), self._source.close)

    async def aclose(self) -> None:
        """End the watch; a task that waits in it ends its iteration. May be repeated."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        with suppress(StoreClosedError):  # the store has closed it
            await self._runner.run(self._source.close)
