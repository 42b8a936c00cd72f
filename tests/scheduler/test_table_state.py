"""The agent's rules about one table: facts 4 with tokens, facts 8.2."""

from itertools import product

import pytest

from cdcmeta.scheduler import AddRequest, Progress, RemoveRequest, TableState, TableStatus, Token
from cdcmeta.scheduler.agent import (
    Action,
    Applied,
    EndedTable,
    RunningTable,
    apply_request,
    ended_table,
    promise_of,
    status_of,
)

TABLE = "t"
G1, G2, G3 = Token(5, 1), Token(5, 2), Token(6, 1)
START, LATER = Progress(100, 100), Progress(150, 160, 5)
STATES = [
    TableState.PREPARING,
    TableState.PREPARED,
    TableState.REPLICATING,
    TableState.STOPPING,
]


def prepare(token, progress=START):
    return AddRequest(TABLE, token, progress, is_prepare=True)


def commit(token, progress=LATER):
    return AddRequest(TABLE, token, progress, is_prepare=False)


def remove(token):
    return RemoveRequest(TABLE, token)


# --- prepare ---


def test_a_table_begins_by_being_prepared():
    held = RunningTable(G1, TableState.PREPARING, False, START)
    assert apply_request(None, prepare(G1)) == Applied(held, Action.PREPARE)


@pytest.mark.parametrize(("token", "begins"), [(G1, False), (G2, False), (G3, True)])
def test_what_ended_begins_only_under_a_newer_token(token, begins):
    kept, action = apply_request(EndedTable(G2), prepare(token))
    if begins:
        assert (kept, action) == (RunningTable(token, progress=START), Action.PREPARE)
    else:
        assert (kept, action) == (EndedTable(G2), None)


@pytest.mark.parametrize("token", [G1, G2, G3])
@pytest.mark.parametrize("state", STATES)
def test_what_is_there_is_not_prepared_again(state, token):
    """Not even under a newer token: the status tells the owner, and it ends the old one first."""
    held = RunningTable(G2, state)
    assert apply_request(held, prepare(token)) == Applied(held)


# --- commit ---


def test_what_was_prepared_under_the_same_token_replicates():
    held = RunningTable(G2, TableState.PREPARED, False, START)
    committed = RunningTable(G2, TableState.PREPARED, True, LATER)
    assert apply_request(held, commit(G2)) == Applied(committed, Action.REPLICATE)


@pytest.mark.parametrize("token", [G1, G3])
@pytest.mark.parametrize("state", STATES)
def test_a_commit_of_another_assignment_starts_nothing(state, token):
    held = RunningTable(G2, state, False, START)
    assert apply_request(held, commit(token)) == Applied(held)


@pytest.mark.parametrize("state", [each for each in STATES if each is not TableState.PREPARED])
def test_only_what_is_prepared_is_committed(state):
    """v3 commits whatever there is."""
    held = RunningTable(G2, state, False, START)
    assert apply_request(held, commit(G2)) == Applied(held)


def test_a_second_commit_changes_nothing():
    """It was late, or sent again: where to start from was said by the first."""
    held = RunningTable(G2, TableState.PREPARED, True, START)
    assert apply_request(held, commit(G2, LATER)) == Applied(held)


@pytest.mark.parametrize("kept", [None, EndedTable(G1), EndedTable(G2), EndedTable(G3)])
def test_a_commit_on_an_absent_table_starts_nothing(kept):
    """v3 runs the whole lifecycle, and two may write; here it will not start later either."""
    after, action = apply_request(kept, commit(G2))
    assert action is None
    assert isinstance(after, EndedTable)
    assert after.token == max(G2, kept.token if kept else G2)
    assert apply_request(after, prepare(G2)) == Applied(after)


# --- remove ---


@pytest.mark.parametrize("token", [G2, G3])
@pytest.mark.parametrize("state", [each for each in STATES if each is not TableState.STOPPING])
def test_a_removal_ends_what_has_its_token_or_an_earlier_one(state, token):
    held = RunningTable(G2, state, state is TableState.REPLICATING, LATER)
    after, action = apply_request(held, remove(token))
    assert action is Action.REMOVE
    assert after == held._replace(state=TableState.STOPPING)


@pytest.mark.parametrize("state", STATES)
def test_a_removal_of_an_earlier_assignment_ends_nothing(state):
    held = RunningTable(G2, state)
    assert apply_request(held, remove(G1)) == Applied(held)


def test_what_is_stopping_is_not_stopped_again():
    held = RunningTable(G2, TableState.STOPPING)
    assert apply_request(held, remove(G2)) == Applied(held)


@pytest.mark.parametrize("kept", [None, EndedTable(G1), EndedTable(G2), EndedTable(G3)])
def test_a_removal_keeps_from_starting_what_was_not_there(kept):
    """v3 drops it, and what it overtook starts."""
    after, action = apply_request(kept, remove(G2))
    assert action is None
    assert apply_request(after, prepare(G2)) == Applied(after)
    newer = Token(9, 9)
    assert apply_request(after, prepare(newer)).action is Action.PREPARE


# --- the answers ---


def test_absent_is_a_promise():
    """Who was asked about an assignment and has it not will never start it."""
    for kept, asked in product(
        [None, EndedTable(G1), EndedTable(G2), EndedTable(G3)], [G1, G2, G3]
    ):
        promised = promise_of(kept, asked)
        told = status_of(TABLE, promised, asked)
        assert told == TableStatus(TABLE, asked, TableState.ABSENT)
        for late in (prepare(asked), commit(asked), remove(asked)):
            assert apply_request(promised, late) == Applied(promised), (kept, asked, late)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("asked", [G1, G2, G3])
def test_what_is_there_promises_nothing_and_is_told_of(state, asked):
    held = RunningTable(G2, state, False, LATER)
    assert promise_of(held, asked) == held
    assert status_of(TABLE, held, asked) == TableStatus(TABLE, G2, state, LATER)


def test_promises_are_not_taken_back():
    for kept, asked in product([EndedTable(G2, LATER), EndedTable(G3, LATER)], [G1, G2]):
        assert promise_of(kept, asked) == kept


def test_a_committed_table_is_prepared_until_it_replicates():
    """v3 says so, too: what an owner hears is what is."""
    kept, _ = apply_request(RunningTable(G2, TableState.PREPARED, False, START), commit(G2))
    assert status_of(TABLE, kept, G2).state is TableState.PREPARED


def test_the_last_progress_of_what_ended_is_told_whenever_somebody_asks():
    """v3 tells it once, with "stopped"; if that is lost, so is the progress."""
    done = ended_table(RunningTable(G2, TableState.STOPPING, True, START), Progress(150, 140, 9))
    assert done == EndedTable(G2, Progress(150, 140, 9))
    asked = promise_of(done, G2)
    assert status_of(TABLE, asked, G2) == (
        TableStatus(TABLE, G2, TableState.ABSENT, Progress(150, 140, 9))
    )
    other = status_of(TABLE, asked, G1)
    assert other.progress == Progress(), "it is of another assignment"


def test_what_ended_keeps_the_farthest_that_was_known():
    assert ended_table(RunningTable(G2, progress=LATER), Progress()).progress == LATER
    assert ended_table(
        RunningTable(G2, progress=LATER), Progress(120, 170, 1)
    ).progress == Progress(150, 170, 5)


def test_nothing_is_promised_of_a_table_that_nobody_asked_about():
    assert status_of(TABLE, None, G1) == TableStatus(TABLE, G1, TableState.ABSENT)
    assert apply_request(None, prepare(G1)).action is Action.PREPARE
