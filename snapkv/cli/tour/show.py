"""The steps of the tour, in order."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from snapkv.cli.exits import Exit
from snapkv.cli.formats import counted
from snapkv.cli.terminal import tell, tell_error
from snapkv.cli.tour import archived, filling, place, sparked
from snapkv.cli.tour.answers import Examiner, Report, TreeAnswer
from snapkv.cli.tour.errors import TourError
from snapkv.cli.tour.filling import Imported, Timeline, shown_oid
from snapkv.cli.tour.git import Clone
from snapkv.cli.tour.moments import Moment
from snapkv.cli.tour.printing import (
    PipeConsole,
    duration_text,
    path_text,
    plain_table,
    progress,
    say,
    say_all_equal,
    say_mismatches,
    section,
    size_text,
    verdict_text,
)
from snapkv.model import Entry
from snapkv.times import format_time

PLAIN_WIDTH = 100
"""Columns of a line without a terminal."""
NAMES_SHOWN = 3
SPARK_STEPS = 3
"""To start it, and two questions."""


def _store_given(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Take `--store` from before the command too, but never a store of the environment.

    `SNAPKV_STORE` names a store in use, not a place for the tour.
    """
    if value or ctx.parent is None:
        return value
    source = ctx.parent.get_parameter_source("store")
    given = source is not None and source.name == "COMMANDLINE"
    return ctx.parent.params.get("store") if given else None


def tour(
    path: Annotated[
        str,
        typer.Argument(
            metavar="[PATH]", help="A git clone; else the one of the current directory."
        ),
    ] = ".",
    store: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            callback=_store_given,
            help="Where the store goes, or etcd://HOST:PORT; else .tour in the clone when git "
            "ignores that, else snapkv-tour inside its git directory.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Remove what an earlier tour stored, begin anew.")
    ] = False,
    request_bytes_max: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            min=1,
            help="The largest commit that is taken; else 64 MiB, in etcd 1.5 MiB.",
        ),
    ] = None,
    no_archive: Annotated[
        bool,
        typer.Option("--no-archive", help="Do not ask a compacted store with an archive."),
    ] = False,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="Do not ask Spark, which takes some seconds.")
    ] = False,
) -> None:
    """Turn a clone's git history into a store, ask it about the past, and check it against git.

    Each commit of the first-parent history becomes one commit at git's time; each path a key.
    A second tour continues with the commits made since. The clone itself is not changed. The tour
    also asks a store that was archived and compacted, if pyarrow is installed, and Spark, if
    PySpark and Java are. It ends with 1 when an answer differs from git's.
    """
    try:
        report = _toured(path, store, again, request_bytes_max, not no_archive, not no_spark)
    except TourError as e:
        tell_error(e.message)
        tell(e.advice)
        raise typer.Exit(e.code) from e
    except KeyboardInterrupt:
        tell("The tour was interrupted; what was imported stays, another tour goes on from there.")
        raise
    if report.mismatches:
        raise typer.Exit(Exit.NO)


def _toured(
    path: str,
    store_given: str | None,
    again: bool,
    bytes_max: int | None,
    archive: bool,
    spark: bool,
) -> Report:
    console = PipeConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    clone = Clone(path)
    timeline = Timeline.of(clone)
    folder = place.store_path(clone, store_given)
    request_bytes_max = bytes_max or place.request_bytes_default(folder)
    if again:
        place.remove_store(folder)
    say(console, "bold", f"{clone.root} at {shown_oid(clone.head)}")
    with place.opened(folder, request_bytes_max=request_bytes_max) as (store, clock):
        with progress(console, "importing", len(timeline.oids)) as advance:
            done = filling.import_history(
                store,
                clock,
                clone,
                timeline,
                path=folder,
                request_bytes_max=request_bytes_max,
                on_commit=advance,
            )
        _tell_imported(console, done, timeline, folder)
        examiner = Examiner(store, clone, timeline)
        _examine(console, examiner, done, request_bytes_max)
        if archive:
            _ask_archive(console, examiner, request_bytes_max)
        if spark:
            _ask_spark(console, examiner, folder)
        _tell_numbers(console, examiner, done)
        _tell_verdict(console, examiner.report, done)
        if not examiner.report.mismatches:
            _tell_next(console, examiner, folder)
    return examiner.report


# --- the import ----------------------------------------------------------------------------


