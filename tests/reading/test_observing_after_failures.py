"""Observed prefixes must hold although something else happens: restores, forks, threads."""

import gc
import os
import threading

import pytest
from etcd_server import eventually
from store.engines import ENGINES, Place
from store.observed import WAIT_S, Cluster
from store.wrapping import Wrapped, backup

import snapkv.engine.bulk_reads
import snapkv.store.open
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import (
    CompactedError,
    NotObservedError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.store.location import open_engine

pytestmark = pytest.mark.slow


@pytest.fixture(params=["memory", "lmdb"])
def exchangeable(request, clock, tmp_path, monkeypatch):
    """What is observed, ten ticks of it, and its engine, of which the inside can be exchanged."""
    with Place(ENGINES[request.param], tmp_path) as place:
        yield from exchangeable_in(Cluster(place, clock), monkeypatch)


def exchangeable_in(cluster, monkeypatch):
    monkeypatch.setattr(snapkv.engine.bulk_reads, "REPLAY_WAIT_S", 0.5)
    engines = []

    def opened(url, **how):
        engines.append(Wrapped(open_engine(url, **how)))
        return engines[-1]

    monkeypatch.setattr(snapkv.store.open, "open_engine", opened)
    observed, ticks = cluster.observe(), []
    for n in range(10):
        cluster.write(a=b"%d" % n)
        ticks.append(cluster.tick())
    original = engines[0].inner
    yield observed, engines[0], ticks
    if engines[0].inner is not original:
        original.close()


@pytest.mark.parametrize("same_cluster", [True, False])
def test_an_engine_that_went_back(exchangeable, same_cluster):
    observed, engine, ticks = exchangeable
    snaps = [observed.at(ticks[n].ts) for n in (2, 8)]
    engine.inner = backup(engine.inner, ticks[5].revision, same_cluster=same_cluster)
    for snap in snaps:
        with pytest.raises(StoreRestoredError):
            snap["/r/a"]
    assert observed.resolved() == ticks[5].ts
    assert observed.load("/r/a") == b"5"
    for n, tick in enumerate(ticks):
        assert observed.load("/r/a", tick.ts) == b"%d" % min(n, 5)
        assert observed.at(tick.ts).final == (n <= 5)
    assert [v.value for v in observed.history("/r/a")] == [b"%d" % n for n in range(6)]


def test_another_engine_in_its_place(exchangeable):
    observed, engine, ticks = exchangeable
    snap = observed.at(ticks[2].ts)
    engine.inner = MemoryEngine()
    for read in (observed.at, observed.resolved, lambda: observed.load("/r/a"), observed.info):
        with pytest.raises(StoreRecreatedError):
            read()
    with pytest.raises((StoreRestoredError, StoreRecreatedError)):
        snap["/r/a"]


@pytest.mark.long_on("memory", "etcd")
@pytest.mark.forks
def test_a_child_does_not_wait_for_locks_of_its_parent(cluster):
    observed = cluster.observe()
    with pytest.raises(NotObservedError):
        observed.at()
    cluster.write(a=b"1")
    first = cluster.tick()
    cluster.write(a=b"2")
    cluster.tick()
    assert observed.load("/r/a", first.ts) == b"1"
    tracker = observed._core.timeline.tracker
    with tracker._lock, tracker._feed_lock, tracker.lookup._lock, observed._core.lock:
        pid = os.fork()
        if pid == 0:
            right = observed.load("/r/a", first.ts) == b"1" and observed.load("/r/a") == b"2"
            observed.watch()
            os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_watches_that_nobody_closed_are_forgotten(cluster):
    observed = cluster.observe()
    for _ in range(20):
        observed.watch(timeout=0)

    def forgotten():
        gc.collect()  # nothing, while another thread collects
        return len(observed._core.followers) == 0

    eventually(forgotten, "forgotten watches")


@pytest.mark.parametrize("slots", [1, 1_024])
def test_threads_read_while_others_write_tick_and_compact(cluster, slots):
    """What a thread reads at a tick is what stood there then, or it is told that it is gone."""
    observed = cluster.observe(ring_slots=slots)
    cluster.write(a=b"0", b=b"0")
    ticks, failed, done = [cluster.tick()], [], threading.Event()

    def read(step):
        at = 0
        try:
            while not done.is_set():
                at = (at + step) % len(ticks)
                tick = ticks[at]
                try:
                    found = dict(observed.at(tick.ts).items())
                except CompactedError as e:
                    gone = tick.revision < cluster.engine.compacted_revision()
                    right = gone and (e.earliest is None or e.earliest > tick.ts)
                else:
                    right = found == dict.fromkeys(("/r/a", "/r/b"), b"%d" % at)
                assert right, at
        except BaseException as e:
            failed.append(e)

    readers = [threading.Thread(target=read, args=(step,)) for step in (1, 7, 13)]
    for reader in readers:
        reader.start()
    try:
        for n in range(1, 120):
            cluster.write(a=b"%d" % n)
            cluster.write(b=b"%d" % n)
            ticks.append(cluster.tick(1))
            if n % 30 == 0:
                cluster.compact(ticks[n - 20].revision + n % 2)
    finally:
        done.set()
        for reader in readers:
            reader.join(WAIT_S)
    assert not failed
