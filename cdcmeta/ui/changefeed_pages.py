"""The pages of changefeeds and their captures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from cdcmeta.scheduler.runtime import Changefeeds
from cdcmeta.scheduler.runtime.changefeeds import check_table
from cdcmeta.ui.changefeeds import TABLES_MAX, Feed, feed_at, list_clusters
from cdcmeta.ui.lanes import lanes
from cdcmeta.ui.page_requests import (
    Bar,
    Span,
    command,
    lane_picture,
    live_or_past,
    needed,
    span_of,
    store_of,
    time_of_moment,
)
from cdcmeta.ui.past import Moves, moves_back
from cdcmeta.ui.svg import COLOURS
from snapkv import When, format_time, pack
from snapkv.times import physical_ms
from snapkv.ui import Context, Page

TABLES_ASKED_MAX = 200
NO_CAPTURE = "none"


@dataclass(frozen=True, slots=True)
class FeedData:
    """A changefeed at the moment, and the moves of the page's tables in the time bar's span."""

    at: Feed
    moves: list[Moves]


@dataclass(frozen=True, slots=True)
class TableData:
    """The moves of one table up to the moment."""

    cluster: str
    feed: str
    moves: Moves


def changefeeds_page(c: Context) -> Page:
    """Show the changefeeds and captures of each cluster at the moment."""
    found = list_clusters(
        store_of(c), live_or_past(c), time=time_of_moment(c), start=c.state["start"]
    )
    line = ""
    if len(found.rows) == 1:
        line = _command(c, found.rows[0].name, "list", *c.time_words("--at", c.at))
    return Page("cdcmeta/changefeeds.html", "Changefeeds", found, command=line)


def changefeed_page(c: Context) -> Page:
    """Show a changefeed at the moment: which capture replicates which table, and since when."""
    cluster, id = needed(c, "cluster"), needed(c, "feed")
    found = feed_at(
        store_of(c),
        cluster,
        id,
        live_or_past(c),
        time=time_of_moment(c),
        start=c.state.number("start", 1, 1_000_000) - 1,
        limit=c.state.limit(TABLES_MAX, TABLES_ASKED_MAX),
    )
    span, tables = span_of(c), [row.table for row in found.tables]
    moves = lanes(
        c.source,
        cluster,
        id,
        tables,
        c.at,
        _since(c, span),
        found.feed.first_epoch,
        budget=c.budget(2),
    )
    kinds = _kinds([*(name for name, _ in found.captures), *_captures(moves)])
    drawn = {each.table: _lane(each, span, kinds) for each in moves}
    more = {"lanes": drawn, "kinds": kinds}
    line = _command(c, cluster, "status", id, *c.time_words("--at", c.at))
    return Page("cdcmeta/changefeed.html", f"Changefeed {id}", FeedData(found, moves), more, line)


def table_page(c: Context) -> Page:
    """Show which captures a table of a changefeed was on, up to the moment."""
    cluster, id, table = needed(c, "cluster"), needed(c, "feed"), needed(c, "table")
    feeds = Changefeeds(store_of(c), cluster)
    until: When | None = f"rev:{c.state['older']}" if c.state["older"] else c.at
    high = c.source.mark(until).revision
    found = moves_back(c.source, cluster, id, table, high, budget=c.budget(2))
    if not found.rows:
        check_table(feeds.get(id, as_of=c.at), table)
    span, kinds = span_of(c), _kinds(_captures([found]))
    more = {"picture": _lane(found, span, kinds), "kinds": kinds}
    line = _command(c, cluster, "history", id, table) if c.at is None else ""
    data = TableData(cluster, id, found)
    return Page("cdcmeta/table.html", f"Table {table}", data, more, line)


# --- helpers ---


def _command(c: Context, cluster: str, *words: str) -> str:
    of = ["--cluster", cluster] if cluster != "default" else []
    return command(c, "changefeed", *words, *of)


def _since(c: Context, span: Span) -> int:
    """Return the timestamp of the span's beginning, or of the earliest moment left."""
    return max(pack(max(0, span.start_ms)), c.source.earliest() or 0)


def _captures(moves: Iterable[Moves]) -> list[str]:
    return [row.capture for each in moves for row in each.rows if row.capture is not None]


def _kinds(captures: Iterable[str]) -> dict[str, str]:
    """Return a class for each capture; eight of them differ."""
    return {name: f"k{n % COLOURS}" for n, name in enumerate(sorted(set(captures)))}


def _lane(moves: Moves, span: Span, kinds: Mapping[str, str]) -> Markup:
    """Return the picture of a table's moves; what was not looked up is marked."""
    bars = []
    for row in moves.rows:
        if not row.placed:
            continue
        since = span.start_ms if row.since is None else physical_ms(row.since)
        until = span.moment_ms if row.until is None else physical_ms(row.until)
        kind = kinds[row.capture] if row.capture is not None else NO_CAPTURE
        when = "before compaction" if row.since is None else format_time(row.since)
        bars.append(
            Bar(since, until, kind, f"{row.capture or 'no capture'} from {when}: {row.why}")
        )
    known = 0
    if moves.following is not None:
        known = bars[-1].start_ms if bars else span.end_ms
    names = ", ".join(dict.fromkeys(_captures([moves])[::-1])) or "no capture"
    return lane_picture(bars, span, f"{moves.table}: {names}", known)
