"""Dates to ask about: before the first commit, at some, between two, and at the newest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from datetime import datetime

import snapkv
from snapkv.times import end_of_ms


@dataclass(frozen=True, slots=True)
class Moment:
    """A date to ask about; `index` is the git commit it falls on, -1 before the first."""

    label: str
    ms: int
    index: int

    @property
    def date(self) -> str:
        """The date as people write it."""
        return date_text(self.ms)

    @property
    def ts(self) -> int:
        """The timestamp of the date."""
        return end_of_ms(self.ms)

    @property
    def when(self) -> datetime:
        """The date as a store takes it: any is free, where an old number could be a mistake."""
        return snapkv.to_datetime(self.ts)


def date_text(ms: int) -> str:
    """Return a date, to the second when it is one.

    >>> date_text(1_700_000_000_000), date_text(1_700_000_000_500)
    ('2023-11-14T22:13:20Z', '2023-11-14T22:13:20.500Z')
    """
    return snapkv.format_time(snapkv.pack(ms)).replace(".000Z", "Z")


def choose_moments(times_ms: list[int]) -> list[Moment]:
    """Return dates in order: before the first commit, at some, between two, and at the newest.

    >>> [(m.label, m.ms, m.index) for m in choose_moments([1000, 1000, 5000])]
    [('before the first', 0, -1), ('the first', 1000, 1), ('between two', 3000, 1), \
('the newest', 5000, 2)]
    """
    last = len(times_ms) - 1
    wanted = {
        "the newest": times_ms[last],
        "the first": times_ms[0],
        "before the first": times_ms[0] - 1_000,
        "a quarter in": times_ms[last // 4],
        "half way": times_ms[last // 2],
        "three quarters": times_ms[last * 3 // 4],
        "between two": _between(times_ms),
    }
    labels: dict[int, str] = {}
    for label, ms in wanted.items():
        if ms is not None and ms >= 0:
            labels.setdefault(ms, label)
    return [Moment(labels[ms], ms, bisect_right(times_ms, ms) - 1) for ms in sorted(labels)]


def one_back(times_ms: list[int]) -> list[Moment]:
    """Return the date before the newest, if there is one."""
    before = bisect_left(times_ms, times_ms[-1]) - 1
    return [Moment("one back", times_ms[before], before)] if before >= 0 else []


def _between(times_ms: list[int]) -> int | None:
    """Return a moment between two commits near the middle, where nothing was committed."""
    middle = len(times_ms) // 2
    gaps = sorted(range(len(times_ms) - 1), key=lambda at: abs(at - middle))
    for at in gaps:
        before, after = times_ms[at], times_ms[at + 1]
        if after - before > 1_000:
            return (before + after) // 2_000 * 1_000 if after - before > 2_000 else before + 500
    return None
