"""Writing to the terminal, the pipe and the error stream, and asking questions.

The only module that imports rich, and only for a terminal: the import takes as long as a short
command. The text is the same everywhere; a terminal gets colours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from io import TextIOWrapper
from threading import Timer
from typing import TYPE_CHECKING, TextIO, TypeVar

from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import (
    Json,
    commit_json,
    counted,
    json_line,
    key_text,
    meta_text,
    preview,
    quoted,
    time_text,
)
from snapkv.clock import monotonic
from snapkv.model import Commit, Difference

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

SUMMARY_LINES_MAX = 20
"""How many differences are shown before a question."""

BAR_AFTER_S = 2.0
"""A shorter operation shows no bar."""
PATIENCE_S = 2.0
"""How long a command waits for a store before it says so."""

Part = str | tuple[str, str]
"""A piece of a line: text, or text with a style."""


@dataclass(frozen=True, slots=True)
class Output:
    """The output of a command, as text or JSON."""

    as_json: bool = False
    raw: bool = False

    def record(self, fields: Json, *columns: Part | None, flush: bool = False) -> None:
        """Write one record: a line of JSON, or columns (None: left out) with two spaces between."""
        if self.as_json:
            sys.stdout.write(json_line(fields) + "\n")
        else:
            write_line(_spaced(columns))
        if flush:
            sys.stdout.flush()

    def time(self, timestamp: int | None) -> Part:
        """Return the column of a time; `-` for an unknown one."""
        return "-" if timestamp is None else (time_text(timestamp, raw=self.raw), "cyan")

    def commit_columns(self, commit: Commit) -> tuple[Part | None, ...]:
        """Return the columns of a commit: time, revision, writer, note, meta."""
        return (self.time(commit.ts), str(commit.revision), *who_and_why(commit))

    def committed(self, commit: Commit, *, flush: bool = False) -> None:
        """Write the time of a commit that was just made."""
        self.record(commit_json(commit), self.time(commit.ts), flush=flush)


def who_and_why(commit: Commit) -> tuple[Part | None, ...]:
    """Return the columns of a commit's writer, note and meta, None for an unknown one."""
    writer: Part | None = None if commit.writer is None else (key_text(commit.writer), "green")
    note: Part | None = None if commit.note is None else (quoted(commit.note), "italic")
    meta: Part | None = None if commit.meta is None else meta_text(commit.meta)
    return writer, note, meta


def difference_parts(difference: Difference[str]) -> list[Part]:
    """Return the line of a difference: `+ key value`, `- key value`, `~ key before -> after`."""
    key, before, after = key_text(difference.key), difference.before, difference.after
    if before is None:
        assert after is not None
        return [(f"+ {key}  {preview(after)}", "green")]
    if after is None:
        return [(f"- {key}  {preview(before)}", "red")]
    return [(f"~ {key}", "yellow"), f"  {preview(before)} -> {preview(after)}"]


def write_line(parts: Iterable[Part], *, error: bool = False) -> None:
    """Write a line, with colours on a terminal."""
    stream = sys.stderr if error else sys.stdout
    if stream.isatty():
        from rich.text import Text

        console(stream).print(Text.assemble(*parts), soft_wrap=True)
    else:
        stream.write(_plain(parts) + "\n")


def console(stream: TextIO) -> Console:
    """Return rich's console on a terminal."""
    from rich.console import Console

    return Console(file=stream)


def tell_error(message: str) -> None:
    """Write one line about what went wrong to the error stream."""
    _tell("snapkv: ", "bold red", message)


def tell_warning(message: str) -> None:
    """Write one line of warning to the error stream."""
    _tell("snapkv: warning: ", "bold yellow", message)


def tell(message: str) -> None:
    """Write one line to the error stream, beside the answer."""
    write_line([message], error=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be taken back; raise `CommandError` unless answered yes.

    Question and answer do not go to the output. Without a terminal it raises; `--yes` avoids that.
    """
    if yes:
        return
    if not (sys.stdin and sys.stdin.isatty()):
        raise CommandError(
            f"{question} Cannot ask: the input is not a terminal; pass --yes to continue"
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done", Exit.NO)


def confirm_found(found: T, look: Callable[[], T], ask: Callable[[T], str], *, yes: bool) -> T:
    """Ask about what was found; return it when the answer is yes and `look` still finds the same.

    Otherwise show what has changed and ask again: other processes may write while a question is
    open, and the answer is only for what was shown.
    """
    while True:
        confirm(ask(found), yes=yes)
        if yes or (again := look()) == found:
            return found
        tell("other processes have written meanwhile; please answer again:")
        found = again


def tell_differences(differences: list[Difference[str]]) -> None:
    """Show what is about to change, the first lines of it, on the error stream."""
    for difference in differences[:SUMMARY_LINES_MAX]:
        write_line(difference_parts(difference), error=True)
    if (more := len(differences) - SUMMARY_LINES_MAX) > 0:
        tell(f"... and {more:,} more")


@contextmanager
def patience(what: str, program: str = "snapkv") -> Iterator[None]:
    """Show what the command waits for if the block takes long."""
    timer = Timer(PATIENCE_S, _tell, (f"{program}: ", "bold yellow", f"waiting for {what} ..."))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def working(what: str) -> AbstractContextManager[object]:
    """Show on a terminal that a long operation is under way."""
    if not sys.stderr.isatty():
        return nullcontext()
    return console(sys.stderr).status(what)


@contextmanager
def status_line(*, shown: bool = True) -> Iterator[Callable[[str], None]]:
    """Show one changing line, on a terminal only; yields the function that changes it."""
    if not (shown and sys.stderr.isatty()):
        yield lambda text: None
        return
    from rich.text import Text

    with console(sys.stderr).status("") as status:
        yield lambda text: status.update(Text(text))


@contextmanager
def counting(what: str, unit: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal the count of an operation of unknown length."""
    with status_line() as show:
        show(what)
        yield lambda done: show(f"{what}: {counted(done, unit)}")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal if the block takes long; yields the function that moves it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress

    began = monotonic()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
    )
    bar = progress.Progress(*columns, console=console(sys.stderr), transient=True)
    task = bar.add_task(what)

    def move(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if not bar.live.is_started and monotonic() - began > BAR_AFTER_S:
            bar.start()

    try:
        yield move
    finally:
        if bar.live.is_started:
            bar.stop()


def prepare_streams() -> None:
    """Discard output to a closed stream (`>&-`); escape characters that the encoding lacks."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115, for the process's life
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Discard buffered output: its reader has ended."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stream without a file
        pass


def _tell(head: str, style: str, message: str) -> None:
    shown = "".join(char if char.isprintable() else " " for char in message)
    write_line([(head, style), shown], error=True)


def _spaced(columns: Iterable[Part | None]) -> list[Part]:
    parts: list[Part] = []
    for column in columns:
        if column is not None:
            parts += ["  ", column] if parts else [column]
    return parts


def _plain(parts: Iterable[Part]) -> str:
    return "".join(part if isinstance(part, str) else part[0] for part in parts)
