"""Runners of an asyncio store's calls: its loop (etcd), or few threads (other engines).

Both run the code of the store that threads use. `LoopRunner` runs each call in a greenlet of the
loop, on `grpc.aio`; `ThreadRunner` sends it to a thread. There, calls that write have threads of
their own: they may wait for another process that writes, and reads must not wait behind them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from snapkv.errors import NotSupportedError, StoreClosedError

if TYPE_CHECKING:
    from snapkv.base.greenlet_runtime import GreenletRuntime

P = ParamSpec("P")
T = TypeVar("T")

READERS_MAX, WRITERS_MAX = 4, 8
"""Threads of one store for its calls; a call that waits for long has its own thread."""
SETTLE_S = 0.8
"""The longest wait for the outcome of a cancelled write in a thread, in seconds."""
END_S = 0.9
"""The longest that closing waits for background work, in seconds."""


class LoopRunner:
    """Runs calls in greenlets of the loop."""

    def __init__(self, runtime: GreenletRuntime) -> None:
        self._runtime = runtime

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call."""
        check_loop(self._runtime.loop)
        return await self._runtime.run(call, *args, **kwargs)

    write = run

    async def wait(self, call: Callable[[], T], end: Callable[[], object]) -> T:
        """Return the result of a call; a cancelled one is interrupted where it waits."""
        return await self.run(call)

    retry = wait

    def start(self, work: Callable[[], object], name: str) -> None:
        """Run a function as a task."""
        self._runtime.start(work, name)

    def post(self, function: Callable[[], object]) -> None:
        """Call a function: background work is in the loop already."""
        function()

    async def end(self) -> None:
        """Wait for background tasks; cancel what is left."""
        await self._runtime.end_works(END_S)


class ThreadRunner:
    """Runs calls in a few threads, and each call that waits for long in one of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="snapkv aio read")
        self._writers = ThreadPoolExecutor(WRITERS_MAX, thread_name_prefix="snapkv aio write")
        self._works: set[threading.Thread] = set()

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call.

        A cancelled call that has not begun is not made. One that has begun is waited for
        (`SETTLE_S`), so that a write has an outcome; `asyncio.CancelledError` has a note of it.
        """
        return await self._run_in(self._readers, partial(call, *args, **kwargs))

    async def write(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a call, as `run`."""
        return await self._run_in(self._writers, partial(call, *args, **kwargs))

    async def retry(self, call: Callable[[], T], stop: Callable[[], object]) -> T:
        """Return the result of a call; a cancelled one ends before its next try, else as `run`."""
        return await self._run_in(self._writers, call, stop)

    async def _run_in(
        self,
        pool: ThreadPoolExecutor,
        call: Callable[[], T],
        stop: Callable[[], object] = lambda: None,
    ) -> T:
        check_loop(self._loop)
        try:
            future = pool.submit(copy_context().run, call)
        except RuntimeError as e:
            raise StoreClosedError("the store was closed") from e
        answer = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError as e:
            stop()
            await self._settle(future, answer, e)
            raise

    @staticmethod
    async def _settle(
        future: Future[T], answer: asyncio.Future[T], error: asyncio.CancelledError
    ) -> None:
        """Wait for the outcome of a cancelled call, and note it."""
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not future.cancel():
            await asyncio.wait({answer}, timeout=SETTLE_S)
        error.add_note(_outcome(future))

    async def wait(self, call: Callable[[], T], end: Callable[[], object]) -> T:
        """Return the result of a call, in a thread of its own; `end` ends a cancelled one."""
        check_loop(self._loop)
        future: Future[T] = Future()
        self.start(partial(_fulfil, future, partial(copy_context().run, call)), "snapkv aio wait")
        answer = asyncio.wrap_future(future)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError as e:
            if not future.cancel():
                await self.write(end)
            await self._settle(future, answer, e)
            raise

    def start(self, work: Callable[[], object], name: str) -> None:
        """Run a function in a thread of its own."""

        def run() -> None:
            try:
                work()
            finally:
                self._works.discard(thread)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._works.add(thread)
        thread.start()

    def post(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon; not in one that was closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    async def end(self) -> None:
        """Take no more calls, and wait for the calls that run."""
        until = self._loop.time() + END_S
        for pool in (self._readers, self._writers):
            pool.shutdown(wait=False)
        for thread in [*self._works, *self._readers._threads, *self._writers._threads]:
            while thread.is_alive() and self._loop.time() < until:
                await asyncio.sleep(0.002)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise `NotSupportedError` in any other loop: a call would wait there for ever."""
    if asyncio.get_running_loop() is not loop:
        raise NotSupportedError(
            "the store was opened in another event loop; open one in each loop that uses it"
        )


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as e:
        future.set_exception(e)
    else:
        future.set_result(result)


def _outcome(future: Future[T]) -> str:
    if future.cancelled():
        return "the call was not begun: nothing was written"
    if not future.done():
        return f"the call goes on: its outcome is unknown after {SETTLE_S:g} s"
    error = future.exception()
    return (
        f"the call had ended with {future.result()!r}"
        if error is None
        else f"the call had failed: {error}"
    )


Runner = LoopRunner | ThreadRunner
"""Runs the calls of one store: calls that read, write, write in several tries, or wait for long."""
