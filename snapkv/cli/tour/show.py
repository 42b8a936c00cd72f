"""The steps of the tour: the import, a table of six questions, the verdict, what to try next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from snapkv.cli.commands import gives, option
from snapkv.cli.exits import Exit
from snapkv.cli.formats import counted, key_text
from snapkv.cli.terminal import console as console_of
from snapkv.cli.terminal import report, report_error
from snapkv.cli.tour import filling, place
from snapkv.cli.tour.examiner import AskedDate, Examiner, TourReport
from snapkv.cli.tour.filling import GitTimeline, Imported, shown_oid
from snapkv.cli.tour.git import Clone, TourError
from snapkv.model import Entry
from snapkv.times import format_time

PLAIN_WIDTH = 100
"""The columns of a line without a terminal."""
NAMES_SHOWN = 3
MISMATCHES_SHOWN = 10
QUESTIONS = 6


def _store_given(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> Any:
    """Take `--store` from before the command too, but not from the environment: that is in use."""
    if value or ctx.parent is None:
        return value
    return ctx.parent.params.get("store") if gives(ctx.parent, "store") else None


def tour(
    path: Annotated[
        str,
        typer.Argument(
            metavar="[PATH]", help="A git clone; else the one of the current directory."
        ),
    ] = ".",
    store: Annotated[
        str | None,
        option(
            "--store DIR",
            "Where the store goes, or etcd://HOST:PORT; else .tour in the clone when git "
            "ignores that, else snapkv-tour inside its git directory.",
            callback=_store_given,
        ),
    ] = None,
    again: Annotated[
        bool, option("--again", "Remove what an earlier tour stored, begin anew.")
    ] = False,
    request_bytes_max: Annotated[
        int | None,
        option(
            "--request-bytes-max BYTES",
            "The largest commit that is taken; else 64 MiB, in etcd 1.5 MiB.",
            min=1,
        ),
    ] = None,
) -> None:
    """Turn a clone's git history into a store, ask it about the past, and check it against git.

    Each commit of the first-parent history becomes one commit at git's time; each path a key.
    A second tour continues with the commits made since. The clone itself is not changed. The tour
    ends with 1 when an answer differs from git's.
    """
    try:
        answers = _toured(path, store, again, request_bytes_max)
    except TourError as e:
        report_error(e.message)
        report(e.advice)
        raise typer.Exit(e.code) from e
    except KeyboardInterrupt:
        report(
            "The tour was interrupted; what was imported stays, another tour goes on from there."
        )
        raise
    if answers.mismatches:
        raise typer.Exit(Exit.NO)


def _toured(path: str, store_given: str | None, again: bool, bytes_max: int | None) -> TourReport:
    console = plain_console()
    clone = Clone(path)
    timeline = GitTimeline.of(clone)
    folder = place.store_path(clone, store_given)
    request_bytes_max = bytes_max or place.request_bytes_default(folder)
    if again:
        place.remove_store(folder)
    say(console, "bold", f"{clone.root} at {shown_oid(clone.head)}")
    with place.open_tour_store(folder, request_bytes_max=request_bytes_max) as (store, clock):
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
        _report_imported(console, done, timeline, folder)
        examiner = Examiner(store, clone, timeline)
        _examine(console, examiner, done, request_bytes_max)
        console.print()
        if left_out := examiner.left_out | done.left_out:
            say_left_out(console, left_out, filling.PATH_BYTES_MAX)
        say_verdict(console, examiner.report)
        if examiner.report.mismatches:
            say(console, "", "The store does not hold what git does; --again makes it anew.")
        else:
            _report_next(console, examiner, folder)
    return examiner.report


# --- the import ----------------------------------------------------------------------------


def _report_imported(console: Console, done: Imported, timeline: GitTimeline, folder: str) -> None:
    where = place.url_of(folder)
    if done.before:
        say(console, "", f"{where} holds {counted(done.before, 'commit')} of an earlier tour")
    if done.undone:
        say(console, "", f"  {counted(done.undone, 'key')} had been changed since: taken back")
    if done.commits:
        rate = done.commits / done.seconds
        took = f"in {done.seconds:.1f} s ({rate:,.0f}/s)"
        say(console, "", f"{counted(done.commits, 'commit')} of git imported into {where} {took}")
    elif done.before:
        say(console, "", "  git has no newer ones; --again would make it anew")
    if timeline.moved:
        late = f"{counted(timeline.moved, 'commit')} dated before the one they follow"
        say(console, "", f"  {late}: moved up to its time")


# --- the answers ---------------------------------------------------------------------------


def _examine(console: Console, examiner: Examiner, done: Imported, request_bytes_max: int) -> None:
    """Ask everything, and show a row for each question."""
    shown = plain_table("", "answers>", "median>", "slowest>", "git")
    with progress(console, "asking", QUESTIONS) as advance:
        for index, asked in enumerate(examiner.ask(done.ts, request_bytes_max)):
            spent = [_duration_text(of(asked.seconds)) for of in (median, max) if asked.seconds]
            verdict = verdict_text(asked.equal) if asked.answers else Text("not tried", "dim")
            times = spent or ("", "")
            shown.add_row(asked.question, f"{asked.answers:,}", *times, verdict)
            advance(index + 1)
    first, newest = examiner.moments[0], examiner.moments[-1]
    section(
        console, f"Asked about {len(examiner.moments)} dates: {first.date} to {newest.date}", shown
    )
    console.print()
    if examiner.restored is None:
        say(console, "yellow", f"Restore: not tried, {examiner.restore_note}")
    else:
        date = examiner.restored.date
        say(console, "", f"Restored to {date} ({examiner.restored.label}), compared, taken back")


# --- what next -----------------------------------------------------------------------------


def _report_next(console: Console, examiner: Examiner, folder: str) -> None:
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


def _telling_key(examiner: Examiner, then: AskedDate) -> str | None:
    """Return a file that exists then and now: README.md, else the one that changed most often."""
    both = examiner.expected(then.index).keys() & examiner.expected(examiner.moments[-1].index)
    entries: dict[str, Entry] = {
        key: entry for key, entry in examiner.store.at().entries() if key in both
    }
    plain = [key for key in entries if key.isprintable() and not key.startswith("-")]
    return max(plain, key=lambda key: (key == "README.md", entries[key].version), default=None)


# --- the terminal --------------------------------------------------------------------------


def plain_console() -> Console:
    """Return the console of a tour."""
    stream = sys.stdout
    return console_of(stream, None if stream.isatty() else PLAIN_WIDTH, highlight=False)


@contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, nothing elsewhere; gives the function that moves it."""
    if not console.is_terminal:
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)


