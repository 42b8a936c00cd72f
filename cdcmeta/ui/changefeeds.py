"""Changefeeds as pages show them: how far they are, and which capture replicates which table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from cdcmeta.scheduler.runtime import Changefeed, Changefeeds, Placement, records
from cdcmeta.scheduler.runtime.records import Registration
from cdcmeta.scheduler.runtime.reports import FeedReport
from cdcmeta.scheduler.runtime.status import NOT_PLACED, Problems, Seen, has_no_capture
from cdcmeta.ui.lookups import space_names, time_of
from snapkv import CompactedError, SnapshotKV, When
from snapkv.times import physical_ms

CLUSTERS_MAX = 25
FEEDS_MAX = 100
TABLES_MAX = 25
PLACES_MAX = 20_000
"""The most placements that are read to count the tables of captures."""


@dataclass(frozen=True, slots=True)
class FeedRow:
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
class Cluster:
    """The changefeeds and captures of a cluster at a moment.

    `counted` says whether all tables of captures are counted. `more` says whether changefeeds are
    left out.
    """

    name: str
    feeds: list[FeedRow]
    captures: list[CaptureRow]
    counted: bool
    more: bool


@dataclass(frozen=True, slots=True)
class Clusters:
    """A page of clusters, by name. The next one begins at `start`, None at the end."""

    rows: list[Cluster]
    start: str | None


@dataclass(frozen=True, slots=True)
class TableRow:
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
class Feed:
    """A changefeed, a page of its tables, and how many tables each capture has.

    `writer` is the process that wrote the newest checkpoint: that of the owner of then. The next
    page begins with the table number `start`, None at the end.
    """

    feed: FeedRow
    writer: str | None
    tables: list[TableRow]
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
) -> Clusters:
    """Return the clusters of a store at a moment, from a name on; as `cluster_at` for each.

    `time` is the timestamp of the moment.
    """
    found = space_names(store, records.space_of(""), start, when)
    names = list(islice(found, limit + 1))
    rows = [cluster_at(store, name, when, time=time) for name in names[:limit]]
    return Clusters(rows, names[limit] if len(names) > limit else None)


def cluster_at(store: SnapshotKV, name: str, when: When | None = None, *, time: int) -> Cluster:
    """Return a cluster at a moment, of which `time` is the timestamp.

    A few listings, three round trips for each changefeed, and one page for each thousand tables.
    """
    feeds = Changefeeds(store, name)
    reports, alive = feeds.reports(as_of=when), _alive(feeds, when)
    found = feeds.list(as_of=when)
    counts: Counter[str] = Counter()
    left = PLACES_MAX
    for feed in found:
        own, read = _counts(feeds, feed.id, when, left)
        counts += own
        left -= read
    rows = []
    for feed in found[:FEEDS_MAX]:
        no_capture = has_no_capture(feeds, feed, alive)
        problems = Problems.of(reports, feed.id, no_capture=no_capture)
        rows.append(_feed_row(store, feeds, feed, problems, when, time))
    captures = _captures(store, feeds, counts, reports, alive)
    return Cluster(name, rows, captures, left > 0, len(found) > FEEDS_MAX)


def feed_at(
    store: SnapshotKV,
    cluster: str,
    id: str,
    when: When | None = None,
    *,
    time: int,
    start: int = 0,
    limit: int = TABLES_MAX,
) -> Feed:
    """Return a changefeed at a moment, with a page of its tables from a number on.

    A few round trips, and a page for each thousand tables. Raises `ChangefeedNotFoundError`.
    """
    feeds = Changefeeds(store, cluster)
    feed, reports = feeds.get(id, as_of=when), feeds.reports(as_of=when)
    names = feed.tables()
    shown = names[start : start + limit]
    places = [
        each or Placement(table, None, NOT_PLACED)
        for table, each in zip(shown, feeds.places_of(id, shown, as_of=when), strict=True)
    ]
    alive = _alive(feeds, when)
    counts, read = _counts(feeds, id, when, PLACES_MAX)
    no_capture = has_no_capture(feeds, feed, alive)
    seen = Seen(feed, counts, reports, alive, no_capture=no_capture)
    problems = Problems.of(reports, id, no_capture=no_capture)
    return Feed(
        _feed_row(store, feeds, feed, problems, when, time),
        _writer(store, cluster, id, when),
        [_table_row(place, seen) for place in places],
        len(names),
        start + limit if start + limit < len(names) else None,
        sorted(counts.items(), key=lambda each: (-each[1], each[0])),
        read < PLACES_MAX,
        seen.captures,
    )


# --- helpers ---


def _alive(feeds: Changefeeds, when: When | None) -> dict[str, Registration] | None:
    """Return the registered captures; None for the past, of which they are not known."""
    return feeds.captures() if when is None else None


def _feed_row(
    store: SnapshotKV,
    feeds: Changefeeds,
    feed: Changefeed,
    problems: Problems,
    when: When | None,
    time: int,
) -> FeedRow:
    marks = feeds.checkpoint(feed.id, as_of=when)
    checkpoint, resolved = (each if each > 1 else None for each in marks[:2])
    return FeedRow(
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
    registered = {} if alive is None else alive
    leader = None if alive is None else _leader(store, feeds.cluster)
    rows = []
    for name in sorted({*registered, *counts, *reports}):
        said = registered.get(name)
        found = reports.get(name, {}).items()
        rows.append(
            CaptureRow(
                name,
                said.label if said else name.rpartition("-")[0],
                counts.get(name, 0),
                None if alive is None else name in registered,
                None if alive is None else name == leader,
                said.address if said else None,
                [f"{id}: {report.error}" for id, report in found if report.error],
            )
        )
    return rows


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


def _table_row(place: Placement, seen: Seen) -> TableRow:
    rate = seen.rates.get(place.table)
    return TableRow(
        place.table,
        place.capture,
        place.why,
        place.ts or None,
        rate.rows if rate else 0.0,
        rate.bytes if rate else 0.0,
        seen.late.get(place.table),
        seen.problem(place) or None,
    )
