"""The pace of the fastest clock: how far this process's clock is behind it, from lost rounds.

A timestamp is a guess that must exceed the newest stored one. While several processes commit at
once, those whose clocks are behind guess too low and lose nearly every round. So a process that
lost a round learns how far the winner's clock is ahead, and for a short time issues timestamps from
there. Safety does not depend on it: each commit is still guarded by its timestamp.
"""

from __future__ import annotations

from snapkv.clock import monotonic
from snapkv.layout import StampRecord
from snapkv.times import pack

LEAD_MS_MAX = 1_000
"""A clock further ahead than this is not followed."""
FORGET_S = 1.0
"""How long a faster clock is followed; while rounds are lost it is learned again."""


class Pace:
    """What the fastest clock among contenders shows, as last learned, and how long ago that was.

    Only clocks are followed, not the timestamps that were claimed further ahead after lost rounds:
    a stamp says by how much it is ahead of its writer's clock. Else each process would go on from
    the claims of the others, and timestamps would run away from all clocks.
    """

    def __init__(self, max_clock_skew_ms: int) -> None:
        self._lead_max = pack(min(LEAD_MS_MAX, max_clock_skew_ms))
        self._learned: tuple[int, int, float] | None = None  # time, lead, when it was (monotonic)

    def followed(self, now: int) -> int:
        """Return what the fastest clock shows while this one shows `now`, never less than `now`.

        Both what passed since and the lead over this clock bound it: this clock may have been set
        forward meanwhile, or, in a test, stand still.
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
        """Take in a lost round: the stored stamp, and what this clock showed before and after.

        The stamp was made before the request came to the server, which was about half way. So the
        other clock is never taken for faster than it is, where both ways take equally long.
        """
        if winner.fence_of is not None:
            return  # its timestamp is that of another process's request
        time = winner.timestamp - winner.ahead + (answered - sent) // 2
        if self.followed(answered) < time <= answered + self._lead_max:
            self._learned = time, time - answered, monotonic()
