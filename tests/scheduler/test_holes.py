"""The holes of TiCDC's scheduler, each as the story that falls into it.

The seventh, errors that are not looked at, has no counterpart: no transition fails. The eighth is
in `test_fencing.py`, the ninth in `test_policies.py`.
"""

from cdcmeta.scheduler import (
    AddTable,
    CaptureLost,
    MoveTable,
    Progress,
    RemoveTable,
    TableStatus,
    Token,
    rebuilt,
)
from cdcmeta.scheduler.core.replication import ReplicationManager

from .making import BEFORE, STATES, TABLE, Story, says

OLD = Token(4, 7)


def status(state: str, token: Token, progress: Progress = BEFORE) -> TableStatus:
    return TableStatus(TABLE, token, STATES[state], progress)


# --- B1: Absent from a primary is ignored, and the table is dead for ever ---


def test_b1_a_capture_that_restarted_under_its_name_has_not_the_table():
    story = Story().added("a")
    assert story.says("a", "A") == ""
    assert str(story) == "ABSENT"
    story.added("a")


def test_b1_the_answer_that_it_stopped_was_lost():
    """A move is given up in Commit; what comes next is "absent", as "stopped" is said once."""
    story = Story().added("a").moving("b")
    assert story.says("b", "Pd") == "remove a"
    story.happens(CaptureLost("b"))
    assert story.says("a", "R") == ""  # it had not got the removal yet
    assert str(story) == "REPLICATING a:P"
    assert story.says("a", "A") == ""
    assert str(story) == "ABSENT"
    story.added("c")


# --- B2: Stopping is taken for Stopped, and two write ---


def test_b2_the_next_one_waits_until_the_first_has_stopped():
    story = Story().added("a").moving("b")
    assert story.says("b", "Pd") == "remove a"  # on its way
    story.happens(CaptureLost("b"))
    assert story.says("a", "R") == ""  # late: said before the removal came
    story.moving("c")
    assert story.says("a", "Sg") == ""
    assert str(story) == "PREPARE a:U c:S"
    assert story.says("c", "Pd") == ""
    assert story.says("c", "Pd") == "", "a may still write"
    assert story.says("a", "Sg") == ""
    assert story.says("a", "Sd") == "commit c"


# --- B3: the commit of an earlier owner comes to light, and all is thrown away ---


def test_b3_what_an_earlier_owner_committed_is_adopted():
    story = Story(rebuilt(TABLE, BEFORE, [("a", status("Pd", OLD))]))
    assert str(story) == "COMMIT a:S"
    assert story.says("a", "R") == ""
    assert str(story) == "REPLICATING a:P"


def test_b3_beside_a_primary_the_second_writer_ends():
    """Nothing is thrown away: the one without a commit of ours goes."""
    story = Story().added("a").moving("b")
    assert story.says("b", "R") == "remove b"
    assert str(story) == "REPLICATING a:P b:U"
    assert story.says("b", "Sd") == ""
    assert str(story) == "REPLICATING a:P"


# --- B4: an undetermined capture is freed only in Commit and Removing ---


def test_b4_who_was_stopping_gets_the_table_again():
    story = Story(rebuilt(TABLE, BEFORE, [("a", status("Sg", OLD))]))
    assert str(story) == "ABSENT a:U"
    assert story.happens(AddTable(TABLE, "a")) == ""
    assert story.says("a", "Sd") == ""
    assert str(story) == "ABSENT"
    story.added("a")


def test_b4_who_was_stopping_ends_in_prepare():
    for end in (says("a", "Sd", OLD), says("a", "A", OLD), CaptureLost("a")):
        story = Story(rebuilt(TABLE, BEFORE, [("a", status("Sg", OLD))]))
        story.happens(AddTable(TABLE, "b"))
        assert str(story) == "PREPARE a:U b:S"
        story.happens(end)
        assert str(story) == "PREPARE b:S"
        assert story.says("b", "Pd") == "commit b"


# --- B5: a set that nobody wants and nobody has stays, and its task with it ---


