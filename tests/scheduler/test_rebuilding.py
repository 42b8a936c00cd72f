"""Facts 1.7: the set that a new owner makes of what captures tell."""

from itertools import permutations, product

import pytest

from cdcmeta.scheduler import (
    Found,
    Place,
    Progress,
    Role,
    SetState,
    TableStatus,
    Token,
    rebuilt,
    step,
)

from .making import BEFORE, FARTHER, FRESH, STATES, TABLE, complaint, made, messages, says

OLD, NEW = Token(4, 1), Token(4, 2)
U, P, S = Role.UNDETERMINED, Role.PRIMARY, Role.SECONDARY


def told(*states: tuple[str, Token], progress: Progress = BEFORE):
    """Captures c0, c1, ... say: a state and its token."""
    return [
        (f"c{n}", TableStatus(TABLE, token, STATES[state], progress))
        for n, (state, token) in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("found", "state", "roles"),
    [
        ([], "ABSENT", {}),
        ([("A", OLD)], "ABSENT", {}),
        ([("Sd", OLD), ("A", OLD)], "ABSENT", {}),
        ([("R", OLD)], "REPLICATING", {"c0": P}),
        ([("Pi", OLD)], "PREPARE", {"c0": S}),
        ([("Pd", OLD)], "COMMIT", {"c0": S}),
        ([("R", OLD), ("Pi", NEW)], "PREPARE", {"c0": P, "c1": S}),
        ([("R", OLD), ("Pd", NEW)], "COMMIT", {"c0": P, "c1": S}),
        ([("Pd", NEW), ("Sg", OLD)], "COMMIT", {"c0": S, "c1": U}),  # must wait: #6538
        ([("Pi", NEW), ("Sg", OLD)], "PREPARE", {"c0": S, "c1": U}),
        ([("Pd", NEW), ("Sd", OLD)], "COMMIT", {"c0": S}),
        ([("R", OLD), ("Sg", NEW)], "REPLICATING", {"c0": P, "c1": U}),
        # v3: Removing, though the table is wanted (B5); who wants it removed says so again
        ([("Sg", OLD)], "ABSENT", {"c0": U}),
        ([("Sg", OLD), ("Sg", NEW)], "ABSENT", {"c0": U, "c1": U}),
        # v3: multiplePrimaryError; here the newest assignment stays, the other one ends
        ([("R", OLD), ("R", NEW)], "REPLICATING", {"c0": U, "c1": P}),
        ([("R", NEW), ("R", OLD)], "REPLICATING", {"c0": P, "c1": U}),
        # v3 has no tokens, and moves back to what was prepared before the primary was; here it
        # ends, and as an earlier owner may have told it to write it is waited for
        ([("R", NEW), ("Pd", OLD)], "REPLICATING", {"c0": P, "c1": U}),
        ([("R", NEW), ("Pi", OLD)], "REPLICATING", {"c0": P, "c1": U}),
        # v3 keeps two secondaries
        ([("Pd", OLD), ("Pi", NEW)], "PREPARE", {"c0": U, "c1": S}),
        ([("Pi", OLD), ("Pd", NEW)], "COMMIT", {"c0": U, "c1": S}),
    ],
)
def test_what_captures_tell_is_explained(found, state, roles):
    rset = rebuilt(TABLE, BEFORE, told(*found))
    assert rset.state is SetState[state]
    assert {each.capture: each.role for each in rset.places} == roles
    tokens = {f"c{n}": token for n, (_, token) in enumerate(found)}
    assert all(each.token == tokens[each.capture] for each in rset.places)


def test_progress_is_the_farthest_that_anybody_tells():
    """Whatever the role, and not less than that of the changefeed."""
    floor = Progress(50, 50, 1)
    for state in STATES:
        assert rebuilt(TABLE, floor, told((state, OLD), progress=Progress(70, 60, 2))).progress == (
            Progress(70, 60, 2)
        )
        assert rebuilt(TABLE, floor, told((state, OLD), progress=Progress(40, 40, 0))).progress == (
            floor
        )
    two = [*told(("R", OLD), progress=Progress(70, 0, 0)), *told(("Sd", OLD))]
    assert rebuilt(TABLE, floor, two).progress == BEFORE


