"""Time: wall clocks, waiting, and the hybrid logical clock. No other module reads the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Protocol
from uuid import UUID

from snapkv.arguments import check_int
from snapkv.concurrency import here
from snapkv.errors import EngineUnavailableError, InvalidTimeError
from snapkv.lifecycle import renew_in_children
from snapkv.times import LOGICAL_BITS, PHYSICAL_MS_MAX, TIMESTAMP_MAX

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """A wall clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // NS_PER_MS

    def now_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return time.time_ns()


class ManualClock:
    """A clock that moves only when it is set: for tests, imports and replays.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(5); clock.now_ms()
    1005
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return the milliseconds last set."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Set the clock, to any time."""
        self._now_ms = now_ms

    def advance(self, ms: int) -> None:
        """Move the clock by some milliseconds."""
        self._now_ms += ms


def monotonic() -> float:
    """Return seconds of a clock that never goes back; deadlines count in them."""
    return time.monotonic()


def uptime_ns() -> int:
    """Return nanoseconds that all processes of this machine count alike, until its next boot.

    Changes of the wall clock do not affect it, and it stops while the machine sleeps, like
    `monotonic`: a process that could not act meanwhile loses no time.
    """
    return time.monotonic_ns()  # of the whole system, on Linux since its boot


@cache
def boot_tag() -> int:
    """Return 64 bits that identify this boot of the machine, never 0.

    1 if the system has no id of its boots.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return UUID(file.read().strip()).int >> 64
    except (OSError, ValueError):
        return 1


def pause(seconds: float) -> None:
    """Wait for some seconds."""
    here().pause(seconds)


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
    if bounded(1.0) <= 0.0:
        raise EngineUnavailableError("the time for this read has passed")


def perf_counter() -> float:
    """Return seconds of the finest clock, for measuring durations."""
    return time.perf_counter()


class HybridClock:
    """Issues timestamps: max(wall clock, last seen + 1, last issued + 1); safe for threads.

    The machine's clock also fills the logical bits, with parts of a millisecond, so that processes
    that commit in the same millisecond seldom claim the same timestamp. With another clock, the
    logical bits count within each millisecond.

    Source: Kulkarni et al., "Logical Physical Clocks", 2014. The safety of a store never depends
    on clocks, only the meaning of its times does.
    """

    def __init__(self, clock: Clock) -> None:
        self.wall = clock
        self._now_ns = clock.now_ns if type(clock) is SystemClock else None
        self._last = 0
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        """Return the wall clock's milliseconds since 1970.

        Raises `InvalidTypeError`, `InvalidTimeError` if the clock returns anything else.
        """
        now_ms = self.wall.now_ms()
        if type(now_ms) is not int:
            check_int("the result of the clock's now_ms()", now_ms)
        if not 0 <= now_ms <= PHYSICAL_MS_MAX:
            raise InvalidTimeError(
                f"the clock shows {now_ms} ms since 1970, which is out of range", now_ms
            )
        return now_ms

    def merge(self, seen: int) -> None:
        """Never again issue a timestamp at or below `seen`."""
        with self._lock:
            self._last = max(self._last, seen)

    def reading(self) -> int:
        """Return the wall clock's time as a timestamp, whatever was issued or seen.

        Raises `InvalidTypeError`, `InvalidTimeError` if the clock is out of range.
        """
        if self._now_ns is None:
            return self.now_ms() << LOGICAL_BITS
        return (self._now_ns() << LOGICAL_BITS) // NS_PER_MS

    def issue(self, ahead: int = 0, *, at: int | None = None) -> int:
        """Return a new timestamp, larger than all issued or seen; it counts as issued for ever.

        It is larger by `ahead` than it needs to be. `at` replaces the time of the wall clock.

        Raises `InvalidTimeError` if 64 bits are used up or the wall clock is out of range.
        """
        now = self.reading() if at is None else at
        with self._lock:
            issued = max(now, self._last + 1) + ahead
            if issued > TIMESTAMP_MAX:
                raise InvalidTimeError("timestamps of 64 bits are used up", issued)
            self._last = issued
            return issued
