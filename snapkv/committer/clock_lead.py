"""The pace of the fastest clock: how far this process's clock is behind it, from lost rounds.

A timestamp is a guess that must exceed the newest stored one. While several processes commit at
once, those whose clocks are behind guess too low and lose nearly every round. So a process that
lost a round learns how far the winner's clock is ahead, and follows that clock for a short time.
Safety does not depend on it: each commit is still guarded by its timestamp.
"""

from __future__ import annotations

from snapkv.base.waiting import monotonic
from snapkv.layout import StampRecord
from snapkv.times import pack

LEAD_MS_MAX = 1_000
"""A clock further ahead than this is not followed."""
FORGET_S = 1.0
"""How long a faster clock is followed; each lost round learns it anew."""


class Pace:
    """The fastest clock among the writers of a store, as last learned from a lost round.

    Only clocks are followed, not timestamps that were claimed further ahead after lost rounds: a
    stamp records how far it is ahead of its writer's clock. Otherwise each process would count up
    from the claims of the other processes, and timestamps would run away from all clocks.
    """

    def __init__(self, max_clock_skew_ms: int) -> None:
        self._lead_max = pack(min(LEAD_MS_MAX, max_clock_skew_ms))
        self._learned: tuple[int, int, float] | None = None  # time, lead, when it was (monotonic)

    def followed(self, now: int) -> int:
        """Return what the fastest clock shows while this one shows `now`, never less than `now`.

        It is bounded by the time that passed since, and by the lead over this clock: this clock
        may have been set forward meanwhile, or, in a test, not move.
        """
        if self._learned is None:
            return now
        time, lead, learned_s = self._learned
        elapsed_s = monotonic() - learned_s
        if elapsed_s >= FORGET_S:
            self._learned = None
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
            self._learned = time, time - answered, monotonic()
