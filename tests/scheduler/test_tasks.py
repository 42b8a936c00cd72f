"""Facts 1.5: what tasks do to a set, and what a lost capture does."""

import pytest

from cdcmeta.scheduler import (
    AbandonTable,
    AddTable,
    CaptureLost,
    Limits,
    MoveTable,
    Progress,
    RemoveRequest,
    RemoveTable,
    Role,
    Send,
    SetState,
    TableState,
    TableStatus,
    step,
)
from cdcmeta.scheduler.core.failures import LOST_MAX
from cdcmeta.scheduler.core.replication import ReplicationManager

from .indexes import check
from .making import BEFORE, FRESH, STATES, TABLE, complaint, made, messages, says
from .rows import SETS

# --- add ---


@pytest.mark.parametrize("words", SETS)
def test_a_table_is_added_only_where_nobody_is_asked_to_replicate_it(words):
    before = made(words)
    after, sent = step(before, AddTable(TABLE, "x"), fresh=FRESH)
    if words.startswith("Absent"):
        assert after == made(words.replace("Absent", "Prepare") + " x:S*")
        assert sent == messages("prepare x*", after)
    else:
        assert after == before
        assert sent == ()


def test_a_table_is_not_added_where_it_is_still_stopping():
    """v3 fails, and with it the changefeed: "can not set as secondary, it's Undetermined"."""
    before = made("Absent U")
    assert step(before, AddTable(TABLE, "u"), fresh=FRESH) == (before, ())


def test_a_table_is_added_at_the_progress_of_its_set():
    """The progress of a task counts only while there is no set."""
    manager = ReplicationManager(5)
    manager.create_set(TABLE, Progress(100, 100))
    manager.create_set(TABLE, Progress(1, 1))
    (sent,) = manager.begin_task(AddTable(TABLE, "x"))
    assert sent.request.progress == Progress(100, 100)


# --- move ---


@pytest.mark.parametrize("words", SETS)
def test_only_a_table_that_is_replicated_is_moved(words):
    before = made(words)
    after, sent = step(before, MoveTable(TABLE, "x"), fresh=FRESH)
    if words.startswith("Replicating"):
        assert after == made(words.replace("Replicating", "Prepare") + " x:S*")
        assert sent == messages("prepare x*", after)
    else:
        assert after == before
        assert sent == ()


@pytest.mark.parametrize("to", ["p", "u"])
def test_a_table_is_not_moved_to_where_it_is(to):
    """v3 fails for a capture that is still stopping."""
    before = made("Replicating P U")
    assert step(before, MoveTable(TABLE, to), fresh=FRESH) == (before, ())


# --- remove ---


@pytest.mark.parametrize("words", SETS)
def test_a_table_is_removed_in_every_state(words):
    """v3 removes only what is replicated, and warns about the others at every tick: B5."""
    before = made(words)
    after, sent = step(before, RemoveTable(TABLE), fresh=FRESH)
    assert after == made(" ".join(("Removing", *words.split()[1:])))
    assert sent == messages(", ".join(f"remove {each.capture}" for each in before.places), after)
    assert after.is_removed is (not before.places)


@pytest.mark.parametrize("task", [AddTable(TABLE, "x"), MoveTable(TABLE, "x")])
def test_what_is_removed_is_given_to_nobody(task):
    before = made("Removing P")
    assert step(before, task, fresh=FRESH) == (before, ())


def test_a_removal_ends_with_the_last_who_has_the_table():
    rset, _ = step(made("Commit P S U"), RemoveTable(TABLE), fresh=FRESH)
    for event in (says("s", "A"), CaptureLost("u"), says("p", "Sg")):
        rset, sent = step(rset, event, fresh=FRESH)
        assert sent == ()
        assert not rset.is_removed
    rset, _ = step(rset, says("p", "Sd"), fresh=FRESH)
    assert rset.is_removed


# --- one task at a time ---


