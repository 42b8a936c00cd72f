"""A sink that calls a Python function with the commits of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cdcmeta.scheduler.core.states import Token
from snapkv import Changes

Function = Callable[[str, Token, Sequence[Changes[str]], int], object]
"""Gets the table, the token, the commits and the checkpoint after them."""


class CalledSink:
    """Passes commits to a function, at least once: after a failure or a move they are repeated.

    The function gets the token, so that what it writes to can reject an earlier assignment. A call
    without commits and with the checkpoint 0 begins a state: what it lacks was removed.

    >>> from cdcmeta.scheduler import Token
    >>> from cdcmeta.scheduler.executors.sinks.called import CalledSink
    >>> seen = []
    >>> writer = CalledSink(lambda *call: seen.append(call)).writer("t", Token(9, 1))
    >>> writer.begin(5)
    5
    >>> writer.write([], 7)
    >>> seen
    [('t', Token(owner=9, number=1), [], 7)]
    """

    def __init__(self, function: Function) -> None:
        self._function = function

    def writer(self, table: str, token: Token) -> CalledWriter:
        """Return a writer that calls the function."""
        return CalledWriter(self._function, table, token)

    def close(self) -> None:
        """Do nothing: the function is the caller's."""


class CalledWriter:
    """Calls the function for one assignment."""

    def __init__(self, function: Function, table: str, token: Token) -> None:
        self._function, self._table, self._token = function, table, token

    def begin(self, start: int) -> int:
        """Return the start: a function keeps no checkpoint here."""
        return start

    def replace(self) -> Iterator[str]:
        """Call the function without commits, with the checkpoint 0: a state begins."""
        self._function(self._table, self._token, [], 0)
        return iter(())

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Call the function."""
        self._function(self._table, self._token, commits, checkpoint)

    def close(self) -> None:
        """Do nothing."""
