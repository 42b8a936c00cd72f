"""Counts, gauges and probes of an open store."""

import json

import pytest

import snapkv
from snapkv.errors import InvalidOptionError, InvalidTypeError, StoreClosedError
from snapkv.reading.lookup_meter import Lookups

from .wrapping import Counting, wrap_engines

only_memory = pytest.mark.parametrize("place", ["memory"], indirect=True)


def test_counts_and_gauges(store, clock):
    assert store.stats().commits == 0
    saved = store.save("a", b"1")
    with pytest.raises(snapkv.ConflictError):
        store.commit(puts={"a": b"2"}, guards=[snapkv.Absent("a")])
    tick = store.tick()
    clock.advance(1_500)
    watch = store.watch(since=0, timeout=0)
    assert next(watch).commit.ts == saved
    found = store.stats()
    assert (found.commits, found.transactions, found.ticks, found.conflicts) == (1, 2, 1, 1)
    assert (found.newest_timestamp, found.newest_revision) == (tick.ts, tick.revision)
    assert (found.ring_size, found.ring_slots) == (len(store._core.timeline.tracker.ring), 1_024)
    assert (found.watches, found.watch_commits, found.watch_changes) == (1, 1, 1)
    assert found.watch_lag_s == 1.5
    assert (found.fences, found.unknown_outcomes, found.lost_rounds) == (0, 0, 0)
    assert found.lookups is None
    watch.close()
    assert store.stats().watches == 0
    store.close()
    assert store.stats().commits == 1


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_they_cost_no_round_trip_and_health_one(place, clock, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Counting)
        store = place.open(clock=clock, stats=True)
    store.save("a", b"1")
    assert engines[0].during(store.stats) == {}
    remote = engines[0]
    remote.inner.remote = True  # what an embedded engine is asked besides costs nothing there
    assert remote.cheapest(store.health) == {"read": 1}
    assert store.stats().lookups == Lookups()


def test_a_healthy_store(store, clock):
    first = store.health()
    assert (first.answers, first.error, first.age_s) == (True, None, None)
    saved = store.save("a", b"1")
    clock.advance(2_500)
    found = store.health(timeout=5)
    assert (found.answers, found.newest_timestamp, found.age_s) == (True, saved, 2.5)
    assert 0 < found.latency_s < 5
    if not store._core.engine.remote:
        assert found.earliest_timestamp == store.info()["earliest_timestamp"]
    assert json.loads(json.dumps(found.as_json()))["newest_timestamp"] == str(saved)
    assert json.loads(json.dumps(store.stats().as_json()))["newest_timestamp"] == str(saved)


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_the_size_of_an_lmdb_store(store):
    store.save("a", b"1")
    assert store.health().size_bytes == store.info()["engine"]["used_bytes"]


@only_memory
def test_bad_arguments_and_a_closed_store(place):
    store = place.open()
    for timeout, error in (
        (-1, InvalidOptionError),
        ("1", InvalidTypeError),
        (None, InvalidTypeError),
    ):
        with pytest.raises(error):
            store.health(timeout=timeout)
    with pytest.raises(InvalidTypeError):
        place.open(stats=1)
    store.close()
    with pytest.raises(StoreClosedError):
        store.health()
