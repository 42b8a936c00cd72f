"""Captures on which nothing can begin, tables that hang, owners that sleep: in nobody's way."""

import pytest
from simulated_captures import Durations, InProcessTransport

from cdcmeta.scheduler import Limits

from .cluster import TICK_US, Pipelines, SimCluster

pytestmark = pytest.mark.slow

SECOND_TICKS = 1_000_000 // TICK_US
MINUTE_TICKS = 60 * SECOND_TICKS
LIMITS = Limits()


class Hanging(Pipelines):
    """An executor on which some tables never come to an end of what they do."""

    prepares_nothing = False

    def is_add_finished(self, table, *, is_prepare):
        return not (table.startswith("slow") or self.prepares_nothing) and super().is_add_finished(
            table, is_prepare=is_prepare
        )

    def is_remove_finished(self, table):
        return None if table.startswith("stays") else super().is_remove_finished(table)


def replicating(captures: int, tables: int, **options) -> SimCluster:
    """Return a cluster that is well: so many tables on each capture."""
    sim = SimCluster(captures, {f"t{n:02}": 1.0 for n in range(captures * tables)}, **options)
    sim.run(sim.is_replicating, ticks_max=50)
    return sim


def let_pass(sim: SimCluster, ticks: int) -> None:
    for _ in range(ticks):
        sim.tick()


def set_broken(sim: SimCluster, *names: str, is_broken: bool = True) -> None:
    """Let nothing begin on these captures any more, or again."""
    for name in names:
        sim.nodes[name].executor.refuses = lambda table: is_broken


def tries(sim: SimCluster) -> int:
    """Return how often something was to begin where nothing can."""
    return sum(node.executor.tries for node in sim.nodes.values())


def drained(sim: SimCluster, name: str, *, ticks_max: int) -> int:
    """Empty a capture; return the ticks that it took."""
    assert sim.owner.coordinator.drain(name) > 0
    return sim.run(lambda: sim.owner.coordinator.drain(name) == 0, ticks_max=ticks_max)


def spread(sim: SimCluster) -> list[int]:
    primaries = sim.owner.coordinator.replication.primaries
    return sorted(len(primaries.get(name, ())) for name in sim.nodes)


# --- captures on which nothing can begin ---


def test_a_drain_goes_round_a_broken_capture():
    sim = replicating(4, 10)
    set_broken(sim, "c3")
    drained(sim, "c1", ticks_max=10 * SECOND_TICKS)
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    assert spread(sim) == [0, 10, 15, 15]
    assert tries(sim) <= 5, "its part of the moves that were under way when the first failed"


def test_a_drain_of_many_tables_tries_a_broken_capture_no_more_often():
    sim = replicating(4, 100)
    set_broken(sim, "c3")
    drained(sim, "c1", ticks_max=30 * SECOND_TICKS)
    assert tries(sim) <= 10


def test_a_new_table_finds_the_one_healthy_capture():
    sim = replicating(3, 2)
    set_broken(sim, "c1", "c2")
    for n in range(5):
        sim.set_tables({**sim.tables, f"new{n}": 1.0})
        sim.run(sim.is_replicating, ticks_max=5 * SECOND_TICKS)
    assert spread(sim) == [2, 2, 7]
    assert tries(sim) <= 10, "at the most each table once on each"


def test_the_tables_of_a_lost_capture_find_the_one_healthy_capture():
    sim = replicating(4, 5)
    set_broken(sim, "c1", "c2")
    sim.kill("c3")
    sim.run(sim.is_replicating, ticks_max=10 * SECOND_TICKS)
    assert spread(sim) == [5, 5, 10]
    assert tries(sim) <= 10


@pytest.mark.long
def test_a_broken_and_empty_capture_is_tried_rarely_and_gets_its_share_once_it_is_mended():
    sim = replicating(3, 8)
    sim.start("c3")
    set_broken(sim, "c3")
    counts = []
    for _ in range(5):
        before = tries(sim)
        let_pass(sim, MINUTE_TICKS)
        counts.append(tries(sim) - before)
    assert sim.is_replicating()
    assert spread(sim) == [0, 8, 8, 8]
    assert max(counts) <= LIMITS.moves_in_flight, counts
    before = tries(sim)
    sim.run(lambda: tries(sim) > before, ticks_max=MINUTE_TICKS + SECOND_TICKS)
    set_broken(sim, "c3", is_broken=False)  # just now: this is the longest that it has to wait
    longest = (LIMITS.balance_every_us + LIMITS.retry_max_us) // TICK_US
    sim.run(lambda: spread(sim) == [6, 6, 6, 6], ticks_max=longest + 5 * SECOND_TICKS)


# --- tables that hang ---


def hanging() -> SimCluster:
    """Return a cluster with a table that never prepares and one that never stops; not on c2."""
    sim = replicating(3, 4, executor=Hanging)
    sim.set_tables({**sim.tables, "stays": 1.0})
    sim.run(sim.is_replicating, ticks_max=SECOND_TICKS)
    assert "stays" in sim.nodes["c0"].agent.tables()
    sim.set_tables({**{table: 1.0 for table in sim.tables if table != "stays"}, "slow": 1.0})
    let_pass(sim, SECOND_TICKS)
    assert "slow" in sim.nodes["c1"].agent.tables()
    assert set(sim.owner.coordinator.replication.unsettled) == {"slow", "stays"}
    return sim


