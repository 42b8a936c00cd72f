"""Why tables have another primary: what an owner decided, for operators to read later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.tasks import AbandonTable, AddTable, RemoveTable, Task

FOUND, PLACED = "found", "placed"
"""The reasons of decisions that have no other: a new owner found the table there, or it is new."""


class Decision(NamedTuple):
    """A table has another primary: the capture that replicates it, or None without one."""

    table: str
    capture: str | None
    why: str
    """Why it has no primary, or why this one was chosen."""


class Reasons:
    """Keeps why a table moves, until it has another primary."""

    def __init__(self, replication: ReplicationManager) -> None:
        self._replication = replication
        self._why: dict[str, str] = {}

    def lost(self, capture: str, tables: Iterable[str]) -> None:
        """Note that a capture has ended, which was the primary of some tables."""
        for table in tables:
            self._why[table] = f"{capture} is gone"

    def begun(self, task: Task, why: str) -> None:
        """Note a task, and the reason of its plan."""
        if isinstance(task, AddTable):
            return  # what ended the last assignment is the reason
        if isinstance(task, RemoveTable):
            why = "not wanted"
        elif isinstance(task, AbandonTable):
            why = f"{task.capture} did not start it in time"
        self._why[task.table] = why

    def take(self, why: str) -> list[Decision]:
        """Return the changes of primaries since the last call, by default because of `why`."""
        decisions = []
        for table, capture in self._replication.take_new_primaries().items():
            if capture is not None:
                decisions.append(Decision(table, capture, self._why.pop(table, why)))
                continue
            decisions.append(Decision(table, None, self._why.setdefault(table, self._end(table))))
            if table not in self._replication.sets:
                del self._why[table]
        return decisions

    def _end(self, table: str) -> str:
        failed = self._replication.failures.tables.get(table)
        if failed is not None and failed.captures:
            return f"it failed on {failed.captures[-1]}"
        return "it ended"
