"""What hangs, takes long or fails: everybody else comes, leaves and goes on nevertheless."""

import pytest
from simulated_captures import Durations

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Barrier, Cluster, Coordinator, Limits, Progress, TableState, Token
from cdcmeta.scheduler.core.policies import plan_balance, plan_drain

from .cluster import TICK_US, Pipelines, SimCluster
from .placing import facts, tables
from .speaking import OWNER, REVISION, beat, from_capture, says, sync

pytestmark = pytest.mark.slow

SECOND_TICKS = 1_000_000 // TICK_US
STUCK = Limits(stuck_us=5_000_000)


class Stuck(Pipelines):
    """An executor that never stops some tables."""

    stays: frozenset[str] = frozenset()

    def is_remove_finished(self, table):
        return None if table in self.stays else super().is_remove_finished(table)


class Failing(Pipelines):
    """An executor on which some tables end by themselves instead of being prepared."""

    def is_add_finished(self, table, *, is_prepare):
        if table.startswith("bad"):
            self.fail(table)
        return super().is_add_finished(table, is_prepare=is_prepare)


def replicating(captures, tables, **options):
    sim = SimCluster(captures, {f"t{n:02}": 1.0 for n in range(captures * tables)}, **options)
    sim.run(sim.is_replicating, ticks_max=50)
    return sim


def let_pass(sim, ticks):
    for _ in range(ticks):
        sim.tick()


def held(sim, name):
    return len(sim.owner.coordinator.replication.held.get(name, ()))


# --- stops that hang ---


def test_stops_that_hang_leave_room_for_other_moves():
    sim = replicating(4, 12, executor=Stuck, limits=STUCK)
    sim.nodes["c2"].executor.stays = frozenset(sim.tables)
    assert sim.owner.coordinator.drain("c2") == 12
    let_pass(sim, SECOND_TICKS)
    assert sim.owner.coordinator.scheduling.draining == "c2"
    sim.nodes["c3"].agent.stop()
    sim.run(lambda: held(sim, "c3") == 0, ticks_max=20 * SECOND_TICKS)
    assert sim.owner.coordinator.drain("c2") == 12, "until they have stopped they may write"


@pytest.mark.parametrize("asks", [True, False])
def test_one_stop_that_hangs_keeps_nobody_else_from_leaving(asks):
    sim = replicating(4, 4, executor=Stuck, limits=STUCK)
    sim.nodes["c2"].executor.stays = frozenset(sim.tables) - {"t00", "t01"}
    assert sim.owner.coordinator.drain("c2") == 4
    let_pass(sim, SECOND_TICKS)
    if not asks:
        sim.nodes["c3"].agent.stop()
    else:
        sim.run(lambda: sim.owner.coordinator.drain("c3") == 0, ticks_max=10 * SECOND_TICKS)
    sim.run(lambda: held(sim, "c3") == 0, ticks_max=10 * SECOND_TICKS)


# --- preparations that take long ---


def takes(us):
    return lambda table: Durations(prepare_us=us if table == "t00" else 0)


def test_a_move_that_needs_longer_than_it_may_comes_to_its_end():
    limits = Limits(prepare_us=2_000_000, retry_max_us=1_000_000)
    sim = replicating(3, 4, limits=limits)
    (name,) = (name for name in sim.nodes if "t00" in sim.nodes[name].agent.tables())
    sim.elect(next(each for each in sim.nodes if each != name))
    sim.depose()
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    for node in sim.nodes.values():
        node.executor._durations = takes(7_000_000)
    sim.run(lambda: sim.owner.coordinator.drain(name) == 0, ticks_max=60 * SECOND_TICKS)


def test_what_fails_is_moved_last():
    given = facts({"a": tables("a", 3), "b": []}, avoid={"a000": ("c",)})
    assert [task.table for task in plan_drain(given, "a").tasks] == ["a001", "a002", "a000"]


