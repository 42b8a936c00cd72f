"""Facts 3: drain and move, and the order of all policies."""

import pytest

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import AddTable, Limits, MoveTable, RemoveTable, Role
from cdcmeta.scheduler.core.policies import (
    NOTHING,
    SchedulerManager,
    drain_target,
    plan_drain,
    possible_moves,
)

from .placing import facts, state_of, tables

P, S, U = Role.PRIMARY, Role.SECONDARY, Role.UNDETERMINED


# --- drain ---


def test_who_is_asked_for_is_emptied_first():
    primaries = {"a": ["a0"], "b": ["b0"], "c": ["c0"]}
    given = facts(primaries, stopping=["b"])
    assert drain_target(given, "c") == "c"
    assert drain_target(given, None) == "b"
    assert drain_target(facts(primaries), None) is None


def test_without_another_capture_nobody_is_emptied():
    assert drain_target(facts({"a": ["a0"]}), "a") is None
    assert drain_target(facts({"a": ["a0"]}, stopping=["a"]), None) is None
    both = facts({"a": ["a0"], "b": ["b0"]}, stopping=["a", "b"])
    assert drain_target(both, None) is None, "no other can take the tables"


def test_who_has_nothing_is_done():
    assert drain_target(facts({"a": [], "b": ["b0"]}), "a") is None
    assert drain_target(facts({"b": ["b0"]}), "gone") is None


def test_one_that_leaves_and_has_nothing_holds_up_no_other():
    given = facts({"a": [], "b": ["b0"], "c": []}, stopping=["a", "b"])
    assert drain_target(given, None) == "b"


def test_the_first_tables_go_to_who_has_least():
    primaries = {"a": tables("a", 5), "b": tables("b", 2), "c": tables("c", 3)}
    plan = plan_drain(facts(primaries, draining="a"), "a")
    assert not plan.is_burst
    assert plan.tasks == (
        MoveTable("a000", "b"),
        MoveTable("a001", "b"),
        MoveTable("a002", "c"),
        MoveTable("a003", "b"),
        MoveTable("a004", "c"),
    )


def test_nobody_who_leaves_takes_over():
    """v3 does not exclude another capture that stops."""
    primaries = {"a": tables("a", 2), "b": [], "c": tables("c", 9)}
    plan = plan_drain(facts(primaries, stopping=["a", "b"]), "a")
    assert {task.capture for task in plan.tasks} == {"c"}


@pytest.mark.parametrize(("in_flight", "moved"), [(0, 3), (2, 1), (3, 0), (5, 0)])
def test_as_many_are_emptied_at_a_time_as_may_move(in_flight, moved):
    given = facts(
        {"a": tables("a", 9), "b": []},
        draining="a",
        moves_in_flight=in_flight,
        limits=Limits(moves_in_flight=3),
    )
    assert [task.table for task in plan_drain(given, "a").tasks] == tables("a", moved)


@pytest.mark.parametrize("state", ["PREPARE", "COMMIT", "ABSENT", "REMOVING"])
def test_whoever_leaves_does_not_wait_for_other_tables(state):
    """TiCDC's drain waits until every table is replicated: one that hangs holds it up for ever.

    Nothing needs that: what others prepare counts as theirs, and basic goes first.
    """
    places = [] if state == "ABSENT" else [("b", S)]
    given = facts({"a": ["a0"], "b": []}, sets=[state_of(f"x {state}", *places)], draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("a0", "b"),)


def test_a_table_that_rests_after_failing_stays_for_now():
    given = facts({"a": ["a0", "a1"], "b": []}, draining="a", resting={"a0"})
    assert plan_drain(given, "a").tasks == (MoveTable("a1", "b"),)


def test_a_table_is_moved_where_it_did_not_fail():
    given = facts({"a": ["a0"], "b": [], "c": tables("c", 5)}, avoid={"a0": ("b",)}, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("a0", "c"),)


def test_where_a_table_failed_everywhere_it_goes_where_that_is_longest_ago():
    avoid = {"a0": ("c", "b")}
    given = facts({"a": ["a0"], "b": [], "c": tables("c", 5)}, avoid=avoid, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("a0", "c"),)


def test_captures_on_which_one_table_after_the_other_failed_get_nothing_while_others_can():
    given = facts({"a": ["a0"], "b": [], "c": tables("c", 5)}, failing_captures={"b"}, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("a0", "c"),)
    given = facts({"a": ["a0"], "b": []}, failing_captures={"b"}, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("a0", "b"),)


def test_a_table_goes_where_it_is_not_stopping():
    sets = [state_of("x REPLICATING", ("a", P), ("b", U))]
    given = facts({"a": [], "b": [], "c": tables("c", 5)}, sets=sets, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("x", "c"),)
    given = facts({"a": ["y"], "b": []}, sets=sets, draining="a")
    assert plan_drain(given, "a").tasks == (MoveTable("y", "b"),)


# --- move ---


def test_all_moves_that_make_sense_are_asked_for():
    given = facts({"a": ["a0", "a1"], "b": ["b0"]})
    manager = SchedulerManager()
    manager.moves = {"a0": "b", "b0": "a"}
    plan = manager.plan(given, 0)
    assert not plan.is_burst
    assert plan.tasks == (MoveTable("a0", "b"), MoveTable("b0", "a"))


