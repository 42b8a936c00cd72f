"""What the indexes of a `ReplicationManager` must agree with: its sets."""

from itertools import pairwise
from math import isclose

from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.replication_set import stopping_places
from cdcmeta.scheduler.core.states import Role, SetState
from cdcmeta.scheduler.core.watermarks import assignment_hash


def check(manager: ReplicationManager) -> None:
    """Raise `AssertionError` if an index differs from the sets. O(tables)."""
    sets, roles = manager.sets, {role: set[tuple[str, str]]() for role in Role}
    tokens, states = {}, {state: set[str]() for state in SetState}
    for table, rset in sets.items():
        rset.check()
        assert rset.table == table and not rset.is_removed, rset  # noqa: PT018
        states[rset.state].add(table)
        for place in rset.places:
            tokens[place.capture, table] = place.token
            roles[place.role].add((place.capture, table))
    for index, role in ((manager.primaries, Role.PRIMARY), (manager.preparing, Role.SECONDARY)):
        assert {(c, table) for c, tables in index.items() for table in tables} == roles[role]
    held = {(c, table): g for c, tables in manager.held.items() for table, g in tables.items()}
    assert held == tokens, "the index of held tables and tokens"
    assert set(manager.absent) == states[SetState.ABSENT]
    assert set(manager.unsettled) == set(sets) - states[SetState.REPLICATING]
    assert all(before <= since for before, since in pairwise(manager.unsettled.values()))
    # a task ends when its table reaches the state, for whatever reason
    assert set(manager.running) <= states[SetState.PREPARE] | states[SetState.COMMIT]
    # only tables in transition have requests under way
    pending = {table for table, _ in manager._pending_prepares}
    assert pending <= set(sets) - states[SetState.REPLICATING]
    check_deadlines(manager._deadlines, sets)
    check_coverage(manager._coverage, sets)
    for capture, asked in manager._asked.items():
        assert dict(asked) == manager.held.get(capture, {}), capture
    for capture in manager.held.keys() | manager.weights.keys():
        weight, weighs = manager.weights.get(capture, 0.0), manager._load_of(capture)
        assert isclose(weight, weighs, rel_tol=1e-6, abs_tol=1e-6), (capture, weight, weighs)


def check_deadlines(deadlines, sets) -> None:
    """Raise `AssertionError` if starts or stops differ from what the sets have. O(tables)."""
    starting = {table: rset.starting for table, rset in sets.items() if rset.starting}
    assert {table: place for table, (place, _) in deadlines._starting.items()} == starting
    stopping = {
        (p.capture, table): p.token for table, r in sets.items() for p in stopping_places(r)
    }
    assert {key: token for key, (token, _) in deadlines._stopping.items()} == stopping


def check_coverage(coverage, sets) -> None:
    """Raise `AssertionError` if it differs from the sets. O(tables)."""
    found: dict[tuple[str, str], int] = {}
    for table, rset in sets.items():
        if rset.state is SetState.REPLICATING and rset.primary is not None:
            found[rset.primary.capture, table] = assignment_hash(table, rset.primary.token)
    known = {
        (capture, table): each
        for capture, digest in coverage._replicated.items()
        for table, each in digest._hashes.items()
    }
    assert known == found, "the index of replicated tables"
    for capture, apart in coverage._apart.items():
        assert all((capture, table) in found for table in apart), (capture, apart)