def section(console: Console, title: str, table: Table) -> None:
    """Print a table under its title."""
    console.print()
    say(console, "bold", title)
    console.print(table)


def plain_table(*headings: str) -> Table:
    """Return a table without lines; columns whose heading ends with `>` are flush right."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in headings:
        right = heading.endswith(">")
        table.add_column(
            heading.removesuffix(">"), justify="right" if right else "left", no_wrap=True
        )
    return table


def _duration_text(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.0f} us"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def path_text(path: bytes) -> str:
    """Return a path as one line shows it, the long ones in part."""
    shown = path.decode(errors="backslashreplace")
    return key_text(shown if len(shown) <= 60 else shown[:57] + "...")


def say(console: Console, style: str, text: str) -> None:
    """Print a line, which a pipe gets as it is, however long."""
    console.print(Text(text, style), soft_wrap=True)


def verdict_text(equal: bool) -> Text:
    """Return whether an answer is equal to git's, in a word."""
    return Text("equal", "green") if equal else Text("DIFFERS", "bold red")


def say_left_out(console: Console, left_out: set[bytes], bytes_max: int) -> None:
    """Print the paths that cannot be keys."""
    names = ", ".join(path_text(path) for path in sorted(left_out)[:NAMES_SHOWN])
    more = ", ..." if len(left_out) > NAMES_SHOWN else ""
    why = f"not UTF-8, or more than {bytes_max} bytes"
    say(console, "yellow", f"Left out, {counted(len(left_out), 'path')} ({why}): {names}{more}")


def say_verdict(console: Console, done: TourReport) -> None:
    """Print that no answer differs from git's; else how many do, and the first of them."""
    count = len(done.mismatches)
    if not count:
        say(console, "bold green", f"All {done.answers:,} answers are equal to git's.")
        return
    what = "mismatch" if count == 1 else "mismatches"
    say(console, "bold red", f"{count:,} {what} in {done.answers:,} answers:")
    for wrong in done.mismatches[:MISMATCHES_SHOWN]:
        say(console, "red", f"  {wrong.question}: {key_text(wrong.key)}")
        say(console, "", f"    git: {wrong.git}    store: {wrong.store}")
    if (more := count - MISMATCHES_SHOWN) > 0:
        say(console, "", f"  ... and {more:,} more")
