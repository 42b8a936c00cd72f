"""The terminal of the tour: progress, tables, and how numbers and times are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from snapkv.cli.formats import key_text
from snapkv.cli.tour.comparing import Comparison

MISMATCHES_SHOWN = 10


class PipeConsole(Console):
    """A console that lets the command line handle a reader that has ended."""

    def on_broken_pipe(self) -> None:
        """Raise the caught error; rich would end the process with 1, which means a mismatch."""
        raise


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


def duration_text(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:,.0f} us"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def size_text(count: int) -> str:
    """Return a number of bytes as people say it, exact below 10 kB."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= 10 * unit or (unit > 10**3 and count >= unit):
            return f"{count / unit:,.1f} {name}"
    return f"{count:,} B"


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


def say_all_equal(console: Console, done: Comparison) -> None:
    """Print that no answer differs from git's."""
    say(console, "bold green", f"All {done.answers:,} answers are equal to git's.")


def say_mismatches(console: Console, done: Comparison) -> None:
    """Print how many answers differ from git's, and the first of them."""
    count = len(done.mismatches)
    what = "mismatch" if count == 1 else "mismatches"
    say(console, "bold red", f"{count:,} {what} in {done.answers:,} answers:")
    for wrong in done.mismatches[:MISMATCHES_SHOWN]:
        say(console, "red", f"  {wrong.question}: {key_text(wrong.key)}")
        say(console, "", f"    git: {wrong.git}    store: {wrong.store}")
    if (more := count - MISMATCHES_SHOWN) > 0:
        say(console, "", f"  ... and {more:,} more")
