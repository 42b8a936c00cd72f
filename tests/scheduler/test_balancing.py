"""Facts 3: rebalance and balance, and which tables they move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.scheduler import Limits, MoveTable, Role
from cdcmeta.scheduler.core.policies import (
    NOTHING,
    TOLERANCE,
    SchedulerManager,
    balancing_moves,
    plan_balance,
)

from .placing import after, facts, state_of, tables

P, S, U = Role.PRIMARY, Role.SECONDARY, Role.UNDETERMINED
INTERVAL = Limits().balance_every_us


def cluster(*counts):
    """Captures a, b, ... with so many tables each."""
    return {name: tables(name, count) for name, count in zip("abcdefgh", counts, strict=False)}


def sizes(placed):
    return sorted((len(tables) for tables in placed.values()), reverse=True)


# --- which tables move ---


@pytest.mark.parametrize(
    ("counts", "evened", "moves"),
    [
        ((4, 0), [2, 2], 2),
        ((3, 0), [2, 1], 1),
        ((2, 1), [2, 1], 0),
        ((3, 3, 0), [2, 2, 2], 2),
        ((9, 0, 0), [3, 3, 3], 6),
        ((5, 4, 3), [4, 4, 4], 1),
        ((1, 0), [1, 0], 0),
        ((0, 0), [0, 0], 0),
        ((7,), [7], 0),
        ((), [], 0),
        # v3: no capture is above ceil(6 / 4), so the empty one stays empty
        ((2, 2, 2, 0), [2, 2, 1, 1], 1),
        ((3, 3, 3, 3, 0), [3, 3, 2, 2, 2], 2),
    ],
)
def test_tables_are_evened_out(counts, evened, moves):
    primaries = cluster(*counts)
    plan = plan_balance(facts(primaries), is_burst=True)
    assert sizes(after(primaries, plan.tasks)) == evened
    assert len(plan.tasks) == moves, "and no more move than must"
    assert plan.is_burst or not moves


def test_what_others_prepare_counts_and_is_not_moved():
    sets = [state_of(f"x{n} PREPARE", ("a", P), ("b", S)) for n in range(3)]
    primaries = {"a": ["a0", "a1"], "b": [], "c": []}
    tasks = balancing_moves(facts(primaries, sets=sets), 99)
    assert {task.table for task in tasks} == {"a0", "a1"}, "the others are busy"
    assert {task.capture for task in tasks} == {"c"}, "b prepares three"


def test_what_others_stop_does_not_count_and_is_not_moved():
    """A stop may hang for ever: b would have too few tables as long."""
    sets = [state_of(f"x{n} REPLICATING", ("a", P), ("b", U)) for n in range(3)]
    primaries = {"a": ["a0", "a1"], "b": [], "c": []}
    tasks = balancing_moves(facts(primaries, sets=sets), 99)
    assert {task.table for task in tasks} == {"a0", "a1"}, "the others would wait for b's stop"
    assert {task.capture for task in tasks} == {"b", "c"}, "neither replicates anything"


def test_weights_are_evened_out_and_not_counts():
    weights = {"a0": 10.0, "b0": 1.0, "b1": 4.0, "b2": 5.0}
    primaries = {"a": ["a0"], "b": ["b0", "b1", "b2"]}
    assert balancing_moves(facts(primaries, weights=weights), 99) == []
    weights |= {"a1": 3.0, "a2": 3.0}
    primaries["a"] += ["a1", "a2"]
    assert balancing_moves(facts(primaries, weights=weights), 99) == [MoveTable("a2", "b")]


def test_the_heaviest_table_moves_that_makes_two_more_equal():
    weights = {"a0": 1.0, "a1": 2.0, "a2": 6.0, "a3": 8.0, "b0": 2.0}
    primaries = {"a": ["a0", "a1", "a2", "a3"], "b": ["b0"]}
    assert balancing_moves(facts(primaries, weights=weights), 1) == [MoveTable("a2", "b")]


def test_a_little_difference_of_weights_is_left_alone():
    """Weights are measured, and moving has its price."""
    least = 100.0
    for apart, moves in ((TOLERANCE * 90, False), (TOLERANCE * 120, True)):
        weights = {"a0": 4.0, "a1": least + apart - 4.0, "b0": least}
        primaries = {"a": ["a0", "a1"], "b": ["b0"]}
        assert bool(balancing_moves(facts(primaries, weights=weights), 9)) is moves


def test_a_table_too_heavy_to_move_holds_up_no_others():
    weights = {"a0": 100.0} | {f"b{n}": 10.0 for n in range(4)}
    primaries = {"a": ["a0"], "b": ["b0", "b1", "b2", "b3"], "c": []}
    placed = after(primaries, balancing_moves(facts(primaries, weights=weights), 99))
    assert sizes(placed) == [2, 2, 1]


def test_a_table_that_weighs_nothing_holds_up_no_others():
    weights = {"a0": 0.0, "a1": 6.0, "a2": 4.0, "b0": 0.0, "b1": 0.0}
    primaries = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]}
    assert balancing_moves(facts(primaries, weights=weights), 99) == [MoveTable("a2", "b")]
    weights = {"a0": 0.0, "a1": 6.0, "a2": 6.0, "b0": 2.0}
    primaries = {"a": ["a0", "a1", "a2"], "b": ["b0"]}
    assert balancing_moves(facts(primaries, weights=weights), 99) == [MoveTable("a1", "b")]


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.3, 1e-9, 1e9])
def test_tables_that_all_weigh_the_same_are_counted(weight):
    """Also where three of them do not weigh three times as much: 0.1 + 0.1 + 0.1 > 0.3."""
    for counts, evened, moves in (((4, 0), [2, 2], 2), ((3, 2), [3, 2], 0), ((7, 6), [7, 6], 0)):
        primaries = cluster(*counts)
        weights = dict.fromkeys(primaries["a"] + primaries["b"], weight)
        tasks = balancing_moves(facts(primaries, weights=weights), 99)
        assert sizes(after(primaries, tasks)) == evened
        assert len(tasks) == moves


def test_captures_that_leave_neither_give_nor_take():
    primaries = cluster(6, 0, 0)
    tasks = balancing_moves(facts(primaries, stopping=["c"]), 99)
    assert {task.capture for task in tasks} == {"b"}
    assert len(tasks) == 3


names = st.sampled_from("abcde")
placements = st.lists(st.tuples(names, st.integers(0, 20)), max_size=40)


@given(placements, st.booleans(), st.integers(1, 40))
def test_evening_never_makes_it_worse_and_ends(placed, is_counted, moves_max):
    primaries = {name: [] for name in "abcde"}
    weights = {}
    for n, (capture, weight) in enumerate(placed):
        primaries[capture].append(f"t{n:02}")
        weights[f"t{n:02}"] = 1.0 if is_counted else float(weight)

    def spread(placed):
        sums = [sum(weights[table] for table in tables) for tables in placed.values()]
        return max(sums) - min(sums)

    for _ in range(50):
        tasks = balancing_moves(facts(primaries, weights=weights), moves_max)
        if not tasks:
            break
        assert len(tasks) <= moves_max
        moved = [task.table for task in tasks]
        assert len(moved) == len(set(moved)), "no table moves twice"
        for n, task in enumerate(tasks):
            before = after(primaries, tasks[:n])
            assert task.table not in before[task.capture], "it goes elsewhere"
            assert spread(after(primaries, tasks[: n + 1])) <= spread(before)
        primaries = {name: sorted(each) for name, each in after(primaries, tasks).items()}
    else:
        raise AssertionError(f"still moving {tasks}")
    if is_counted:
        assert spread(primaries) <= 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8))
def test_counts_differ_by_one_at_most_after_one_rebalance(counts):
    primaries = cluster(*counts)
    tasks = plan_balance(facts(primaries), is_burst=True).tasks
    evened = sizes(after(primaries, tasks))
    assert evened[0] - evened[-1] <= 1
    upper = -(-sum(counts) // len(counts))
    lower = sum(counts) // len(counts)
    least = max(sum(max(0, c - upper) for c in counts), sum(max(0, lower - c) for c in counts))
    assert len(tasks) == least, "no more tables move than must"


# --- rebalance ---


def asked(given, **others):
    manager = SchedulerManager()
    manager.is_rebalance_requested = True
    return manager, manager.plan(given, 0)


def test_a_rebalance_moves_all_at_once_and_once():
    """It is not limited to what may move at a time."""
    given = facts(cluster(100, 0), limits=Limits(moves_in_flight=3))
    manager, plan = asked(given)
    assert (len(plan.tasks), plan.is_burst) == (50, True)
    assert not manager.is_rebalance_requested


def test_nothing_is_rebalanced_unless_it_is_asked_for():
    manager = SchedulerManager()
    plan = manager.plan(facts(cluster(100, 0), limits=Limits(moves_in_flight=3)), 0)
    assert (len(plan.tasks), plan.is_burst) == (3, False)


def test_a_rebalance_is_given_up_when_somebody_leaves():
    given = facts(cluster(9, 0, 0), stopping=["c"])
    manager, plan = asked(given)
    assert plan == NOTHING
    assert not manager.is_rebalance_requested


def test_a_rebalance_is_given_up_though_tables_are_busy():
    busy = facts(cluster(9, 0, 0), sets=[state_of("x PREPARE", ("b", S))], stopping=["c"])
    manager, plan = asked(busy)
    assert plan == NOTHING
    assert not manager.is_rebalance_requested


def test_a_rebalance_that_found_work_is_done_with_whoever_has_not_told_what_it_holds():
    manager, plan = asked(facts(cluster(9, 0), is_complete=False))
    assert plan.is_burst
    assert not manager.is_rebalance_requested


@pytest.mark.parametrize("state", ["PREPARE", "COMMIT", "ABSENT", "REMOVING"])
def test_a_rebalance_waits_until_every_table_is_replicated(state):
    """#3916: a rebalance that was asked for while something was pending was forgotten."""
    places = [] if state == "ABSENT" else [("b", S)]
    given = facts(cluster(9, 0), sets=[state_of(f"x {state}", *places)])
    if state == "ABSENT":
        given = given._replace(absent=[])  # basic does nothing about it now
    manager, plan = asked(given)
    assert plan == NOTHING
    assert manager.is_rebalance_requested
    assert manager.plan(facts(cluster(9, 0)), 1).is_burst


