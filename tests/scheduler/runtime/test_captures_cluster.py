"""Captures on a store of three nodes, and many tables: nodes and captures die under load."""

import signal
from contextlib import ExitStack

import pytest
from etcd_server import EtcdCluster, eventually, shared_pool

from .fleet import Fleet
from .steps import PatientLoad, Steps, opened, tables

pytestmark = pytest.mark.slow

LABELS = ["c1", "c2", "c3"]
TABLES = tables(50)


@pytest.mark.kills_etcd
@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.long)])
def test_the_leader_of_the_store_dies_then_that_of_the_captures(tmp_path, seed, count):
    with ExitStack() as stack:
        cluster = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        fleet = stack.enter_context(Fleet(cluster.url, tmp_path))
        store = opened(stack, cluster.url)
        for label in LABELS:
            fleet.start(label)
        steps = Steps(fleet, store, TABLES[:count])
        steps.begin(*LABELS)
        with PatientLoad(store, TABLES[:count], seed) as load:
            steps.until_written(load)
            node = cluster.leader()
            node.kill()
            eventually(lambda: cluster.leader() is not node, "another leader of the store")
            steps.until_written(load)
            node.start()
            cluster.wait_healthy()
            steps.until_written(load)
            owner = steps.until(steps.leader, "an owner")
            rest = [label for label in LABELS if label != owner]
            fleet.kill(owner)
            steps.until(lambda: steps.leader() in rest, "another owner")
            steps.until_shared(*rest)
            steps.until_written(load)
            fleet.start(owner)
            steps.until_registered(*LABELS)
        steps.check_end(load)
        print(f"{load.done} commits, {load.failed} failed")


@pytest.mark.soak  # with twelve tables test_capture_processes has the same
def test_fifty_tables_survive_a_kill_a_sleep_and_the_death_of_the_owner(tmp_path, seed):
    with ExitStack() as stack:
        server = stack.enter_context(shared_pool().taken())
        fleet = stack.enter_context(Fleet(server.url, tmp_path))
        store = opened(stack, server.url)
        for label in LABELS:
            fleet.start(label)
        steps = Steps(fleet, store, TABLES)
        steps.begin(*LABELS)
        with PatientLoad(store, TABLES, seed) as load:
            killed, sleeper = (label for label in LABELS if label != steps.leader())
            # one that does not lead dies, and its tables move
            fleet.kill(killed)
            steps.until_shared(*(label for label in LABELS if label != killed))
            fleet.start(killed)
            steps.until_registered(*LABELS)
            # another one sleeps past its session, in the middle of what it does
            fleet.signal(sleeper, signal.SIGSTOP)
            steps.until(lambda: sleeper not in steps.registered(), "the end of its session")
            steps.until(
                lambda: (
                    sleeper not in steps.placed().values() and len(steps.placed()) == len(TABLES)
                ),
                "its tables to move",
            )
            steps.until_written(load)
            fleet.signal(sleeper, signal.SIGCONT)
            steps.until(lambda: sleeper in steps.registered(), "it to register again")
            # then the owner dies
            owner = steps.until(steps.leader, "an owner")
            fleet.kill(owner)
            steps.until(lambda: steps.leader() not in (None, owner), "another owner")
            steps.until(
                lambda: owner not in steps.placed().values() and len(steps.placed()) == len(TABLES),
                "its tables to move",
            )
            steps.until_written(load)
        steps.check_end(load)
        assert load.failed == 0
