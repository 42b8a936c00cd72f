"""What is to be replicated, what it weighs, and how that differs from what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.watermarks import ToldProgress

LEAST_SHARE = 0.1
"""Of the mean: what a table counts for at the least when captures are compared."""


class WantedTables:
    """Keeps the tables that people want, and which of them have no set yet or a set for nothing."""

    def __init__(self) -> None:
        self.weights: dict[str, float] = {}
        """The tables to replicate, and what each weighs."""
        self.least = 1.0
        """What a table counts for at the least."""
        self.new: dict[str, None] = {}
        """Those without a set: they begin when the store has all that was told."""
        self.unwanted: dict[str, None] = {}
        """Tables with a set that are not wanted, and that are not being removed."""
        self._passed: Mapping[str, float] | None = None
        """The very object that was passed last; `weights` is what was in it then."""
        self._checked: tuple[Mapping[str, float] | None, int] = None, 0

    def check(self, tables: Mapping[str, float]) -> None:
        """Raise `InvalidArgumentError` for a mapping that was changed since it was passed. O(1)."""
        seen, length = self._checked
        if tables is seen and len(tables) != length:
            raise InvalidArgumentError("tables were changed in place: pass another mapping")
        self._checked = tables, len(tables)

    def take_in(
        self, tables: Mapping[str, float], replication: ReplicationManager, progress: ToldProgress
    ) -> None:
        """Take in what is wanted now, and begin with what is new once that may be.

        O(1) for the very mapping that was passed last, else O(tables).
        """
        removed = replication.take_removed()
        if tables is not self._passed:
            is_first, self._passed = self._passed is None, tables
            if is_first or tables != self.weights:
                self._change(tables, replication)
        for table in removed:
            if table in self.weights:  # wanted again while it was being removed
                self.new[table] = None
        for table in [each for each in self.unwanted if not replication.may_remove(each)]:
            del self.unwanted[table]
        if self.new:
            self._begin(replication, progress)

    def weight(self, table: str) -> float:
        """Return what a table counts for: what it weighs, and never nothing. O(1)."""
        return max(self.weights.get(table, 0.0), self.least)

    def mark(self, tables: Iterable[str]) -> None:
        """Note tables that turned up: those that nobody wants are to be removed."""
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
        replication.weigh(self.weight)

    def _begin(self, replication: ReplicationManager, progress: ToldProgress) -> None:
        if not progress.is_stored:
            progress.repeat()
            return
        for table in self.new:
            replication.want(table, progress.stored)
        self.new = {}
