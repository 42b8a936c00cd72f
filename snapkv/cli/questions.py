"""Asking before something that cannot be taken back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import BinaryIO, TypeVar

from snapkv.cli.exits import CommandError, Exit
from snapkv.cli.terminal import tell

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
        tell("other processes have written meanwhile; please answer again:")
        found = again
