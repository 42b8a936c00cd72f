"""Moves all tables away from a capture that leaves."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.states import SetState
from cdcmeta.scheduler.core.tasks import AbandonTable, MoveTable, Task


def target_of(facts: Facts, asked: str | None) -> str | None:
    """Return the capture to drain: `asked`, else the first stopping one with tables.

    None if no other capture can take the tables, or no table can be moved now.
    """
    asked_first = [asked] if asked is not None else []
    for target in [*asked_first, *sorted(facts.stopping)]:
        if _has_movable(facts, target) and any(each != target for each in facts.targets):
            return target
    return None


def _has_movable(facts: Facts, target: str) -> bool:
    """Return whether a table can be taken away now; tables that hang there cannot."""
    return bool(_abandonable(facts, target)) or any(
        facts.sets[table].state is SetState.REPLICATING and table not in facts.resting
        for table in facts.primaries.get(target, ())
    )


def _abandonable(facts: Facts, target: str) -> list[str]:
    """Return the tables to abandon here, for another capture; starting tables only if stuck."""
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
    """Return whether a drain is over: the capture is stopping and no table can be moved now.

    Also if no other capture can take tables. A capture that is empty but not stopping is still
    drained: otherwise it would get tables again.
    """
    if not any(each != asked for each in facts.targets):
        return True
    return asked in facts.stopping and target_of(facts, asked) != asked


def plan(facts: Facts, target: str | None) -> Plan:
    """Return moves of tables from `target` to the captures with the least load.

    Tables that it only prepares are abandoned: another capture begins with them. The states of
    other tables do not matter: a leaving capture does not wait for them. At most
    `limits.moves_in_flight` are under way at a time. O(tables of the target x log tables).
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if target is None or room <= 0:
        return NOTHING
    tasks: list[Task] = [AbandonTable(table, target) for table in _abandonable(facts, target)]
    loads = SortedList(load for load in facts.loads() if load.capture != target)
    # failed tables last: they may take long, and few moves are under way at a time
    healthy_first = sorted((each in facts.avoid, each) for each in facts.primaries.get(target, ()))
    for _, table in healthy_first:
        if room == 0:
            break
        if table in facts.resting:
            continue
        # it cannot go to a capture that still stops it
        least = facts.best(table, (each for each in loads if facts.movable(table, each.capture)))
        if least is not None:
            room -= 1
            tasks.append(MoveTable(table, least.capture))
            loads.remove(least)
            loads.add(least.plus(facts.weight(table)))
    return Plan(tuple(tasks))