def manager_with(*found: tuple[str, TableStatus], desired: bool = True) -> ReplicationManager:
    manager = ReplicationManager(5)
    manager.begin(
        [TABLE] if desired else [], lambda table: BEFORE, {c: [told] for c, told in found}
    )
    return manager


def test_b5_a_table_goes_though_who_had_it_died():
    manager = manager_with(("a", status("R", OLD)))
    (sent,) = manager.begin_task(RemoveTable(TABLE))
    assert sent.capture == "a"
    assert manager.capture_lost("a") == []
    assert manager.sets == {}
    assert manager.take_removed() == [TABLE]
    assert manager.take_removed() == []


def test_b5_a_table_goes_that_nobody_has_any_more():
    manager = manager_with(("a", status("R", OLD)))
    manager.capture_lost("a")
    assert TABLE in manager.absent
    assert manager.begin_task(RemoveTable(TABLE)) == []
    assert manager.sets == {}
    assert (dict(manager.absent), dict(manager.unsettled)) == ({}, {})


def test_b5_a_wanted_table_that_was_stopping_is_placed():
    """v3 calls it Removing after an owner change, and then nobody can have it."""
    manager = manager_with(("a", status("Sg", OLD)))
    assert list(manager.absent) == [TABLE]
    (sent,) = manager.begin_task(AddTable(TABLE, "b"))
    assert sent.capture == "b"


def test_b5_a_capture_with_a_table_that_nobody_wants_is_told_to_end_it():
    """And who has it without a set is told so, too."""
    manager = manager_with(("a", status("R", OLD)), desired=False)
    (sent,) = manager.begin_task(RemoveTable(TABLE))
    assert (sent.capture, sent.request.token) == ("a", OLD)
    assert manager.reported("a", [status("Sd", OLD)]) == []
    assert manager.sets == {}
    (sent,) = manager.reported("b", [status("R", Token(3, 3))])
    assert (sent.capture, sent.request.token) == ("b", Token(3, 3))
    assert manager.sets == {}


# --- B6: a task counts as under way after its table is back where it began ---


def test_b6_a_task_ends_when_a_report_makes_the_table_absent():
    manager = manager_with()
    (sent,) = manager.begin_task(AddTable(TABLE, "a"))
    manager.reported("a", [status("Pd", sent.request.token)])
    assert manager.running == {TABLE: AddTable(TABLE, "a")}
    manager.reported("a", [status("Sd", sent.request.token)])
    assert manager.running == {}
    assert manager.in_flight(AddTable) == 0
    (sent,) = manager.begin_task(AddTable(TABLE, "b"))
    assert sent.capture == "b"


def test_b6_a_move_ends_however_it_ends():
    for state in ("Sd", "Sg"):  # the secondary gives up
        manager = manager_with(("a", status("R", OLD)))
        (sent,) = manager.begin_task(MoveTable(TABLE, "b"))
        assert manager.in_flight(MoveTable) == 1
        manager.reported("b", [status(state, sent.request.token)])
        assert manager.running == {}
    manager = manager_with(("a", status("R", OLD)))
    (sent,) = manager.begin_task(MoveTable(TABLE, "b"))
    manager.reported("b", [status("Pd", sent.request.token)])
    manager.reported("a", [status("Sd", OLD)])
    assert manager.in_flight(MoveTable) == 1
    manager.reported("b", [status("R", sent.request.token)])
    assert manager.running == {}


# --- beside v3's holes ---


def test_a_removal_waits_for_no_slow_preparation():
    """A table that nobody wants any more ends while somebody still prepares it."""
    manager = manager_with()
    (prepare,) = manager.begin_task(AddTable(TABLE, "a"))
    sent = manager.begin_task(RemoveTable(TABLE))
    assert [(each.capture, each.request.token) for each in sent] == [("a", prepare.request.token)]
    manager.reported("a", [status("Sd", prepare.request.token)])
    assert manager.sets == {}
    assert manager.running == {}
