"""What a replication manager looks up is what its sets say, whatever happens."""

import random

import pytest

from cdcmeta.scheduler import (
    AddTable,
    MoveTable,
    Progress,
    RemoveTable,
    Role,
    SetState,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.replication import ReplicationManager

from .making import complaint

TABLES = ["t0", "t1", "t2"]
CAPTURES = ["a", "b", "c"]


def any_statuses(rng, manager, capture):
    held = manager.held.get(capture, {})
    statuses = []
    for table in rng.sample(TABLES, rng.randrange(3)):
        token = held[table] if table in held and rng.random() < 0.9 else Token(5, rng.randrange(9))
        state = rng.choice(list(TableState))
        statuses.append(TableStatus(table, token, state, Progress(rng.randrange(99))))
    return statuses


def happens(rng, manager):
    capture, table = rng.choice(CAPTURES), rng.choice(TABLES)
    match rng.randrange(8):
        case 0:
            manager.want(table, Progress(1, 1))
        case 1 | 2:
            manager.begin_task(rng.choice([AddTable, MoveTable])(table, capture))
        case 3:
            rng.random() < 0.6 and manager.begin_task(RemoveTable(table))
        case 4:
            rng.random() < 0.5 and manager.capture_lost(capture)
        case 5:
            manager.is_settled = rng.random() < 0.9
        case _:
            manager.reported(capture, any_statuses(rng, manager, capture))


def by_capture(manager, *roles):
    return {
        (each.capture, table): each.token
        for table, rset in manager.sets.items()
        for each in rset.places
        if each.role in roles
    }


def indexed(index):
    return {(capture, table) for capture, tables in index.items() for table in tables}


@pytest.mark.parametrize("seed", range(20))
def test_the_indexes_are_those_of_the_sets(seed):
    rng = random.Random(seed)
    manager, gone = ReplicationManager(5), 0
    for at in range(1000):
        before = set(manager.sets)
        happens(rng, manager)
        told = f"seed {seed}, step {at}: {manager.sets}, {manager.running}"
        sets = manager.sets
        assert all(complaint(rset) is None for rset in sets.values()), told
        held = {(c, t): token for c, tables in manager.held.items() for t, token in tables.items()}
        assert held == by_capture(manager, *Role), told
        assert indexed(manager.primaries) == set(by_capture(manager, Role.PRIMARY)), told
        assert indexed(manager.preparing) == set(by_capture(manager, Role.SECONDARY)), told
        absent = {table for table, rset in sets.items() if rset.state is SetState.ABSENT}
        assert set(manager.absent) == absent, told
        settled = {table for table, rset in sets.items() if rset.state is SetState.REPLICATING}
        assert set(manager.unsettled) == set(sets) - settled, told
        assert not any(rset.is_removed for rset in sets.values()), told
        busy = {t for t, rset in sets.items() if rset.state in (SetState.PREPARE, SetState.COMMIT)}
        assert set(manager.running) <= busy, f"B6, {told}"
        removed = set(manager.take_removed())
        assert before - set(sets) <= removed, told
        gone += len(removed)
    assert gone > 1, f"seed {seed} removed only {gone}"


def test_tokens_are_issued_once_and_grow():
    manager = ReplicationManager(5)
    for table in TABLES:
        manager.want(table, Progress(1, 1))
    tokens = [manager.begin_task(AddTable(table, "a"))[0].request.token for table in TABLES]
    lost = TableStatus("t1", tokens[1], TableState.ABSENT)
    tokens += [sent.request.token for sent in manager.reported("a", [lost])]
    assert manager.reported("a", [lost]) == [], "it was said of an assignment that is over"
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 4
    assert all(token > Token(4, 10**9) for token in tokens), "larger than those of earlier owners"
