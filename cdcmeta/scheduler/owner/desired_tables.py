"""The tables to replicate, their weights, and how they differ from the sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.watermarks import ReportedProgress

LEAST_SHARE = 0.1
"""The least weight of a table when captures are compared, as a share of the mean."""


class DesiredTables:
    """Keeps the desired tables, which of them have no set yet, and other tables with a set."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        """The tables to replicate, and what each weighs."""
        self.least = 1.0
        """The least weight of a table."""
        self.new: dict[str, None] = {}
        """Tables without a set: they begin when all reported progress is stored."""
        self.unwanted: dict[str, None] = {}
        """Tables with a set that are not desired and are not being removed."""
        self._passed: Mapping[str, float] | None = None
        """The object that was passed last; `weights` is a copy of it."""
        self._checked: tuple[Mapping[str, float] | None, int] = None, 0

    def check(self, tables: Mapping[str, float]) -> None:
        """Raise `InvalidArgumentError` for a mapping that was changed since it was passed. O(1)."""
        seen, length = self._checked
        if tables is seen and len(tables) != length:
            raise InvalidArgumentError("tables were changed in place: pass another mapping")
        self._checked = tables, len(tables)

    def update(
        self,
        tables: Mapping[str, float],
        replication: ReplicationManager,
        progress: ReportedProgress,
    ) -> None:
        """Apply the desired tables, and begin with new ones once all reported progress is stored.

        O(1) if the mapping is the same object as last time, else O(tables).
        """
        removed = replication.take_removed()
        if tables is not self._passed:
            is_first, self._passed = self._passed is None, tables
            if is_first or tables != self.weights:
                self._change(tables, replication)
        for table in removed:
            if table in self.weights:  # desired again while it was being removed
                self.new[table] = None
        for table in [each for each in self.unwanted if not replication.may_remove(each)]:
            del self.unwanted[table]
        if self.new:
            self._begin(replication, progress)

    def weight(self, table: str) -> float:
        """Return the weight of a table, at least `least`. O(1)."""
        return max(self.weights.get(table, 0.0), self.least)

    def mark(self, tables: Iterable[str]) -> None:
        """Note tables that captures hold: tables that are not desired are to be removed."""
        for table in tables:
            if table not in self.weights:
                self.unwanted[table] = None

    def _change(self, tables: Mapping[str, float], replication: ReplicationManager) -> None:
        self.weights = dict(tables)
        self.new = {table: None for table in tables if table not in replication.sets}
        self.unwanted = {}
        self.mark(replication.sets)
        mean = sum(tables.values()) / max(1, len(tables))
        self.least = mean * LEAST_SHARE or 1.0
        replication.set_weight(self.weight)

    def _begin(self, replication: ReplicationManager, progress: ReportedProgress) -> None:
        if not progress.is_stored:
            progress.repeat()
            return
        for table in self.new:
            replication.create_set(table, progress.floor_of(table))
        self.new = {}
