"""What tables cost, in calls that would be round trips to a server."""

import pytest
from store.wrapping import Counting, wrap_engines

import snapkv.reading.tables
import snapkv.store.open
from snapkv.reading import arrow, tables
from snapkv.reading.tables import CommitTimes
from snapkv.store.location import open_engine
from snapkv.store.open import observe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("place", ["memory"], indirect=True),
]  # all are asked the same
KEYS = 400
COMMITS = 800
LOOKUPS_MAX = 300


@pytest.fixture
def opened(monkeypatch, place, clock):
    """A store with a small ring in which each of many keys was written twice, and its engine."""
    monkeypatch.setattr(snapkv.reading.tables, "LOOKUPS_MAX", LOOKUPS_MAX)
    engines = wrap_engines(monkeypatch, Counting)
    store = place.open(clock=clock, ring_slots=16)
    stamps = []
    for n in range(COMMITS):
        stamps.append(store.save(f"k{n % KEYS}", b"%d" % n))
        clock.advance(5)
    store.load("k0", stamps[10])  # the feed of the ring has started
    return store, engines[0], stamps


def few(calls: dict, *, reads: int = 7) -> dict:
    """The calls but for single reads: of a bound, of where compaction stands."""
    small = calls.pop("compacted_revision", 0) + calls.pop("read", 0)
    assert small <= reads, (small, calls)
    return calls


def test_a_snapshot_reads_each_page_once(opened):
    store, engine, stamps = opened
    snap = store.at(stamps[-3])
    assert engine.during(snap.to_arrow) == {"columns": 1}
    assert engine.during(lambda: snap.to_arrow("k1")) == {"columns": 1}


@pytest.mark.parametrize("since", [None, 100, COMMITS - 200])
def test_changes_cost_two_replays(opened, since):
    store, engine, stamps = opened
    ts = None if since is None else stamps[since]
    assert few(engine.during(lambda: store.changes_to_arrow(since=ts))) == {"changes": 2}
    assert few(engine.during(lambda: store.changes_to_arrow("k1", ts))) == {"changes": 2}
    calls = engine.during(lambda: store.changes_to_arrow(since=ts, preimages=True))
    assert few(calls) == {"changes": 2}


def test_changes_of_a_few_revisions_cost_one(opened):
    """Their commits are read: a server takes some 100 ms to bring a new watch up to date."""
    store, engine, stamps = opened
    assert few(engine.during(lambda: store.changes_to_arrow(since=stamps[-100]))) == {"changes": 1}
    assert few(engine.during(lambda: store.commits_to_arrow(stamps[-100]))) == {"watch": 1}


def test_what_did_not_change_costs_nothing_more(opened):
    store, engine, stamps = opened
    for read in (store.changes_to_arrow, store.commits_to_arrow):
        assert engine.during(lambda read=read: read(since=stamps[-1])) == {"read": 1}
        assert engine.during(lambda read=read: read(since=stamps[-1], until=stamps[-2])) == {}


def test_histories_cost_a_scan_two_watches_and_the_times(opened):
    store, engine, stamps = opened
    calls = engine.during(store.history_to_arrow)
    assert few(calls) == {"scan": 1, "watch": 2}
    calls = engine.during(lambda: store.history_to_arrow(since=stamps[250]))
    assert few(calls, reads=7 + 250 // 128 + 1) == {"scan": 1, "watch": 2}, "times one by one"
    calls = engine.during(lambda: store.history_to_arrow(since=stamps[600]))
    assert few(calls) == {"scan": 1, "watch": 3}, "times from the log"


def test_the_log_costs_two_watches(opened):
    store, engine, _ = opened
    assert few(engine.during(store.commits_to_arrow)) == {"watch": 2}


def test_times_are_looked_up_once_and_not_for_ever(opened, monkeypatch):
    """One by one, up to a bound for all pages together, then all are read at once."""
    store, engine, _ = opened
    monkeypatch.setattr(arrow, "BATCH_ROWS", 100)
    core, mark = store._core, store._core.timeline.head()
    times = CommitTimes(core, mark)

    def read(prefix):
        source, span = core.policy.moment(mark), tables.key_range_of(store._space, prefix)
        return list(tables.snapshot(source, span, times))

    assert few(engine.during(lambda: read("k12")), reads=4) == {"columns": 1}
    assert engine.during(lambda: read("k12")) == {"columns": 1}, "they are known"
    assert few(engine.during(lambda: read("k1")), reads=14) == {"columns": 1}
    assert few(engine.during(lambda: read(None)), reads=14) == {"columns": 1, "watch": 1}
    assert engine.during(lambda: read(None)) == {"columns": 1}


def test_what_is_observed_costs_one_watch_more(opened, place, clock, monkeypatch):
    engines = []

    def counted(url, **rest):
        engines.append(Counting(open_engine(url, **rest)))
        return engines[-1]

    monkeypatch.setattr(snapkv.store.open, "open_engine", counted)
    options = place.kind.options | {"clock": clock, "ring_slots": 16}
    with observe(place.url, prefix="default/data/", **options) as observed:
        (engine,) = engines
        stamps = opened[2]
        observed.load("default/data/k0", stamps[10])
        assert few(engine.during(observed.changes_to_arrow)) == {"changes": 2}
        calls = engine.during(lambda: observed.history_to_arrow(since=stamps[600]))
        assert few(calls, reads=9) == {"scan": 1, "watch": 3}
        calls = engine.during(observed.history_to_arrow)
        assert few(calls, reads=12) == {"watch": 2}, "it begins with the first write"
