"""The runtime that runs code written for threads in an asyncio loop, each call in a greenlet.

A greenlet is a stack of its own. Where a call of a store would wait, it switches to the coroutine
that runs it, which awaits instead; then the call continues. All of this happens in the thread of
the loop, so between two waits no other call runs. SQLAlchemy's asyncio extension works
the same way.

For example, `await runtime.run(store.load, "a")` on etcd:

    coroutine                          greenlet
    run() starts a greenlet      ->    load ... Channel.call: sends, `wait_for(answer)`
    awaits the answer            <-    (suspended; other tasks run meanwhile)
    has the answer               ->    wait_for returns it ... load returns the value
    run() returns the value      <-    (ended)
"""

from __future__ import annotations

import asyncio
import threading
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from snapkv.base.concurrency import Condition, Flag, runtime
from snapkv.base.extras import requires_extra

with requires_extra("aio", "asyncio on etcd"):
    from greenlet import getcurrent, greenlet

P = ParamSpec("P")
T = TypeVar("T")

POLL_S = 0.002
"""The pause between two checks whether a thread has ended, in seconds."""


class GreenletRuntime:
    """The runtime of the calls in one asyncio loop; made and used in the thread of that loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._works: set[asyncio.Task[object]] = set()
        self.lock, self.condition = partial(LoopLock, self), partial(LoopCondition, self)
        self.waker = partial(LoopWaker, self)

    @property
    def place(self) -> asyncio.AbstractEventLoop:
        """The loop, which may have several runtimes."""
        return self.loop

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function; its waits are awaited.

        If this task is cancelled while the function waits, `asyncio.CancelledError` is raised
        there, as an interrupt is in a thread.
        """
        call = greenlet(function)
        call.gr_context = context = copy_context()
        context.run(runtime.set, self)
        step = call.switch(*args, **kwargs)
        while not call.dead:
            try:
                answer = await step
            except BaseException as e:
                step = call.throw(e)
            else:
                step = call.switch(answer)
        return cast(T, step)

    def wait_for(self, awaitable: Awaitable[T]) -> T:
        """Return the result of an awaitable; other tasks run meanwhile.

        Raises what it raises, and `asyncio.CancelledError` if the task of this call is cancelled.
        """
        parent = getcurrent().parent
        assert parent is not None, "this code waits outside of `run`"
        return cast(T, parent.switch(awaitable))

    def wait(self, future: asyncio.Future[bool], timeout: float | None) -> bool:
        """Wait for a future; set it to False after `timeout` seconds."""
        if timeout is None:
            return self.wait_for(future)
        timer = self.loop.call_later(timeout, _expire, future)
        try:
            return self.wait_for(future)
        finally:
            timer.cancel()

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon; in no loop that was closed.

        Takes no lock: for finalizers, in any thread.
        """
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    async def end_works(self, timeout: float) -> None:
        """Wait until all background work has ended, and cancel what is left after `timeout`."""
        works = {work for work in self._works if work is not asyncio.current_task()}
        if works:
            _, left = await asyncio.wait(works, timeout=timeout)
            for work in left:
                work.cancel()
            if left:
                await asyncio.wait(left, timeout=timeout)

    # --- what `snapkv.base.concurrency.Runtime` describes ---

    @staticmethod
    def ident() -> int:
        """Return the id of this call's greenlet."""
        return id(getcurrent())

    def event(self) -> Flag:
        """Return a new flag."""
        return Flag(self.condition())

    def start(self, target: Callable[[], object], name: str) -> LoopWork:
        """Run a function as a task of the loop.

        As a new thread, it has none of the context of this call: neither its deadline nor its
        trace. It begins later, also in a loop that begins its tasks at once
        (`asyncio.eager_task_factory`): in this greenlet it could not wait.
        """
        work = self._begun(target)
        work.send(None)
        task = asyncio.Task(work, loop=self.loop, name=name, context=Context())
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        return LoopWork(self, task)

    async def _begun(self, target: Callable[[], object]) -> None:
        """Run a function. It begins even if its task is cancelled before the task's first step.

        Then its first wait raises `CancelledError`, so that it reports its end: asyncio would
        not enter the coroutine.
        """
        try:
            await _step()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await self.run(target)

    def join(self, thread: threading.Thread, timeout: float) -> None:
        """Wait for a thread."""
        until = self.loop.time() + timeout
        while thread.is_alive() and self.loop.time() < until:
            self.pause(POLL_S)

    def pause(self, seconds: float) -> None:
        """Wait for some seconds."""
        self.wait_for(asyncio.sleep(seconds))


@types.coroutine
def _step() -> Generator[None, None, None]:
    yield


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


class LoopLock:
    """A lock of calls in one loop; waiting calls get the lock in their order."""

    def __init__(self, runtime: GreenletRuntime) -> None:
        self._runtime, self._taken = runtime, False
        self._waiting: deque[asyncio.Future[bool]] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if that was not possible in time."""
        if not self._taken:
            self._taken = True
            return True
        if not blocking:
            return False
        turn: asyncio.Future[bool] = self._runtime.loop.create_future()
        self._waiting.append(turn)
        try:
            return self._runtime.wait(turn, None if timeout < 0 else timeout)
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.result():
                self.release()  # it was given to this call, which does not take it
            raise
        finally:
            with suppress(ValueError):
                self._waiting.remove(turn)

    def release(self) -> None:
        """Give the lock to the first call that waits."""
        assert self._taken, "a lock is released by its holder"
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._taken = False

    def locked(self) -> bool:
        """Return whether the lock is taken."""
        return self._taken

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class LoopCondition(Condition):
    """A condition of calls in one loop. It needs no lock: no other call runs between two waits."""

    def __init__(self, runtime: GreenletRuntime) -> None:
        self._runtime = runtime
        self._waiting: set[asyncio.Future[bool]] = set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `notify_all`; False after `timeout` seconds without it."""
        news: asyncio.Future[bool] = self._runtime.loop.create_future()
        self._waiting.add(news)
        try:
            return self._runtime.wait(news, timeout)
        finally:
            self._waiting.discard(news)

    def notify_all(self) -> None:
        """Wake all that wait."""
        for news in self._waiting:
            if not news.done():
                news.set_result(True)

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


class LoopWaker:
    """A waker of one loop, which any thread may wake."""

    def __init__(self, runtime: GreenletRuntime) -> None:
        self._runtime, self._woken = runtime, runtime.event()

    def wake(self) -> None:
        """Wake the call that waits, or the next one."""
        self._runtime.soon(self._woken.set)

    def wait(self, timeout: float) -> None:
        """Wait for the waker, or for `timeout` seconds."""
        self._woken.wait(timeout)
        self._woken = self._runtime.event()


class LoopWork:
    """A function that runs as a task of the loop."""

    def __init__(self, runtime: GreenletRuntime, task: asyncio.Task[Any]) -> None:
        self._runtime, self._task = runtime, task

    def is_alive(self) -> bool:
        """Return whether it still runs."""
        return not self._task.done()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, `timeout` seconds at most."""
        self._runtime.wait_for(asyncio.wait({self._task}, timeout=timeout))