def test_a_rebalance_of_what_is_even_is_done_with():
    """In v3 the request stays, and strikes when somebody joins much later."""
    manager, plan = asked(facts(cluster(3, 3)))
    assert plan == NOTHING
    assert not manager.is_rebalance_requested


def test_a_rebalance_waits_for_a_capture_that_has_not_told_what_it_holds():
    manager, plan = asked(facts(cluster(3, 3), is_complete=False))
    assert plan == NOTHING
    assert manager.is_rebalance_requested
    assert manager.plan(facts(cluster(3, 3, 0)), 1).is_burst


# --- balance ---


def test_the_balance_is_looked_at_once_in_each_interval():
    manager = SchedulerManager()
    even, uneven = facts(cluster(3, 3)), facts(cluster(3, 3, 0))
    assert manager.plan(even, 0) == NOTHING
    assert manager.plan(uneven, INTERVAL - 1) == NOTHING
    assert len(manager.plan(uneven, INTERVAL).tasks) == 2


def test_it_is_looked_at_again_at_once_while_the_last_look_found_work():
    manager = SchedulerManager()
    uneven = facts(cluster(30, 0), limits=Limits(moves_in_flight=4))
    assert len(manager.plan(uneven, 0).tasks) == 4
    assert len(manager.plan(uneven, 1).tasks) == 4
    assert manager.plan(facts(cluster(3, 3)), 2) == NOTHING
    assert manager.plan(uneven, 3) == NOTHING, "the last look found none"