def test_tables_that_hang_hold_up_no_drain():
    sim = hanging()
    drained(sim, "c2", ticks_max=10 * SECOND_TICKS)
    unsettled = sim.owner.coordinator.replication.unsettled
    sim.run(lambda: set(unsettled) == {"slow", "stays"}, ticks_max=SECOND_TICKS)


def test_tables_that_hang_hold_up_balance_for_a_while_only():
    sim = hanging()
    sim.start("c3")
    let_pass(sim, LIMITS.stuck_us // TICK_US - 5 * SECOND_TICKS)
    assert spread(sim)[0] == 0, "they may still come to an end"
    assert sim.owner is not None
    replication = sim.owner.coordinator.replication

    def least() -> int:
        """Return how many tables the lightest replicates and prepares: "slow" is of 13 on four."""
        places = replication.primaries, replication.preparing
        return min(sum(len(each.get(name, ())) for each in places) for name in sim.nodes)

    sim.run(
        lambda: least() == 3 == len(replication.primaries.get("c3", ())),
        ticks_max=LIMITS.balance_every_us // TICK_US + 200,
    )
    assert set(replication.preparing["c1"]) == {"slow"}, "it counts as c1's"


def test_what_hangs_on_one_capture_is_replicated_by_another():
    """A preparation has a deadline, however well its capture answers."""
    limits = Limits(prepare_us=30_000_000)
    sim = replicating(3, 4, executor=Hanging, limits=limits)
    sim.nodes["c0"].executor.prepares_nothing = True
    sim.set_tables({**sim.tables, "new": 1.0})
    assert sim.owner is not None
    sim.run(lambda: "new" in sim.nodes["c0"].agent.tables(), ticks_max=SECOND_TICKS)
    let_pass(sim, 29 * SECOND_TICKS)
    assert "new" in sim.nodes["c0"].agent.tables()
    sim.run(sim.is_replicating, ticks_max=3 * SECOND_TICKS)
    assert "new" not in sim.nodes["c0"].executor.writing()


def test_a_drain_is_not_held_up_by_what_hangs_on_the_capture_itself():
    """Nobody needs what it only prepares: it can be prepared elsewhere."""
    sim = replicating(3, 4, executor=Hanging)
    sim.set_tables({**sim.tables, "slow0": 1.0, "slow1": 1.0, "slow2": 1.0})
    let_pass(sim, SECOND_TICKS)
    assert any(each.startswith("slow") for each in sim.nodes["c1"].agent.tables())
    drained(sim, "c1", ticks_max=10 * SECOND_TICKS)


def takes_long(table: str) -> Durations:
    return Durations(prepare_us=2_000_000 if table.startswith("new") else 0)


def test_tables_that_come_and_go_all_the_time_hold_up_no_drain():
    sim = replicating(3, 20, durations=takes_long)
    assert sim.owner.coordinator.drain("c1") == 20
    for n in range(20):
        kept = [table for table in sim.tables if table != f"new{n - 5}"]
        sim.set_tables({**dict.fromkeys(kept, 1.0), f"new{n}": 1.0})
        let_pass(sim, SECOND_TICKS)
        assert sim.owner.coordinator.replication.unsettled, "or it proves nothing"
    assert sim.owner.coordinator.drain("c1") == 0


# --- owners that sleep ---


def asking() -> SimCluster:
    """Return a cluster in which the owner always waits for answers: they take a while."""
    transport = InProcessTransport(delay_us=lambda rng: 2 * TICK_US)
    sim = replicating(3, 2, transport=transport)
    sim.run(lambda: all(is_asked(sim, name) for name in sim.nodes), ticks_max=10)
    return sim


def is_asked(sim: SimCluster, name: str) -> bool:
    return sim.owner.coordinator.captures.known[name].asked_at is not None


@pytest.mark.parametrize("are_answers_lost", [False, True])
def test_an_owner_that_was_frozen_evicts_nobody(are_answers_lost):
    sim = asking()
    epochs, owner = sim.alive(), sim.owner
    for _ in range(3):
        sim.run(lambda: is_asked(sim, "c2"), ticks_max=10)
        owner.is_paused = True
        let_pass(sim, 20 * SECOND_TICKS)
        if are_answers_lost:
            sim.transport.forget(owner.name)
        owner.is_paused = False
        let_pass(sim, SECOND_TICKS)
    assert sim.alive() == epochs


def test_a_clock_that_jumps_evicts_nobody():
    sim = asking()
    epochs = sim.alive()
    for _ in range(10):
        sim.run(lambda: is_asked(sim, "c2"), ticks_max=10)
        sim.owner.skew_us += 3_600_000_000
        let_pass(sim, SECOND_TICKS)
    assert sim.alive() == epochs


@pytest.mark.parametrize("skew_us", [0, 3_600_000_000])
def test_a_capture_that_is_silent_is_evicted(skew_us):
    """Also after a jump of the clock, which counts for a part of the wait only."""
    sim = asking()
    epochs = sim.alive()
    sim.nodes["c2"].is_paused = True
    sim.tick()
    sim.owner.skew_us += skew_us
    waited = sim.run(lambda: sim.alive() != epochs, ticks_max=2 * LIMITS.mute_us // TICK_US)
    mute = LIMITS.mute_us // TICK_US
    assert mute * (3 / 4 if skew_us else 1) - 5 <= waited <= mute + 5
    assert sim.alive()["c2"] > epochs["c2"]
    assert {name: epoch for name, epoch in sim.alive().items() if name != "c2"} == {
        name: epoch for name, epoch in epochs.items() if name != "c2"
    }
