"""Starts and stops that hang: each has a deadline, and what waits for them goes on."""

from itertools import pairwise

import pytest
from simulated_captures import Durations

from cdcmeta.scheduler import AbandonTable, Limits, SetState
from cdcmeta.scheduler.core.policies import drain_target, plan_drain

from .cluster import TICK_US, SimCluster
from .making import made
from .placing import facts

SECOND_TICKS = 1_000_000 // TICK_US
LIMITS = Limits(
    prepare_us=10_000_000,
    start_us=4_000_000,
    stop_us=5_000_000,
    stuck_us=2_000_000,
    retry_max_us=1_000_000,
)
NOT_FOR_LONG = Limits(prepare_us=4_000_000, start_us=4_000_000, stop_us=10**12)


def cluster(captures, *, hangs=(), where=None, limits=LIMITS, **options):
    """Return a cluster in which steps of "new" hang on one capture, or on all."""
    sim = SimCluster(captures, {f"t{n}": 1.0 for n in range(6)}, limits=limits, **options)
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    for name, node in sim.nodes.items():
        if where in (None, name):
            node.executor.hangs = lambda table, step: table == "new" and step in hangs
    sim.set_tables({**sim.tables, "new": 1.0})
    return sim


def let_pass(sim, seconds):
    for _ in range(seconds * SECOND_TICKS):
        sim.tick()


def rset(sim):
    return sim.owner.coordinator.replication.sets["new"]


def epochs(sim):
    return {name: node.epoch for name, node in sim.nodes.items()}


def first_of(sim):
    """Return the capture on which the table starts, once it has been told to."""
    sim.run(lambda: "new" in sets(sim) and rset(sim).starting is not None, ticks_max=SECOND_TICKS)
    let_pass(sim, 1)
    return rset(sim).starting.capture


def sets(sim):
    return sim.owner.coordinator.replication.sets


# --- a start that hangs ---


def test_a_start_that_hangs_is_given_up_and_the_checkpoint_goes_on():
    sim = cluster(3, hangs=("start",))
    first, before = first_of(sim), epochs(sim)
    for node in sim.nodes.values():
        node.executor.hangs = lambda table, step: False
    sim.nodes[first].executor.hung.clear()  # it can be stopped
    let_pass(sim, 2)
    assert rset(sim).starting.capture == first, "it has its time"
    failed = sim.owner.coordinator.replication.failures.tables
    sim.run(lambda: "new" in failed, ticks_max=2 * SECOND_TICKS)
    assert failed["new"].captures == (first,)
    then = sim.now
    sim.run(lambda: sim.watermarks.checkpoint >= then, ticks_max=2 * SECOND_TICKS)
    assert rset(sim).primary.capture != first
    assert epochs(sim) == before, "nobody had to be evicted"


def test_a_start_that_cannot_be_stopped_ends_with_its_capture():
    sim = cluster(3, hangs=("start",))
    first = first_of(sim)
    before = epochs(sim)
    for name, node in sim.nodes.items():
        if name != first:
            node.executor.hangs = lambda table, step: False
    let_pass(sim, 7)
    assert epochs(sim) == before, "4 s to start and 5 s to stop are not over"
    assert {each.role.name for each in rset(sim).places} == {"UNDETERMINED", "SECONDARY"}
    sim.nodes[first].executor.wake()  # and writes: nobody else does
    let_pass(sim, 1)
    sim.run(sim.is_replicating, ticks_max=3 * SECOND_TICKS)
    after = epochs(sim)
    assert [name for name in before if before[name] != after[name]] == [first]
    then = sim.now
    sim.run(lambda: sim.watermarks.checkpoint >= then, ticks_max=SECOND_TICKS)


@pytest.mark.parametrize("step", ["prepare", "start"])
def test_the_only_capture_is_evicted_as_well(step):
    """Else the checkpoint would stay where it is: "new" has nowhere to go."""
    sim = cluster(1, hangs=(step,))
    before = epochs(sim)
    sim.run(lambda: epochs(sim) != before, ticks_max=40 * SECOND_TICKS)
    sim.run(sim.is_replicating, ticks_max=3 * SECOND_TICKS)