def test_a_preparation_that_a_new_owner_finds_has_its_time_too():
    limits = Limits(prepare_us=3_000_000)
    sim = replicating(3, 4, limits=limits)
    slow = sim.nodes["c0"].executor
    slow._durations = lambda table: Durations(prepare_us=10**12)
    sim.set_tables({**sim.tables, "new": 1.0})
    sim.run(lambda: "new" in sim.nodes["c0"].agent.tables(), ticks_max=SECOND_TICKS)
    sim.elect("c1")
    sim.depose()
    sim.run(sim.is_replicating, ticks_max=6 * SECOND_TICKS)
    assert "new" not in slow.writing()


@pytest.mark.parametrize("are_answers_lost", [False, True])
def test_an_owner_that_slept_gives_up_nothing(are_answers_lost):
    sim = replicating(3, 4)
    for node in sim.nodes.values():
        node.executor._durations = lambda table: Durations(prepare_us=1_000_000)
    sim.set_tables({**sim.tables, **{f"new{n}": 1.0 for n in range(30)}})
    let_pass(sim, 3)
    tokens = {
        t: g for held in sim.owner.coordinator.replication.held.values() for t, g in held.items()
    }
    sim.owner.is_paused = True
    let_pass(sim, 660 * SECOND_TICKS)
    if are_answers_lost:
        sim.transport.forget(sim.owner.name)
    sim.owner.is_paused = False
    sim.run(sim.is_replicating, ticks_max=5 * SECOND_TICKS)
    after = sim.owner.coordinator.replication.held.values()
    assert {t: g for held in after for t, g in held.items()} == tokens
    assert not sim.owner.coordinator.replication.failures.tables


# --- tables that fail everywhere ---


@pytest.mark.long_after(1)
@pytest.mark.parametrize("bad", [1, 2, 5])
def test_tables_that_fail_everywhere_bring_no_capture_into_disrepute(bad):
    sim = SimCluster(3, {f"t{n:02}": 1.0 for n in range(12)}, executor=Failing)
    sim.run(sim.is_replicating, ticks_max=50)
    broken = {f"bad{n}": 1.0 for n in range(bad)}
    sim.set_tables({**sim.tables, **broken})
    let_pass(sim, 100 * SECOND_TICKS)
    assert sim.owner.coordinator.replication.failures.failing_captures() == set()
    sim.set_tables({**sim.tables, **{f"new{n:02}": 1.0 for n in range(30)}})
    let_pass(sim, SECOND_TICKS)
    assert sorted(len(node.executor.writing()) for node in sim.nodes.values()) == [14, 14, 14]


def test_who_is_left_alone_for_now_still_gives():
    given = facts({"a": tables("a", 6), "b": [], "c": []}, failing_captures={"a", "c"})
    assert [task.capture for task in plan_balance(given, is_burst=True).tasks] == ["b"] * 3


def test_a_capture_is_not_drained_where_nobody_could_take_its_tables():
    sim = replicating(2, 4)
    sim.nodes["c0"].agent.stop()  # the owner's own
    let_pass(sim, SECOND_TICKS)
    with pytest.raises(InvalidArgumentError, match="no other can take"):
        sim.owner.coordinator.drain("c1")


# --- watermarks ---


def telling(stored):
    """Return what tells the watermarks of an owner with one table, whose store gets nothing."""
    owner = Coordinator(OWNER, "c0", revision=REVISION)

    def told(now, barrier, progress, stored=stored):
        status = says("t", TableState.REPLICATING, Token(8, 1), Progress(*progress))
        body = sync(status) if now == 0 else beat(status)
        seen = Cluster(now, {"c0": 3}, {"t": 1.0}, stored, REVISION, Barrier(barrier))
        return owner.tick([from_capture("c0", body)], seen).watermarks

    return told


def test_what_was_told_and_not_stored_is_told_again_behind_a_barrier():
    told = telling(100)
    assert told(0, 0, (300, 300)).checkpoint == 300
    for now in (200_000, 400_000):
        assert told(now, 200, (350, 350)).checkpoint == 300, "it is downstream, and not stored yet"


def test_a_resolved_timestamp_that_has_to_catch_up_holds_no_checkpoint():
    told = telling(100)
    assert told(0, 0, (300, 900))[:2] == (300, 900)
    assert told(200_000, 0, (310, 900))[:2] == (310, 900)
    assert told(400_000, 320, (320, 320), stored=310)[:2] == (320, 900)
