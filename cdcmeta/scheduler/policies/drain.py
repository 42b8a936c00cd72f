"""Empties a capture that is to leave."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.tasks import MoveTable, Task


def target_of(facts: Facts, asked: str | None) -> str | None:
    """Return whom to empty: who was asked for, else the first who is about to leave with tables.

    None when nobody else could take the tables, or there are none left.
    """
    for target in [asked] if asked is not None else sorted(facts.stopping):
        if facts.primaries.get(target) and any(each != target for each in facts.targets):
            return target
    return None


def plan(facts: Facts, target: str | None) -> Plan:
    """Return moves of the first tables that `target` replicates to those who have least.

    Nothing while a table is anything but replicated. At most `limits.moves_in_flight` are under
    way at a time. O(tables of the target x log tables).
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if target is None or not facts.is_quiet or room <= 0:
        return NOTHING
    loads = SortedList(load for load in facts.loads() if load.capture != target)
    tasks: list[Task] = []
    for table in sorted(facts.primaries.get(target, ())):
        if len(tasks) == room:
            break
        # where it is still stopping it cannot go
        least = next((each for each in loads if facts.movable(table, each.capture)), None)
        if least is not None:
            tasks.append(MoveTable(table, least.capture))
            loads.remove(least)
            loads.add(least.plus(facts.weight(table)))
    return Plan(tuple(tasks))
