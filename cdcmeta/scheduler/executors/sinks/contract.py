"""The contract of sinks: a writer takes a table over, and writes its commits.

A changefeed has one sink, each assignment of a table a writer. Writers of earlier assignments may
live on for a moment, in another process: a sink that can keeps the newest token that it saw, and
rejects older ones (`fenced`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from snapkv import Changes


class TableWriter(Protocol):
    """Writes one table under one assignment; called by one thread at a time."""

    def begin(self, start: int) -> int:
        """Take the table over; return the timestamp up to which the sink has it.

        Everything up to `start` is in the sink. A sink that keeps the checkpoint with the data
        returns its own if that is later, so that nothing is written twice. Raises
        `SinkError` with the reason `fenced` if a later assignment has begun.
        """
        ...

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Write commits in order, completely, before it returns; then the sink is at `checkpoint`.

        With the checkpoint 0 it is a part of the state that the table begins with, and more
        follows. A call that raised is repeated with the same commits, or with these and more.
        """
        ...

    def close(self) -> None:
        """Free what it holds; nothing is written after that."""
        ...


class Sink(Protocol):
    """Where a changefeed goes."""

    def writer(self, table: str, token: Token) -> TableWriter:
        """Return a writer of a table for one assignment; nothing is written or opened yet."""
        ...

    def close(self) -> None:
        """Free what the writers share."""
        ...


def fenced(table: str, token: Token) -> SinkError:
    """Return the error of a writer whose table has a later assignment, with this token."""
    return SinkError(
        f"{table!r} belongs to a later assignment, {token.owner}.{token.number}", "fenced"
    )
