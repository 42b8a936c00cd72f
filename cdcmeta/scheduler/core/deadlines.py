"""Since when captures start and stop tables, and which of them take too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cdcmeta.scheduler.core.replication_set import Place, ReplicationSet, ending
from cdcmeta.scheduler.core.states import Token


class Hanging(NamedTuple):
    """A capture that has not stopped a table in time: it may still write."""

    since: int
    """When it was told to, by the clock of waiting: microseconds."""
    capture: str
    table: str


class Deadlines:
    """Remembers since when captures start and stop tables.

    Times are microseconds that count where the owner waits for a capture.
    """

    def __init__(self) -> None:
        self._starting: dict[str, tuple[Place, int]] = {}
        self._ending: dict[tuple[str, str], tuple[Token, int]] = {}

    def note(self, before: ReplicationSet | None, after: ReplicationSet, waited: int) -> None:
        """Take in that a set has changed. O(captures of the set)."""
        table, starts = after.table, after.starting
        if starts is None:
            self._starting.pop(table, None)
        elif table not in self._starting or self._starting[table][0] != starts:
            self._starting[table] = starts, waited
        ends = ending(after)
        if not ends and not self._ending:
            return  # as for most tables most of the time
        stopping = {(place.capture, table): place.token for place in ends}
        for place in before.places if before is not None else ():
            if (place.capture, table) not in stopping:
                self._ending.pop((place.capture, table), None)
        for key, token in stopping.items():
            if key not in self._ending or self._ending[key][0] != token:
                self._ending[key] = token, waited

    def starting(self) -> Iterator[tuple[str, str, int]]:
        """Yield tables that start, on which capture, and since when. O(tables being started)."""
        for table, (place, since) in self._starting.items():
            yield table, place.capture, since

    def overdue(self, until: int) -> list[Hanging]:
        """Return what was to stop at a time or before and has not, the longest first.

        O(tables being stopped).
        """
        return sorted(
            Hanging(since, capture, table)
            for (capture, table), (_, since) in self._ending.items()
            if since <= until
        )

    def check(self, sets: dict[str, ReplicationSet]) -> None:
        """Raise `AssertionError` when what is remembered is not what the sets say. O(tables)."""
        starting = {table: rset.starting for table, rset in sets.items() if rset.starting}
        assert {table: place for table, (place, _) in self._starting.items()} == starting
        stopping = {(p.capture, table): p.token for table, r in sets.items() for p in ending(r)}
        assert {key: token for key, (token, _) in self._ending.items()} == stopping