@pytest.mark.parametrize("task", [AddTable(TABLE, "y"), MoveTable(TABLE, "y")])
def test_a_table_that_is_busy_gets_no_second_task(task):
    manager = ReplicationManager(5)
    manager.create_set(TABLE, BEFORE)
    assert len(manager.begin_task(AddTable(TABLE, "x"))) == 1
    before = manager.sets[TABLE]
    assert manager.begin_task(task) == []
    assert manager.sets[TABLE] == before
    assert manager.running == {TABLE: AddTable(TABLE, "x")}


@pytest.mark.parametrize(
    "task", [AddTable("other", "x"), MoveTable("other", "x"), RemoveTable("other")]
)
def test_a_task_for_a_table_without_a_set_does_nothing(task):
    manager = ReplicationManager(5)
    assert manager.begin_task(task) == []
    assert manager.sets == {}
    assert manager.running == {}


# --- preparations that are given up ---


@pytest.mark.parametrize("words", SETS)
def test_who_gives_up_is_only_who_prepares_or_starts_and_nothing_more(words):
    """It is asked to end, and others wait for that only if it may have been told to write."""
    before = made(words)
    for capture in [*(each.capture for each in before.places), "x"]:
        after, sent = step(before, AbandonTable(TABLE, capture), fresh=FRESH)
        place = before.place(capture)
        starts = before.state is SetState.COMMIT and before.secondary is None
        starts = starts and place is not None and place.role is Role.PRIMARY
        if place is not None and (place.role is Role.SECONDARY or starts):
            assert [(to, request) for to, request in sent] == [
                (capture, RemoveRequest(TABLE, place.token))
            ]
            ended = SetState.PREPARE is before.state
            assert after == (before.without(place) if ended else before.with_undetermined(place))
            assert complaint(after) is None
        else:
            assert (after, sent) == (before, ())


def test_a_preparation_has_its_time_and_twice_that_when_it_failed():
    limits = Limits(prepare_us=1_000)
    manager = ReplicationManager(5, limits)
    manager.create_set(TABLE, BEFORE)
    for turn in range(3):
        manager.begin_task(AddTable(TABLE, "x"))
        manager.now += 10**9  # it slept: that does not count
        manager.waited += (1_000 << turn) - 1
        assert manager.overdue() == []
        manager.waited += 1
        (late,) = manager.overdue()
        assert late == AbandonTable(TABLE, "x")
        assert manager.failures.tables[TABLE].times == turn + 1
        ((_, request),) = manager.begin_task(late)
        assert TABLE not in manager.running
        assert manager.sets[TABLE].places == ()
        manager.reported("x", [TableStatus(TABLE, request.token, TableState.STOPPED)])
        assert manager.overdue() == []
        assert manager.failures.tables[TABLE].times == turn + 1, "not counted twice"


def test_a_start_has_its_time_and_twice_that_when_it_failed():
    manager = ReplicationManager(5, Limits(start_us=1_000, prepare_us=10**9))
    manager.create_set(TABLE, BEFORE)
    for turn in range(3):
        ((_, request),) = manager.begin_task(AddTable(TABLE, "x"))
        manager.reported("x", [TableStatus(TABLE, request.token, TableState.PREPARED)])
        manager.waited += (1_000 << turn) - 1
        for _ in range(3):
            manager.reported("x", [TableStatus(TABLE, request.token, TableState.PREPARED)])
            assert manager.overdue() == []
        manager.waited += 1
        (late,) = manager.overdue()
        assert late == AbandonTable(TABLE, "x")
        assert manager.failures.tables[TABLE].times == turn + 1
        assert manager.begin_task(late) == [Send("x", RemoveRequest(TABLE, request.token))]
        assert [each.role for each in manager.sets[TABLE].places] == [Role.UNDETERMINED]
        assert manager.overdue() == [], "it is given up once"
        manager.reported("x", [TableStatus(TABLE, request.token, TableState.STOPPED)])
        assert manager.sets[TABLE].places == ()
        assert manager.failures.tables[TABLE].times == turn + 1, "not counted twice"


