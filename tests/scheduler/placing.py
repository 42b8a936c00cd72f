"""Facts for policies, in few words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdcmeta.scheduler import (
    AddTable,
    MoveTable,
    Place,
    Progress,
    ReplicationSet,
    Role,
    SetState,
    Token,
)
from cdcmeta.scheduler.core.policies import Facts
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.states import Task

TOKEN = Token(5, 1)


def facts(
    primaries: Mapping[str, Iterable[str]],
    *,
    absent: Iterable[str] = (),
    sets: Iterable[ReplicationSet] = (),
    weights: Mapping[str, float] | None = None,
    stopping: Iterable[str] = (),
    draining: str | None = None,
    **others,
) -> Facts:
    """Return facts: who replicates what, what nobody has, and sets in whatever state.

    The indexes are those of a real `ReplicationManager`; whoever is in `primaries` is there.
    """
    manager = ReplicationManager(5)
    made = [*sets, *(ReplicationSet(table) for table in absent)]
    for capture, tables in primaries.items():
        place = Place(capture, Role.PRIMARY, TOKEN)
        made += [ReplicationSet(table, SetState.REPLICATING, (place,)) for table in tables]
    for rset in made:
        manager._put(rset)
    stopping = set(stopping)
    weights = weights or {}
    given = {
        "desired": {table: weights.get(table, 1.0) for table in manager.sets},
        "sets": manager.sets,
        "primaries": manager.primaries,
        "preparing": manager.preparing,
        "absent": list(manager.absent),
        "unwanted": (),
        "is_quiet": not manager.unsettled,
        "targets": sorted(c for c in primaries if c not in stopping and c != draining),
        "stopping": stopping,
    }
    return Facts(**{**given, **others})


def tables(capture: str, count: int) -> list[str]:
    """Return the names of some tables."""
    return [f"{capture}{n:03d}" for n in range(count)]


def state_of(words: str, *places: tuple[str, Role]) -> ReplicationSet:
    """Return a set: its table and state, and who has which role."""
    table, state = words.split()
    each = tuple(Place(capture, role, TOKEN) for capture, role in sorted(places))
    return ReplicationSet(table, SetState[state], each, Progress(1, 1))


def after(primaries: Mapping[str, Iterable[str]], tasks: Iterable[Task]) -> dict[str, set[str]]:
    """Return who has what once all tasks are done."""
    placed = {capture: set(tables) for capture, tables in primaries.items()}
    for task in tasks:
        assert isinstance(task, AddTable | MoveTable)
        for had in placed.values():
            had.discard(task.table)
        placed[task.capture].add(task.table)
    return placed
