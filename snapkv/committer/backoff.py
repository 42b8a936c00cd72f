"""Rounds lost to other commits: how long to wait after one, and how far ahead to claim."""

from __future__ import annotations

import random

from snapkv.clock import HybridClock, monotonic
from snapkv.committer.pace import Pace
from snapkv.engine.contract import KeyValue
from snapkv.errors import CorruptStoreError
from snapkv.layout import StampRecord
from snapkv.times import pack

BACKOFF_S_MIN = 0.0005
BACKOFF_DOUBLINGS_MAX = 2
BACKOFF_S_MAX = 0.064
AGE_AFTER = 3
AGE_FLIGHTS = 2
AGE_MS_MAX = 32
"""By how many flights, and milliseconds at most, a timestamp is ahead for each lost round more."""
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

    The longer a caller has waited, the further ahead its timestamp: by two flights for each round
    that it lost after the third. So those that have just won lose next, and all get their turn.

    A large commit takes long to arrive, and whatever is committed meanwhile by others overtakes it.
    So after some rounds it claims the time at which it will arrive, going by the rounds that it
    lost. Both are counted from the fastest clock (`Pace`), so however many claim so, timestamps do
    not run away from it.

    Where the newest timestamp is ahead of all clocks, everybody counts up from it. There a caller
    that lost often claims some ticks, which beats others who count up from the same one, then up to
    `CLAIM_MS_MAX` milliseconds. Claims never leave the fastest clock far behind.
    """

    def __init__(self, rng: random.Random, pace: Pace) -> None:
        self._rng, self._pace = rng, pace
        self.lost = 0
        self.ahead = 0
        """By how much the timestamp of this round is ahead of the clock; 0 for less than 1 ms."""
        self._sent_at, self._sent = 0.0, 0
        self._newest_s, self._shortest_s = 0.0, float("inf")

    def issue(self, clock: HybridClock) -> int:
        """Begin a round; return its timestamp."""
        self._sent_at, self._sent = monotonic(), clock.reading()
        at = self._pace.followed(self._sent)
        issued = clock.issue(at=at) if self.lost == 0 else self._claim(clock, at)
        ahead = issued - self._sent
        self.ahead = ahead if ahead >= pack(1) else 0
        return issued

    def _claim(self, clock: HybridClock, at: int) -> int:
        """Issue a timestamp further ahead than the clock, for a caller that lost."""
        flight_ms = self._shortest_s * 1_000
        later_ms = min(AGE_MS_MAX, AGE_FLIGHTS * max(0, self.lost - AGE_AFTER) * flight_ms)
        if self.lost >= CLAIM_TICKS_AFTER:
            later_ms = max(later_ms, min(CLAIM_FLIGHT_MS_MAX, CLAIM_FLIGHTS * flight_ms))
        ticks = 0
        if self.lost >= CLAIM_MS_AFTER:
            ticks = pack(min(CLAIM_MS_MAX, self.lost - CLAIM_MS_AFTER + 1))
        elif self.lost >= CLAIM_TICKS_AFTER:
            ticks = 1 << (self.lost + 4)
        return clock.issue(ticks, at=at + round(later_ms * pack(1)))

    def lose(self, clock: HybridClock, stored: KeyValue) -> None:
        """End a round in which another commit took the place: the stored one."""
        self.lost += 1
        self._newest_s = monotonic() - self._sent_at
        self._shortest_s = min(self._shortest_s, self._newest_s)
        try:
            winner = StampRecord.decode(stored.value)
        except CorruptStoreError:
            return  # `check` reports it; its timestamp was merged
        self._pace.learn(winner, self._sent, clock.reading())

    def wait_s(self) -> float:
        """Return how long to wait before the next round, at random.

        About as long as a flight takes, and longer each time, but not much: while some wait, those
        that won win again.
        """
        flight_s = max(BACKOFF_S_MIN, self._newest_s)
        doublings = min(self.lost - 1, BACKOFF_DOUBLINGS_MAX)
        return self._rng.uniform(0, min(BACKOFF_S_MAX, flight_s * 2**doublings))

    def fits(self, left_s: float) -> bool:
        """Tell whether another round may be answered within the time left."""
        if self.lost == 0:
            return left_s > 0
        return left_s > FLIGHTS_LEFT_MIN * self._shortest_s
