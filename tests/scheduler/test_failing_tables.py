"""Tables that fail again and again: tried elsewhere, ever more rarely, and in nobody's way."""

import pytest

from cdcmeta.scheduler import Limits

from .cluster import TICK_US, Pipelines, SimCluster

MINUTE_TICKS = 60_000_000 // TICK_US


class Broken(Pipelines):
    """An executor on which some tables cannot be prepared."""

    broken: frozenset[str] = frozenset()
    tries = 0

    def add_table(self, table, start_ts, token, *, is_prepare):
        self.tries += table in self.broken
        return super().add_table(table, start_ts, token, is_prepare=is_prepare)

    def is_add_finished(self, table, *, is_prepare):
        if table in self.broken:
            self.fail(table)
        return super().is_add_finished(table, is_prepare=is_prepare)


@pytest.fixture
def sim():
    made = SimCluster(3, {f"t{n}": 1.0 for n in range(6)}, executor=Broken)
    made.run(made.is_replicating, ticks_max=50)
    return made


def break_everywhere(sim, table):
    for node in sim.nodes.values():
        node.executor.broken = frozenset([table])


def tries(sim):
    return sum(node.executor.tries for node in sim.nodes.values())


@pytest.mark.slow
def test_it_is_tried_ever_more_rarely(sim):
    break_everywhere(sim, "new")
    sim.set_tables({**sim.tables, "new": 1.0})
    counts = []
    for _ in range(4):
        before = tries(sim)
        for _ in range(MINUTE_TICKS):
            sim.tick()
        counts.append(tries(sim) - before)
    assert 5 <= counts[0] <= 9, "at once, then after 1, 2, 4, 8, 16 and 32 s"
    assert counts[1:] == [1, 1, 1]
    assert sim.owner.coordinator.replication.failures.tables["new"].times == sum(counts)


def test_it_goes_on_when_the_fault_is_gone(sim):
    break_everywhere(sim, "new")
    sim.set_tables({**sim.tables, "new": 1.0})
    for _ in range(MINUTE_TICKS):
        sim.tick()
    for node in sim.nodes.values():
        node.executor.broken = frozenset()
    sim.run(sim.is_replicating, ticks_max=MINUTE_TICKS + 10)
    sim.run(lambda: not sim.owner.coordinator.replication.failures.tables, ticks_max=10)


def test_another_capture_tries_next(sim):
    sim.nodes["c0"].executor.broken = frozenset(["new"])
    sim.set_tables({"new": 1.0, **{f"t{n}": 1.0 for n in range(6)}})
    sim.run(sim.is_replicating, ticks_max=20)
    assert tries(sim) <= 1


def test_others_are_drained_and_evened_meanwhile(sim):
    break_everywhere(sim, "new")
    sim.set_tables({**sim.tables, "new": 1.0})
    for _ in range(MINUTE_TICKS):
        sim.tick()
    sim.run(lambda: sim.owner.coordinator.drain("c2") == 0, ticks_max=MINUTE_TICKS)
    assert tries(sim) <= 9


def test_a_table_that_replicates_for_a_while_fails_anew(sim):
    """It is tried again at once: it went on since it failed last."""
    for _ in range(5):
        for _ in range(10):
            sim.tick()
        for node in sim.nodes.values():
            node.executor.fail("t0")
        sim.run(lambda: "t0" in sim.owner.coordinator.replication.failures.tables, ticks_max=10)
        assert sim.owner.coordinator.replication.failures.tables["t0"].times == 1
        sim.run(sim.is_replicating, ticks_max=20)
        sim.run(lambda: not sim.owner.coordinator.replication.failures.tables, ticks_max=10)


def test_a_lost_capture_is_no_failure(sim):
    sim.kill("c1")
    sim.run(sim.is_replicating, ticks_max=50)
    assert not sim.owner.coordinator.replication.failures.tables


def test_waits_have_a_limit():
    limits = Limits(retry_first_us=1_000_000, retry_max_us=3_000_000)
    sim = SimCluster(2, {"t": 1.0}, limits=limits, executor=Broken)
    break_everywhere(sim, "t")
    for _ in range(20 * MINUTE_TICKS // 60):
        sim.tick()
    assert tries(sim) >= 7, "every 3 s, when it comes to it"
