"""Backoff after lost rounds: how long to wait, and how far ahead to claim a timestamp."""

from __future__ import annotations

import random

from snapkv.base.waiting import monotonic
from snapkv.clock import HybridClock
from snapkv.engine.contract import KeyValue
from snapkv.errors import CorruptStoreError
from snapkv.layout import StampRecord
from snapkv.times import pack

# --- the fastest clock: how far this process's clock is behind it, from lost rounds ---
# A timestamp is a guess that must exceed the newest stored one. While several processes commit at
# once, those whose clocks are behind guess too low and lose nearly every round. So a process that
# lost a round learns how far the winner's clock is ahead, and follows that clock for a short time.
# Safety does not depend on it: each commit is still guarded by its timestamp.

LEAD_MS_MAX = 1_000
"""The most that a clock may be ahead and still be followed, in milliseconds."""
FORGET_S = 1.0
"""The time for which a faster clock is followed, in seconds; each lost round measures it again."""


class FastestClock:
    """The fastest clock among the writers of a store, as last learned from a lost round.

    Only clocks are followed, not timestamps that were claimed further ahead after lost rounds: a
    stamp records how far it is ahead of its writer's clock. Otherwise each process would count up
    from the claims of the other processes, and timestamps would run away from all clocks.
    """

    def __init__(self, max_clock_skew_ms: int) -> None:
        self._lead_max = pack(min(LEAD_MS_MAX, max_clock_skew_ms))
        self.learned: tuple[int, int, float] | None = None  # time, lead, when it was (monotonic)

    def followed(self, now: int) -> int:
        """Return what the fastest clock shows while this one shows `now`, never less than `now`.

        It is bounded by the time that passed since, and by the lead over this clock: this clock
        may have been set forward meanwhile, or, in a test, not move.
        """
        if self.learned is None:
            return now
        time, lead, learned_s = self.learned
        elapsed_s = monotonic() - learned_s
        if elapsed_s >= FORGET_S:
            self.learned = None
            return now
        return max(now, min(time + round(elapsed_s * pack(1_000)), now + lead))

    def learn(self, winner: StampRecord, sent: int, answered: int) -> None:
        """Learn from a lost round: the stored stamp, and what this clock showed before and after.

        The winner's stamp was made before our request reached the server, which was about half way
        between the two. So the other clock is never estimated as faster than it is, provided that
        both ways take equally long.
        """
        if winner.fence_of is not None:
            return  # its timestamp is that of another process's request
        time = winner.timestamp - winner.ahead + (answered - sent) // 2
        if self.followed(answered) < time <= answered + self._lead_max:
            self.learned = time, time - answered, monotonic()


# --- rounds ---

MILLISECOND = pack(1)
BACKOFF_S_MIN = 0.0005
BACKOFF_DOUBLINGS_MAX = 2
BACKOFF_S_MAX = 0.064
AGE_AFTER = 3
AGE_FLIGHTS = 2
AGE_MS_MAX = 32
"""The most that lost rounds move a timestamp ahead, in milliseconds: from the fourth one on, each
moves it by `AGE_FLIGHTS`."""
CLAIM_STEPS_AFTER = 4
CLAIM_MS_AFTER = 8
CLAIM_MS_MAX = 16
CLAIM_FLIGHT_MS_MAX = 2_000
CLAIM_FLIGHTS = 1.5
FLIGHTS_LEFT_MIN = 2
"""The least time before the deadline for a new round to begin, in times of the shortest lost round.
A request sent later would often have an unknown outcome, which is worse than none sent."""


