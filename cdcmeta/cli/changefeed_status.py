"""What the command changefeed shows of changefeeds: where tables are, how fast, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdcmeta.scheduler.executors.rates import Rate
from cdcmeta.scheduler.runtime import Changefeed, Changefeeds, Placement
from cdcmeta.scheduler.runtime.reports import FeedReport
from snapkv import format_time
from snapkv.clock import SystemClock
from snapkv.times import LOGICAL_BITS


def time_of(timestamp: int) -> str:
    """Return a time for people; `-` for one before all commits."""
    return format_time(timestamp) if timestamp > 1 else "-"


def row_of(feeds: Changefeeds, feed: Changefeed, when: Any) -> dict[str, Any]:
    """Return what a list of changefeeds shows of one."""
    checkpoint = feeds.checkpoint(feed.id, as_of=when).checkpoint
    return {
        "id": feed.id,
        "state": feed.state,
        "tables": len(feed.tables()),
        "checkpoint": time_of(checkpoint),
        "timestamp": checkpoint,
        "source": feed.source,
        "sink": feed.sink,
    }


class Problems(NamedTuple):
    """How much is wrong with a changefeed now."""

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
    """What captures report of a changefeed, and what is wrong, in words; nothing of the past."""

    def __init__(
        self, feeds: Changefeeds, feed: Changefeed, places: list[Placement], when: Any
    ) -> None:
        self.rates: dict[str, Rate] = {}
        self.late: dict[str, str] = {}
        self.problems: dict[str, str] = {}
        self.captures: list[str] = []
        reports = feeds.reports() if when is None else {}
        alive = feeds.captures() if when is None else {}
        for capture in sorted({each.capture for each in places if each.capture} & alive.keys()):
            if feed.id not in reports.get(capture, {}):
                self.captures.append(f"{capture} does not report: its log says why")
        for capture, found in reports.items():
            report = found.get(feed.id)
            if report is None:
                continue
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


def status_lines(feeds: Changefeeds, id: str, when: Any) -> Iterator[dict[str, Any]]:
    """Yield a changefeed, then each of its tables, as JSON objects."""
    feed = feeds.get(id, as_of=when)
    places = _places(feeds, feed, when)
    seen = Seen(feeds, feed, places, when)
    yield row_of(feeds, feed, when) | {"problems": seen.captures}
    for place in places:
        rate = seen.rates.get(place.table)
        yield {
            "table": place.table,
            "capture": place.capture,
            "why": place.why,
            "rows_per_s": rate.rows if rate else 0.0,
            "bytes_per_s": rate.bytes if rate else 0.0,
            "late": seen.late.get(place.table),
            "problem": seen.problem(place) or None,
        }


def _places(feeds: Changefeeds, feed: Changefeed, when: Any) -> list[Placement]:
    known = {each.table: each for each in feeds.places(feed.id, as_of=when)}
    return [known.get(table, Placement(table, None, "not placed yet")) for table in feed.tables()]


def status_of(feeds: Changefeeds, id: str, when: Any) -> Group:
    """Return the picture of a changefeed and its tables."""
    feed = feeds.get(id, as_of=when)
    places = _places(feeds, feed, when)
    seen = Seen(feeds, feed, places, when)
    row = row_of(feeds, feed, when)
    head = f"{feed.id}  {feed.state}  up to {row['checkpoint']}  "
    if when is None:
        rows_s = sum(rate.rows for rate in seen.rates.values())
        bytes_s = sum(rate.bytes for rate in seen.rates.values())
        head += f"{_age(row['timestamp'])}{_number(rows_s)} rows/s  {bytes_s:,.0f} B/s  "
    head += f"{feed.source} -> {feed.sink}"
    rows = []
    for place in places:
        rate = seen.rates.get(place.table)
        rows.append(
            [
                place.table,
                place.capture or "-",
                place.why,
                _number(rate.rows) if rate else "",
                seen.late.get(place.table, ""),
                seen.problem(place),
            ]
        )
    lines = [Text(head), *(Text(each, style="bold red") for each in seen.captures)]
    columns = ("table", "capture", "why", "rows/s", "late", "problem")
    shown = len(columns) if when is None else 3  # captures report the present only
    return Group(*lines, table_of(columns[:shown], [each[:shown] for each in rows]))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _age(checkpoint: int) -> str:
    """Return how old a checkpoint is: the lag, or the time since the source's last commit."""
    if checkpoint <= 1:
        return ""
    age_s = max(0.0, (SystemClock().now_ms() - (checkpoint >> LOGICAL_BITS)) / 1_000)
    return f"({age_s:,.1f} s ago)  "


def table_of(columns: Sequence[str], rows: list[list[str]]) -> Table:
    """Return a table for the terminal."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(each) for each in row))
    return table
