"""The command changefeed: create changefeeds, look at them, and move their tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import snapkv
from cdcmeta.cli.capturing import CLUSTER, ClusterOption, NameOption
from snapkv import SnapshotKV, format_time
from snapkv.cli.commands import App, patience
from snapkv.cli.typed_times import understood
from snapkv.clock import SystemClock, pause

if TYPE_CHECKING:
    from cdcmeta.scheduler.runtime import Changefeed, Changefeeds, Placement

changefeed = App(help="Changefeeds: what captures replicate.", no_args_is_help=True)

LOOK_S = 1.0

StoreOption = Annotated[
    str,
    typer.Option(metavar="URL", envvar="SNAPKV_STORE", help="The store that captures share."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The changefeed.")]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="As it was at a time, such as -1h.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on each line.")]
TableOption = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="A prefix (* is the whole store), a database, or LOG:0/RANGES."
    ),
]
CaptureOption = Annotated[str, typer.Argument(metavar="CAPTURE", help="Its label or its name.")]


@changefeed.command()
def create(
    id: Id,
    store: StoreOption,
    source: Annotated[str, typer.Option(metavar="URL", help="The store to replicate.")],
    sink: Annotated[
        str,
        typer.Option(metavar="SINK", help="jsonl:DIRECTORY, call:NAME, or the URL of a store."),
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(help="The keys of a table; once for each table. Everything, by default."),
    ] = None,
    database: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A changes database as a table; once for each."),
    ] = None,
    log: Annotated[
        str | None, typer.Option(metavar="NAME", help="A CDC log, in equal ranges of its tokens.")
    ] = None,
    ranges: Annotated[int, typer.Option(help="How many tables a log becomes.")] = 1,
    start: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Replicate the changes since a time, without the state."),
    ] = None,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    source_name: Annotated[str, typer.Option(help="The name of the source's store.")] = "default",
    sink_name: Annotated[str, typer.Option(help="The name of the sink's store.")] = "default",
) -> None:
    """Replicate a store into a sink: its content as it is now, and then each change."""
    from cdcmeta.scheduler.runtime.opening import absolute, check_tables

    with _opened(store, name, cluster, create=True) as feeds:
        with patience(source, "cdcmeta"):
            read = snapkv.open(source, name=source_name, create=False)
        with read:
            check_tables(read, database or (), log)
            since = read.resolved() if start is None else read.timestamp_of(_understood(start))
        feed = feeds.create(
            id,
            absolute(source),
            absolute(sink),
            prefix,
            start=since,
            with_state=start is None,
            databases=database or (),
            log=log,
            ranges=ranges if log is not None else 0,
            source_name=source_name,
            sink_name=sink_name,
        )
        typer.echo(f"{feed.id} runs from {format_time(feed.start)} on")


@changefeed.command("list")
def list_(
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    at: AtOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all changefeeds."""
    with _opened(store, name, cluster) as feeds:
        when = None if at is None else _understood(at)
        rows = [_row(feeds, feed, when) for feed in feeds.list(as_of=when)]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    columns = ("id", "state", "tables", "checkpoint", "source", "sink")
    Console().print(_table(columns, [[row[each] for each in columns] for row in rows]))


@changefeed.command()
def status(
    id: Id,
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    at: AtOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew each second.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how far a changefeed is, which capture has which table, and what is wrong."""
    with _opened(store, name, cluster) as feeds:
        when = None if at is None else _understood(at)
        if as_json:
            for line in _status_lines(feeds, id, when):
                typer.echo(json.dumps(line))
        elif watch:
            with Live(_status(feeds, id, when), auto_refresh=False) as live:
                while True:
                    pause(LOOK_S)
                    live.update(_status(feeds, id, when), refresh=True)
        else:
            Console().print(_status(feeds, id, when))


@changefeed.command()
def history(
    id: Id,
    table: TableOption,
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show which captures had a table, and why it moved."""
    with _opened(store, name, cluster) as feeds:
        feeds.get(id)
        for each in feeds.history(id, table):
            if as_json:
                typer.echo(json.dumps(each._asdict() | {"time": _time(each.ts)}))
            else:
                typer.echo(f"{_time(each.ts)}  {each.capture or '-'}  {each.why}")


@changefeed.command("pause")
def pause_(
    id: Id, store: StoreOption, name: NameOption = "default", cluster: ClusterOption = CLUSTER
) -> None:
    """Stop its tables; the checkpoint stays."""
    with _opened(store, name, cluster) as feeds:
        feeds.pause(id)


@changefeed.command()
def resume(
    id: Id, store: StoreOption, name: NameOption = "default", cluster: ClusterOption = CLUSTER
) -> None:
    """Run it again, from its checkpoint."""
    with _opened(store, name, cluster) as feeds:
        feeds.resume(id)


@changefeed.command()
def update(
    id: Id,
    store: StoreOption,
    prefix: Annotated[
        list[str] | None, typer.Option(help="The keys of a table; once for each table.")
    ] = None,
    database: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A changes database; once for each.")
    ] = None,
    sink: Annotated[str | None, typer.Option(metavar="SINK", help="The new sink.")] = None,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
) -> None:
    """Change the tables or the sink; it goes on from its checkpoint."""
    from cdcmeta.scheduler.runtime.opening import absolute

    values: dict[str, Any] = {}
    if prefix:
        values["prefixes"] = prefix
    if database:
        values["databases"] = database
    if sink is not None:
        values["sink"] = absolute(sink)
    with _opened(store, name, cluster) as feeds:
        feeds.update(id, **values)


