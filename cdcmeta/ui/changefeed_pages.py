"""The pages of changefeeds and their captures: how far they are, and which capture has which table.

Queries answer at a moment, as plain data; a page joins an answer with its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from cdcmeta.scheduler.runtime import Changefeed, Changefeeds, Placement, changefeeds
from cdcmeta.scheduler.runtime import changefeed_records as records
from cdcmeta.scheduler.runtime.changefeed_records import Registration
from cdcmeta.scheduler.runtime.reports import FeedReport
from cdcmeta.ui.page_requests import (
    Listed,
    command,
    listed,
    live_or_past,
    needed,
    space_names,
    span_of,
    store_of,
    time_of,
    time_of_moment,
)
from cdcmeta.ui.svg import COLOURS, LaneBar, LaneSpan, lane_picture
from cdcmeta.ui.table_moves import Moves, lanes, moves_back
from snapkv import CompactedError, SnapshotKV, When, format_time, pack
from snapkv.times import physical_ms
from snapkv.ui import Context, Page

CLUSTERS_MAX = 25
FEEDS_MAX = 100
TABLES_MAX = 25
PLACES_MAX = 20_000
"""The most placements that are read to count the tables of captures."""


@dataclass(frozen=True, slots=True)
class ChangefeedRow:
    """A changefeed at a moment.

    Everything up to `checkpoint` is in the sink; None before anything is. `lag_ms` is from there to
    the moment. `created` and `changed` are the times of its first and newest record, None if those
    commits were compacted; `first_epoch` and `epoch` their revisions.
    """

    cluster: str
    id: str
    state: str
    tables: int
    kind: str
    checkpoint: int | None
    resolved: int | None
    lag_ms: int | None
    source: str
    source_name: str
    sink: str
    sink_name: str
    start: int
    with_state: bool
    created: int | None
    changed: int | None
    problems: str
    epoch: int
    first_epoch: int


@dataclass(frozen=True, slots=True)
class CaptureRow:
    """A capture that is registered, reports, or has tables, and how many tables it has.

    Registrations and leadership have no past: `registered`, `leads` and `address` are None there.
    """

    name: str
    label: str
    tables: int
    registered: bool | None
    leads: bool | None
    address: str | None
    errors: list[str]


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """The changefeeds and captures of a cluster at a moment.

    `counted` says whether all tables of captures are counted. `more` says whether changefeeds are
    left out.
    """

    name: str
    feeds: list[ChangefeedRow]
    captures: list[CaptureRow]
    counted: bool
    more: bool


@dataclass(frozen=True, slots=True)
class ReplicatedTable:
    """A table of a changefeed: the capture that replicates it, why, and since when.

    `capture` is None if none does. `since` is None if it is not placed, or that commit was
    compacted. The captures report rates and delays.
    """

    table: str
    capture: str | None
    why: str
    since: int | None
    rows_per_s: float
    bytes_per_s: float
    late: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class FeedAtMoment:
    """A changefeed, a page of its tables, and how many tables each capture has.

    `writer` is the process that wrote the newest checkpoint: that of the owner of then. The next
    page begins with the table number `start`, None at the end.
    """

    feed: ChangefeedRow
    writer: str | None
    tables: list[ReplicatedTable]
    total: int
    start: int | None
    captures: list[tuple[str, int]]
    counted: bool
    problems: list[str]


def has_changefeeds(store: SnapshotKV, when: When | None = None) -> bool:
    """Return whether a store holds records of captures at a moment; one round trip."""
    return next(store.spaces(records.space_of(""), when), None) is not None


def list_clusters(
    store: SnapshotKV,
    when: When | None = None,
    *,
    time: int,
    start: str = "",
    limit: int = CLUSTERS_MAX,
) -> Listed[ClusterRow]:
    """Return the clusters of a store at a moment, from a name on; as `cluster_at` for each.

    `time` is the timestamp of the moment.
    """
    found = space_names(store, records.space_of(""), start, when)
    return listed(found, limit, lambda name: cluster_at(store, name, when, time=time))


def cluster_at(store: SnapshotKV, name: str, when: When | None = None, *, time: int) -> ClusterRow:
    """Return a cluster at a moment, of which `time` is the timestamp.

    A few listings, three round trips for each changefeed, and one page for each thousand tables.
    """
    feeds = Changefeeds(store, name)
    reports = feeds.reports(as_of=when)
    alive = feeds.captures() if when is None else None  # registrations have no past
    found = feeds.list(as_of=when)
    counts: Counter[str] = Counter()
    left = PLACES_MAX
    for feed in found:
        own, read = _counts(feeds, feed.id, when, left)
        counts += own
        left -= read
    rows = []
    for feed in found[:FEEDS_MAX]:
        no_capture = changefeeds.has_no_capture(feeds, feed, alive)
        problems = changefeeds.Problems.of(reports, feed.id, no_capture=no_capture)
        rows.append(_feed_row(store, feeds, feed, problems, when, time))
    captures = _captures(store, feeds, counts, reports, alive)
    return ClusterRow(name, rows, captures, left > 0, len(found) > FEEDS_MAX)


def feed_at(
    store: SnapshotKV,
    cluster: str,
    id: str,
    when: When | None = None,
    *,
    time: int,
    start: int = 0,
    limit: int = TABLES_MAX,
) -> FeedAtMoment:
    """Return a changefeed at a moment, with a page of its tables from a number on.

    A few round trips, and a page for each thousand tables. Raises `ChangefeedNotFoundError`.
    """
    feeds = Changefeeds(store, cluster)
    feed, reports = feeds.get(id, as_of=when), feeds.reports(as_of=when)
    names = feed.tables()
    shown = names[start : start + limit]
    places = [
        each or Placement(table, None, changefeeds.NOT_PLACED)
        for table, each in zip(shown, feeds.places_of(id, shown, as_of=when), strict=True)
    ]
    alive = feeds.captures() if when is None else None
    counts, read = _counts(feeds, id, when, PLACES_MAX)
    no_capture = changefeeds.has_no_capture(feeds, feed, alive)
    seen = changefeeds.ChangefeedStatus(feed, counts, reports, alive, no_capture=no_capture)
    problems = changefeeds.Problems.of(reports, id, no_capture=no_capture)
    return FeedAtMoment(
        _feed_row(store, feeds, feed, problems, when, time),
        _writer(store, cluster, id, when),
        [_table_row(place, seen) for place in places],
        len(names),
        start + limit if start + limit < len(names) else None,
        sorted(counts.items(), key=lambda each: (-each[1], each[0])),
        read < PLACES_MAX,
        seen.captures,
    )


# --- pages ---

TABLES_ASKED_MAX = 200
NO_CAPTURE = "none"


@dataclass(frozen=True, slots=True)
class FeedData:
    """A changefeed at the moment, and the moves of the page's tables in the time bar's span."""

    at: FeedAtMoment
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
    since = max(pack(max(0, span.start_ms)), c.source.earliest() or 0)
    moves = lanes(
        c.source, cluster, id, tables, c.at, since, found.feed.first_epoch, budget=c.budget(2)
    )
    kinds = _kinds([*(name for name, _ in found.captures), *_names(moves)])
    labels = _labels(kinds)
    drawn = {each.table: _lane(each, span, kinds, labels) for each in moves}
    more = {"lanes": drawn, "kinds": kinds, "labels": labels}
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
        changefeeds.check_table(feeds.get(id, as_of=c.at), table)
    span, kinds = span_of(c), _kinds(_names([found]))
    labels = _labels(kinds)
    more = {"picture": _lane(found, span, kinds, labels), "kinds": kinds, "labels": labels}
    line = _command(c, cluster, "history", id, table) if c.at is None else ""
    shown = TableData(cluster, id, found)
    return Page("cdcmeta/table.html", f"Table {table}", shown, more, line)


# --- helpers ---


def _feed_row(
    store: SnapshotKV,
    feeds: Changefeeds,
    feed: Changefeed,
    problems: changefeeds.Problems,
    when: When | None,
    time: int,
) -> ChangefeedRow:
    marks = feeds.checkpoint(feed.id, as_of=when)
    checkpoint, resolved = (each if each > 1 else None for each in marks[:2])
    return ChangefeedRow(
        feeds.cluster,
        feed.id,
        feed.state,
        len(feed.tables()),
        "log" if feed.log is not None else "databases" if feed.databases else "prefixes",
        checkpoint,
        resolved,
        None if checkpoint is None else max(0, physical_ms(time) - physical_ms(checkpoint)),
        feed.source,
        feed.source_name,
        feed.sink,
        feed.sink_name,
        feed.start,
        feed.with_state,
        time_of(store, feed.created),
        time_of(store, feed.epoch),
        str(problems),
        feed.epoch,
        feed.created,
    )


def _counts(feeds: Changefeeds, id: str, when: When | None, most: int) -> tuple[Counter[str], int]:
    """Return how many tables of a changefeed each capture has, and how many were read."""
    found = feeds.places(id, as_of=when, limit=most)
    return Counter(each.capture for each in found if each.capture is not None), len(found)


def _captures(
    store: SnapshotKV,
    feeds: Changefeeds,
    counts: Mapping[str, int],
    reports: Mapping[str, Mapping[str, FeedReport]],
    alive: Mapping[str, Registration] | None,
) -> list[CaptureRow]:
    registered = alive or {}
    leader = None if alive is None else _leader(store, feeds.cluster)

    def row(name: str) -> CaptureRow:
        found = registered.get(name)
        return CaptureRow(
            name,
            found.label if found else records.label_of(name),
            counts.get(name, 0),
            None if alive is None else name in registered,
            None if alive is None else name == leader,
            found.address if found else None,
            [f"{id}: {each.error}" for id, each in reports.get(name, {}).items() if each.error],
        )

    return [row(name) for name in sorted({*registered, *counts, *reports})]


def _leader(store: SnapshotKV, cluster: str) -> str | None:
    found = store.election(records.space_of(cluster)).leader()
    return None if found is None else records.capture_of(found.value.decode(errors="replace"))


def _writer(store: SnapshotKV, cluster: str, id: str, when: When | None) -> str | None:
    """Return which process wrote the newest checkpoint; None if there is none, or not known."""
    key = records.CHECKPOINT + id.encode()
    (entry,) = store.space(records.space_of(cluster)).entries_of([key], when)
    if entry is None:
        return None
    try:
        until = f"rev:{entry.revision}"
        commit = next(store.commits(until=until, limit=1, newest_first=True), None)
    except CompactedError:
        return None
    return None if commit is None else commit.writer


def _table_row(place: Placement, seen: changefeeds.ChangefeedStatus) -> ReplicatedTable:
    rate = seen.rates.get(place.table)
    return ReplicatedTable(
        place.table,
        place.capture,
        place.why,
        place.ts or None,
        rate.rows if rate else 0.0,
        rate.bytes if rate else 0.0,
        seen.late.get(place.table),
        seen.problem(place) or None,
    )


def _command(c: Context, cluster: str, *words: str) -> str:
    of = ["--cluster", cluster] if cluster != "default" else []
    return command(c, "changefeed", *words, *of)


def _names(moves: Iterable[Moves]) -> list[str]:
    return [row.capture for each in moves for row in each.rows if row.capture is not None]


def _kinds(captures: Iterable[str]) -> dict[str, str]:
    """Return a class for each capture; eight of them differ."""
    return {name: f"k{n % COLOURS}" for n, name in enumerate(sorted(set(captures)))}


def _labels(captures: Iterable[str]) -> dict[str, str]:
    """Return the label of each capture, or its whole name if another capture has that label."""
    labels = {name: records.label_of(name) for name in captures}
    count = Counter(labels.values())
    return {name: label if count[label] == 1 else name for name, label in labels.items()}


def _lane(
    moves: Moves, span: LaneSpan, kinds: Mapping[str, str], labels: Mapping[str, str]
) -> Markup:
    """Return the picture of a table's moves; what was not looked up is marked."""
    bars = []
    for row in moves.rows:
        if not row.placed:
            continue
        since = span.start_ms if row.since is None else physical_ms(row.since)
        until = span.moment_ms if row.until is None else physical_ms(row.until)
        kind, label = NO_CAPTURE, "no capture"
        if row.capture is not None:
            kind, label = kinds[row.capture], labels[row.capture]
        when = "before compaction" if row.since is None else format_time(row.since)
        bars.append(LaneBar(since, until, kind, f"{label} from {when}: {row.why}"))
    known = 0
    if moves.following is not None:
        known = bars[-1].start_ms if bars else span.end_ms
    shown = (labels[name] for name in _names([moves])[::-1])
    names = ", ".join(dict.fromkeys(shown)) or "no capture"
    return lane_picture(bars, span, f"{moves.table}: {names}", known)
