"""The command changefeed: create changefeeds, look at them, and move their tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from cdcmeta.cli.server_commands import (
    CLUSTER,
    ClusterOption,
    JsonOption,
    NameOption,
    open_served_store,
    time_meant,
)
from snapkv import format_time
from snapkv.base.waiting import pause
from snapkv.cli.command_kit import STORE_VARIABLE, App, argument, grouped, json_line, option

if TYPE_CHECKING:
    from cdcmeta.scheduler.runtime import Changefeeds

changefeed = App(help="Changefeeds: what captures replicate.", no_args_is_help=True)

LOOK_S = 1.0
PIPE_WIDTH = 10_000
"""More columns than a table has."""

StoreOption = Annotated[
    str, option("--store URL", "The store that captures share.", envvar=STORE_VARIABLE)
]
Id = Annotated[str, argument("ID", "The changefeed.")]
AtOption = Annotated[str | None, option("--at TIME", "As it was at a time, such as -1h.")]
TableOption = Annotated[
    str, argument("TABLE", "A prefix (* is the whole store), a database, or LOG:0/RANGES.")
]
CaptureOption = Annotated[str, argument("CAPTURE", "Its label or its name.")]
SINK_HELP = (
    "A store (lmdb:DIR, etcd://HOST:PORT); JSON lines (jsonl:DIR); a function (call:NAME); CouchDB "
    "(couch+http://HOST:PORT/DB, couch+https://...; * is the name of a database); records with the "
    "source's times (record+lmdb:DIR, record+etcd://HOST:PORT, record+archive:PLACE)."
)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of commands on the changefeeds of a cluster, in the order of the help."""

    store: StoreOption
    name: NameOption = "default"
    cluster: ClusterOption = CLUSTER
    at: AtOption = None
    watch: Annotated[bool, option("--watch", "Show it anew each second.")] = False
    as_json: JsonOption = False

    @contextmanager
    def open_changefeeds(self, *, create: bool = False) -> Iterator[Changefeeds]:
        """Open the store, and yield its changefeeds."""
        from cdcmeta.scheduler.runtime import Changefeeds

        with open_served_store(self.store, self.name, create=create) as kv:
            yield Changefeeds(kv, self.cluster)


