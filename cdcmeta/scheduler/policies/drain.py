"""Empties a capture that is to leave."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.tasks import GiveUp, MoveTable, Task


def target_of(facts: Facts, asked: str | None) -> str | None:
    """Return whom to empty: who was asked for, else the first who is about to leave with tables.

    None when nobody else could take the tables, or there are none left.
    """
    for target in [asked] if asked is not None else sorted(facts.stopping):
        has_tables = facts.primaries.get(target) or facts.preparing.get(target)
        if has_tables and any(each != target for each in facts.targets):
            return target
    return None


def is_over(facts: Facts, asked: str) -> bool:
    """Return whether who was to be emptied is empty and told to leave, or nobody else is there.

    One that is empty before it was told would be given tables again.
    """
    if not any(each != asked for each in facts.targets):
        return True
    return asked in facts.stopping and not facts.held.get(asked)


def plan(facts: Facts, target: str | None) -> Plan:
    """Return moves of the first tables that `target` replicates to those who have least.

    What it only prepares is given up: another begins with it.

    Other tables may be anything but replicated meanwhile: whoever leaves does not wait for them. At
    most `limits.moves_in_flight` are under way at a time. O(tables of the target x log tables).
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if target is None or room <= 0:
        return NOTHING
    tasks: list[Task] = [GiveUp(table, target) for table in facts.preparing.get(target, ())]
    loads = SortedList(load for load in facts.loads() if load.capture != target)
    for table in sorted(facts.primaries.get(target, ())):
        if room == 0:
            break
        if table in facts.resting:
            continue
        # where it is still stopping it cannot go
        least = facts.best(table, (each for each in loads if facts.movable(table, each.capture)))
        if least is not None:
            room -= 1
            tasks.append(MoveTable(table, least.capture))
            loads.remove(least)
            loads.add(least.plus(facts.weight(table)))
    return Plan(tuple(tasks))
