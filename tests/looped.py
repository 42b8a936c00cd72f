"""Engines and stores of an asyncio loop, called by tests that are written for threads.

One loop runs in a thread of its own. A call of a `Looped` object runs there, in a greenlet, as a
call of `snapkv.aio` does; the test's thread waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from snapkv.base.greenlet_runtime import GreenletRuntime

CALL_S = 60.0
CLASSES = ("EtcdEngine", "EtcdWatcher")
"""What a call may return that must be called in the loop, too."""


class TestLoop:
    """A loop in a thread, and the runtime of its calls."""

    __test__ = False

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="test loop", daemon=True)
        self.thread.start()
        self.runtime = asyncio.run_coroutine_threadsafe(self._runtime(), self.loop).result(CALL_S)

    async def _runtime(self) -> GreenletRuntime:
        return GreenletRuntime()

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Return the result of a function that runs in a greenlet of the loop."""
        if threading.current_thread() is self.thread:  # from inside of such a call
            return function(*args, **options)
        run = self.runtime.run(function, *args, **options)
        return looped(asyncio.run_coroutine_threadsafe(run, self.loop).result())


@cache
def test_loop() -> TestLoop:
    """The loop of this process."""
    return TestLoop()


test_loop.__test__ = False  # type: ignore[attr-defined]


class Looped:
    """An object whose methods run in the loop."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return (
            (lambda *args, **options: test_loop().call(found, *args, **options))
            if callable(found)
            else found
        )


def looped(result: Any) -> Any:
    """Return a result of a call, so that its own calls run in the loop, too."""
    if isinstance(result, Iterator):
        return steps(result)
    return Looped(result) if type(result).__name__ in CLASSES else result


def steps(iterator: Iterator[Any]) -> Iterator[Any]:
    """Take each step of an iterator in the loop."""
    end = object()
    try:
        while (step := test_loop().call(next, iterator, end)) is not end:
            yield step
    finally:
        if hasattr(iterator, "close"):
            test_loop().call(iterator.close)


def in_loop(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a function makes in the loop."""
    return test_loop().call(make, *args, **options)
