"""Which tables end by themselves, where, and when they are tried again."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import Role, SetState

DOUBLINGS_MAX = 40
"""More make no difference to a wait that has a bound."""


class Failure(NamedTuple):
    """A table that ended without being told to."""

    times: int
    """How often in a row, without its progress going on."""
    captures: tuple[str, ...]
    """Where, the last one last."""
    checkpoint: int
    """How far it was then."""
    again_at: int
    """When it is tried again: microseconds of the owner's clock."""
    is_move: bool
    """Whether it was to take over, so that the table goes on where it was."""


class Trouble(NamedTuple):
    """A capture on which tables end, one after the other, and none succeeds."""

    table: str
    """The last one."""
    times: int
    """How often it was another table than the time before."""
    until: int
    """Others get what there is to place, where there are others."""


class Failures:
    """Remembers what fails, so that others try and nothing is tried at full speed.

    `now` (microseconds) is to be kept up to date. The first failure of a table costs no time,
    the following ones ever more: `Limits.retry_first_us`, doubled up to `retry_max_us`.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self.now = limits, 0
        self.tables: dict[str, Failure] = {}
        self._captures: dict[str, Trouble] = {}
        self._given_up: dict[str, int] = {}

    def judge(self, capture: str, before: ReplicationSet, after: ReplicationSet) -> None:
        """Take in what became of a set when a capture reported. O(1)."""
        if _has_failed(capture, before, after):
            self.failed(capture, before)
        elif before.state is SetState.COMMIT and after.state is SetState.REPLICATING:
            self._captures.pop(capture, None)
            self._given_up.pop(after.table, None)
            failed = self.tables.get(after.table)
            if failed is not None and failed.is_move:
                del self.tables[after.table]
        else:
            failed = self.tables.get(after.table)
            if failed and not failed.is_move and after.progress.checkpoint > failed.checkpoint:
                del self.tables[after.table]

    def gave_up(self, capture: str, rset: ReplicationSet) -> None:
        """Note that a preparation or a start took too long. O(1)."""
        self._given_up[rset.table] = self._given_up.get(rset.table, 0) + 1
        self.failed(capture, rset)

    def prepare_us(self, table: str) -> int:
        """Return how long a table may be prepared: doubled each time that it took longer. O(1)."""
        return self._limits.prepare_us << self._doublings(table)

    def start_us(self, table: str) -> int:
        """Return how long a table may start: doubled each time that it took longer. O(1)."""
        return self._limits.start_us << self._doublings(table)

    def resting(self, running: Collection[str] = ()) -> set[str]:
        """Return the tables that failed and are not yet to be tried again. O(failures).

        A move that failed is forgotten after a while, but not while it is tried again.
        """
        waited = self._limits.retry_max_us
        over = [
            table
            for table, each in self.tables.items()
            if each.is_move and table not in running and self.now >= each.again_at + waited
        ]
        for table in over:
            del self.tables[table]
        return {table for table, each in self.tables.items() if each.again_at > self.now}

    def avoid(self) -> dict[str, tuple[str, ...]]:
        """Return where each table failed, the last one last. O(failures)."""
        return {table: each.captures for table, each in self.tables.items()}

    def troubled(self) -> set[str]:
        """Return the captures that are to be left alone for now. O(captures)."""
        return {name for name, each in self._captures.items() if each.until > self.now}

    def forget_table(self, table: str) -> None:
        """Forget a table that nobody wants any more."""
        self.tables.pop(table, None)
        self._given_up.pop(table, None)

    def forget_capture(self, capture: str) -> None:
        """Forget a capture that has ended: its name may come back. O(failures)."""
        self._captures.pop(capture, None)
        for table, each in self.tables.items():
            if capture in each.captures:
                left = tuple(name for name in each.captures if name != capture)
                self.tables[table] = each._replace(captures=left)

    def failed(self, capture: str, before: ReplicationSet) -> None:
        """Note that a table failed on a capture; `before` is how it was until then. O(1)."""
        table, failed = before.table, self.tables.get(before.table)
        times = failed.times + 1 if failed is not None else 1
        earlier = failed.captures if failed is not None else ()
        self.tables[table] = Failure(
            times,
            (*(each for each in earlier if each != capture), capture),
            before.progress.checkpoint,
            self.now + self._wait(times - 1),
            is_move=before.primary is not None and before.primary.capture != capture,
        )
        if any(each != capture for each in earlier):
            return  # it fails elsewhere, too: that says nothing about the capture
        trouble = self._captures.get(capture)
        if trouble is None:
            self._captures[capture] = Trouble(table, 0, 0)
        elif trouble.table != table:
            times = trouble.times + 1
            self._captures[capture] = Trouble(table, times, self.now + self._wait(times))

    def _doublings(self, table: str) -> int:
        return min(self._given_up.get(table, 0), DOUBLINGS_MAX)

    def _wait(self, times: int) -> int:
        if times < 1:  # the first time at once: whatever it was may be over
            return 0
        limits = self._limits
        return min(limits.retry_first_us << min(times - 1, DOUBLINGS_MAX), limits.retry_max_us)


def _has_failed(capture: str, before: ReplicationSet, after: ReplicationSet) -> bool:
    """Return whether a capture ended what nobody told it to end."""
    place, left = before.place(capture), after.place(capture)
    if place is None or (left is not None and left.role is not Role.UNDETERMINED):
        return False
    if before.state in (SetState.REMOVING, SetState.ABSENT):
        return False
    if place.role is Role.PRIMARY:  # in a commit it was told to, for the one that takes over
        return before.state is not SetState.COMMIT or before.secondary is None
    return place.role is Role.SECONDARY