def test_a_look_at_tables_that_are_busy_does_not_count():
    manager = SchedulerManager()
    busy = facts(cluster(9, 0), sets=[state_of("x PREPARE", ("b", S))])
    assert manager.plan(busy, 0) == NOTHING
    assert len(manager.plan(facts(cluster(9, 0)), 1).tasks) == 4


@pytest.mark.parametrize(("in_flight", "moves"), [(0, 5), (3, 2), (5, 0), (6, 0)])
def test_as_many_move_at_a_time_as_may(in_flight, moves):
    limits = Limits(moves_in_flight=5)
    given = facts(cluster(40, 0), moves_in_flight=in_flight, limits=limits)
    plan = plan_balance(given)
    assert len(plan.tasks) == moves
    assert not plan.is_burst


def test_nothing_is_balanced_while_somebody_leaves_or_a_table_is_busy():
    assert plan_balance(facts(cluster(9, 0, 0), stopping=["c"])) == NOTHING
    busy = facts(cluster(9, 0), sets=[state_of("x COMMIT", ("b", P))])
    assert plan_balance(busy) == NOTHING


def test_a_capture_that_leaves_does_not_stop_the_balance_for_good():
    manager = SchedulerManager()
    leaving = facts(cluster(9, 0, 0), stopping=["c"])
    assert manager.plan(leaving, 0) == NOTHING
    assert len(manager.plan(facts(cluster(9, 0)), INTERVAL).tasks) == 4
