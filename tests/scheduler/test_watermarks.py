"""Facts 4, AdvanceCheckpoint and barriers, without redo and without spans."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.scheduler import (
    CANNOT_PROCEED,
    Barrier,
    Place,
    Progress,
    ReplicationSet,
    Role,
    SetState,
    Token,
    Watermarks,
    barrier_of,
)
from cdcmeta.scheduler.core.replication import ReplicationManager
from cdcmeta.scheduler.core.watermarks import TABLE_BARRIERS_MAX, least_of

from .making import made
from .rows import SETS

NONE = Barrier()


def sets(**progress: tuple[int, int, int]) -> Mapping[str, ReplicationSet]:
    """Return the sets of tables that a capture replicates."""
    primary = Place("c", Role.PRIMARY, Token(5, 1))
    return {
        table: ReplicationSet(table, SetState.REPLICATING, (primary,), Progress(*each))
        for table, each in progress.items()
    }


# --- the tables ---


def advance(desired, known, barrier):
    """Return the watermarks of an owner that wants some tables, and has these sets."""
    manager = ReplicationManager(5)
    for rset in known.values():
        manager._put(rset)
    return least_of(manager.known_progress(dict.fromkeys(desired, 1.0)), barrier)


def test_a_changefeed_is_as_far_as_the_last_of_its_tables():
    three = sets(a=(5, 9, 2), b=(7, 8, 6), c=(6, 10, 4))
    assert advance(three, three, NONE) == Watermarks(5, 8, synced=6)


def test_only_wanted_tables_count():
    three = sets(a=(5, 9, 2), b=(7, 8, 6), old=(1, 1, 9))
    assert advance(["a", "b"], three, NONE) == Watermarks(5, 8, 6)


def test_without_progress_nothing_proceeds():
    """An owner asks no earlier than when each table has a set: `test_desired_tables.py`."""
    assert advance(["a"], sets(a=(0, 0, 0)), NONE) == Watermarks(0, 0, 0) == CANNOT_PROCEED


@pytest.mark.parametrize("words", sorted({*SETS} - {"Removing"}))  # its set is gone
def test_a_table_holds_the_others_at_what_it_last_knew_whatever_its_state(words):
    """That is "no lost table": nobody replicates it, and nothing goes on without it."""
    both = {"t": made(words, Progress(3, 4, 1)), **sets(a=(5, 9, 2))}
    assert advance(both, both, NONE) == Watermarks(3, 4, 2)


# --- barriers ---


@pytest.mark.parametrize(
    ("barrier", "checkpoint"),
    [
        (NONE, 50),
        (Barrier(60), 50),
        (Barrier(40), 40),
        (Barrier(60, (("a", 55), ("b", 45))), 45),
        (Barrier(60, (("other", 45),)), 45),
        (Barrier(60, (("a", 55),)), 50),
        (Barrier(0, (("a", 45),)), 45),
        (Barrier(40, (("a", 45),)), 40),  # no table may go beyond what holds for all
    ],
)
def test_the_checkpoint_is_not_beyond_the_earliest_barrier(barrier, checkpoint):
    two = sets(a=(50, 90, 2), b=(70, 80, 6))
    assert advance(two, two, barrier) == Watermarks(checkpoint, 80, 6)


@pytest.mark.parametrize(
    ("barrier", "expected"),
    [
        (Barrier(60), Watermarks(60, 60, 0)),
        (Barrier(60, (("a", 55),)), Watermarks(55, 60, 0)),
        (Barrier(60, (("a", 65),)), Watermarks(60, 60, 0)),
        (Barrier(0, (("a", 55),)), Watermarks(55, 55, 0)),
        (NONE, CANNOT_PROCEED),
    ],
)
def test_without_tables_it_is_the_barrier_that_counts(barrier, expected):
    assert advance([], {}, barrier) == expected
    assert advance([], sets(old=(1, 1, 1)), barrier) == expected


def test_as_many_tables_have_a_barrier_as_may():
    tables = {f"t{n:03}": 1000 + n for n in range(TABLE_BARRIERS_MAX)}
    assert TABLE_BARRIERS_MAX == 256
    assert barrier_of(5000, tables) == Barrier(5000, tuple(sorted(tables.items())))


def test_the_first_barrier_too_many_holds_back_all():
    tables = {f"t{n:03}": 1000 + n for n in range(257)}
    barrier = barrier_of(5000, tables)
    assert barrier.everywhere == 1256
    assert dict(barrier.tables) == {table: ts for table, ts in tables.items() if ts < 1256}
    assert barrier_of(1100, tables).everywhere == 1100, "an earlier one stays"
    assert barrier_of(0, tables).everywhere == 1256, "and 0 is none"


def test_the_earliest_barriers_are_kept_whatever_the_tables_are_called():
    tables = {f"t{n:03}": 1000 - n for n in range(300)}
    barrier = barrier_of(0, tables)
    assert barrier.everywhere == 1000 - (300 - 257)
    assert {ts for _, ts in barrier.tables} == set(range(701, 957))
    assert list(barrier.tables) == sorted(barrier.tables)


def test_without_barriers_there_is_none():
    assert barrier_of(0, {}) == NONE
    assert barrier_of(7, {}) == Barrier(7)


@given(st.integers(0, 99), st.dictionaries(st.integers(0, 999).map(str), st.integers(1, 99)))
def test_no_table_is_let_farther_than_its_barrier(everywhere, tables):
    barrier = barrier_of(everywhere, tables)
    kept = dict(barrier.tables)
    for table, ts in tables.items():
        held = [each for each in (kept.get(table), barrier.everywhere) if each]
        assert held, f"nothing holds {table}"
        assert min(held) <= ts
    if everywhere:
        assert 0 < barrier.everywhere <= everywhere
    least = [ts for ts in (everywhere, *tables.values()) if ts]
    expected = min(least) if least else 0
    assert advance([], {}, barrier).checkpoint == expected


progresses = st.tuples(st.integers(1, 99), st.integers(1, 99), st.integers(0, 99))


@given(st.dictionaries(st.text("ab", max_size=3), progresses, min_size=1), st.integers(0, 99))
def test_nothing_is_beyond_any_table(progress, everywhere):
    known = {table: ReplicationSet(table, progress=Progress(*p)) for table, p in progress.items()}
    got = advance(known, known, Barrier(everywhere))
    for each in progress.values():
        assert got.checkpoint <= each[0]
        assert got.resolved <= each[1]
        assert got.synced >= each[2]
    assert not everywhere or got.checkpoint <= everywhere
    assert got.checkpoint in {*(each[0] for each in progress.values()), everywhere}
