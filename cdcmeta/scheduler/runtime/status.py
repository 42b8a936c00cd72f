"""The status of changefeeds in words: where their tables are, how fast, and what is wrong."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sized
from typing import NamedTuple

from cdcmeta.scheduler.executors.rates import Rate
from cdcmeta.scheduler.runtime.changefeeds import Changefeeds
from cdcmeta.scheduler.runtime.records import RUNNING, Changefeed, Placement
from cdcmeta.scheduler.runtime.reports import FeedReport
from snapkv import When

NOT_PLACED = "not placed yet"
NO_CAPTURE = "no capture of its cluster is alive: start one with `cdcmeta capture`"
GONE = "its capture is gone, and no other one has it yet"


class Problems(NamedTuple):
    """How much is wrong with a changefeed."""

    tables: int
    captures: int
    has_no_capture: bool = False
    """As `has_no_capture` says; one problem more."""

    @classmethod
    def of(
        cls,
        reports: Mapping[str, Mapping[str, FeedReport]],
        id: str,
        *,
        no_capture: bool = False,
    ) -> Problems:
        """Count the tables with an error, and the captures that cannot use source or sink."""
        found = [feeds[id] for feeds in reports.values() if id in feeds]
        named = {table for report in found for table in report.problems}
        unnamed = sum(max(0, report.failing - len(report.problems)) for report in found)
        unusable = sum(report.error is not None for report in found)
        return cls(len(named) + unnamed, unusable, no_capture)

    def __str__(self) -> str:
        named = zip(self, ("table", "capture"), strict=False)
        counts = [f"{count:,} {what}{'s' * (count > 1)}" for count, what in named if count]
        return ", ".join([*counts, *["no capture"] * self.has_no_capture])


class Seen:
    """What captures report of a changefeed, and what is wrong with it, in words.

    While the changefeed runs, each of the `alive` captures that has some of its tables (`holders`)
    should report, and each table should be on one that is alive. `alive` is None for a moment in
    the past, of which that is not known; `no_capture` is what `has_no_capture` says.
    """

    def __init__(
        self,
        feed: Changefeed,
        holders: Iterable[str],
        reports: Mapping[str, Mapping[str, FeedReport]],
        alive: Container[str] | None,
        *,
        no_capture: bool = False,
    ) -> None:
        id, self._alive, self._runs = feed.id, alive, feed.state == RUNNING
        self.rates: dict[str, Rate] = {}
        self.late: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.captures: list[str] = [NO_CAPTURE] * no_capture
        expected = [each for each in sorted(set(holders)) if self._runs and self._lives(each)]
        for capture in expected:
            if id not in reports.get(capture, {}):
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
        if not self._runs:
            return ""  # a placement on record means nothing until it is resumed
        if place.capture is None:
            return f"no capture has it: {place.why}"
        return "" if self._alive is None or self._lives(place.capture) else GONE

    def _lives(self, capture: str) -> bool:
        return self._alive is not None and capture in self._alive


def has_no_capture(feeds: Changefeeds, feed: Changefeed, alive: Sized | None) -> bool:
    """Return whether captures have begun with a changefeed that runs, and none is alive.

    One that waits for its first capture has not lost one. `alive` is None if that is not known.
    One round trip if no capture is alive, else none.
    """
    if alive is None or len(alive) or feed.state != RUNNING:
        return False
    return bool(feeds.places(feed.id, limit=1))


def placed(feeds: Changefeeds, feed: Changefeed, as_of: When | None = None) -> list[Placement]:
    """Return where all tables of a changefeed are, also tables that were not placed yet."""
    known = {each.table: each for each in feeds.places(feed.id, as_of=as_of)}
    return [known.get(table, Placement(table, None, NOT_PLACED)) for table in feed.tables()]