def on_cluster(*more: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator that adds --store, --name and --cluster, and more `ClusterOptions`."""
    return grouped(ClusterOptions, "options", {"store", "name", "cluster", *more})


@changefeed.command()
def create(
    id: Id,
    store: StoreOption,
    source: Annotated[str, option("--source URL", "The store to replicate.")],
    sink: Annotated[str, option("--sink SINK", SINK_HELP)],
    prefix: Annotated[
        list[str] | None,
        option("--prefix", "The keys of a table; once for each table. Everything, by default."),
    ] = None,
    database: Annotated[
        list[str] | None, option("--database NAME", "A changes database as a table; once for each.")
    ] = None,
    log: Annotated[
        str | None, option("--log NAME", "A CDC log, in equal ranges of its tokens.")
    ] = None,
    ranges: Annotated[
        int | None, option("--ranges", "How many tables a log becomes; one, by default.")
    ] = None,
    start: Annotated[
        str | None, option("--start TIME", "Replicate the changes since a time, without the state.")
    ] = None,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
    source_name: Annotated[
        str, option("--source-name", "The name of the source's store.")
    ] = "default",
    sink_name: Annotated[str, option("--sink-name", "The name of the sink's store.")] = "default",
) -> None:
    """Replicate a store into a sink: its content as it is now, and then each change."""
    from cdcmeta.scheduler.runtime.stores_and_sinks import (
        absolute,
        check_sink,
        check_source,
        check_tables,
    )

    if log is None and ranges is not None:
        raise typer.BadParameter("--ranges divides a log: give --log NAME, too")
    check_source(source)
    check_sink(sink, database or ())  # as typed: a path that is made absolute is always valid
    with open_served_store(source, source_name, create=False) as read:
        check_tables(read, database or (), log)
        since = read.resolved() if start is None else read.timestamp_of(time_meant(start))
    options = ClusterOptions(store, name, cluster)
    with options.open_changefeeds(create=True) as feeds:  # not before the source is known
        feed = feeds.create(
            id,
            absolute(source),
            absolute(sink),
            prefix,
            start=since,
            with_state=start is None,
            databases=database or (),
            log=log,
            ranges=0 if log is None else 1 if ranges is None else ranges,
            source_name=source_name,
            sink_name=sink_name,
        )
        begin = format_time(feed.start) if feed.start else "the first commit"
        typer.echo(f"{feed.id} runs from {begin} on")


@changefeed.command("list")
@on_cluster("at", "as_json")
def list_(options: ClusterOptions) -> None:
    """Show all changefeeds."""
    from cdcmeta.cli.changefeed_status import row_json, row_of, table_of
    from cdcmeta.scheduler.runtime.changefeeds import Problems, has_no_capture

    with options.open_changefeeds() as feeds:
        when = None if options.at is None else time_meant(options.at)
        found = feeds.list(as_of=when)
        rows = [row_of(feeds, feed, when) for feed in found]
        if when is None:  # captures report what is wrong now
            reports, alive = feeds.reports(), feeds.captures()
            for row, feed in zip(rows, found, strict=True):
                no_capture = has_no_capture(feeds, feed, alive)
                row["problems"] = Problems.of(reports, feed.id, no_capture=no_capture)
    if options.as_json:
        for row in rows:
            if options.at is None:
                row["problems"] = sum(row["problems"])
            typer.echo(json_line(row_json(row)))
        return
    columns = ["id", "state", "tables", "checkpoint", "source", "sink"]
    if options.at is None:
        columns.insert(3, "problems")
    _console().print(table_of(columns, [[str(row[each]) for each in columns] for row in rows]))


def _console() -> Console:
    """Return the console of the output, which wraps no lines in a pipe."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)


@changefeed.command()
@on_cluster("at", "watch", "as_json")
def status(options: ClusterOptions, id: Id) -> None:
    """Show how far a changefeed is, which capture has which table, and what is wrong."""
    from cdcmeta.cli.changefeed_status import status_lines, status_of

    with options.open_changefeeds() as feeds:
        when = None if options.at is None else time_meant(options.at)
        if options.as_json:
            while True:
                for line in status_lines(feeds, id, when):
                    typer.echo(json_line(line))
                if not options.watch:
                    return
                pause(LOOK_S)
        elif options.watch:
            with Live(status_of(feeds, id, when), auto_refresh=False) as live:
                while True:
                    pause(LOOK_S)
                    live.update(status_of(feeds, id, when), refresh=True)
        else:
            _console().print(status_of(feeds, id, when))


@changefeed.command()
@on_cluster("as_json")
def history(options: ClusterOptions, id: Id, table: TableOption) -> None:
    """Show which captures had a table, and why it moved."""
    from cdcmeta.cli.changefeed_status import place_json, time_of
    from cdcmeta.scheduler.runtime.changefeeds import check_table

    with options.open_changefeeds() as feeds:
        feed, places = feeds.get(id), list(feeds.history(id, table))
        if not places:  # a table that was taken out has a history
            check_table(feed, table)
        for each in places:
            if options.as_json:
                typer.echo(json_line(place_json(each)))
            else:
                typer.echo(f"{time_of(each.ts)}  {each.capture or '-'}  {each.why}")


@changefeed.command("pause")
@on_cluster()
def pause_(options: ClusterOptions, id: Id) -> None:
    """Stop its tables; the checkpoint stays."""
    with options.open_changefeeds() as feeds:
        feeds.pause(id)


@changefeed.command()
@on_cluster()
def resume(options: ClusterOptions, id: Id) -> None:
    """Run it again, from its checkpoint."""
    with options.open_changefeeds() as feeds:
        feeds.resume(id)


@changefeed.command()
def update(
    id: Id,
    store: StoreOption,
    prefix: Annotated[
        list[str] | None, option("--prefix", "The keys of a table; once for each table.")
    ] = None,
    database: Annotated[
        list[str] | None, option("--database NAME", "A changes database; once for each.")
    ] = None,
    sink: Annotated[str | None, option("--sink SINK", SINK_HELP)] = None,
    name: NameOption = "default",
    cluster: ClusterOption = CLUSTER,
) -> None:
    """Change the tables or the sink; new tables begin where they stopped, at the start, or anew."""
    from cdcmeta.scheduler.runtime.stores_and_sinks import absolute, check_sink

    values: dict[str, Any] = {}
    if prefix:
        values["prefixes"] = prefix
    if database:
        values["databases"] = database
    if not values and sink is None:
        raise typer.BadParameter("give what is to change: --sink, --prefix or --database")
    with ClusterOptions(store, name, cluster).open_changefeeds() as feeds:
        if sink is not None:
            check_sink(sink, database or feeds.get(id).databases)  # as typed, as in create
            values["sink"] = absolute(sink)
        feeds.update(id, **values)


@changefeed.command()
@on_cluster()
def remove(options: ClusterOptions, id: Id) -> None:
    """Remove it; the sink keeps what it has."""
    with options.open_changefeeds() as feeds:
        feeds.remove(id)


@changefeed.command("move-table")
@on_cluster()
def movetable_of(
    options: ClusterOptions, id: Id, table: TableOption, capture: CaptureOption
) -> None:
    """Ask for a table to be moved to a capture."""
    with options.open_changefeeds() as feeds:
        feeds.move(id, table, capture)


@changefeed.command()
@on_cluster()
def drain(options: ClusterOptions, capture: CaptureOption) -> None:
    """Ask for all tables of a capture to be moved away; it gets none until it restarts."""
    with options.open_changefeeds() as feeds:
        feeds.drain(capture)


@changefeed.command()
@on_cluster()
def rebalance(options: ClusterOptions, id: Id) -> None:
    """Ask for the tables to be spread evenly."""
    with options.open_changefeeds() as feeds:
        feeds.rebalance(id)


@changefeed.command()
@on_cluster("as_json")
def captures(options: ClusterOptions) -> None:
    """Show the registered captures."""
    from cdcmeta.cli.changefeed_status import table_of

    with options.open_changefeeds() as feeds:
        found, reports = feeds.captures(), feeds.reports()
    rows = []
    for each, said in found.items():
        tables = sum(report.tables for report in reports.get(each, {}).values())
        rows.append([each, said.label, said.address, tables])
    columns = ("name", "label", "address", "tables")
    if options.as_json:
        for row in rows:
            typer.echo(json_line(dict(zip(columns, row, strict=True))))
        return
    _console().print(table_of(columns, [[*map(str, row)] for row in rows]))
