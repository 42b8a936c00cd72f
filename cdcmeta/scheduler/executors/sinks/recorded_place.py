"""The place of a recorded table, as its writer sees it: a store, or an archive."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cdcmeta.scheduler.core.states import Token
from snapkv.copying.toolkit import KeyValue, SourceId, Target

TAKE_TRIES = 16
"""The most times that another assignment may begin while one takes its place."""

State = list[list[KeyValue]]
Versions = dict[bytes, tuple[int, int]]
"""The revision that created each present key, and how often it was written since."""


class Assignment(NamedTuple):
    """Which table of which source is written, and under which token."""

    table: str
    token: Token
    source: SourceId


class Place(Protocol):
    """Where one table is recorded, for one assignment."""

    state_ordinal: int
    """The ordinal of the commit that the table's first state has."""

    def take(self, start: int) -> Target:
        """Make sure that no earlier assignment writes any more; return the target as it is then.

        `start` is the time that a place begins with that has nothing yet. Raises `SinkError`:
        `fenced` if a later assignment has begun.
        """
        ...

    def later(self) -> Token | None:
        """Return the token of a later assignment, None if none has begun."""
        ...

    def write_state(self, mark: KeyValue, state: State) -> None:
        """Make a state the first moment of the place, durably."""
        ...

    def values(self) -> dict[str, bytes]:
        """Return the present keys with their values."""
        ...

    def versions(self) -> Versions | None:
        """Return the versions of the present keys; None if the place counts them itself."""
        ...

    def wait(self, commits: int) -> None:
        """Wait before so many commits are written, if they come too soon."""
        ...

    def flushed(self) -> None:
        """Do what is due after commits became durable."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...
