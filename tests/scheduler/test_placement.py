"""Facts 3: basic, which places what nobody has and removes what nobody wants."""

import pytest

from cdcmeta.scheduler import AddTable, Limits, RemoveTable, Role
from cdcmeta.scheduler.core.policies import NOTHING, plan_basic

from .placing import after, facts, state_of, tables

P, S, U = Role.PRIMARY, Role.SECONDARY, Role.UNDETERMINED


def sizes(placed):
    return {capture: len(tables) for capture, tables in placed.items()}


# --- basic: what nobody has is placed ---


def test_tables_that_nobody_has_go_to_who_has_least():
    """v3 deals them out in turn, whatever each has already."""
    primaries = {"a": tables("a", 5), "b": tables("b", 1), "c": []}
    plan = plan_basic(facts(primaries, absent=tables("n", 6)))
    assert plan.is_burst
    assert sizes(after(primaries, plan.tasks)) == {"a": 5, "b": 4, "c": 3}


def test_the_first_tables_of_an_empty_cluster_are_spread_evenly():
    primaries = {name: [] for name in "abcd"}
    plan = plan_basic(facts(primaries, absent=tables("n", 10)))
    assert sizes(after(primaries, plan.tasks)) == {"a": 3, "b": 3, "c": 2, "d": 2}
    assert [task.table for task in plan.tasks] == tables("n", 10), "in their order"


def test_tables_are_placed_by_weight_if_they_weigh():
    """v3 counts only: #7659."""
    weights = {"a000": 100.0, "b000": 1.0, "n000": 30.0, "n001": 30.0, "n002": 30.0}
    primaries = {"a": ["a000"], "b": ["b000"]}
    plan = plan_basic(facts(primaries, absent=tables("n", 3), weights=weights))
    assert after(primaries, plan.tasks)["a"] == {"a000"}


def test_with_the_same_weight_the_fewer_tables_count():
    weights = {"a000": 0.0, "n000": 0.0}
    plan = plan_basic(facts({"a": ["a000"], "b": []}, absent=["n000"], weights=weights))
    assert plan.tasks == (AddTable("n000", "b"),)


def test_what_a_capture_prepares_counts_as_its_own():
    sets = [state_of(f"x{n} PREPARE", ("a", S)) for n in range(3)]
    plan = plan_basic(facts({"a": [], "b": []}, sets=sets, absent=tables("n", 3)))
    assert [task.capture for task in plan.tasks] == ["b", "b", "b"]


def test_a_batch_is_placed_in_a_tick():
    given = facts({"a": []}, absent=tables("n", 9), limits=Limits(add_batch=4))
    assert [task.table for task in plan_basic(given).tasks] == tables("n", 4)


@pytest.mark.parametrize(
    ("in_flight", "placed"), [(0, 4), (3, 4), (7, 3), (9, 1), (10, 0), (12, 0)]
)
def test_what_is_under_way_has_a_limit_of_its_own(in_flight, placed):
    """Batch and in flight are two things; and a limit that was overshot still limits (B9)."""
    limited = Limits(add_batch=4, adds_in_flight=10)
    given = facts({"a": []}, absent=tables("n", 9), adds_in_flight=in_flight, limits=limited)
    assert len(plan_basic(given).tasks) == placed


@pytest.mark.parametrize(("preparing", "placed_there"), [(0, 3), (2, 1), (3, 0), (5, 0)])
def test_a_capture_prepares_only_so_many_at_a_time(preparing, placed_there):
    """#6828: all tables at once drown the only one that is left."""
    sets = [state_of(f"x{n} PREPARE", ("a", S)) for n in range(preparing)]
    primaries = {"a": [], "b": tables("b", 9)}
    given = facts(primaries, sets=sets, absent=tables("n", 9), limits=Limits(adds_per_capture=3))
    placed = [task.capture for task in plan_basic(given).tasks]
    assert (placed.count("a"), placed.count("b")) == (placed_there, 3)


def test_captures_that_leave_get_nothing():
    given = facts({"a": [], "b": []}, absent=tables("n", 4), stopping=["a"])
    assert {task.capture for task in plan_basic(given).tasks} == {"b"}
    assert plan_basic(facts({"a": []}, absent=["n"], stopping=["a"])) == NOTHING
    assert plan_basic(facts({}, absent=["n"])) == NOTHING


def test_a_table_is_not_placed_where_it_is_still_stopping():
    """v3 fails there: B4."""
    sets = [state_of("x ABSENT", ("a", U))]
    primaries = {"a": [], "b": tables("b", 5)}
    assert plan_basic(facts(primaries, sets=sets)).tasks == (AddTable("x", "b"),)
    assert plan_basic(facts({"a": []}, sets=sets)) == NOTHING


def test_tables_that_cannot_be_placed_hold_up_no_others():
    sets = [state_of(f"x{n} ABSENT", ("a", U)) for n in range(3)]
    given = facts({"a": []}, sets=sets, absent=["y0", "y1", "y2"], limits=Limits(add_batch=2))
    assert plan_basic(given).tasks == (AddTable("y0", "a"), AddTable("y1", "a"))


def test_what_is_preparing_is_not_placed_again():
    given = facts({"a": []}, sets=[state_of("x PREPARE", ("a", S)), state_of("y COMMIT", ("a", P))])
    assert plan_basic(given) == NOTHING


# --- basic: what nobody wants is removed ---


def test_what_nobody_wants_is_removed_all_at_once():
    unwanted = tables("a", 300)
    given = facts({"a": unwanted}, unwanted=unwanted, limits=Limits(add_batch=1))
    plan = plan_basic(given)
    assert plan.tasks == tuple(RemoveTable(table) for table in unwanted)
    assert plan.is_burst


def test_a_set_without_captures_is_removed_too():
    """v3 skips it, and warns for ever: B5."""
    assert plan_basic(facts({"a": []}, unwanted=["x"])).tasks == (RemoveTable("x"),)


def test_tables_are_placed_and_removed_together():
    given = facts({"a": ["x"]}, unwanted=["x"], absent=["n"])
    assert set(plan_basic(given).tasks) == {RemoveTable("x"), AddTable("n", "a")}


def test_what_is_unwanted_goes_though_nothing_can_be_placed():
    given = facts({"a": ["x"]}, unwanted=["x"], absent=["n"], stopping=["a"])
    assert plan_basic(given).tasks == (RemoveTable("x"),)
