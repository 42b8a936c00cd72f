"""Waits and their bounds: a clock that never goes back, pauses, deadlines of a block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar, cast

from snapkv.base.concurrency import here
from snapkv.errors import EngineUnavailableError

T = TypeVar("T")

monotonic = time.monotonic
"""Returns seconds of a clock that never goes back; deadlines count in them."""
perf_counter = time.perf_counter
"""Returns seconds of the finest clock, for measuring durations."""


def pause(seconds: float) -> None:
    """Wait for some seconds."""
    here().pause(seconds)


STOP_LOOK_S = 0.05


class StopEvent(Protocol):
    """Says when to stop: a `threading.Event`, for example, which a signal handler may set."""

    def is_set(self) -> bool:
        """Return whether to stop."""


def pause_unless(stop: StopEvent, seconds: float) -> None:
    """Wait for some seconds, or until `stop` is set; it looks every `STOP_LOOK_S`.

    `threading.Event.wait` would not do: it holds a lock for a moment that `set` needs, too. A
    signal handler that came in that moment and set the event would wait for its own thread, for
    ever.
    """
    until = monotonic() + seconds
    while not stop.is_set() and (left_s := until - monotonic()) > 0:
        pause(min(left_s, STOP_LOOK_S))


def in_thread(work: Callable[[], T], name: str, seconds: float) -> T:
    """Return what a function returns in a thread, which is left behind after `seconds`.

    For what cannot be interrupted, such as resolving a name. Raises what the function raises,
    `TimeoutError` when the time is over, and `OSError` if no thread can be started.
    """
    outcome: list[tuple[T | None, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except Exception as e:
            outcome.append((None, e))

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as e:  # no more threads, or the process ends
        raise OSError(str(e)) from e
    here().join(thread, bounded(seconds))
    if not outcome:
        raise TimeoutError(f"no complete answer in {seconds:g} s")
    found, error = outcome[0]
    if error is not None:
        raise error
    return cast(T, found)


_UNBOUNDED = float("inf")


_until: ContextVar[float] = ContextVar("until", default=_UNBOUNDED)
"""Until when this thread, or this call in an asyncio loop, may wait, in monotonic seconds."""


@contextmanager
def no_later_than(deadline: float) -> Iterator[None]:
    """Bound all waits in a block by a deadline (monotonic seconds), however deep the calls.

    For waits that take no bound as an argument; they call `bounded`. This is a generator, not a
    class: if an interrupt prevents `__exit__`, it is closed with its frame, which ends the bound.
    """
    outer = _until.get()
    _until.set(min(outer, deadline))
    try:
        yield
    finally:
        _until.set(outer)


def bounded(seconds: float) -> float:
    """Return how long this thread may wait, `seconds` at most.

    >>> with no_later_than(monotonic() + 1.0):
    ...     bounded(0.5), bounded(60.0) <= 1.0
    (0.5, True)
    """
    until = _until.get()
    return seconds if until == _UNBOUNDED else max(0.0, min(seconds, until - monotonic()))


def check_in_time() -> None:
    """Raise `EngineUnavailableError` if this thread's bound has passed.

    For work in pieces that do not wait, or not long enough to notice the bound.
    """
    if _until.get() <= monotonic():
        raise EngineUnavailableError("the time for this read has passed")
