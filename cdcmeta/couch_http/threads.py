"""Threads for calls that wait for disks and networks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

import anyio

T = TypeVar("T")
_Job: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """Up to `most` threads that run calls in turn; used by the event loop only.

    anyio's take two turns of the event loop more for each call, to be cancelled in between.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads = self._running = 0

    async def run(self, do: Callable[[], T]) -> T:
        """Return what a call returns, or raise what it raises.

        Whoever is cancelled meanwhile waits for its end first: it may use what they would close.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._running += 1
        if self._running > self._threads < self._most:
            self._threads += 1
            name = f"{self._name} {self._threads}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put((do, future))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([future])
            if future.done() and not future.cancelled():
                future.exception()  # retrieve it, or asyncio logs it as an error
            raise
        finally:
            self._running -= 1

    def close(self) -> None:
        """Let the threads end when what they run has ended."""
        for _ in range(self._threads):
            self._jobs.put(None)
        self._threads = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            do, future = job
            result, error = None, None
            try:
                result = do()
            except BaseException as e:
                error = e
            with suppress(RuntimeError):  # the loop was closed meanwhile
                future.get_loop().call_soon_threadsafe(_finish, future, result, error)
            del job, do, future, result, error  # it may be large, and the next one far off


def _finish(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future does not take it
        error = RuntimeError("a call raised StopIteration")
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
