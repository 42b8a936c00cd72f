"""What a replication manager looks up is what its sets say, whatever happens."""

import random

import pytest

from cdcmeta.scheduler import (
    AddTable,
    MoveTable,
    Progress,
    RemoveTable,
    TableState,
    TableStatus,
    Token,
)
from cdcmeta.scheduler.core.replication import ReplicationManager

from .indexes import check

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
            manager.now += rng.randrange(200_000)
            manager.create_set(table, Progress(1, 1))
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.long_after(10)
def test_the_indexes_are_those_of_the_sets(seed):
    rng = random.Random(seed)
    manager, gone = ReplicationManager(5), 0
    weights = dict(zip(TABLES, (1.0, 2.0, 4.0), strict=True))
    weight = weights.__getitem__
    manager.set_weight(weight)
    for at in range(1000):
        if rng.random() < 0.05:
            weights |= {rng.choice(TABLES): float(rng.randrange(1, 9))}
            manager.set_weight(weight)
        before = set(manager.sets)
        happens(rng, manager)
        told = f"seed {seed}, step {at}: {manager.sets}, {manager.running}"
        sets = manager.sets
        try:
            check(manager)
        except AssertionError as e:
            raise AssertionError(told) from e
        for capture in CAPTURES:
            held, early = manager.held.get(capture, {}), manager.preparing.get(capture, {})
            asked = dict(manager.asked(capture))
            left_out = {table: token for table, token in held.items() if table not in asked}
            assert set(left_out) <= set(early), told
            assert {**asked, **left_out} == held, told
        removed = set(manager.take_removed())
        assert before - set(sets) <= removed, told
        gone += len(removed)
    assert gone > 1, f"seed {seed} removed only {gone}"


def test_tokens_are_issued_once_and_grow():
    manager = ReplicationManager(5)
    for table in TABLES:
        manager.create_set(table, Progress(1, 1))
    tokens = [manager.begin_task(AddTable(table, "a"))[0].request.token for table in TABLES]
    lost = TableStatus("t1", tokens[1], TableState.ABSENT)
    tokens += [sent.request.token for sent in manager.reported("a", [lost])]
    assert manager.reported("a", [lost]) == [], "it was said of an assignment that is over"
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 4
    assert all(token > Token(4, 10**9) for token in tokens), "larger than those of earlier owners"
