"""Which capture became a table's primary, and why: `Tick.decisions`."""

import pytest

from .cluster import SimCluster

TABLES = {f"t{n}": 1.0 for n in range(6)}


class Noting(SimCluster):
    """A cluster that keeps all decisions of its owners."""

    def __init__(self, *args, **options):
        self.decisions = []
        super().__init__(*args, **options)

    def told_by_owner(self, owner):
        self.decisions += owner.last.decisions
        super().told_by_owner(owner)

    def of(self, table):
        return [(capture, why) for each, capture, why in self.decisions if each == table]

    def holder(self, table):
        primary = self.owner.coordinator.replication.sets[table].primary
        return primary and primary.capture

    def settle(self):
        self.run(self.is_replicating, ticks_max=200)


@pytest.fixture
def cluster():
    cluster = Noting(3, TABLES)
    cluster.settle()
    return cluster


def test_new_tables_are_placed(cluster):
    for table in TABLES:
        assert cluster.of(table) == [(cluster.holder(table), "placed")]


def test_a_lost_capture_is_the_reason(cluster):
    lost = [table for table in TABLES if cluster.holder(table) == "c2"]
    assert lost
    cluster.decisions.clear()
    cluster.kill("c2")
    cluster.run(lambda: all(len(cluster.of(table)) == 2 for table in lost), ticks_max=200)
    for table in lost:
        assert cluster.of(table) == [
            (None, "c2 is gone"),
            (cluster.holder(table), "c2 is gone"),
        ]
    assert {table for table, _, _ in cluster.decisions} == set(lost)


def test_an_operator_and_a_drain_are_reasons(cluster):
    table = next(table for table in TABLES if cluster.holder(table) == "c1")
    cluster.decisions.clear()
    assert cluster.owner.coordinator.move(table, "c0")
    cluster.run(lambda: cluster.holder(table) == "c0", ticks_max=200)
    assert cluster.of(table)[-1] == ("c0", "a move was asked for")
    cluster.decisions.clear()
    cluster.run(lambda: cluster.owner.coordinator.drain("c2") == 0, ticks_max=400)
    assert {why for _, _, why in cluster.decisions} == {"c2 is drained"}


def test_a_failure_is_a_reason(cluster):
    table, holder = "t0", cluster.holder("t0")
    cluster.decisions.clear()
    cluster.nodes[holder].executor.fail(table)
    cluster.run(lambda: len(cluster.of(table)) == 2, ticks_max=200)
    assert cluster.of(table)[0] == (None, f"it failed on {holder}")


def test_another_owner_finds_them(cluster):
    cluster.decisions.clear()
    cluster.elect("c1")
    cluster.depose()
    cluster.run(lambda: len(cluster.decisions) == len(TABLES), ticks_max=200)
    assert {(table, why) for table, _, why in cluster.decisions} == {
        (table, "found") for table in TABLES
    }


def test_what_is_not_wanted_ends(cluster):
    cluster.decisions.clear()
    cluster.set_tables({table: 1.0 for table in TABLES if table != "t3"})
    cluster.run(lambda: bool(cluster.of("t3")), ticks_max=200)
    assert cluster.of("t3") == [(None, "not wanted")]
