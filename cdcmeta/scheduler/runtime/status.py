"""How changefeeds are: where their tables are, how fast, and what is wrong; in words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from cdcmeta.scheduler.executors.rates import Rate
from cdcmeta.scheduler.runtime.changefeeds import Changefeeds
from cdcmeta.scheduler.runtime.records import Changefeed, Placement
from cdcmeta.scheduler.runtime.reports import FeedReport
from snapkv import When

NOT_PLACED = "not placed yet"


class Problems(NamedTuple):
    """How much is wrong with a changefeed."""

    tables: int
    captures: int

    @classmethod
    def of(cls, reports: Mapping[str, Mapping[str, FeedReport]], id: str) -> Problems:
        """Count the tables with an error, and the captures that cannot use source or sink."""
        found = [feeds[id] for feeds in reports.values() if id in feeds]
        named = {table for report in found for table in report.problems}
        unnamed = sum(max(0, report.failing - len(report.problems)) for report in found)
        return cls(len(named) + unnamed, sum(report.error is not None for report in found))

    def __str__(self) -> str:
        named = zip(self, ("table", "capture"), strict=True)
        return ", ".join(f"{count:,} {what}{'s' * (count > 1)}" for count, what in named if count)


class Seen:
    """What captures report of a changefeed, and what is wrong with it, in words.

    Each of the `alive` captures that has some of its tables (`holders`) should report.
    """

    def __init__(
        self,
        id: str,
        holders: Iterable[str],
        reports: Mapping[str, Mapping[str, FeedReport]],
        alive: Container[str],
    ) -> None:
        self.rates: dict[str, Rate] = {}
        self.late: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.captures: list[str] = []
        for capture in sorted(set(holders)):
            if capture in alive and id not in reports.get(capture, {}):
                self.captures.append(f"{capture} does not report: its log says why")
        for capture, found in reports.items():
            if id in found:
                self._add(capture, found[id])

    def _add(self, capture: str, report: FeedReport) -> None:
        self.rates |= report.rates
        self.problems |= report.problems
        self.late |= {
            table: f"{delay.seconds:,.0f} s, not {delay.what}"
            for table, delay in report.delays.items()
        }
        if report.error:
            self.captures.append(f"{capture}: {report.error}")
        elif len(report.delays) > 1:
            longest = max(delay.seconds for delay in report.delays.values())
            count = f"{len(report.delays)} of {report.tables} tables are late"
            self.captures.append(f"{capture} is slow: {count}, by up to {longest:,.0f} s")

    def problem(self, place: Placement) -> str:
        """Return what is wrong with a table, an empty text if nothing is known."""
        if place.table in self.problems:
            return self.problems[place.table]
        return f"no capture has it: {place.why}" if place.capture is None else ""


def placed(feeds: Changefeeds, feed: Changefeed, as_of: When | None = None) -> list[Placement]:
    """Return where all tables of a changefeed are, also those that were not placed yet."""
    known = {each.table: each for each in feeds.places(feed.id, as_of=as_of)}
    return [known.get(table, Placement(table, None, NOT_PLACED)) for table in feed.tables()]