@pytest.mark.parametrize(
    ("table", "to"),
    [
        ("gone", "b"),
        ("a0", "gone"),
        ("a0", "leaves"),
        ("a0", "a"),  # it is there
        ("busy", "b"),
        ("absent", "b"),
        ("stopping", "b"),
    ],
)
def test_a_move_that_makes_no_sense_is_forgotten(table, to):
    given = facts(
        {"a": ["a0", "a1"], "b": [], "leaves": []},
        stopping=["leaves"],
        absent=["absent"],
        sets=[
            state_of("busy PREPARE", ("a", P), ("b", S)),
            state_of("stopping REPLICATING", ("a", P), ("b", U)),
        ],
    )
    assert possible_moves(given, {table: to, "a1": "b"}) == {"a1": "b"}
    assert possible_moves(given, {table: to}) == {}


def test_a_table_has_one_move_to_come():
    manager = SchedulerManager()
    assert manager.request_move("a0", "b")
    assert not manager.request_move("a0", "c")
    assert manager.moves == {"a0": "b"}
    manager.accepted(MoveTable("a0", "b"))
    assert manager.request_move("a0", "c")


def test_a_move_is_done_with_once_it_has_begun_and_not_before():
    manager, given = SchedulerManager(), facts({"a": ["a0", "a1"], "b": ["b0", "b1"]})
    manager.request_move("a0", "b")
    assert manager.plan(given, 0).tasks == (MoveTable("a0", "b"),)
    assert manager.plan(given, 1).tasks == (MoveTable("a0", "b"),), "it did not begin"
    manager.accepted(MoveTable("a0", "b"))
    assert manager.moves == {}


def test_only_the_move_itself_is_what_was_asked_for():
    manager = SchedulerManager()
    manager.request_move("a0", "b")
    for other in (
        RemoveTable("a0"),
        AddTable("a0", "b"),
        MoveTable("a0", "c"),
        MoveTable("x", "b"),
    ):
        manager.accepted(other)
        assert manager.moves == {"a0": "b"}


def test_a_move_waits_while_its_table_is_busy_and_is_forgotten_when_it_makes_no_sense():
    """v3 forgets it while the table is busy."""
    manager = SchedulerManager()
    manager.request_move("x", "b")
    busy = facts({"a": [], "b": []}, sets=[state_of("x PREPARE", ("a", S))])
    assert manager.plan(busy, 0) == NOTHING
    assert manager.moves == {"x": "b"}
    assert manager.plan(facts({"a": [], "b": ["x"]}), 0) == NOTHING
    assert manager.moves == {}


# --- their order ---


def everything(**others):
    """Facts in which every policy has something to do, but for those taken away."""
    given = {"absent": ["n0"], "stopping": ["c"]} | others
    return facts({"a": tables("a", 9), "b": [], "c": ["c0"]}, **given)


def test_basic_comes_first_then_drain_then_move_then_rebalance_then_balance():
    manager = SchedulerManager()
    manager.request_move("a005", "b")
    assert manager.plan(everything(), 0).tasks == (AddTable("n0", "b"),)
    assert manager.plan(everything(absent=[]), 0).tasks == (MoveTable("c0", "b"),)
    rest = {"absent": [], "stopping": []}
    manager.is_rebalance_requested = True
    assert manager.plan(everything(**rest), 0).tasks == (MoveTable("a005", "b"),)
    manager.accepted(MoveTable("a005", "b"))
    plan = manager.plan(everything(**rest, limits=Limits(moves_in_flight=2)), 0)
    assert (len(plan.tasks), plan.is_burst) == (5, True)
    plan = manager.plan(everything(**rest, limits=Limits(moves_in_flight=2)), 0)
    assert (len(plan.tasks), plan.is_burst) == (2, False)


@pytest.mark.parametrize("in_flight", [2, 3])
def test_all_but_basic_wait_while_as_many_moves_are_under_way_as_may_be(in_flight):
    """Also when a burst has overshot the limit: B9."""
    manager = SchedulerManager()
    manager.request_move("a005", "b")
    manager.is_rebalance_requested = True
    busy = {"moves_in_flight": in_flight, "limits": Limits(moves_in_flight=2)}
    assert manager.plan(everything(**busy), 0).tasks == (AddTable("n0", "b"),)
    assert manager.plan(everything(absent=[], **busy), 0) == NOTHING
    assert manager.plan(everything(absent=[], stopping=[], **busy), 0) == NOTHING
    assert manager.is_rebalance_requested
    assert manager.moves == {"a005": "b"}


def test_who_was_asked_to_be_emptied_and_is_empty_is_done_with():
    manager = SchedulerManager()
    manager.draining = "b"
    manager.plan(facts({"a": ["a0"], "b": []}), 0)
    assert manager.draining == "b", "it does not know yet, and would be given tables"
    manager.plan(facts({"a": ["a0"], "b": []}, stopping=["b"]), 0)
    assert manager.draining is None


def test_who_is_asked_to_be_emptied_stays_so_while_its_tables_are_busy():
    manager = SchedulerManager()
    manager.draining = "a"
    busy = facts({"a": [], "b": []}, sets=[state_of("x PREPARE", ("a", P), ("b", S))], draining="a")
    assert manager.plan(busy, 0) == NOTHING
    assert manager.draining == "a"


# --- limits ---


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "3", None])
@pytest.mark.parametrize(
    "name",
    [
        "add_batch",
        "adds_in_flight",
        "adds_per_capture",
        "moves_in_flight",
        "balance_every_us",
        "heartbeat_every_us",
        "mute_us",
    ],
)
def test_limits_are_positive_integers(name, bad):
    with pytest.raises(InvalidArgumentError, match=name):
        Limits(**{name: bad})