@pytest.mark.parametrize("words", SETS)
def test_what_has_to_stop_hangs_after_its_time(words):
    """Whoever stops, is replaced or removed; not who starts, prepares or replicates."""
    manager = ReplicationManager(5, Limits(stop_us=1_000))
    manager.waited = 500
    manager._put(made(words))
    manager.waited = 1_499
    assert manager.hanging() == []
    manager.waited = 1_500
    to_stop = {
        each.capture
        for each in made(words).places
        if words.startswith("Removing")
        or each.role is Role.UNDETERMINED
        or (words.startswith("Commit P S") and each.role is Role.PRIMARY)
    }
    assert {each.capture for each in manager.hanging()} == to_stop
    for capture in to_stop:
        manager.capture_lost(capture)
    assert manager.hanging() == []
    check(manager)


def test_what_is_lost_too_often_has_failed():
    manager = ReplicationManager(5)
    manager.create_set(TABLE, BEFORE)
    ((_, request),) = manager.begin_task(AddTable(TABLE, "x"))
    for _ in range(LOST_MAX):
        assert manager.overdue() == []
        absent = TableStatus(TABLE, request.token, TableState.ABSENT)
        ((_, request),) = manager.reported("x", [absent])
    assert manager.overdue() == [AbandonTable(TABLE, "x")]


# --- captures that are lost ---


@pytest.mark.parametrize("words", SETS)
def test_a_capture_that_is_lost_is_one_that_has_stopped(words):
    """As in v3, that a capture ended is a report without progress that it has stopped."""
    before = made(words)
    for each in before.places:
        lost, sent = step(before, CaptureLost(each.capture), fresh=FRESH)
        stopped, told = step(before, says(each.capture, "Sd"), fresh=FRESH)
        assert lost == stopped._replace(progress=BEFORE)
        assert [(to, request.token) for to, request in sent] == [
            (to, request.token) for to, request in told
        ]
        assert lost.place(each.capture) is None
        assert complaint(lost) is None


@pytest.mark.parametrize("words", SETS)
def test_a_capture_without_the_table_can_be_lost(words):
    before = made(words)
    assert step(before, CaptureLost("x"), fresh=FRESH) == (before, ())


# --- progress, facts 1.8 ---


@pytest.mark.parametrize(
    ("known", "newer", "folded"),
    [
        (Progress(5, 6, 7), Progress(6, 7, 8), Progress(6, 7, 8)),
        (Progress(5, 6, 7), Progress(4, 5, 6), Progress(5, 6, 7)),
        (Progress(5, 6, 7), Progress(6, 5, 8), Progress(6, 6, 8)),  # each on its own
        (Progress(5, 6, 7), Progress(4, 9, 6), Progress(5, 9, 7)),
        (Progress(5, 6, 7), Progress(4, 5, 9), Progress(5, 6, 9)),
        (Progress(5, 6, 7), Progress(9, 0, 0), Progress(9, 9, 7)),  # no resolved timestamp
        (Progress(5, 6, 7), Progress(0, 0, 0), Progress(5, 6, 7)),
        (Progress(0, 0, 0), Progress(5, 0, 0), Progress(5, 5, 0)),
        (Progress(0, 0, 0), Progress(5, 3, 0), Progress(5, 3, 0)),  # odd, and not ours to mend
    ],
)
def test_progress_never_goes_backwards(known, newer, folded):
    assert known.fold(newer) == folded


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("words", SETS)
def test_who_prepares_says_nothing_about_progress(words, state):
    before = made(words)
    for each in before.places:
        after, _ = step(before, says(each.capture, state), fresh=FRESH)
        assert (after.progress == before.progress) is (each.role is Role.SECONDARY)
