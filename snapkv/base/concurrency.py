"""Locks, waits and background work: of threads, or of the asyncio loop that runs the caller.

The code of a store is written for threads. `snapkv.aio` runs the same code in an asyncio loop, each
call in a greenlet of its own. There, a thread that waits would stop the whole loop. So whatever
waits is made by `here()`: `ThreadRuntime` in a thread, a `GreenletRuntime` in an asyncio loop.

    self._lock = here().lock()

A lock that is never held while its holder waits needs none of this: use `threading.Lock`.
"""

from __future__ import annotations

import threading
import time
from _thread import RLock
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Lock(Protocol):
    """A lock that may be held while its holder waits."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; False if that was not possible in time."""

    def release(self) -> None:
        """Give the lock back."""

    def locked(self) -> bool:
        """Return whether the lock is taken."""

    def __enter__(self) -> bool: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class Condition(Protocol):
    """A lock with a place to wait for news."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `notify_all`; False after `timeout` seconds without it."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the predicate holds; return what it returned last."""
        until = None if timeout is None else time.monotonic() + timeout
        while not (found := predicate()):
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        """Wake all that wait."""

    def __enter__(self) -> bool: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


class Flag:
    """A flag to wait for; a signal handler may set one of threads.

    `threading.Event` has a `threading.Condition`; `ThreadCondition` says what is wrong with it.
    """

    def __init__(self, changed: Condition) -> None:
        self._set, self._changed = False, changed

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag, and wake all that wait."""
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; return whether it is set."""
        with self._changed:
            return self._changed.wait_for(self.is_set, timeout)


class Waker(Protocol):
    """Wakes one waiter. `wake` takes no lock: a finalizer may call it in any thread."""

    def wake(self) -> None:
        """Wake the waiter, or the next one that waits."""

    def wait(self, timeout: float) -> None:
        """Wait for the waker, or for `timeout` seconds."""


class Work(Protocol):
    """A function that runs in the background."""

    def is_alive(self) -> bool:
        """Return whether it still runs."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, `timeout` seconds at most."""


class Runtime(Protocol):
    """What runs the code of a store, and makes what that code waits with."""

    @property
    def place(self) -> object:
        """Where its calls run: calls of one place may wait for each other's stores."""

    def ident(self) -> int:
        """Return the id of the running call, which no other running call has; never 0."""

    def lock(self) -> Lock:
        """Return a new lock."""

    def condition(self) -> Condition:
        """Return a new condition."""

    def event(self) -> Flag:
        """Return a new event."""

    def waker(self) -> Waker:
        """Return a new waker."""

    def start(self, target: Callable[[], object], name: str) -> Work:
        """Run a function in the background.

        Raises `RuntimeError` if that is not possible: no more threads, or the process ends.
        """

    def join(self, thread: threading.Thread, timeout: float) -> None:
        """Wait for a thread, `timeout` seconds at most."""

    def pause(self, seconds: float) -> None:
        """Wait for some seconds."""


class ThreadWaker:
    """A waker of threads: a simple queue, whose `put` may be called while any lock is held."""

    def __init__(self) -> None:
        self._rings = SimpleQueue[None]()

    def wake(self) -> None:
        """Wake the thread that waits, or the next one."""
        self._rings.put(None)

    def wait(self, timeout: float) -> None:
        """Wait for the waker, or for `timeout` seconds."""
        with suppress(Empty):
            self._rings.get(timeout=timeout)


LOOK_S = 1.0
"""The longest that a thread waits for news before it looks by itself, in seconds."""


class ThreadCondition(RLock):  # type: ignore[misc]  # CPython lets classes derive from it
    """A condition of threads whose lock no interrupt leaves taken, as `Condition`.

    Python takes the lock of a `threading.Condition` in a function. Ctrl-C as that function returns
    comes before the block has begun, so nothing would ever release the lock. This object is the
    lock itself: entering and leaving its block is one step. A signal handler may enter the block
    that its own thread is in.
    """

    _news: threading.Condition | None = None  # made when one waits: it is a cycle of references

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for `notify_all`, for `timeout` seconds or `LOOK_S` at most; then return False.

        So it may return early, and callers look again: no other thread wakes it for what a signal
        handler did in the block that this thread is in.
        """
        inside = self._is_owned()  # type: ignore[attr-defined]
        news = self._news = self._news or threading.Condition(self)
        try:
            return news.wait(LOOK_S if timeout is None else min(timeout, LOOK_S))
        except BaseException:
            if inside and not self._is_owned():  # type: ignore[attr-defined]
                self.acquire()  # an interrupt came before the wait: the block will release it
            raise

    wait_for = Condition.wait_for

    def notify(self) -> None:
        """Wake one waiting thread."""
        if self._news is not None:
            self._news.notify()

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        if self._news is not None:
            self._news.notify_all()


class ThreadRuntime:
    """The runtime of code that runs in threads; most of its parts are from `threading`."""

    place = "threads"
    ident = staticmethod(threading.get_ident)
    lock = staticmethod(threading.Lock)
    condition = staticmethod(ThreadCondition)
    waker = staticmethod(ThreadWaker)
    pause = staticmethod(time.sleep)

    @staticmethod
    def event() -> Flag:
        """Return a new flag."""
        return Flag(ThreadCondition())

    @staticmethod
    def start(target: Callable[[], object], name: str) -> threading.Thread:
        """Run a function in a daemon thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    @staticmethod
    def join(thread: threading.Thread, timeout: float) -> None:
        """Wait for a thread."""
        thread.join(timeout)


THREADS = ThreadRuntime()
runtime: ContextVar[Runtime] = ContextVar("runtime", default=THREADS)
here = runtime.get
"""Returns the runtime of this call."""
