"""Clocks: the machine's wall clock and its uptime, and one that is set by hand.

No other module reads the time; `waiting` counts seconds.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Protocol
from uuid import UUID

NS_PER_MS = 1_000_000


class Clock(Protocol):
    """A wall clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // NS_PER_MS

    now_ns = staticmethod(time.time_ns)
    """Returns nanoseconds since 1970."""


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
