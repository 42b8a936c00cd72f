"""The contract of sources: one feed has the commits of all tables, in the order of their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeAlias

from snapkv import Changes

WHOLE = "*"
"""The name of a table that is the whole store: tables have names."""
Part: TypeAlias = Changes[str] | Exception
"""What a table gets of a commit; an error ends the table."""


class Feed(Protocol):
    """The commits of all tables after a time, then new ones; read by one thread at a time."""

    @property
    def timestamp(self) -> int:
        """Return the time up to which all commits were returned."""
        ...

    def next(self, timeout: float) -> Mapping[str, Part] | None:
        """Return each table's part of the next commit; None after `timeout` seconds without one.

        A table without changes in the commit has no part. Raises `CompactedError` if commits are
        gone, `StoreClosedError` after `close`.
        """
        ...

    def close(self) -> None:
        """End the feed; any thread may call it."""
        ...


class TableSource(Protocol):
    """Where the tables of a changefeed are read. Safe for threads."""

    restarts: bool
    """Whether a table can continue with `state` after commits were compacted that it has not."""
    has_removals: bool
    """Whether a state since a time has what was removed since; otherwise each state is whole."""

    def feed(self, since: int | None) -> Feed:
        """Return the commits after a timestamp (None: after now). Raises as `Feed.next`."""
        ...

    def state(
        self, table: str, since: int, at: int, kept: Iterable[str] = ()
    ) -> Iterator[Changes[str]]:
        """Yield a table as of a timestamp, in parts.

        A source that `has_removals` leaves out what has not changed since `since`. In a whole state
        of any other, keys of the sink (`kept`, in order) that it lacks are removals. Raises
        `CompactedError` if that moment is gone.
        """
        ...

    def now(self) -> int:
        """Return the timestamp at or before which nothing changes any more. One round trip."""
        ...
