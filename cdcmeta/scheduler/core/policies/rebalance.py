"""Balances the captures with all moves at once, on request."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.tasks import MoveTable, Task

TOLERANCE = 0.1
"""Unequal weights are tolerated while the heaviest and the lightest load differ by less than this
share of the mean: weights are measurements, and a move has a cost."""


def is_over(facts: Facts) -> bool:
    """Return whether a requested rebalance is cancelled: a capture leaves."""
    return bool(facts.stopping)


def plan(facts: Facts) -> Plan:
    """Return all moves that balance the loads, at once. O(tables log tables).

    Nothing while a table is not replicated.
    """
    if facts.stopping or not facts.is_quiet:
        return NOTHING
    tasks = balancing_moves(facts, len(facts.desired))
    return Plan(tuple(tasks), is_burst=True) if tasks else NOTHING


def balancing_moves(facts: Facts, moves_max: int) -> list[Task]:
    """Return moves from the heaviest to the lightest load, until they differ by less than a table.

    With equal weights the loads then differ by at most one table. With unequal weights each move
    takes the table that makes the two loads most equal; it must reduce their difference by at
    least `TOLERANCE` of the mean, and no move is made while they differ by less than that. Tables
    that another capture still stops, and tables that failed lately, are not moved.

    When it returns no move, no capture is both more than `TOLERANCE` of the mean above the lightest
    (one table, if all weigh the same) and has a movable table that weighs at most the difference
    less half of that tolerance. Tables that a capture only stops are not in its load (`Load`).
    """
    facts = facts._replace(weights=None)  # running sums have rounding errors; compute new ones
    is_counted = len(set(facts.desired.values())) <= 1
    if is_counted:  # whole numbers have no rounding errors, which would move tables to and fro
        facts = facts._replace(desired=dict.fromkeys(facts.desired, 1.0), least=0.0)
    # failing captures get nothing, and give as other captures do
    takers = SortedList(facts.loads())
    loads = SortedList(facts._replace(failing_captures=()).loads())
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
        if moved is None:  # its tables are too heavy to move; continue without it
            continue
        weight, table = moved
        tables[most.capture].remove(moved)  # a table moves once
        loads.remove(least)
        takers.remove(least)
        given, taken = most.plus(-weight, -1), least.plus(weight)
        loads.update((given, taken))
        takers.add(taken)
        if most.capture not in facts.failing_captures:
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
    """Return the table that makes two loads most equal, of at most `weight_max`.

    A table of about `apart` would only exchange the two loads, and at the next check again.
    """
    at = tables.bisect_right((apart / 2, "\U0010ffff"))
    near: list[tuple[float, str]] = [*tables[max(at - 1, 0) : at], *tables[at : at + 1]]
    return next((each for each in near if 0 < each[0] <= weight_max), None)
