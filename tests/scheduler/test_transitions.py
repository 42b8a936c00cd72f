"""Facts 1.4 and 1.2: what a replication set does about a report."""

import random
from collections import Counter

import pytest

from cdcmeta.scheduler import (
    AddTable,
    CaptureLost,
    MoveTable,
    Progress,
    RemoveTable,
    ReplicationSet,
    Report,
    Role,
    SetState,
    TableState,
    TableStatus,
    Token,
    step,
)
from cdcmeta.scheduler.core.replication_set import continued
from cdcmeta.scheduler.core.states import NO_PROGRESS

from .making import (
    BEFORE,
    FARTHER,
    FRESH,
    STATES,
    TABLE,
    TOKENS,
    complaint,
    made,
    messages,
    place,
    says,
)
from .rows import ROWS, SETS

CASES = [
    pytest.param(
        row, state, id=f"{row.before}: {row.by} says {state}" + (f" ({row.v3})" if row.v3 else "")
    )
    for row in ROWS
    for state in row.inputs.split()
]


@pytest.mark.parametrize(("row", "state"), CASES)
def test_what_follows_from_a_report(row, state):
    before = made(row.before)
    after, sent = step(before, says(row.by, state), fresh=FRESH)
    # v3 loses what a primary says when it stops in Prepare; here whoever may write is believed
    is_writer = before.place(row.by).role is not Role.SECONDARY
    expected = made(row.before if row.after == "same" else row.after)
    expected = expected._replace(progress=FARTHER if is_writer else BEFORE)
    assert after == expected
    assert sent == messages(row.told, after)
    assert complaint(after) is None


@pytest.mark.parametrize("words", SETS)
def test_the_short_way_of_a_report_leads_where_step_does(words):
    before, taken = made(words), 0
    for capture in TOKENS:
        mine = before.place(capture)
        for state in TableState:
            for token in {FRESH, *TOKENS.values(), *((mine.token,) if mine else ())}:
                for progress in (BEFORE, FARTHER, NO_PROGRESS):
                    status = TableStatus(TABLE, token, state, progress)
                    after = continued(before, capture, status)
                    if after is not None:
                        taken += 1
                        report = Report(capture, status)
                        assert step(before, report, fresh=FRESH) == (after, ())
                        assert type(after) is ReplicationSet
    assert bool(taken) == (before.state is SetState.REPLICATING)


def test_no_row_is_missing_or_doubled():
    told = Counter((row.before, row.by, state) for row in ROWS for state in row.inputs.split())
    assert set(told.values()) == {1}
    for words in SETS:
        for each in made(words).places:
            for state in STATES:
                assert (words, each.capture, state) in told


def test_every_state_is_there_with_every_set_of_roles_that_it_can_have():
    roles = {(), ("P",), ("S",), ("U",), ("P", "S"), ("P", "U"), ("S", "U"), ("P", "S", "U")}
    possible = {
        " ".join((state.name.capitalize(), *names))
        for state in SetState
        for names in roles
        if complaint(made(" ".join((state.name, *names)))) is None
    }
    pairs = {"Removing P S", "Removing P U", "Removing S U"}  # nothing that three do not show
    assert possible - set(SETS) == pairs


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("words", SETS)
def test_a_stranger_changes_nothing_and_ends_what_it_has(words, state):
    """v3 does nothing at all, even when a stranger replicates."""
    before = made(words)
    after, sent = step(before, says("x", state), fresh=FRESH)
    assert after == before
    assert sent == messages("remove x" if state in ("Pi", "Pd", "R") else "", before)


