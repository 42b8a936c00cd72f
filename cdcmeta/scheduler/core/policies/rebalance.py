"""Evens out what captures have, all at once, when somebody asks for it."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.tasks import MoveTable, Task

TOLERANCE = 0.1
"""Uneven weights are left alone while the heaviest is less than this above the lightest, of the
mean: weights are measured, and moving has its price."""


def is_over(facts: Facts) -> bool:
    """Return whether a rebalance that was asked for is given up: somebody leaves."""
    return bool(facts.stopping)


def plan(facts: Facts) -> Plan:
    """Return all moves that even out the loads, at once. O(tables log tables).

    Nothing while a table is anything but replicated.
    """
    if facts.stopping or not facts.is_quiet:
        return NOTHING
    tasks = evening(facts, len(facts.wanted))
    return Plan(tuple(tasks), is_burst=True) if tasks else NOTHING


def evening(facts: Facts, moves_max: int) -> list[Task]:
    """Return moves from who has most to who has least, until they differ by less than a table.

    With equal weights that is a difference of one table, so captures with too few attract as
    well as those with too many give. With others the heaviest table goes that makes the two more
    equal, by `TOLERANCE` of the mean at least, and none while they differ by less than that. Tables
    that somebody is still stopping, and those that failed lately, stay where they are.

    So where no move is left, no capture is more than `TOLERANCE` of the mean above the lightest
    (one table, if all weigh the same) and has a table to give that weighs at most the difference
    less half of that. What a capture only stops is not its load (`Load`).
    """
    facts = facts._replace(weights=None)  # sums that were kept up to date have a rest
    is_counted = len(set(facts.wanted.values())) <= 1
    if is_counted:  # whole numbers add up without a rest that would move tables to and fro
        facts = facts._replace(wanted=dict.fromkeys(facts.wanted, 1.0), least=0.0)
    # who is left alone for now gets nothing, and gives as others do
    takers = SortedList(facts.loads())
    loads = SortedList(facts._replace(shunned=()).loads())
    if len(loads) < 2:
        return []
    tables = {load.capture: _movable(facts, load.capture) for load in loads}
    mean = sum(load.weight for load in loads) / len(loads)
    spread = 1.0 if is_counted else TOLERANCE * mean
    tasks: list[Task] = []
    while len(tasks) < moves_max and len(loads) > 1 and takers:
        least, most = takers[0], loads[-1]
        if most.weight - least.weight <= spread:
            break
        apart = most.weight - least.weight
        moved = _best(tables[most.capture], apart, apart - spread / 2)
        loads.remove(most)
        takers.discard(most)
        if moved is None:  # what it has is too heavy to move; the others go on without it
            continue
        weight, table = moved
        tables[most.capture].remove(moved)  # and not to be moved again
        loads.remove(least)
        takers.remove(least)
        given, taken = most.plus(-weight, -1), least.plus(weight)
        loads.update((given, taken))
        takers.add(taken)
        if most.capture not in facts.shunned:
            takers.add(given)
        tasks.append(MoveTable(table, least.capture))
    return tasks


def _movable(facts: Facts, capture: str) -> SortedList[tuple[float, str]]:
    return SortedList(
        (facts.weight(table), table)
        for table in facts.primaries.get(capture, ())
        if len(facts.sets[table].places) == 1 and table not in facts.avoid
    )


def _best(
    tables: SortedList[tuple[float, str]], apart: float, weight_max: float
) -> tuple[float, str] | None:
    """Return the table that leaves two captures least apart, no heavier than it may be.

    One that weighs about `apart` would only make the one the other, at the next look again.
    """
    at = tables.bisect_right((apart / 2, "\U0010ffff"))
    near: list[tuple[float, str]] = [*tables[max(at - 1, 0) : at], *tables[at : at + 1]]
    return next((each for each in near if 0 < each[0] <= weight_max), None)