def test_a_set_is_sound_whatever_captures_tell():
    tokens = (Token(3, 1), Token(3, 2), Token(4, 1))
    for states in product(STATES, repeat=3):
        for order in permutations(tokens):
            found = told(*zip(states, order, strict=True))
            rset = rebuilt(TABLE, BEFORE, found)
            assert complaint(rset) is None, (found, rset)
            backwards = rebuilt(TABLE, BEFORE, found[::-1])
            assert backwards == rset, "the order in which captures tell does not count"
            held = {c for c, status in found if status.state not in (STATES["A"], STATES["Sd"])}
            assert {each.capture for each in rset.places} == held, "who may write is not forgotten"


def test_who_stops_is_waited_for_before_anybody_is_promoted():
    """{Prepared, Stopping}: the window of #6538."""
    rset = rebuilt(TABLE, BEFORE, told(("Pd", NEW), ("Sg", OLD)))
    waiting, sent = step(rset, says("c0", "Pd", NEW), fresh=FRESH)
    assert (waiting, sent) == (rset, ())
    promoted, (sent,) = step(waiting, says("c1", "Sd", OLD), fresh=FRESH)
    assert promoted.primary == Place("c0", P, NEW)
    assert (sent.capture, sent.request.token, sent.request.is_prepare) == ("c0", NEW, False)


def test_an_earlier_writer_ends_when_it_reports():
    rset = rebuilt(TABLE, BEFORE, told(("R", OLD), ("R", NEW)))
    after, (sent,) = step(rset, says("c0", "R", OLD), fresh=FRESH)
    assert (sent.capture, sent.request.token) == ("c0", OLD)
    after, _ = step(after, says("c0", "Sg", OLD), fresh=FRESH)
    after, _ = step(after, says("c0", "Sd", OLD), fresh=FRESH)
    assert after.places == (Place("c1", P, NEW),)


def test_a_secondary_that_is_of_no_use_ends_when_it_reports():
    rset = rebuilt(TABLE, BEFORE, told(("R", NEW), ("Pd", OLD)))
    after, (sent,) = step(rset, says("c1", "Pd", OLD), fresh=FRESH)
    assert after.places == rset.places
    assert (sent.capture, sent.request.token) == ("c1", OLD)
    after, _ = step(after, says("c1", "A", OLD), fresh=FRESH)
    assert after.places == (Place("c0", P, NEW),)


# --- what a capture tells that could not be asked when the set was made ---


@pytest.mark.parametrize(
    ("before", "state", "after", "sent"),
    [
        # nobody writes, as far as is known: the writer goes on
        ("Absent", "R", "Replicating x:P", ""),
        ("Prepare S", "R", "Replicating x:P", ""),
        ("Commit S", "R", "Replicating x:P", ""),
        ("Absent U", "R", "Replicating U x:P", ""),
        ("Commit S U", "R", "Replicating U x:P", ""),
        # somebody writes, or is to: the one that was found ends
        ("Replicating P", "R", "Replicating P x:U", "remove x"),
        ("Prepare P S", "R", "Prepare P S x:U", "remove x"),
        ("Commit P", "R", "Commit P x:U", "remove x"),
        ("Removing P", "R", "Removing P x:U", "remove x"),
        ("Removing", "R", "Removing x:U", "remove x"),
        # it stops, and may still write: nobody is promoted meanwhile
        ("Absent", "Sg", "Absent x:U", "remove x"),
        ("Prepare S", "Sg", "Prepare S x:U", "remove x"),
        ("Commit P S", "Sg", "Commit P S x:U", "remove x"),
        ("Replicating P", "Sg", "Replicating P x:U", "remove x"),
        ("Removing P", "Sg", "Removing P x:U", "remove x"),
        # an earlier owner may have told it to write what it prepared: it has to end first
        ("Absent", "Pd", "Absent x:U", "remove x"),
        ("Replicating P", "Pi", "Replicating P x:U", "remove x"),
        ("Commit S", "Pd", "Commit S x:U", "remove x"),
        ("Removing U", "Pi", "Removing U x:U", "remove x"),
        # it has nothing
        ("Absent", "A", "Absent", ""),
        ("Commit S", "Sd", "Commit S", ""),
    ],
)
def test_what_is_found_late(before, state, after, sent):
    status = says("x", state).status
    rset, messages_sent = step(made(before), Found("x", status), fresh=FRESH)
    assert rset.state is made(after).state
    assert rset.places == made(after).places
    assert messages_sent == messages(sent, rset)
    assert complaint(rset) is None


@pytest.mark.parametrize("state", ["Pi", "Pd", "R", "Sg"])
def test_who_may_have_written_tells_how_far(state):
    rset, _ = step(made("Absent"), Found("x", says("x", state).status), fresh=FRESH)
    assert rset.progress == FARTHER