def _tell_imported(console: Console, done: Imported, timeline: Timeline, folder: str) -> None:
    where = place.url_of(folder)
    if done.before:
        say(console, "", f"{where} holds {counted(done.before, 'commit')} of an earlier tour")
    if done.undone:
        say(console, "", f"  {counted(done.undone, 'key')} had been changed since: taken back")
    if done.commits:
        rate = done.commits / done.seconds
        say(
            console,
            "",
            f"{counted(done.commits, 'commit')} of git imported into {where} "
            f"in {done.seconds:.1f} s ({rate:,.0f}/s)",
        )
    elif done.before:
        say(console, "", "  git has no newer ones; --again would make it anew")
    if timeline.moved:
        say(
            console,
            "",
            f"  {counted(timeline.moved, 'commit')} dated before the one they follow: "
            "moved up to its time",
        )


def _tell_left_out(console: Console, left_out: set[bytes]) -> None:
    names = ", ".join(path_text(path) for path in sorted(left_out)[:NAMES_SHOWN])
    more = ", ..." if len(left_out) > NAMES_SHOWN else ""
    why = f"no UTF-8, or more than {filling.PATH_BYTES_MAX} bytes"
    say(console, "yellow", f"Left out, {counted(len(left_out), 'path')} ({why}): {names}{more}")


# --- the answers ---------------------------------------------------------------------------


def _examine(console: Console, examiner: Examiner, done: Imported, request_bytes_max: int) -> None:
    """Ask everything, and show the trees, differences and the restore."""
    trees_count = len(examiner.moments)
    rest: tuple[Callable[[], None], ...] = (
        examiner.ask_dates,
        examiner.ask_lists,
        examiner.ask_loads,
        examiner.ask_diffs,
        lambda: examiner.ask_restore(done.ts, request_bytes_max),
    )
    with progress(console, "asking", trees_count + len(rest)) as advance:
        for index, _ in enumerate(examiner.ask_trees()):
            advance(index + 1)
        for index, ask in enumerate(rest):
            ask()
            advance(trees_count + index + 1)
    report = examiner.report
    trees = plain_table("", "date", "commit", "files>", "bytes>", "git ls-tree")
    for answer in report.trees:
        trees.add_row(*_tree_row(answer))
    section(console, "What did the tree look like?", trees)
    diffs = plain_table("from", "to", "files>", "git diff-tree")
    for diff in report.diffs:
        diffs.add_row(diff.a.label, diff.b.label, f"{diff.keys:,}", verdict_text(diff.equal))
    if report.diffs:
        section(console, "What differs between two dates?", diffs)
    console.print()
    if report.restored is None:
        say(console, "yellow", f"Restore: not tried, {report.restore_note}")
        return
    restored = report.restored
    line = Text("Restored to ").append(restored.moment.date, "cyan")
    line.append(f" ({restored.moment.label}): {counted(restored.keys, 'key')} changed, compared, ")
    line.append("taken back: ").append_text(verdict_text(restored.equal))
    console.print(line, soft_wrap=True)


def _ask_archive(console: Console, examiner: Examiner, request_bytes_max: int) -> None:
    """Ask an archive what a compacted store no longer knows; if there is none, say why."""
    missing = ""
    with progress(console, "archiving", len(examiner.timeline.oids) + archived.STEPS) as advance:
        try:
            archived.ask(examiner, request_bytes_max, advance)
        except archived.NoArchive as e:
            missing = str(e)
    if missing:
        console.print()
        say(console, "yellow", f"Archive: not asked, {missing}")
        return
    shown = plain_table("", "date", "files>", "the store alone", "with its archive")
    for tree, compacted in examiner.report.archived:
        alone = "compacted" if compacted else "answers"
        date = Text(tree.moment.date, "cyan")
        shown.add_row(tree.moment.label, date, f"{tree.keys:,}", alone, verdict_text(tree.equal))
    section(console, "What does an archive say, after the store was compacted?", shown)
    if not any(compacted and tree.keys for tree, compacted in examiner.report.archived):
        why = "all of this history falls on one date, and the store still knows it"
        say(console, "yellow", f"The archive was not needed: {why}")


