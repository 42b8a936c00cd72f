"""Time comes in here and nowhere else: wall clocks, waiting, and the hybrid logical clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol
from uuid import UUID

from snapkv.errors import EngineUnavailableError, InvalidTimeError, InvalidTypeError
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
    """A clock that stands still until it is set: for tests, imports and replays.

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
    """Return seconds of a clock that never goes back: what deadlines are made of."""
    return time.monotonic()


def uptime_ns() -> int:
    """Return nanoseconds that all processes of this machine count alike, until its next boot.

    No change of the wall clock touches it, and it stands still while the machine sleeps, like
    `monotonic`: who could not act in the meantime loses no time.
    """
    return time.monotonic_ns()  # of the whole system, on Linux since its boot


@cache
def boot_tag() -> int:
    """Return 64 bits that tell this boot of the machine from others, never 0.

    1 where the system does not name its boots.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return UUID(file.read().strip()).int >> 64
    except (OSError, ValueError):
        return 1


def pause(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


class _Limit(threading.local):
    """Until when this thread may wait, in monotonic seconds."""

    until = float("inf")


_limit = _Limit()


@contextmanager
def no_later_than(deadline: float) -> Iterator[None]:
    """Bound what a block waits for by a deadline (monotonic seconds), however deep it asks.

    For waits that take no bound as an argument; they ask `bounded` for theirs. A generator and no
    class: one that an interrupt keeps from being left is closed with its frame, and ends the bound.
    """
    outer, _limit.until = _limit.until, min(_limit.until, deadline)
    try:
        yield
    finally:
        _limit.until = outer


def bounded(seconds: float) -> float:
    """Return how long this thread may wait for something that may take so many seconds.

    >>> with no_later_than(monotonic() + 1.0):
    ...     bounded(0.5), bounded(60.0) <= 1.0
    (0.5, True)
    """
    until = _limit.until
    return seconds if until == float("inf") else max(0.0, min(seconds, until - monotonic()))


def check_in_time() -> None:
    """Raise `EngineUnavailableError` when this thread's bound has passed.

    For work in pieces that wait for nothing, or for too little to notice.
    """
    if bounded(1.0) <= 0.0:
        raise EngineUnavailableError("no time is left to go on")


def perf_counter() -> float:
    """Return seconds of the finest clock: what durations are measured with."""
    return time.perf_counter()


class HybridClock:
    """Issues timestamps: max(wall clock, last seen + 1, last issued + 1); safe for threads.

    The machine's clock fills the logical bits, too, with parts of a millisecond: processes that
    commit in the same one seldom meet. Other clocks tell milliseconds, and count within each.

    Source: Kulkarni et al., "Logical Physical Clocks", 2014. Safety of the store never depends
    on it, only the meaning of times does.
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

        Raises `InvalidTypeError`, `InvalidTimeError` when it returns anything else.
        """
        now_ms = self.wall.now_ms()
        if isinstance(now_ms, bool) or not isinstance(now_ms, int):
            raise InvalidTypeError(f"the clock returned {now_ms!r}, not milliseconds as an int")
        if not 0 <= now_ms <= PHYSICAL_MS_MAX:
            raise InvalidTimeError(f"the clock stands at {now_ms} ms, out of range", now_ms)
        return now_ms

    def merge(self, seen: int) -> None:
        """Never again issue anything at or below `seen`."""
        with self._lock:
            self._last = max(self._last, seen)

    def reading(self) -> int:
        """Return the wall clock's time as a timestamp, whatever was issued or seen.

        Raises `InvalidTypeError`, `InvalidTimeError` when the clock is out of range.
        """
        if self._now_ns is None:
            return self.now_ms() << LOGICAL_BITS
        return (self._now_ns() << LOGICAL_BITS) // NS_PER_MS

    def issue(self, ahead: int = 0, *, at: int | None = None) -> int:
        """Return a new timestamp, larger than all issued or seen; it counts as issued for ever.

        It is larger by `ahead` than it needs to be. The wall clock counts as standing at `at`.

        Raises `InvalidTimeError` when 64 bits are used up or a wall clock is out of range.
        """
        now = self.reading() if at is None else at
        with self._lock:
            issued = max(now, self._last + 1) + ahead
            if issued > TIMESTAMP_MAX:
                raise InvalidTimeError("timestamps of 64 bits are used up", issued)
            self._last = issued
            return issued
