"""Rates of tables, and late tables: statistics for operators and for balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

HALF_LIFE_S = 30.0
"""What a second of load counts for is halved after this time."""
LEAST_ROWS = 0.01
"""Slower tables count as idle."""


class Written(NamedTuple):
    """What a table has written since it is here."""

    rows: int
    bytes: int


class Rate(NamedTuple):
    """Rows and bytes of values that a table writes in a second."""

    rows: float
    bytes: float


class Delay(NamedTuple):
    """For how many seconds a table is late, and what it waits for: to be prepared, or written."""

    seconds: float
    what: str


class _Average:
    """A moving average that is right from its first sample on."""

    def __init__(self) -> None:
        self.written = Written(0, 0)
        self._rows = self._bytes = self._mass = 0.0

    def add(self, written: Written, passed: float, kept: float) -> None:
        before = self.written if written.rows >= self.written.rows else Written(0, 0)
        self.written = written
        share = 1 - kept
        self._mass = self._mass * kept + share
        self._rows = self._rows * kept + (written.rows - before.rows) / passed * share
        self._bytes = self._bytes * kept + (written.bytes - before.bytes) / passed * share

    @property
    def rate(self) -> Rate:
        return Rate(self._rows / self._mass, self._bytes / self._mass)


class Rates:
    """Moving averages of what tables write.

    >>> rates = Rates()
    >>> for second in range(3):
    ...     rates.look({"a": Written(60 * second, 600 * second)}, 60.0 * second)
    >>> rates.of_tables()
    {'a': Rate(rows=1.0, bytes=10.0)}
    """

    def __init__(self) -> None:
        self._averages: dict[str, _Average] = {}
        self._looked_at: float | None = None

    def look(self, written: Mapping[str, Written], now: float) -> None:
        """Take in what tables have written by `now`, in seconds of any clock. O(tables)."""
        before, self._looked_at = self._looked_at, now
        if before is None or now <= before:
            return
        passed = now - before
        kept = 0.5 ** (passed / HALF_LIFE_S)
        averages, self._averages = self._averages, {}
        for table, each in written.items():
            average = averages.get(table)
            if average is None and not each.rows:
                continue  # idle so far
            average = average or _Average()
            average.add(each, passed, kept)
            self._averages[table] = average

    def of_tables(self) -> dict[str, Rate]:
        """Return the rates of the tables that are not idle, the fastest first."""
        found = {table: each.rate for table, each in self._averages.items()}
        busy = (item for item in found.items() if item[1].rows >= LEAST_ROWS)
        return dict(sorted(busy, key=lambda item: -item[1].rows))
