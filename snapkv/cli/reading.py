"""The commands that read: get, ls, log, history, diff, watch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby, islice
from typing import Annotated

import typer

from snapkv.cli.exits import Exit
from snapkv.cli.formats import (
    change_json,
    commit_json,
    entry_json,
    key_text,
    preview,
    text_of,
    time_json,
    version_json,
    written_change_json,
)
from snapkv.cli.options import (
    AtOption,
    CountOption,
    OldestFirst,
    SinceOption,
    StoreOptions,
    UntilOption,
    moment,
    seconds,
    settled,
    settled_span,
    since,
    takes,
)
from snapkv.cli.output import COMMIT_HEADINGS, DIFFERENCE_HEADINGS, Output, who_and_why
from snapkv.cli.terminal import Part, tell, write_line
from snapkv.errors import KeyNotFoundError
from snapkv.model import Changes, Commit, Version
from snapkv.observing.observe import Observed
from snapkv.reading.history import bounds as history_bounds
from snapkv.store.store import SnapshotKV
from snapkv.times import When

SHOWN_CHARS_MAX = 2_000
"""How many characters of a binary value `get` shows on a terminal."""
NUMBER_WIDTH = 8
"""Characters of a revision and of a size in `ls --long`."""

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", show_default=False)]
PrefixArgument = Annotated[
    str, typer.Argument(metavar="PREFIX", help="Exact to the byte.", show_default=False)
]
PrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="PREFIX", help="Only keys that begin so.")
]


@takes("observe", "archive", "timeout")
def get(options: StoreOptions, key: KeyArgument, at: AtOption = None) -> None:
    """Print the value of a key, now or at a time.

    Into a pipe or a file: the exact bytes, nothing added.
    """
    when = moment(at)
    with options.readable() as kv:
        when = settled(kv, when)
        if options.output.format != "text":
            snapshot = kv.at(when)
            fields = entry_json(key, snapshot.entry(key))
            fields["at"] = {**time_json(snapshot.timestamp), "final": snapshot.final}
            options.output.record(fields)
        else:
            _write_value(kv.load(key, when))


def _write_value(value: bytes) -> None:
    if not sys.stdout.isatty():
        sys.stdout.flush()
        sys.stdout.buffer.write(value)
        sys.stdout.buffer.flush()
        return
    text = text_of(value)
    if text is None:
        write_line([preview(value, SHOWN_CHARS_MAX)])
        tell(f"({len(value):,} bytes that do not print; into a pipe or file they go as they are)")
    else:
        write_line([text.removesuffix("\n")])


@takes("observe", "archive", "timeout", "no_pager")
def ls(
    options: StoreOptions,
    prefix: PrefixArgument = "",
    at: AtOption = None,
    long: Annotated[
        bool, typer.Option("-l", "--long", help="With revision, size and value.")
    ] = False,
) -> None:
    """List keys, now or at a time, in order."""
    when = moment(at)
    headings = ("REVISION", "SIZE", "KEY", "VALUE") if long else ("KEY",)
    with options.long_output(*headings) as out, options.readable() as kv:
        snapshot = kv.at(settled(kv, when))
        if not long:
            for key in snapshot.keys(prefix or None):
                out.record({"key": key}, key_text(key))
            return
        width = 0 if out.format == "table" else NUMBER_WIDTH
        for key, entry in snapshot.entries(prefix or None):
            out.record(
                entry_json(key, entry),
                (f"{entry.revision:>{width}}", "cyan"),
                f"{len(entry.value):>{width}}",
                key_text(key),
                preview(entry.value),
            )


@takes("observe", "archive", "timeout", "no_pager", "raw")
def history(
    options: StoreOptions,
    key: KeyArgument,
    since_: SinceOption = None,
    until: UntilOption = None,
    count: CountOption = None,
    oldest_first: OldestFirst = False,
) -> None:
    """Print the versions of a key, newest first: time, revision, value, writer, note, meta."""
    after, up_to = since(since_), moment(until)
    with options.long_output("TIME", "REVISION", "VALUE", "WRITER", "NOTE", "META") as out:
        with options.readable() as kv:
            within = _span(kv, *settled_span(kv, since_, after, up_to))
            versions = list(kv.history(key))
        if not versions:
            raise KeyNotFoundError(key)
        wanted = [version for version in versions if within(version.ts)]
        for version in wanted[:count] if oldest_first else wanted[::-1][:count]:
            out.record(version_json(version), *_version_columns(out, version))


def _span(
    kv: SnapshotKV | Observed[str], since: When | None, until: When | None
) -> Callable[[int | None], bool]:
    """Return whether a time is after `since` and not after `until`; raise if that was compacted.

    An unknown time is before the history that compaction left.
    """
    if since is None and until is None:
        return lambda ts: True
    history_bounds(kv.reader, since, until)
    low = None if since is None else kv.timestamp_of(since)
    high = None if until is None else kv.timestamp_of(until)

    def within(ts: int | None) -> bool:
        if ts is None:
            return low is None
        return (low is None or ts > low) and (high is None or ts <= high)

    return within


def _version_columns(out: Output, version: Version) -> tuple[Part | None, ...]:
    value: Part = ("removed", "red") if version.value is None else preview(version.value)
    when_and_where = out.time(version.ts), str(version.revision), value
    if version.ts is None:
        return when_and_where
    commit = Commit(
        version.ts, 0, version.revision, version.writer, version.note, meta=version.meta
    )
    return (*when_and_where, *who_and_why(commit))


@takes("observe", "archive", "timeout", "no_pager")
def diff(
    options: StoreOptions,
    a: Annotated[str, typer.Argument(metavar="A", help="A time.", show_default=False)],
    b: Annotated[
        str, typer.Argument(metavar="B", help="A time; else now.", show_default=False)
    ] = "now",
    prefix: PrefixOption = "",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with 1 when there are differences.")
    ] = False,
) -> None:
    """Print what differs between two times: + added, - removed, ~ changed."""
    before, after, differs = moment(a), moment(b), False
    with options.long_output(*DIFFERENCE_HEADINGS) as out, options.readable() as kv:
        before, after = settled(kv, before), settled(kv, after)
        for difference in kv.diff(before, after, prefix or None):
            differs = True
            out.difference(difference)
    if exit_code and differs:
        raise typer.Exit(Exit.NO)


@takes("observe", "archive", "raw")
def watch(
    options: StoreOptions,
    prefix: PrefixArgument = "",
    since_: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Begin after this time; else after now."),
    ] = None,
    count: CountOption = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="DURATION", help="End when nothing came for so long."),
    ] = None,
) -> None:
    """Print commits and their changes as they happen, until Ctrl-C.

    With --observe, all writes that a tick stamps come at once, each with its own revision. Only
    commits of the ticking store have a writer.
    """
    after, out = since(since_), options.output.headed(*COMMIT_HEADINGS, "", "KEY", "VALUE")
    with (
        options.readable() as kv,
        kv.watch(prefix or None, settled(kv, after), timeout=seconds(timeout)) as changes,
    ):
        for found in islice(changes, count):
            _write_changes(out, found, each_written=options.observe is not None)


def _write_changes(out: Output, found: Changes[str], *, each_written: bool) -> None:
    """Write a document of JSON, or for people each commit with its lines.

    With `each_written` each change in JSON has its own revision, writer, note and meta.
    """
    if out.structured:
        form = written_change_json if each_written else change_json
        out.record({**commit_json(found.commit), "changes": [form(c) for c in found.changes]})
        sys.stdout.flush()
        return
    in_order = sorted(found.changes, key=lambda change: change.commit.revision)
    for commit, changes in groupby(in_order, key=lambda change: change.commit):
        in_front = out.commit_columns(commit)
        if out.format == "text":
            out.record({}, *in_front)
        for change in changes:
            key = key_text(change.key)
            sign, style = ("-", "red") if change.value is None else ("=", "green")
            value = None if change.value is None else preview(change.value)
            line: list[Part] = [(f"  {sign} {key}", style), "" if value is None else f"  {value}"]
            out.record({}, *in_front, (sign, style), key, value, line=line)
    sys.stdout.flush()