@pytest.mark.parametrize("token", [Token(4, 99), FRESH], ids=["earlier token", "later token"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("words", SETS)
def test_a_report_about_another_assignment_changes_nothing(words, state, token):
    """v3 has no tokens: it takes an old report for one about the newest request."""
    before = made(words)
    for each in before.places:
        after, sent = step(before, says(each.capture, state, token), fresh=FRESH)
        is_preparing = (before.state, each.role) == (SetState.PREPARE, Role.SECONDARY)
        if is_preparing and state == "Sg" and token < each.token:
            continue  # the next test
        assert after == before
        live = state in ("Pi", "Pd", "R")
        assert [(to, request.token) for to, request in sent] == [(each.capture, token)] * live
        assert all(not hasattr(request, "is_prepare") for _, request in sent)


@pytest.mark.parametrize(
    ("words", "after"),
    [
        ("Prepare S", "Absent s:U"),
        ("Prepare S U", "Absent s:U U"),
        ("Prepare P S", "Replicating P s:U"),
        ("Prepare P S U", "Replicating P s:U U"),
    ],
)
def test_who_still_stops_an_earlier_assignment_prepares_nothing(words, after):
    """It does not take the new one; v3 asks it again and again."""
    earlier = Token(4, 99)
    changed, sent = step(made(words), says("s", "Sg", earlier), fresh=FRESH)
    (place,) = [each for each in changed.places if each.capture == "s"]
    assert place.token == earlier, "it is free once this one has ended"
    again = changed.with_place(place._replace(token=TOKENS["s"]))
    assert (again, sent) == (made(after), ())


# --- nobody is promoted while somebody of an earlier owner's time was not heard ---


@pytest.mark.parametrize(
    ("words", "event", "after"),
    [
        ("Prepare S", says("s", "Pd"), "Commit S"),
        ("Commit S", says("s", "Pd"), "Commit S"),
        ("Commit P S", says("p", "Sd"), "Commit S"),
        ("Commit S U", says("u", "Sd"), "Commit S"),
        ("Commit P S", CaptureLost("p"), "Commit S"),
        ("Commit S U", CaptureLost("u"), "Commit S"),
    ],
)
def test_nobody_is_promoted_while_not_all_were_heard(words, event, after):
    waiting, sent = step(made(words), event, fresh=FRESH, is_settled=False)
    assert waiting.places == made(after).places
    assert waiting.state is SetState.COMMIT
    assert sent == ()
    promoted, sent = step(waiting, says("s", "Pd"), fresh=FRESH)
    assert promoted.places == made("Commit s:P").places
    assert sent == messages("commit s", promoted)


def test_who_was_promoted_before_is_told_so_again_though_not_all_were_heard():
    after, sent = step(made("Commit P"), says("p", "Pd"), fresh=FRESH, is_settled=False)
    assert sent == messages("commit p", after)


def test_a_move_leaves_the_primary_alone_while_not_all_were_heard():
    """Nobody could be promoted: without it the table had no writer until all have told."""
    before = made("Prepare P S")
    waiting, sent = step(before, says("s", "Pd"), fresh=FRESH, is_settled=False)
    assert (waiting, sent) == (before, ())
    after, sent = step(waiting, says("s", "Pd"), fresh=FRESH)
    assert after == made("Commit P S")
    assert sent == messages("remove p", after)


# --- all that can happen, in any order ---


@pytest.mark.long_after(20)
@pytest.mark.parametrize("seed", range(40))
def test_what_must_hold_does_hold_after_whatever_happens(seed):
    """Reports of any state under any token that was issued: late, doubled, false."""
    rng = random.Random(seed)
    rset, issued = ReplicationSet(TABLE), [Token(1, 1)]
    seen: set[SetState] = set()
    for _ in range(1000):
        fresh = Token(1, len(issued) + 1)
        event = any_event(rng, rset, issued)
        is_settled = rng.random() < 0.8
        after, sent = step(rset, event, fresh=fresh, is_settled=is_settled)
        told = f"seed {seed}: {rset} after {event}: {after}, {sent}"
        assert complaint(after) is None, f"{complaint(after)}: {told}"
        assert all(a >= b for a, b in zip(after.progress, rset.progress, strict=True)), told
        for capture, request in sent:
            place = after.place(capture)
            if not hasattr(request, "is_prepare"):
                continue
            assert place is not None, told
            assert place.token == request.token, told
            assert request.progress == after.progress, told
            if not request.is_prepare:
                assert place.role is Role.PRIMARY, told
                if rset.primary is None or rset.primary.capture != capture:  # newly promoted
                    assert not after.is_undetermined, told
                    assert is_settled, told
        if any(request.token == fresh for _, request in sent):
            issued.append(fresh)
        if after.is_removed:
            after = ReplicationSet(TABLE, progress=after.progress)
        rset = after
        seen.add(rset.state)
    assert seen == set(SetState), f"seed {seed} saw only {seen}"


def any_event(rng, rset, issued):
    capture = rng.choice("abc")
    if rng.random() < 0.25:
        tasks = [
            AddTable(TABLE, capture),
            AddTable(TABLE, capture),
            MoveTable(TABLE, capture),
            MoveTable(TABLE, capture),
            CaptureLost(capture),
            RemoveTable(TABLE),
        ]
        return rng.choice(tasks)
    place = rset.place(capture)
    token = place.token if place is not None and rng.random() < 0.8 else rng.choice(issued)
    progress = Progress(rng.randrange(1000), rng.randrange(1000), rng.randrange(1000))
    state = rng.choice(list(STATES.values()))
    return Report(capture, TableStatus(TABLE, token, state, progress))


def test_words_make_what_they_say():
    """The tests above compare with sets made of words."""
    rset = made("Commit p:U S*")
    assert rset.state is SetState.COMMIT
    assert [tuple(each) for each in rset.places] == [
        ("p", Role.UNDETERMINED, TOKENS["p"]),
        ("s", Role.SECONDARY, FRESH),
    ]
    assert place("s:P").role is Role.PRIMARY
    assert complaint(made("Replicating S")) is not None
