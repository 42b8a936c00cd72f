"""What commands read from the standard input."""

from __future__ import annotations

import sys
from typing import BinaryIO

from snapkv.cli.exits import CommandError


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
