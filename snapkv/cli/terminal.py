"""Lines on the terminal, the pipe and the error stream.

Imports rich only for a terminal: the import takes as long as a short command. The text is the same
everywhere; a terminal gets colours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import lru_cache
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

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
        stream.write(text_of_parts(parts) + "\n")


def text_of_parts(parts: Iterable[Part]) -> str:
    """Return the text of a line, without styles."""
    return "".join([part if isinstance(part, str) else part[0] for part in parts])


@lru_cache(maxsize=2)
def console(stream: TextIO, width: int | None = None, *, highlight: bool = True) -> Console:
    """Return rich's console on a terminal, on the pager before it, or on a pipe."""
    from rich.console import Console

    class PlainConsole(Console):
        """A console that leaves a reader that has ended to the command line; rich would exit."""

        def on_broken_pipe(self) -> None:
            raise

    return PlainConsole(file=stream, width=width, highlight=highlight)


def tell_error(message: str) -> None:
    """Write one line about what went wrong to the error stream."""
    tell_headed("snapkv: ", "bold red", message)


def tell_warning(message: str) -> None:
    """Write one line of warning to the error stream."""
    tell_headed("snapkv: warning: ", "bold yellow", message)


def tell_longer_names(found: LongerNames) -> None:
    """Warn that a prefix matches keys that are not below it, if it does."""
    if found:
        tell_warning(str(found))


def tell(message: str) -> None:
    """Write one line to the error stream, beside the answer."""
    write_line([message], error=True)


def tell_headed(head: str, style: str, message: str) -> None:
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