@pytest.mark.slow
def test_a_table_that_hangs_everywhere_evicts_ever_more_rarely():
    sim = cluster(3, hangs=("start",))
    hangs = lambda table, step: (table, step) == ("new", "start")  # noqa: E731
    at, before = [], epochs(sim)
    while len(at) < 4:
        sim.tick()
        if epochs(sim) != before:
            at.append(sim.ticks)
            before = epochs(sim)
            for node in sim.nodes.values():
                node.executor.hangs = hangs
    apart = [(b - a) // SECOND_TICKS for a, b in pairwise(at)]
    assert apart[0] >= 12, "8 s to start, 5 s to stop"
    assert apart[1] >= 20, "16 s to start, 5 s to stop"
    assert apart[2] >= 36, "32 s to start, 5 s to stop"


def test_a_start_that_needs_longer_than_it_may_comes_to_its_end():
    sim = cluster(2, durations=lambda table: Durations(start_us=9_000_000 * (table == "new")))
    sim.run(sim.is_replicating, ticks_max=40 * SECOND_TICKS)
    assert epochs(sim) == {"c0": 1, "c1": 2}


def test_a_new_owner_gives_a_start_its_time_again_and_gives_it_up():
    sim = cluster(3, hangs=("start",), limits=LIMITS)
    first = first_of(sim)
    sim.elect("c1" if first != "c1" else "c2")
    sim.depose()
    for name, node in sim.nodes.items():
        if name != first:
            node.executor.hangs = lambda table, step: False
    sim.run(sim.is_replicating, ticks_max=14 * SECOND_TICKS)


# --- stops that hang ---


def test_what_nobody_waits_for_evicts_nobody():
    sim = cluster(3, hangs=("stop",))
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    before = epochs(sim)
    sim.set_tables({table: weight for table, weight in sim.tables.items() if table != "new"})
    let_pass(sim, 20)
    assert rset(sim).state is SetState.REMOVING
    assert epochs(sim) == before
    (hung,) = sim.owner.coordinator.replication.hanging()
    assert hung.table == "new"
    sim.set_tables({**sim.tables, "new": 1.0})  # now it holds up the checkpoint
    sim.run(lambda: epochs(sim) != before, ticks_max=2 * SECOND_TICKS)
    sim.run(sim.is_replicating, ticks_max=3 * SECOND_TICKS)


def test_a_move_whose_source_does_not_stop_comes_to_its_end():
    sim = cluster(3, hangs=("stop",))
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    source = rset(sim).primary.capture
    target = next(name for name in sim.nodes if name != source)
    assert sim.owner.coordinator.move("new", target)
    sim.run(lambda: sim.nodes[source].epoch > 3, ticks_max=8 * SECOND_TICKS)
    sim.run(sim.is_replicating, ticks_max=3 * SECOND_TICKS)
    assert rset(sim).primary.capture == target


def test_captures_on_which_everything_hangs_are_evicted_one_after_the_other():
    sim = cluster(4)
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    for node in sim.nodes.values():
        node.executor.hangs = lambda table, step: step in ("start", "stop")
    sim.set_tables({**sim.tables, **{f"new{n}": 1.0 for n in range(8)}})
    before, evicted = epochs(sim), []
    for _ in range(60 * SECOND_TICKS):
        sim.tick()
        gone = [name for name, epoch in epochs(sim).items() if before[name] != epoch]
        evicted += [sim.ticks] * len(gone)
        before = epochs(sim)
    assert len(evicted) >= 4
    apart = [b - a for a, b in pairwise(evicted)]
    assert min(apart) >= LIMITS.stop_us // TICK_US
    sim.run(sim.is_replicating, ticks_max=5 * SECOND_TICKS)


# --- draining ---


@pytest.mark.parametrize("can_stop", [True, False])
def test_a_capture_with_a_start_that_hangs_is_drained(can_stop):
    sim = cluster(3, hangs=("start",), limits=LIMITS if not can_stop else NOT_FOR_LONG)
    first = first_of(sim)
    if first == "c0":
        sim.elect("c1")
        sim.depose()
        sim.run(lambda: sim.owner.coordinator.captures.is_initialized, ticks_max=SECOND_TICKS)
    for name, node in sim.nodes.items():
        if name != first:
            node.executor.hangs = lambda table, step: False
    if can_stop:
        sim.nodes[first].executor.hung.clear()
    before = sim.nodes[first].epoch
    sim.owner.coordinator.drain(first)
    sim.run(
        lambda: sim.nodes[first].epoch != before or sim.owner.coordinator.drain(first) == 0,
        ticks_max=90 * SECOND_TICKS,
    )
    assert (sim.nodes[first].epoch == before) is can_stop
    sim.run(sim.is_replicating, ticks_max=5 * SECOND_TICKS)


def test_drain_gives_up_what_has_been_starting_for_long():
    sets = {each: made(words)._replace(table=each) for each, words in STARTING.items()}
    given = facts({"p": list(sets), "b": []}, stuck=set(sets))._replace(
        sets=sets, primaries={"p": dict.fromkeys(sets)}, preparing={}
    )
    assert plan_drain(given, "p").tasks == (AbandonTable("starts", "p"),)
    assert drain_target(given, "p") == "p"
    not_yet = given._replace(stuck=())
    assert drain_target(not_yet, "p") is None


STARTING = {"starts": "Commit P", "stops": "Commit P S"}
