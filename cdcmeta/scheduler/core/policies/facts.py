"""The arguments and results of policies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.tasks import AbandonTable, Task
from cdcmeta.scheduler.core.work_limits import Limits


class Load(NamedTuple):
    """What a capture replicates and prepares; the smallest load gets the next table.

    Compared by weight, then by number of tables. A table that it is stopping does not count:
    another capture replicates it, or it is not desired, and the stop may hang for ever.
    """

    weight: float
    tables: int
    capture: str

    def plus(self, weight: float, tables: int = 1) -> Load:
        """Return the load with more or fewer tables."""
        return Load(self.weight + weight, self.tables + tables, self.capture)


class Facts(NamedTuple):
    """Everything that a decision depends on; policies do not change it."""

    desired: Mapping[str, float]
    """The tables to replicate, and what each weighs: 1 for all, or rows per second, ..."""
    sets: Mapping[str, ReplicationSet]
    primaries: Mapping[str, Collection[str]]
    """By capture, the tables that it replicates."""
    preparing: Mapping[str, Collection[str]]
    """By capture, the tables that it prepares."""
    absent: Collection[str]
    """Desired tables without a capture that may be placed now."""
    unwanted: Collection[str]
    """Tables with a set that are not desired, and that are not being removed."""
    is_quiet: bool
    """Whether every desired table is replicated, waits for a retry, or is stuck."""
    targets: Sequence[str]
    """Captures that can take tables, by name."""
    stopping: Collection[str]
    """Captures that are about to leave, without the owner's own."""
    avoid: Mapping[str, Sequence[str]] = {}
    """By table, the captures on which it failed, the latest last; other captures come first."""
    overdue: Sequence[AbandonTable] = ()
    """Preparations and starts that take too long."""
    stuck: Collection[str] = ()
    """Tables that have not been replicated for long."""
    resting: Collection[str] = ()
    """Tables that failed and are not retried yet."""
    failing_captures: Collection[str] = ()
    """Captures on which one table after the other failed: other captures get tables first."""
    weights: Mapping[str, float] | None = None
    """By capture, the weight of its load; computed if it is missing."""
    least: float = 0.0
    """The least weight of a table: many tables of weight 0 count, too."""
    is_complete: bool = True
    """Whether every capture has synced: reported its tables."""
    adds_in_flight: int = 0
    moves_in_flight: int = 0
    limits: Limits = Limits()

    def loads(self) -> list[Load]:
        """Return the load of each capture that can take tables.

        O(captures), and O(tables) without `weights`.
        """
        loads = []
        for capture in [
            each for each in self.targets if each not in self.failing_captures
        ] or self.targets:
            replicated, prepared = self.primaries.get(capture, ()), self.preparing.get(capture, ())
            known = self.weights.get(capture, 0.0) if self.weights is not None else None
            weight = sum(map(self.weight, chain(replicated, prepared))) if known is None else known
            loads.append(Load(weight, len(replicated) + len(prepared), capture))
        return loads

    def best(self, table: str, loads: Iterable[Load]) -> Load | None:
        """Return the first load on whose capture a table did not fail, else failed longest ago.

        O(captures).
        """
        avoid, last = self.avoid.get(table, ()), None
        for load in loads:
            if load.capture not in avoid:
                return load
            if last is None or avoid.index(load.capture) < avoid.index(last.capture):
                last = load
        return last

    def weight(self, table: str) -> float:
        """Return the weight of a table, at least `least`. O(1)."""
        return max(self.desired.get(table, 0.0), self.least)

    def movable(self, table: str, capture: str) -> bool:
        """Return whether a table can be moved to a capture now."""
        rset = self.sets.get(table)
        return rset is not None and rset.can_move_to(capture) and capture in self.targets


class Plan(NamedTuple):
    """What a policy decided."""

    tasks: tuple[Task, ...] = ()
    is_burst: bool = False
    """Whether all tasks begin at once, without the limit on moves."""
    why: str = "placed"
    """The reason for all its tasks, in a word or two."""


NOTHING = Plan()
