"""The status of changefeeds as the command prints it: where tables are, how fast, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from cdcmeta.scheduler.runtime import Changefeed, Changefeeds, Placement
from cdcmeta.scheduler.runtime.changefeeds import ChangefeedStatus, has_no_capture, placed
from snapkv import format_time
from snapkv.cli.command_kit import Json, time_json
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


def row_json(row: dict[str, Any]) -> Json:
    """Return a row of `row_of` for JSON; both fields of the checkpoint are null before any commit.

    >>> row_json({"id": "copy", "checkpoint": "2023-11-14T22:13:29.903Z",
    ...           "timestamp": 445644802596110336})["timestamp"]
    '445644802596110336'
    """
    time = _time_json(row["timestamp"])
    return row | {"checkpoint": time["time"], "timestamp": time["timestamp"]}


def place_json(place: Placement) -> Json:
    """Return a placement of a table for JSON, with the time of the commit that wrote it."""
    fields = {"table": place.table, "capture": place.capture, "why": place.why}
    return fields | _time_json(place.ts)


def _time_json(timestamp: int) -> Json:
    return time_json(timestamp if timestamp > 1 else None)


def status_lines(feeds: Changefeeds, id: str, when: Any) -> Iterator[Json]:
    """Yield a changefeed, then each of its tables, as JSON objects."""
    feed = feeds.get(id, as_of=when)
    places = placed(feeds, feed, when)
    seen = _seen(feeds, feed, places, when)
    yield row_json(row_of(feeds, feed, when)) | {"problems": seen.captures}
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


def status_of(feeds: Changefeeds, id: str, when: Any) -> Group:
    """Return the picture of a changefeed and its tables."""
    feed = feeds.get(id, as_of=when)
    places = placed(feeds, feed, when)
    seen = _seen(feeds, feed, places, when)
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


def _seen(
    feeds: Changefeeds, feed: Changefeed, places: Sequence[Placement], when: Any
) -> ChangefeedStatus:
    holders = {each.capture for each in places if each.capture}
    if when is not None:
        return ChangefeedStatus(feed, holders, {}, None)
    reports, alive = feeds.reports(), feeds.captures()
    return ChangefeedStatus(
        feed, holders, reports, alive, no_capture=has_no_capture(feeds, feed, alive)
    )


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
