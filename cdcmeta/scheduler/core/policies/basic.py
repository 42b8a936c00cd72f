"""Places tables without a capture, and removes tables that are not desired."""

from __future__ import annotations

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.tasks import AddTable, RemoveTable, Task


def plan(facts: Facts) -> Plan:
    """Return what to add and remove, all at once.

    O(tables absent + tables placed x log captures).

    At most `limits.add_batch` tables are placed, each on the capture with the least load, and none
    on a capture that prepares `limits.adds_per_capture`. Removals of unwanted tables and
    abandonments of overdue ones have no limit.
    """
    tasks: list[Task] = [RemoveTable(table) for table in facts.unwanted]
    tasks += facts.overdue
    limits = facts.limits
    room = min(limits.add_batch, limits.adds_in_flight - facts.adds_in_flight)
    if room > 0 and facts.absent and facts.targets:
        tasks += _placed(facts, room)
    return Plan(tuple(tasks), is_burst=True) if tasks else NOTHING


def _placed(facts: Facts, room: int) -> list[Task]:
    tasks: list[Task] = []
    per_capture = facts.limits.adds_per_capture
    left = {name: per_capture - len(facts.preparing.get(name, ())) for name in facts.targets}
    loads = SortedList(load for load in facts.loads() if left[load.capture] > 0)
    for table in facts.absent:
        if len(tasks) == room or not loads:
            break
        rset = facts.sets.get(table)
        # it cannot begin on a capture that still stops it
        free = (each for each in loads if rset is None or rset.place(each.capture) is None)
        least = facts.best(table, free)
        if least is None:
            continue
        tasks.append(AddTable(table, least.capture))
        loads.remove(least)
        left[least.capture] -= 1
        if left[least.capture] > 0:
            loads.add(least.plus(facts.weight(table)))
    return tasks