def _ask_spark(console: Console, examiner: Examiner, folder: str) -> None:
    """Ask Spark; if it cannot be asked, say why in a line."""
    url, name, missing = place.url_of(folder), place.name_of(folder), ""
    with progress(console, "asking Spark", SPARK_STEPS) as advance:
        try:
            with sparked.questions(examiner, url, name) as asks:
                advance(1)
                for index, ask in enumerate(asks):
                    ask()
                    advance(index + 2)
        except sparked.NoSpark as e:
            missing = str(e)
    answers = examiner.report.spark
    if not answers:
        console.print()
        say(console, "yellow", f"Spark: not asked, {missing}")
        return
    shown = plain_table("", "rows>", "time>", "git")
    for answer in answers:
        seconds = duration_text(answer.seconds)
        shown.add_row(answer.question, f"{answer.rows:,}", seconds, verdict_text(answer.equal))
    section(console, "What does Spark say of the same store?", shown)


def _tree_row(answer: TreeAnswer) -> tuple[str | Text, ...]:
    moment = answer.moment
    commit = shown_oid(answer.oid) if answer.oid else "none yet"
    sizes = f"{answer.keys:,}", size_text(answer.content_bytes)
    return moment.label, Text(moment.date, "cyan"), commit, *sizes, verdict_text(answer.equal)


# --- the numbers ---------------------------------------------------------------------------


def _tell_numbers(console: Console, examiner: Examiner, done: Imported) -> None:
    report, info = examiner.report, examiner.store.info()
    newest = report.trees[-1]
    stored: tuple[str, str] | tuple[()] = ()
    if "used_bytes" in info["engine"]:  # etcd does not report the size of one store
        stored = f"{info['engine']['records']:,}", size_text(info["engine"]["used_bytes"])
    headings = ("git commits>", "keys now>", "bytes now>", "records>", "bytes in lmdb>")
    held = plain_table(*headings[: 3 + len(stored)])
    commits = f"{len(examiner.timeline.oids):,}"
    held.add_row(commits, f"{newest.keys:,}", size_text(newest.content_bytes), *stored)
    times = plain_table("", "median>", "slowest>", "of>")
    for what, seconds in (
        ("look up the revision of a date", report.lookups_s),
        ("load a file as of a date", report.loads_s),
        (f"list a folder as of a date{_typical(report.listed_keys)}", report.lists_s),
        ("save a commit, durably", done.saves_s),
    ):
        if seconds:
            slowest = duration_text(max(seconds))
            times.add_row(what, duration_text(median(seconds)), slowest, f"{len(seconds):,}")
    section(console, "What does it hold, and how fast is it?", held)
    console.print()
    console.print(times)


def _typical(listed: list[int]) -> str:
    return f" ({median(listed):,.0f} files)" if listed else ""


def _tell_verdict(console: Console, report: Report, done: Imported) -> None:
    console.print()
    if left_out := report.left_out | done.left_out:
        _tell_left_out(console, left_out)
    if not report.mismatches:
        say_all_equal(console, report)
        return
    say_mismatches(console, report)
    say(console, "", "The store does not hold what git does; --again makes it anew.")


# --- what next -----------------------------------------------------------------------------


def _tell_next(console: Console, examiner: Examiner, folder: str) -> None:
    """Show commands that work on this very store."""
    name = f" --name {place.name_of(folder)}" if place.in_etcd(folder) else ""
    store = f"snapkv --store {shlex.quote(place.url_of(folder))}{name}"
    then, now = examiner.then_and_now()
    commands = [f"{store} log -n 5", f"{store} ls --at {format_time(then.ts)}"]
    if key := _telling_key(examiner, then):
        name = shlex.quote(key)
        commands += [f"{store} history {name}", f"{store} get {name} --at {format_time(then.ts)}"]
    if then != now:
        commands.append(f"{store} diff {format_time(then.ts)} {format_time(now.ts)}")
    console.print()
    say(console, "bold", "Try next:")
    for command in commands:
        say(console, "", f"  {command}")


def _telling_key(examiner: Examiner, then: Moment) -> str | None:
    """Return a file that exists then and now: README.md, else the one that changed most often."""
    both = examiner.expected(then.index).keys() & examiner.expected(examiner.moments[-1].index)
    entries: dict[str, Entry] = {
        key: entry for key, entry in examiner.store.at().entries() if key in both
    }
    plain = [key for key in entries if key.isprintable() and not key.startswith("-")]
    return max(plain, key=lambda key: (key == "README.md", entries[key].version), default=None)
