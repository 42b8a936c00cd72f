"""What a coordinator is given: what it refuses, and what it never takes back."""

import math

import pytest
from simulated_captures import SimulatedExecutor

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Agent, Barrier, Cluster, Coordinator, KnownOwner, Limits
from cdcmeta.scheduler.protocol.messages import Envelope, Header, Heartbeat

from .cluster import TICK_US, SimCluster

GOOD = Cluster(0, {"c1": 3}, {"t": 1.0}, 100, revision=9)


@pytest.mark.parametrize(
    "bad",
    [
        {"now": -1},
        {"now": 1.5},
        {"checkpoint": -1},
        {"checkpoint": None},
        {"tables": {"": 1.0}},
        {"tables": {b"t": 1.0}},
        {"tables": {"t": -1.0}},
        {"tables": {"t": math.nan}},
        {"tables": {"t": math.inf}},
        {"tables": {"t": "1"}},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_changes(bad):
    owner = Coordinator("owner", "c1", revision=9)
    with pytest.raises(InvalidArgumentError):
        owner.tick([], GOOD._replace(**bad))
    assert not owner.captures.known
    assert len(owner.tick([], GOOD).messages) == 1


@pytest.mark.parametrize("revision", [0, -1])
def test_an_owner_has_a_revision(revision):
    with pytest.raises(InvalidArgumentError):
        Coordinator("owner", "c1", revision=revision)


@pytest.mark.parametrize("bad", [{"add_batch": 0}, {"mute_us": True}, {"moves_in_flight": 1.5}])
def test_limits_are_positive_integers(bad):
    with pytest.raises(InvalidArgumentError):
        Limits(**bad)


def test_a_barrier_behind_what_is_downstream_takes_nothing_back():
    sim = SimCluster(2, {f"t{n}": 1.0 for n in range(6)})
    sim.run(lambda: sim.watermarks.checkpoint > 1, ticks_max=50)
    before = sim.watermarks
    sim.barrier = Barrier(2)
    for _ in range(10):
        sim.tick()
        assert sim.watermarks.checkpoint >= before.checkpoint
    then = sim.watermarks
    sim.barrier = Barrier()
    sim.run(lambda: sim.watermarks.checkpoint > then.checkpoint, ticks_max=50)


def test_a_barrier_holds_the_checkpoint():
    sim = SimCluster(2, {f"t{n}": 1.0 for n in range(6)})
    sim.barrier = Barrier(sim.now + 1)
    for _ in range(50):
        sim.tick()
    assert sim.watermarks.checkpoint == sim.barrier.everywhere
    assert all(node.agent.barrier == sim.barrier for node in sim.nodes.values())


def test_moves_are_of_tables_and_captures_that_there_are():
    sim = SimCluster(2, {"t": 1.0})
    sim.run(sim.is_replicating, ticks_max=50)
    coordinator = sim.owner.coordinator
    with pytest.raises(InvalidArgumentError, match="table"):
        coordinator.move("x", "c0")
    with pytest.raises(InvalidArgumentError, match="capture"):
        coordinator.move("t", "c9")
    with pytest.raises(InvalidArgumentError, match="capture"):
        coordinator.drain("c9")


@pytest.mark.parametrize(
    "bad",
    [
        {"name": ""},
        {"name": None},
        {"capture": ""},
        {"capture": "owner"},
        {"revision": 1.5},
        {"revision": True},
        {"changefeed_epoch": -1},
    ],
    ids=str,
)
def test_owners_that_cannot_be(bad):
    good = {"name": "owner", "capture": "c1", "revision": 9}
    with pytest.raises(InvalidArgumentError):
        Coordinator(**{**good, **bad})


@pytest.mark.parametrize("bad", [{"name": ""}, {"epoch": -1}, {"changefeed_epoch": 0.5}], ids=str)
def test_agents_that_cannot_be(bad):
    good = {"name": "c1", "executor": SimulatedExecutor(), "epoch": 3, "owner": KnownOwner()}
    with pytest.raises(InvalidArgumentError):
        Agent(**{**good, **bad})


def test_moves_that_will_not_be_are_told():
    sim = SimCluster(3, {"t": 1.0})
    sim.run(sim.is_replicating, ticks_max=50)
    coordinator = sim.owner.coordinator
    (has_it,) = (name for name, tables in coordinator.replication.primaries.items() if tables)
    other, leaves = sorted({"c0", "c1", "c2"} - {has_it})
    sim.nodes[leaves].agent.stop()
    sim.tick()
    for _ in range(5):
        sim.tick()
    assert not coordinator.move("t", has_it)
    assert not coordinator.move("t", leaves)
    assert coordinator.move("t", other)
    assert not coordinator.move("t", other), "it is asked for already"


def test_an_owner_that_slept_evicts_nobody():
    sim = SimCluster(3, {f"t{n}": 1.0 for n in range(6)}, limits=Limits(mute_us=20 * TICK_US))
    sim.run(sim.is_replicating, ticks_max=50)
    epochs = sim.alive()
    for _ in range(3):
        sim.tick(us=1_000 * TICK_US)
    assert sim.alive() == epochs
    sim.nodes["c1"].is_paused = True
    sim.run(lambda: sim.alive() != epochs, ticks_max=50)


def test_what_a_capture_prepares_is_still_to_be_drained():
    sim = SimCluster(2, {f"t{n}": 1.0 for n in range(6)})
    while not (held := sim.owner.coordinator.replication.held.get("c1")):
        sim.tick()
    assert not sim.owner.coordinator.replication.primaries["c1"]
    assert sim.owner.coordinator.drain("c1") == len(held) == 3


def test_tables_that_weigh_nothing_are_spread_too():
    """Of two captures with 10.0 and 9.99 one got a thousand tables that weigh nothing."""
    tables = {"a": 10.0, "b": 9.99} | {f"t{n}": 0.0 for n in range(100)}
    sim = SimCluster(2, tables)
    sim.run(sim.is_replicating, ticks_max=50)
    counts = [len(each) for each in sim.owner.coordinator.replication.primaries.values()]
    assert sum(counts) == 102
    assert max(counts) <= 55


def test_an_overtaken_heartbeat_loosens_no_barrier():
    agent = Agent("c1", SimulatedExecutor(), epoch=3, owner=KnownOwner("o", 9))

    def beat(barrier: Barrier, number: int, revision: int = 9) -> Barrier:
        header = Header(f"o{revision}" if revision > 9 else "o", "c1", revision, 3, 0)
        agent.tick([Envelope(header, Heartbeat((), barrier, False, number))])
        return agent.barrier

    assert beat(Barrier(100), 5) == Barrier(100)
    assert beat(Barrier(0), 4) == Barrier(100)
    assert beat(Barrier(200), 6) == Barrier(200)
    assert beat(Barrier(150), 1, revision=10) == Barrier(150), "another owner counts anew"


def test_captures_that_come_and_go_leave_nothing_behind():
    sim = SimCluster(3, {f"t{n}": 1.0 for n in range(6)})
    for _ in range(5):
        sim.run(sim.is_replicating, ticks_max=100)
        sim.kill("c1")
        sim.run(sim.is_replicating, ticks_max=100)
        sim.start("c1")
    sim.kill("c1")
    sim.run(sim.is_replicating, ticks_max=100)
    replication = sim.owner.coordinator.replication
    for by_capture in (replication.held, replication.primaries, replication.preparing):
        assert set(by_capture) == {"c0", "c2"}


def test_a_changefeed_that_restarts_under_its_owner_waits_for_all_who_had_tables():
    """Who registered after the election may have tables of the owner before the restart."""
    late = Cluster(0, {"c1": 3, "late": 12}, {"t": 1.0}, 100, 12)
    before = Coordinator("owner", "c1", revision=9)
    before.tick([], late)
    assert not before.captures.is_settled
    again = Coordinator("owner", "c1", revision=9, changefeed_epoch=20)
    with pytest.raises(InvalidArgumentError, match="12, less than the known 20"):
        again.tick([], late._replace(captures={"c1": 3}))  # as it was before the restart
    again.tick([], late._replace(revision=20))
    again.captures.heard("c1", is_stopping=False)
    assert not again.captures.is_settled, "late has not told"
    again.captures.heard("late", is_stopping=False)
    again.captures.update({"c1": 3, "late": 12, "new": 21}, 0)
    assert again.captures.is_settled, "new came after the restart"
