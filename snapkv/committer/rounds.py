"""Rounds lost to other commits: how long to wait after one, and how far ahead to claim."""

from __future__ import annotations

import random

from snapkv.clock import HybridClock, monotonic
from snapkv.times import pack

BACKOFF_S_MIN = 0.0005
BACKOFF_DOUBLINGS_MAX = 4
BACKOFF_S_MAX = 0.064
CLAIM_TICKS_AFTER = 4
CLAIM_MS_AFTER = 8
CLAIM_MS_MAX = 16
CLAIM_FLIGHT_MS_MAX = 2_000
CLAIM_FLIGHTS = 1.5
FLIGHTS_LEFT_MIN = 2
"""A new round begins only while so many of the shortest lost one fit before the deadline: what is
sent later ends as unknown, where nothing at all needs to be."""


class Rounds:
    """The rounds that one caller has lost while it led.

    A caller that lost often claims a timestamp further ahead, so that it wins at last: by ticks,
    which beats others who count up from the same one, then by up to `CLAIM_MS_MAX` milliseconds,
    which beats clocks that run ahead. While such a claim is in force all count up from it, so ticks
    do again, and claims never leave the fastest clock far behind.

    A large commit takes long to arrive, and whatever is committed meanwhile by others overtakes it.
    So it claims the time at which it will arrive, going by the round that it lost. That is told by
    the wall clock, so however many claim so, timestamps do not run away from it.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.lost = 0
        self._sent_at = 0.0
        self._newest_s, self._shortest_s = 0.0, float("inf")

    def issue(self, clock: HybridClock) -> int:
        """Begin a round; return its timestamp."""
        self._sent_at = monotonic()
        if self.lost < CLAIM_TICKS_AFTER:
            return clock.issue()
        later_ms = min(CLAIM_FLIGHT_MS_MAX, round(CLAIM_FLIGHTS * self._newest_s * 1_000))
        if self.lost < CLAIM_MS_AFTER:
            return clock.issue(1 << (self.lost + 4), later_ms=later_ms)
        claim_ms = min(CLAIM_MS_MAX, self.lost - CLAIM_MS_AFTER + 1)
        return clock.issue(pack(claim_ms), later_ms=later_ms)

    def lose(self) -> None:
        """End a round in which another commit took the place."""
        self.lost += 1
        self._newest_s = monotonic() - self._sent_at
        self._shortest_s = min(self._shortest_s, self._newest_s)

    def wait_s(self) -> float:
        """Return how long to wait before the next round, at random.

        About as long as a flight takes, and longer each time: whoever won is then done.
        """
        flight_s = max(BACKOFF_S_MIN, self._newest_s)
        doublings = min(self.lost - 1, BACKOFF_DOUBLINGS_MAX)
        return self._rng.uniform(0, min(BACKOFF_S_MAX, flight_s * 2**doublings))

    def fits(self, left_s: float) -> bool:
        """Tell whether another round may be answered within the time left."""
        if self.lost == 0:
            return left_s > 0
        return left_s > FLIGHTS_LEFT_MIN * self._shortest_s
