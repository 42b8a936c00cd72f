"""Rules of writes: the generation that a write belongs to, and its acceptance; pure decisions.

All times have the same unit, in the library snapkv's timestamps. `times` are the times from which
generations operate, ascending; `leeway` is how far clocks may be apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdcmeta.errors import GenerationUnavailableError, InvalidWriteTimeError
from snapkv.times import dated

Times = Sequence[int]


@dataclass(frozen=True, slots=True)
class Rules:
    """A set of rules, of today's ScyllaDB (`TODAY`) or of its first design (`ORIGINAL`).

    `accept(times, ts, now, leeway)` returns the index of the generation that a write at `ts`
    belongs to, or raises if the write is rejected. A generation is obsolete when its successor has
    operated for `patience` leeways.
    """

    name: str
    accept: Callable[[Times, int, int, int], int]
    patience: int

    def needed_from(self, times: Times, now: int, leeway: int) -> int:
        """Return the index of the first generation that is not obsolete."""
        return max(0, bisect_right(times, now - self.patience * leeway) - 1)

    def is_obsolete(self, times: Times, time: int, now: int, leeway: int) -> bool:
        """Return whether a later generation makes the one of a time obsolete."""
        at = bisect_right(times, time)
        return at < len(times) and times[at] <= now - self.patience * leeway


def _today(times: Times, ts: int, now: int, leeway: int) -> int:
    """Accept a write into the previous generation if it is not older than the leeway.

    A write into the current generation may have any age.
    """
    if ts > now + leeway:
        raise InvalidWriteTimeError("future", ts, now + leeway)
    if ts <= now - leeway:
        current = bisect_right(times, now - leeway) - 1
        superseded = current + 1 < len(times) and times[current + 1] <= now
        if current < 0 or ts < times[current] or superseded:
            raise InvalidWriteTimeError("past", ts, now - leeway)
    at = bisect_right(times, ts) - 1  # the usual path: no call
    if at < 0:
        raise _none(ts)
    return at


def _original(times: Times, ts: int, now: int, leeway: int) -> int:
    """Accept a write into the current generation, or one that begins within the leeway."""
    if ts > now + leeway:
        raise InvalidWriteTimeError("future", ts, now + leeway)
    current = _operating(times, now)
    if ts < times[current]:
        raise InvalidWriteTimeError("past", ts, times[current])
    return _operating(times, ts)


def _operating(times: Times, ts: int) -> int:
    at = bisect_right(times, ts) - 1
    if at < 0:
        raise _none(ts)
    return at


def _none(ts: int) -> GenerationUnavailableError:
    return GenerationUnavailableError("none", f"no known generation operates at {dated(ts)}", ts=ts)


def find(times: Times, time: int) -> int | None:
    """Return the index of the generation of exactly this time, None without one."""
    at = bisect_left(times, time)
    return at if at < len(times) and times[at] == time else None


TODAY = Rules("today", _today, patience=1)
ORIGINAL = Rules("original", _original, patience=0)
