"""The steps of the tour: the import, a table of six questions, the verdict, what to try next."""

from __future__ import annotations

import shlex
import sys
from shutil import which
from statistics import median
from typing import Annotated, Any

import typer

from snapkv.cli import git_import
from snapkv.cli.command_output import AlignedTable
from snapkv.cli.commands import gives, option
from snapkv.cli.exits import AdvisedError, Exit
from snapkv.cli.formats import counted, key_text
from snapkv.cli.git_clone import Clone
from snapkv.cli.git_import import GitTimeline, Imported, shown_oid
from snapkv.cli.terminal import progress_bar, report, report_error, write_line
from snapkv.cli.tour import tour_store
from snapkv.cli.tour.examiner import AskedDate, Examiner, TourReport
from snapkv.model import Entry

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
    except AdvisedError as e:
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
    clone = Clone(path)
    timeline = GitTimeline.of(clone)
    folder = tour_store.store_path(clone, store_given)
    if again:
        tour_store.remove_store(folder)
    say("bold", f"{clone.root} at {shown_oid(clone.head)}")
    with tour_store.open_tour_store(folder, request_bytes_max=bytes_max) as (store, clock):
        with progress_bar("importing", after_s=0.0) as move:
            done = git_import.import_history(store, clock, clone, timeline, move)
        _report_imported(done, timeline, folder)
        examiner = Examiner(store, clone, timeline)
        _examine(examiner, done)
        say("", "")
        if left_out := examiner.left_out | done.left_out:
            say_left_out(left_out, git_import.PATH_BYTES_MAX)
        say_verdict(examiner.report)
        if examiner.report.mismatches:
            say("", "The store does not hold what git does; --again makes it anew.")
        else:
            _report_next(examiner, folder)
    return examiner.report


# --- the import ----------------------------------------------------------------------------


def _report_imported(done: Imported, timeline: GitTimeline, folder: str) -> None:
    where = tour_store.url_of(folder)
    if done.before:
        say("", f"{where} holds {counted(done.before, 'commit')} of an earlier tour")
    if done.undone:
        say("", f"  {counted(done.undone, 'key')} had been changed since: taken back")
    if done.commits:
        rate = done.commits / done.seconds
        took = f"in {done.seconds:.1f} s ({rate:,.0f}/s)"
        say("", f"{counted(done.commits, 'commit')} of git imported into {where} {took}")
    elif done.before:
        say("", "  git has no newer ones; --again would make it anew")
    if timeline.moved:
        late = f"{counted(timeline.moved, 'commit')} dated before the one they follow"
        say("", f"  {late}: moved up to its time")


# --- the answers ---------------------------------------------------------------------------


def _examine(examiner: Examiner, done: Imported) -> None:
    """Ask everything, and show a row for each question."""
    shown = AlignedTable(("", "ANSWERS", "MEDIAN", "SLOWEST", "GIT"), QUESTIONS + 1)
    first, newest = examiner.moments[0], examiner.moments[-1]
    say("", "")
    say("bold", f"Asked about {len(examiner.moments)} dates: {first.date} to {newest.date}")
    with progress_bar("asking", after_s=0.0) as move:
        for index, asked in enumerate(examiner.ask(done.ts), 1):
            spent = [_duration_text(of(asked.seconds)) for of in (median, max) if asked.seconds]
            verdict = ("equal", "green") if asked.equal else ("DIFFERS", "bold red")
            shown.add(
                [
                    asked.question,
                    f"{asked.answers:,}",
                    *(spent or ("", "")),
                    verdict if asked.answers else ("not tried", "dim"),
                ]
            )
            move(index, QUESTIONS)
    shown.flush()
    say("", "")
    if examiner.restored is None:
        say("yellow", f"Restore: not tried, {examiner.restore_note}")
    else:
        date = examiner.restored.date
        say("", f"Restored to {date} ({examiner.restored.label}), compared, taken back")


# --- what next -----------------------------------------------------------------------------


def _report_next(examiner: Examiner, folder: str) -> None:
    """Show commands that work on this very store."""
    name = f" --name {tour_store.name_of(folder)}" if tour_store.in_etcd(folder) else ""
    program = "snapkv" if which("snapkv") else f"{shlex.quote(sys.executable)} -m snapkv"
    store = f"{program} --store {shlex.quote(tour_store.url_of(folder))}{name}"
    then, now = examiner.then_and_now()
    commands = [f"{store} {words}" for words in ("ui", "log -n 5", f"ls --at {then.date}")]
    if key := _telling_key(examiner, then):
        name = shlex.quote(key)
        commands += [f"{store} history {name}", f"{store} get {name} --at {then.date}"]
    if then != now:
        commands.append(f"{store} diff {then.date} {now.date}")
    say("", "")
    say("bold", "Try next:")
    for command in commands:
        say("", f"  {command}")


def _telling_key(examiner: Examiner, then: AskedDate) -> str | None:
    """Return a file that exists then and now: README.md, else the one that changed most often."""
    both = examiner.expected(then.index).keys() & examiner.expected(examiner.moments[-1].index)
    entries: dict[str, Entry] = {
        key: entry for key, entry in examiner.store.at().entries() if key in both
    }
    plain = [key for key in entries if key.isprintable() and not key.startswith("-")]
    return max(plain, key=lambda key: (key == "README.md", entries[key].version), default=None)


def _duration_text(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.0f} us"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def path_text(path: bytes) -> str:
    """Return a path as one line shows it, the long ones in part."""
    shown = path.decode(errors="backslashreplace")
    return key_text(shown if len(shown) <= 60 else shown[:57] + "...")


def say(style: str, text: str) -> None:
    """Print a line, which a pipe gets as it is, however long."""
    write_line([(text, style)])


def say_left_out(left_out: set[bytes], bytes_max: int) -> None:
    """Print the paths that cannot be keys."""
    names = ", ".join(path_text(path) for path in sorted(left_out)[:NAMES_SHOWN])
    more = ", ..." if len(left_out) > NAMES_SHOWN else ""
    why = f"not UTF-8, or more than {bytes_max} bytes"
    say("yellow", f"Left out, {counted(len(left_out), 'path')} ({why}): {names}{more}")


def say_verdict(done: TourReport) -> None:
    """Print that no answer differs from git's; else how many do, and the first of them."""
    count = len(done.mismatches)
    if not count:
        say("bold green", f"All {done.answers:,} answers are equal to git's.")
        return
    what = "mismatch" if count == 1 else "mismatches"
    say("bold red", f"{count:,} {what} in {done.answers:,} answers:")
    for wrong in done.mismatches[:MISMATCHES_SHOWN]:
        say("red", f"  {wrong.question}: {key_text(wrong.key)}")
        say("", f"    git: {wrong.git}    store: {wrong.store}")
    if (more := count - MISMATCHES_SHOWN) > 0:
        say("", f"  ... and {more:,} more")
