"""The views that cdcmeta adds to the page, each only where a store holds what it shows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from cdcmeta.changes.database import ChangesDB, databases
from snapkv.times import format_time
from snapkv.ui.contributed import Asked, Cell, ExtraView, Link, Section, Table, Time

CHANGES_MAX = 200
DATABASES_MAX = 200
DATABASES, GENERATIONS, CHANGEFEEDS = "changes/", "generations/", "scheduler/"
"""The beginnings of the names of the spaces that hold them."""


def views() -> list[ExtraView]:
    """Return the views of this package; that of generations needs the extra `generations`."""
    found = [ExtraView("databases", "Databases", _holds(DATABASES), database_sections)]
    if importlib.util.find_spec("numpy") is not None:
        from cdcmeta.ui.generations import generation_sections

        found.append(
            ExtraView("generations", "Generations", _holds(GENERATIONS), generation_sections)
        )
    return [
        *found,
        ExtraView("changefeeds", "Changefeeds", _holds(CHANGEFEEDS), changefeed_sections),
    ]


def _holds(beginning: str) -> Callable[[Sequence[str]], bool]:
    return lambda spaces: any(each.startswith(beginning) for each in spaces)


# --- databases ---


def database_sections(asked: Asked) -> Sequence[Section]:
    """Return the databases at the moment, and the newest changes of the one that is named."""
    names = databases(asked.store, as_of=asked.at)
    rows: list[list[Cell]] = []
    for name in names[:DATABASES_MAX]:
        info = ChangesDB(asked.store, name).info(as_of=asked.at)
        rows.append([Link(name, {"db": name}), info.doc_count, info.deleted_count, info.uuid])
    listed = Table("Databases", ("Name", "Documents", "Deleted", "UUID"), rows)
    chosen = asked.fields.get("db")
    if chosen not in names:
        return [listed]
    page = ChangesDB(asked.store, chosen).changes(
        limit=CHANGES_MAX, descending=True, as_of=asked.at
    )
    changes: list[list[Cell]] = [
        [str(each.seq), each.id, each.rev, "deleted" if each.deleted else ""] for each in page.rows
    ]
    title = f"The newest changes of {chosen}"
    return [listed, Table(title, ("Sequence", "Document", "Revision", ""), changes)]


# --- changefeeds ---


def changefeed_sections(asked: Asked) -> Sequence[Section]:
    """Return the changefeeds of each cluster at the moment, and which capture has each table."""
    from cdcmeta.scheduler.runtime import Changefeeds

    clusters = [
        each.removeprefix(CHANGEFEEDS) for each in asked.spaces if each.startswith(CHANGEFEEDS)
    ]
    feeds_rows: list[list[Cell]] = []
    places_rows: list[list[Cell]] = []
    for cluster in clusters:
        feeds = Changefeeds(asked.store, cluster)
        for feed in feeds.list(as_of=asked.at):
            checkpoint = feeds.checkpoint(feed.id, as_of=asked.at).checkpoint
            feeds_rows.append(
                [
                    *(Link(feed.id, {"feed": feed.id}), cluster, feed.state),
                    *(feed.source, feed.sink, len(feed.tables()), format_time(checkpoint)),
                ]
            )
            if asked.fields.get("feed") in (None, feed.id):
                places = feeds.places(feed.id, as_of=asked.at)
                places_rows += [
                    [feed.id, each.table, each.capture or "none", each.why] for each in places
                ]
    columns = ("Changefeed", "Cluster", "State", "Source", "Sink", "Tables", "Checkpoint")
    return [
        Table("Changefeeds", columns, feeds_rows),
        Table(
            "Which capture replicates what",
            ("Changefeed", "Table", "Capture", "Why"),
            places_rows[:CHANGES_MAX],
            "No table was placed at this moment.",
        ),
        *_history(asked, clusters),
    ]


def _history(asked: Asked, clusters: Sequence[str]) -> list[Section]:
    """Return the placements of one changefeed over time, if one is named."""
    from cdcmeta.scheduler.runtime import Changefeeds

    named = asked.fields.get("feed")
    rows: list[list[Cell]] = []
    for cluster in clusters if named else ():
        feeds = Changefeeds(asked.store, cluster)
        for each in feeds.places(named or "", as_of=asked.at)[:20]:
            for placed in list(feeds.history(named or "", each.table))[-20:]:
                when: Cell = Time(placed.ts) if placed.ts else "before compaction"
                rows.append([when, placed.table, placed.capture or "none", placed.why])
    if not rows:
        return []
    rows.sort(key=lambda row: row[0].timestamp if isinstance(row[0], Time) else 0, reverse=True)
    title = f"Placements of {named} over time"
    return [Table(title, ("When", "Table", "Capture", "Why"), rows[:CHANGES_MAX])]