# For example, a caller whose rounds take 5 ms each (the flight: request, answer, and the time
# between) loses every round. The fastest clock of all writers shows t when it issues a timestamp:
#
#     lost   timestamp                    why
#     0-3    t                            new timestamps win by themselves, most of the time
#     4      t + 10 ms                    two flights: writers that won lately claim less, and lose
#     5      t + 20 ms                    two more
#     6      t + 30 ms
#     7-     t + 32 ms                    the bound
#
# A commit of 12,000 keys takes 300 ms to arrive. After its fourth lost round it claims t + 450 ms,
# one and a half flights, which is about when it arrives; what other writers commit until then is
# below that, so it wins.
#
# If some clock was wrong and the newest timestamp n is ahead of all clocks, then all writers count
# up from n, and "t + 10 ms" is below n, too. There the caller issues n + 1 at first, n + 1 + 256
# logical steps after four lost rounds (262,144 are a millisecond), 512 after five, and n + 1 ms
# after eight, 2 ms after nine, up to 16 ms.


class Backoff:
    """The rounds that one leader has lost, and what follows from them for its next round.

    The more rounds a caller has lost, the further ahead its timestamp (aging). So writers that have
    just won lose next, and all get a turn. A large commit, which takes long to arrive, claims
    the time at which it will arrive. Both claims count from the `FastestClock`, so timestamps do
    not run away from it, however many writers claim.
    """

    def __init__(self, rng: random.Random, fastest: FastestClock) -> None:
        self._rng, self._fastest = rng, fastest
        self.lost = 0
        self.ahead = 0
        """The milliseconds by which the timestamp of this round is ahead of the clock."""
        self._sent_at, self._sent = 0.0, 0
        self._newest_s, self._shortest_s = 0.0, float("inf")

    def issue(self, clock: HybridClock) -> int:
        """Begin a round; return its timestamp."""
        self._sent_at, self._sent = monotonic(), clock.reading()
        at = self._fastest.followed(self._sent) if self._fastest.learned else self._sent
        issued = clock.issue(at=at, now=self._sent) if self.lost == 0 else self._claim(clock, at)
        ahead = issued - self._sent
        self.ahead = ahead if ahead >= MILLISECOND else 0
        return issued

    def _claim(self, clock: HybridClock, at: int) -> int:
        """Issue a timestamp further ahead than the clock, for a caller that lost."""
        flight_ms = self._shortest_s * 1_000
        later_ms = min(AGE_MS_MAX, AGE_FLIGHTS * max(0, self.lost - AGE_AFTER) * flight_ms)
        if self.lost >= CLAIM_STEPS_AFTER:
            later_ms = max(later_ms, min(CLAIM_FLIGHT_MS_MAX, CLAIM_FLIGHTS * flight_ms))
        ticks = 0
        if self.lost >= CLAIM_MS_AFTER:
            ticks = pack(min(CLAIM_MS_MAX, self.lost - CLAIM_MS_AFTER + 1))
        elif self.lost >= CLAIM_STEPS_AFTER:
            ticks = 1 << (self.lost + 4)
        later = at + round(later_ms * pack(1))
        return clock.issue(ticks, at=later, now=self._sent, claim=True)

    def lose(self, clock: HybridClock, stored: KeyValue) -> None:
        """End a round that another commit won: the stored one."""
        self.lost += 1
        self._newest_s = monotonic() - self._sent_at
        self._shortest_s = min(self._shortest_s, self._newest_s)
        try:
            winner = StampRecord.decode(stored.value)
        except CorruptStoreError:
            return  # `check` reports it; its timestamp is merged already
        self._fastest.learn(winner, self._sent, clock.reading())

    def wait_s(self) -> float:
        """Return how long to wait before the next round, at random.

        Up to one flight at first, up to four later. Longer waits would let the winners win again.
        """
        flight_s = max(BACKOFF_S_MIN, self._newest_s)
        doublings = min(self.lost - 1, BACKOFF_DOUBLINGS_MAX)
        return self._rng.uniform(0, min(BACKOFF_S_MAX, flight_s * 2**doublings))

    def fits(self, left_s: float) -> bool:
        """Return whether another round can be answered within the time left."""
        if self.lost == 0:
            return left_s > 0
        return left_s > FLIGHTS_LEFT_MIN * self._shortest_s
