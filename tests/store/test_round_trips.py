"""What things cost, in calls that would be round trips to a server."""

import random

import pytest

from snapkv import ManualClock, Ops, SpaceOps

from .engines import ENGINES, START_MS, Place
from .wrapping import Counting, wrap_engines


@pytest.fixture
def counted(monkeypatch):
    return wrap_engines(monkeypatch, Counting)


SLOTS = 16


class History:
    """A long history of one key, in a place of its own; tests add to its end."""

    def __init__(self, place) -> None:
        self.place, self.clock, self.stamps = place, ManualClock(START_MS), []
        with self.open() as store:
            self.grow(store, 3_000)

    def open(self):
        return self.place.open(clock=self.clock, ring_slots=SLOTS)

    def grow(self, store, count: int) -> None:
        for n in range(len(self.stamps), len(self.stamps) + count):
            self.stamps.append(store.save("k", b"%d" % n))
            self.clock.advance(1 + n % 7)


@pytest.fixture(scope="module", params=ENGINES)
def history(request, tmp_path_factory):
    with Place(ENGINES[request.param], tmp_path_factory.mktemp("history")) as place:
        yield History(place)


@pytest.fixture
def opened(history, counted):
    """A store with a small ring, full of its own commits, its counting engine, all timestamps."""
    with history.open() as store:
        history.grow(store, SLOTS + 1)
        yield store, counted[-1], history.stamps


def without_feed_check(engine, costs, usual):
    """Return costs less the one read that a server's feed needs with its first events.

    These come when they come: to whichever call.
    """
    extra = {**usual, "read": usual.get("read", 0) + 1}
    if engine.remote and extra in costs:
        costs[costs.index(extra)] = usual
    return costs


def test_opening_reads_once(history, counted):
    with history.open():
        (engine,) = counted
        assert engine.calls == {"read": 1}


def test_making_a_store_reads_and_writes(place, counted):
    place.open()
    (engine,) = counted
    assert engine.calls == {"read": 2, "transact": 1}


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.save("k", b"v"),
        lambda s: s.remove("k"),
        lambda s: s.multi_save({f"k{n}": b"v" for n in range(500)}),
        lambda s: s.multi_save_and_remove_with_prefix({"a": b""}, ["k", "a"]),
        lambda s: s.commit(lambda stamp: Ops(puts={"a": b""}, spaces={"s": SpaceOps()})),
        lambda s: s.tick(),
    ],
)
def test_a_commit_is_one_transaction(opened, write):
    store, engine, _ = opened
    assert engine.during(lambda: write(store)) == {"transact": 1}


def test_now_costs_one(opened):
    store, engine, stamps = opened
    costs = [
        engine.during(lambda: store.load("k")),
        engine.during(lambda: store.load("k", stamps[-1])),
        engine.during(lambda: store.load("k", "-0s")),
        engine.during(lambda: store.load("k", "+1h")),
        engine.during(lambda: store.at()),
        engine.during(store.resolved),
    ]
    assert without_feed_check(engine, costs, {"read": 1}) == [{"read": 1}] * 6


def test_in_the_ring_costs_one_and_no_lookup(opened):
    store, engine, stamps = opened
    for ts in stamps[-SLOTS:]:
        assert engine.during(lambda ts=ts: store.load("k", ts)) == {"read": 1}
        assert engine.during(lambda ts=ts: store.at(ts)) == {}


def test_a_snapshot_reads_once_a_key_and_once_a_count(opened):
    store, engine, stamps = opened
    snap = store.at(stamps[-3])
    assert engine.during(lambda: snap["k"]) == {"read": 1}
    assert engine.during(lambda: "k" in snap) == {"read": 1}
    assert engine.during(lambda: len(snap)) == {"read": 1}
    assert engine.during(lambda: list(snap.items())) == {"scan": 1}
    assert engine.during(lambda: store.load_with_prefix("k", stamps[-3])) == {"scan": 1}


def test_below_the_ring_costs_few_and_ever_fewer(history, counted):
    stamps = history.stamps
    with history.open() as store:
        engine = counted[-1]
        first = engine.during(lambda: store.load("k", stamps[1_500]))
        assert sum(first.values()) <= 12, "the feed is started once"
        rng, costs = random.Random(1), []
        for _ in range(400):
            n = rng.randrange(2_900)
            calls = engine.during(lambda n=n: store.load("k", stamps[n]))
            assert set(calls) == {"read"}
            costs.append(calls["read"])
    assert sum(costs) / len(costs) <= 4
    assert max(costs) <= 7
    assert sum(costs[-100:]) <= sum(costs[:100])


def test_what_was_looked_up_once_is_known(opened):
    store, engine, stamps = opened
    store.at(stamps[700])
    costs = [engine.during(lambda: store.at(stamps[700])) for _ in range(5)]
    assert without_feed_check(engine, costs, {}) == [{}] * 5
    costs = [engine.during(lambda: store.load("k", stamps[700])) for _ in range(5)]
    assert without_feed_check(engine, costs, {"read": 1}) == [{"read": 1}] * 5


@pytest.mark.slow
def test_a_history_costs_one_watch_and_a_read_for_each_128(opened):
    store, engine, stamps = opened
    calls = engine.during(lambda: list(store.history("k")))
    assert calls["watch"] == 1
    assert calls["read"] <= 1 + len(stamps) // 128 + 1


def test_a_diff_of_neighbours_replays_a_few_events(opened):
    store, engine, stamps = opened
    costs = [engine.during(lambda: list(store.diff(stamps[-10], stamps[-2])))]
    usual = {"watch": 1, "read": 1}
    assert without_feed_check(engine, costs, usual) == [usual]
