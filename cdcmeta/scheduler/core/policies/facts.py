"""What policies see, and what they say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.tasks import GiveUp, Task


class Load(NamedTuple):
    """What a capture replicates and prepares; the smaller gets the next table.

    By weight, then by tables. A table that it is only stopping does not count: another capture
    replicates it, or it is not wanted any more, and the stop may hang as long as the process lives.
    """

    weight: float
    tables: int
    capture: str

    def plus(self, weight: float, tables: int = 1) -> Load:
        """Return the load with tables more, or less."""
        return Load(self.weight + weight, self.tables + tables, self.capture)


class Facts(NamedTuple):
    """All that a decision may depend on; policies change none of it."""

    wanted: Mapping[str, float]
    """The tables to replicate, and what each weighs: 1 for all, or rows per second, ..."""
    sets: Mapping[str, ReplicationSet]
    primaries: Mapping[str, Collection[str]]
    """By capture, the tables that it replicates."""
    preparing: Mapping[str, Collection[str]]
    """By capture, the tables that it prepares."""
    absent: Collection[str]
    """Wanted tables that nobody is asked to replicate, and that are to be tried now."""
    unwanted: Collection[str]
    """Tables with a set that nobody wants, and that are not being removed."""
    is_quiet: bool
    """Whether every wanted table is replicated, or failed and waits, and nothing is under way."""
    targets: Sequence[str]
    """Captures that can take tables, by name."""
    stopping: Collection[str]
    """Captures that are about to leave, without the owner's own."""
    avoid: Mapping[str, Sequence[str]] = {}
    """Where tables failed, the last one last: somebody else shall try."""
    overdue: Sequence[GiveUp] = ()
    """Preparations and starts that take too long."""
    stuck: Collection[str] = ()
    """Tables that have not been replicated for long."""
    resting: Collection[str] = ()
    """Tables that failed and are left where they are for now."""
    shunned: Collection[str] = ()
    """Captures on which one table after the other failed: others get what there is."""
    weights: Mapping[str, float] | None = None
    """By capture, what its load weighs; added up where it is not known."""
    least: float = 0.0
    """What a table counts for at the least: many that weigh nothing are something."""
    is_complete: bool = True
    """Whether every capture has told what it holds."""
    adds_in_flight: int = 0
    moves_in_flight: int = 0
    limits: Limits = Limits()

    def loads(self) -> list[Load]:
        """Return the load of each capture that can take tables.

        O(captures), and O(tables) where `weights` is not known.
        """
        loads = []
        for capture in [each for each in self.targets if each not in self.shunned] or self.targets:
            replicated, prepared = self.primaries.get(capture, ()), self.preparing.get(capture, ())
            known = self.weights.get(capture, 0.0) if self.weights is not None else None
            weight = sum(map(self.weight, chain(replicated, prepared))) if known is None else known
            loads.append(Load(weight, len(replicated) + len(prepared), capture))
        return loads

    def best(self, table: str, loads: Iterable[Load]) -> Load | None:
        """Return the first of the loads where a table did not fail, else where that is longest ago.

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
        """Return what a table counts for: what it weighs, and never nothing. O(1)."""
        return max(self.wanted.get(table, 0.0), self.least)

    def movable(self, table: str, capture: str) -> bool:
        """Return whether a table can be moved to a capture now."""
        rset = self.sets.get(table)
        return rset is not None and rset.can_move_to(capture) and capture in self.targets


class Plan(NamedTuple):
    """What a policy decided."""

    tasks: tuple[Task, ...] = ()
    is_burst: bool = False
    """Whether all of it begins at once, whatever else is under way."""


NOTHING = Plan()
