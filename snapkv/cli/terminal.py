"""Lines on the terminal, the pipe and the error stream; progress of long work, and questions.

Imports rich only for a terminal: the import takes as long as a short command. The text is the same
everywhere; a terminal gets colours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from io import TextIOWrapper
from threading import Timer
from typing import TYPE_CHECKING, BinaryIO, TextIO, TypeVar

from snapkv.base.waiting import monotonic
from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.formats import counted

if TYPE_CHECKING:
    from rich.console import Console

    from snapkv.base.text import LongerNames

Part = str | tuple[str, str]
"""A piece of a line: text, or text with a style."""


def write_line(parts: Iterable[Part], *, error: bool = False) -> None:
    """Write a line, with colours on a terminal."""
    stream = sys.stderr if error else sys.stdout
    if stream.isatty():
        from rich.text import Text

        console(stream).print(Text.assemble(*parts), soft_wrap=True)
    else:
        text = ""
        for part in parts:
            text += part if isinstance(part, str) else part[0]
        stream.write(text + "\n")


@lru_cache(maxsize=2)
def console(stream: TextIO, width: int | None = None, *, highlight: bool = True) -> Console:
    """Return rich's console on a terminal, on the pager before it, or on a pipe."""
    from rich.console import Console

    class PlainConsole(Console):
        """A console that leaves a reader that has ended to the command line; rich would exit."""

        def on_broken_pipe(self) -> None:
            raise

    return PlainConsole(file=stream, width=width, highlight=highlight)


def report_error(message: str) -> None:
    """Write one line about what went wrong to the error stream."""
    report_headed("snapkv: ", "bold red", message)


def report_warning(message: str) -> None:
    """Write one line of warning to the error stream."""
    report_headed("snapkv: warning: ", "bold yellow", message)


def report_longer_names(found: LongerNames) -> None:
    """Warn that a prefix matches keys that are not below it, if it does."""
    if found:
        report_warning(str(found))


def report(message: str) -> None:
    """Write one line to the error stream, beside the answer."""
    write_line([message], error=True)


def report_headed(head: str, style: str, message: str) -> None:
    """Write one line with a styled beginning; characters that do not print become spaces."""
    shown = "".join(char if char.isprintable() else " " for char in message)
    write_line([(head, style), shown], error=True)


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


# --- a long operation is under way ---


BAR_AFTER_S = 2.0
"""The time after which a bar shows the progress of an operation, in seconds."""
PATIENCE_S = 2.0
"""The time that a command waits for a store before it says so, in seconds."""


@contextmanager
def patience(what: str, program: str = "snapkv") -> Iterator[None]:
    """Show what the command waits for if the block takes long."""
    said = (f"{program}: ", "bold yellow", f"waiting for {what} ...")
    timer = Timer(PATIENCE_S, report_headed, said)
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
def progress_bar(what: str, after_s: float | None = None) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal if the block takes long; yields the function that moves it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress

    began, after_s = monotonic(), BAR_AFTER_S if after_s is None else after_s
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
        if not bar.live.is_started and monotonic() - began > after_s:
            bar.start()

    try:
        yield move
    finally:
        if bar.live.is_started:
            bar.stop()


# --- what commands read from the standard input ---


def standard_input(what: str, instead: str) -> BinaryIO:
    """Return the standard input, for `what` of the command line, such as "the value -".

    Raises `CommandError` if it is closed (`<&-`, or a service that starts without one); its
    message says what to give `instead`.
    """
    if sys.stdin is None:
        raise CommandError(
            f"{what} is the standard input, which is closed: connect a file or a pipe to it, or "
            f"{instead}"
        )
    return sys.stdin.buffer


# --- questions ---

T = TypeVar("T")


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
        report("other processes have written meanwhile; please answer again:")
        found = again
