"""What Prometheus reads of stores and recorders."""

import gc

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import snapkv
from snapkv.errors import InvalidOptionError
from snapkv.hooks import FailoverEvent, FenceEvent, LostRoundEvent, StoreLabel
from snapkv.metrics import Metrics

START_MS = 1_700_000_000_000
URL = "memory:"
HERE = {"url": URL, "store": "default"}


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def metrics(registry):
    return Metrics(registry)


@pytest.fixture
def value(registry):
    """Return a function that reads a sample of this test's store."""

    def read(name, **labels):
        return registry.get_sample_value(name, HERE | labels)

    return read


def test_commits_ticks_and_watches(metrics, value):
    clock = snapkv.ManualClock(START_MS)
    with snapkv.open(URL, hooks=metrics, clock=clock) as store:
        store.multi_save({"a": b"1", "b": b"2"})
        with pytest.raises(snapkv.ConflictError):
            store.commit(puts={"a": b"2"}, guards=[snapkv.Absent("a")])
        store.tick()
        clock.advance(2_000)
        assert len(list(store.watch(since=0, timeout=0))) == 1
        assert value("snapkv_commit_seconds_count", outcome="committed") == 1
        assert 0 < value("snapkv_commit_seconds_sum", outcome="committed") < 60
        assert value("snapkv_commit_seconds_count", outcome="conflict") == 1
        assert value("snapkv_commit_members_sum") == 1
        assert value("snapkv_ticks_total", outcome="committed") == 1
        assert value("snapkv_watch_changes_total") == 2
        assert value("snapkv_watch_lag_seconds_sum") == 2.0
        assert value("snapkv_watch_lag_seconds_bucket", le="5.0") == 1
        assert value("snapkv_watch_lag_seconds_bucket", le="1.0") == 0
        assert value("snapkv_newest_timestamp_seconds") == START_MS / 1_000
        assert value("snapkv_tick_lag_seconds") > 0


def test_lookups_and_the_ring(metrics, value):
    with snapkv.open(URL, hooks=metrics, ring_slots=4) as store:
        stamps = [store.save("k", b"%d" % n) for n in range(9)]
        assert value("snapkv_ring_hit_ratio") is None
        for stamp in (stamps[0], stamps[-1], stamps[-2], stamps[-3]):
            store.load("k", stamp)
        store.load("k")
        assert value("snapkv_lookups_total", path="search") == 1
        assert value("snapkv_lookups_total", path="ring") == 3
        assert value("snapkv_lookups_total", path="head") == 1
        assert value("snapkv_ring_hit_ratio") == 0.75
        assert (value("snapkv_ring_size"), value("snapkv_ring_slots")) == (4, 4)


def test_without_lookups(registry, value):
    with snapkv.open(URL, hooks=Metrics(registry, lookups=False)) as store:
        store.load("k", store.save("k", b"1"))
        assert value("snapkv_lookups_total", path="ring") is None
        assert value("snapkv_commit_members_count") == 1


def test_the_compaction_horizon(metrics, value):
    clock = snapkv.ManualClock(START_MS)
    with snapkv.open(URL, hooks=metrics, clock=clock) as store:
        store.save("k", b"1")
        clock.advance(600_000)
        store.save("k", b"2")
        assert value("snapkv_compaction_horizon_timestamp_seconds") is None
        clock.advance(600_000)
        store.compact("-5m")
        assert value("snapkv_compactions_total") == 1
        assert value("snapkv_compaction_horizon_timestamp_seconds") == START_MS / 1_000 + 600


def test_what_only_clusters_do(metrics, value):
    """The events themselves are tested where they happen: `tests/protocol`, `tests/engine`."""
    label = StoreLabel(URL, "default")
    metrics.on_lost_round(LostRoundEvent(label, 1, 3))
    metrics.on_fence(FenceEvent(label, 5, "dead", 0.1))
    metrics.on_failover(FailoverEvent(label, "a:2379", "b:2379", "UNAVAILABLE"))
    assert value("snapkv_lost_rounds_total") == 1
    assert value("snapkv_fences_total", outcome="dead") == 1
    assert value("snapkv_failovers_total") == 1


def test_a_closed_store_keeps_its_counts(metrics, value, registry):
    for _ in range(2):
        with snapkv.open(URL, hooks=metrics) as store:
            store.save("k", b"1")
            store.load("k")
            assert value("snapkv_open_stores") == 1
    assert value("snapkv_open_stores") == 0
    assert value("snapkv_lookups_total", path="head") == 2
    assert value("snapkv_newest_timestamp_seconds") is None


def test_two_stores_of_one_label_are_added_up(metrics, registry):
    with (
        snapkv.open("memory:twice", hooks=metrics) as a,
        snapkv.open("memory:twice", hooks=metrics) as b,
    ):
        a.save("k", b"1")
        newest = b.save("k", b"2")
        text = generate_latest(registry).decode()
        lines = [line for line in text.splitlines() if line.startswith("snapkv_newest_timestamp")]
        assert len(lines) == 1
        assert float(lines[0].split()[-1]) == snapkv.to_datetime(newest).timestamp()
        assert 'snapkv_open_stores{store="default",url="memory:twice"} 2.0' in text


def test_a_forgotten_store_is_not_kept_alive(metrics, value):
    store = snapkv.open(URL, hooks=metrics)
    assert value("snapkv_open_stores") == 1
    del store
    gc.collect()
    assert value("snapkv_open_stores") is None


def test_a_recorder(metrics, registry):
    into = "memory:metrics-into"
    with snapkv.open("memory:metrics-from") as store:
        saved = store.save("a", b"1")
        recorder = snapkv.record("memory:metrics-from", into=into, hooks=metrics)
        recorder.catch_up()
    labels = {"url": "memory:metrics-from", "store": "default", "into": into}

    def read(name, **more):
        return registry.get_sample_value(name, labels | more)

    assert read("snapkv_recorder_state", state="recording") == 1
    assert read("snapkv_recorder_state", state="waiting") == 0
    assert read("snapkv_recorded_commits") == 1
    assert read("snapkv_recording_gaps") == 0
    assert read("snapkv_archive_lag_seconds") == 0
    assert read("snapkv_recorder_pending_bytes") == 0
    assert read("snapkv_recorded_timestamp_seconds") == snapkv.to_datetime(saved).timestamp()


def test_a_registry_takes_them_once(registry, metrics):
    with pytest.raises(InvalidOptionError, match="give one Metrics to all stores"):
        Metrics(registry)
    Metrics(None)


def test_no_key_and_no_value_is_a_label(metrics, registry):
    with snapkv.open(URL, hooks=metrics) as store:
        store.save("a-key", b"a-value", note="a-note", writer="a-writer")
        store.load("a-key")
        text = generate_latest(registry).decode()
    assert "a-" not in text
