"""Which generation a write belongs to, and whether it may still be written: pure decisions.

All times are of one unit, whichever: snapkv's timestamps in the library. `times` are those from
which generations operate, ascending; `leeway` is how far clocks may be apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdcmeta.errors import NoGenerationError, WriteFromFutureError, WriteFromPastError

Times = Sequence[int]


@dataclass(frozen=True, slots=True)
class Rules:
    """A set of rules: today's ScyllaDB's (`TODAY`) or the ones of its first design (`ORIGINAL`).

    `accept(times, ts, now, leeway)` returns the place of the generation that a write at `ts`
    belongs to, and raises the reason where it is refused. A generation is given up for its
    successor when that operates for `patience` leeways already.
    """

    name: str
    accept: Callable[[Times, int, int, int], int]
    patience: int

    def needed_from(self, times: Times, now: int, leeway: int) -> int:
        """Return the place of the first generation that may still be asked for."""
        return max(0, bisect_right(times, now - self.patience * leeway) - 1)

    def is_obsolete(self, times: Times, time: int, now: int, leeway: int) -> bool:
        """Return whether a later generation made it needless to learn of the one of a time."""
        at = bisect_right(times, time)
        return at < len(times) and times[at] <= now - self.patience * leeway


def _today(times: Times, ts: int, now: int, leeway: int) -> int:
    """Allow a write into the generation before, as long as it is no older than the leeway.

    One in the current generation may be as old as it wants.
    """
    if ts > now + leeway:
        raise WriteFromFutureError(ts, now + leeway)
    if ts <= now - leeway:
        current = bisect_right(times, now - leeway) - 1
        superseded = current + 1 < len(times) and times[current + 1] <= now
        if current < 0 or ts < times[current] or superseded:
            raise WriteFromPastError(ts, now - leeway)
    at = bisect_right(times, ts) - 1  # every write comes here
    if at < 0:
        raise NoGenerationError(ts)
    return at


def _original(times: Times, ts: int, now: int, leeway: int) -> int:
    """Allow a write into the generation that operates now, or comes within the leeway."""
    if ts > now + leeway:
        raise WriteFromFutureError(ts, now + leeway)
    current = _operating(times, now)
    if ts < times[current]:
        raise WriteFromPastError(ts, times[current])
    return _operating(times, ts)


def _operating(times: Times, ts: int) -> int:
    at = bisect_right(times, ts) - 1
    if at < 0:
        raise NoGenerationError(ts)
    return at


def find(times: Times, time: int) -> int | None:
    """Return the place of the generation of exactly this time, None where there is none."""
    at = bisect_left(times, time)
    return at if at < len(times) and times[at] == time else None


TODAY = Rules("today", _today, patience=1)
ORIGINAL = Rules("original", _original, patience=0)
