"""Showing on a terminal that a long operation is under way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Timer

from snapkv.base.waiting import monotonic
from snapkv.cli.formats import counted
from snapkv.cli.terminal import console, tell_headed

BAR_AFTER_S = 2.0
"""A shorter operation shows no bar."""
PATIENCE_S = 2.0
"""How long a command waits for a store before it says so."""


@contextmanager
def patience(what: str, program: str = "snapkv") -> Iterator[None]:
    """Show what the command waits for if the block takes long."""
    said = (f"{program}: ", "bold yellow", f"waiting for {what} ...")
    timer = Timer(PATIENCE_S, tell_headed, said)
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