@changefeed.command()
def remove(
    id: Id, store: StoreOption, name: NameOption = "default", cluster: ClusterOption = CLUSTER
) -> None:
    """Remove it; the sink keeps what it has."""
    with _opened(store, name, cluster) as feeds:
        feeds.remove(id)


@changefeed.command("move-table")
def move_table(
    id: Id,
    table: TableOption,
    capture: CaptureOption,
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
) -> None:
    """Ask for a table to be moved to a capture."""
    with _opened(store, name, cluster) as feeds:
        feeds.move(id, table, capture)


@changefeed.command()
def drain(
    capture: CaptureOption,
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
) -> None:
    """Ask for all tables of a capture to be moved away; it gets none until it restarts."""
    with _opened(store, name, cluster) as feeds:
        feeds.drain(capture)


@changefeed.command()
def rebalance(
    id: Id, store: StoreOption, name: NameOption = "default", cluster: ClusterOption = CLUSTER
) -> None:
    """Ask for the tables to be spread evenly."""
    with _opened(store, name, cluster) as feeds:
        feeds.rebalance(id)


@changefeed.command()
def captures(
    store: StoreOption,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show the registered captures."""
    with _opened(store, name, cluster) as feeds:
        found, reports = feeds.captures(), feeds.reports()
    rows = []
    for each, said in found.items():
        report = reports.get(each, {}).get("feeds", {})
        tables = sum(feed["tables"] for feed in report.values())
        rows.append([each, said.label, said.address, str(tables)])
    if as_json:
        for row in rows:
            typer.echo(
                json.dumps(dict(zip(("name", "label", "address", "tables"), row, strict=True)))
            )
        return
    Console().print(_table(("name", "label", "address", "tables"), rows))


# --- helpers ---


@contextmanager
def _opened(store: str, name: str, cluster: str, *, create: bool = False) -> Iterator[Changefeeds]:
    from cdcmeta.scheduler.runtime import Changefeeds

    with patience(store, "cdcmeta"):
        kv: SnapshotKV = snapkv.open(store, name=name, create=create)
    with kv:
        yield Changefeeds(kv, cluster)


def _understood(time: str) -> Any:
    now_ms = SystemClock().now_ms()
    typed = understood(time, now_ms)
    if echo := typed.echo(typed.state, now_ms):
        typer.echo(f"cdcmeta: {echo}", err=True)
    return "-0s" if typed.state is None else typed.state


def _time(timestamp: int) -> str:
    return format_time(timestamp) if timestamp else "-"


def _row(feeds: Changefeeds, feed: Changefeed, when: Any) -> dict[str, Any]:
    checkpoint = feeds.checkpoint(feed.id, as_of=when).checkpoint
    return {
        "id": feed.id,
        "state": feed.state,
        "tables": str(len(feed.tables())),
        "checkpoint": _time(checkpoint),
        "timestamp": checkpoint,
        "source": feed.source,
        "sink": feed.sink,
        "error": feed.error,
    }


def _problems(feeds: Changefeeds, id: str, when: Any) -> tuple[dict[str, str], list[str]]:
    """Return what is wrong with tables, and with captures."""
    tables, captures = dict[str, str](), list[str]()
    for capture, report in feeds.reports().items() if when is None else ():
        found = report.get("feeds", {}).get(id)
        if found is not None:
            tables |= found["problems"]
            if found["error"]:
                captures.append(f"{capture}: {found['error']}")
    return tables, captures


def _status_lines(feeds: Changefeeds, id: str, when: Any) -> Iterator[dict[str, Any]]:
    feed = feeds.get(id, as_of=when)
    tables, captures = _problems(feeds, id, when)
    yield _row(feeds, feed, when) | {"problems": captures}
    for place in _places(feeds, feed, when):
        yield {
            "table": place.table,
            "capture": place.capture,
            "why": place.why,
            "problem": tables.get(place.table),
        }


def _places(feeds: Changefeeds, feed: Changefeed, when: Any) -> list[Placement]:
    from cdcmeta.scheduler.runtime import Placement

    known = {each.table: each for each in feeds.places(feed.id, as_of=when)}
    return [known.get(table, Placement(table, None, "not placed yet")) for table in feed.tables()]


def _status(feeds: Changefeeds, id: str, when: Any) -> Group:
    feed = feeds.get(id, as_of=when)
    tables, captures = _problems(feeds, id, when)
    row = _row(feeds, feed, when)
    head = f"{feed.id}  {feed.state}  up to {row['checkpoint']}  {feed.source} -> {feed.sink}"
    rows = [
        [place.table, place.capture or "-", place.why, tables.get(place.table, "")]
        for place in _places(feeds, feed, when)
    ]
    lines = [Text(head), *(Text(each, style="bold red") for each in captures)]
    return Group(*lines, _table(("table", "capture", "why", "problem"), rows))


def _table(columns: tuple[str, ...], rows: list[list[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(each) for each in row))
    return table
