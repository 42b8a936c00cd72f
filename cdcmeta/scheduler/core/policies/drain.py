"""Empties a capture that is to leave."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.states import SetState
from cdcmeta.scheduler.core.tasks import GiveUp, MoveTable, Task


def target_of(facts: Facts, asked: str | None) -> str | None:
    """Return whom to empty: who was asked for, else the first who is about to leave with tables.

    None when nobody else could take the tables, or there are none left that could go now.
    """
    asked_first = [asked] if asked is not None else []
    for target in [*asked_first, *sorted(facts.stopping)]:
        if _has_movable(facts, target) and any(each != target for each in facts.targets):
            return target
    return None


def _has_movable(facts: Facts, target: str) -> bool:
    """Return whether something can be taken away now: what hangs there is waited for in vain."""
    return bool(_given_up(facts, target)) or any(
        facts.sets[table].state is SetState.REPLICATING and table not in facts.resting
        for table in facts.primaries.get(target, ())
    )


def _given_up(facts: Facts, target: str) -> list[str]:
    """Return what another may begin with; what is about to begin here only if that hangs."""
    prepared = [
        table
        for table in facts.preparing.get(target, ())
        if facts.sets[table].state is SetState.PREPARE or table in facts.stuck
    ]
    starting = [
        table
        for table in facts.primaries.get(target, ())
        if table in facts.stuck and facts.sets[table].starting is not None
    ]
    return prepared + starting


def is_over(facts: Facts, asked: str) -> bool:
    """Return whether nothing can be taken from who was to be emptied, and who was told to leave.

    Or nobody else is there. One that is empty before it was told would be given tables again.
    """
    if not any(each != asked for each in facts.targets):
        return True
    return asked in facts.stopping and target_of(facts, asked) != asked


def plan(facts: Facts, target: str | None) -> Plan:
    """Return moves of the first tables that `target` replicates to those who have least.

    What it only prepares is given up: another begins with it. Other tables may be anything but
    replicated meanwhile: whoever leaves does not wait for them. At most `limits.moves_in_flight`
    are under way at a time. O(tables of the target x log tables).
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if target is None or room <= 0:
        return NOTHING
    tasks: list[Task] = [GiveUp(table, target) for table in _given_up(facts, target)]
    loads = SortedList(load for load in facts.loads() if load.capture != target)
    # those that failed last: they may take long, and there is room for few at a time
    healthy_first = sorted((each in facts.avoid, each) for each in facts.primaries.get(target, ()))
    for _, table in healthy_first:
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
