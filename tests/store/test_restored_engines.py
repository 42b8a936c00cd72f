"""An engine that went back in time, or was exchanged, under an open store."""

import pytest

import snapkv
import snapkv.engine.bulk_reads
import snapkv.store.open
import snapkv.timeline.continuity
import snapkv.timeline.timeline
from snapkv import CompactedError
from snapkv.engine.contract import Delete
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import AccessDeniedError, StoreRecreatedError, StoreRestoredError

from .engines import EMBEDDED, write_raw
from .wrapping import Exchangeable, Wrapped, backup, wrap_engines

# A real server that was restored: tests/engine/test_etcd_cluster_restored.py
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("place", EMBEDDED, indirect=True)]


@pytest.fixture
def exchangeable(monkeypatch, place, clock):
    """A store with ten commits, and its engine, of which the inside can be exchanged."""
    monkeypatch.setattr(snapkv.engine.bulk_reads, "REPLAY_WAIT_S", 0.5)
    engines = wrap_engines(monkeypatch, Wrapped)
    store = place.open(clock=clock)
    stamps = []
    for n in range(10):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1_000)
    original = engines[0].inner
    yield store, engines[0], stamps
    if engines[0].inner is not original:
        original.close()


def rolled_back(engine, store, stamps, to, *, same_cluster=True):
    """Put the engine back to the commit number `to`."""
    revision = store.at(stamps[to]).revision
    engine.inner = backup(engine.inner, revision, same_cluster=same_cluster)


@pytest.mark.parametrize("same_cluster", [True, False])
def test_open_snapshots_say_so(exchangeable, same_cluster):
    store, engine, stamps = exchangeable
    snaps = [store.at(stamps[2]), store.at(stamps[8]), store.at()]
    rolled_back(engine, store, stamps, 5, same_cluster=same_cluster)
    assert store.load("k") == b"5"
    store.resolved()
    for snap in snaps:
        for read in (
            lambda snap=snap: snap["k"],
            lambda snap=snap: len(snap),
            lambda snap=snap: list(snap.items()),
            lambda snap=snap: list(snap.diff(store.at())),
        ):
            with pytest.raises(StoreRestoredError):
                read()


@pytest.mark.parametrize("same_cluster", [True, False])
@pytest.mark.parametrize("commit", [2, 8])
def test_the_first_to_notice_may_be_a_snapshot(exchangeable, same_cluster, commit):
    store, engine, stamps = exchangeable
    snap = store.at(stamps[commit])
    rolled_back(engine, store, stamps, 5, same_cluster=same_cluster)
    with pytest.raises(StoreRestoredError):
        snap["k"]


@pytest.mark.parametrize("same_cluster", [True, False])
@pytest.mark.parametrize("commit", [2, 8])
def test_the_first_to_notice_may_be_a_page(exchangeable, same_cluster, commit):
    store, engine, stamps = exchangeable
    snap = store.at(stamps[commit])
    rolled_back(engine, store, stamps, 5, same_cluster=same_cluster)
    try:
        rows = list(snap.items())
    except StoreRestoredError:
        return
    # a page has no header: what was there before the backup may still be read, once
    assert (commit, rows) == (2, [("k", b"2")])


@pytest.mark.parametrize("same_cluster", [True, False])
def test_what_was_learned_is_forgotten(exchangeable, clock, same_cluster):
    store, engine, stamps = exchangeable
    rolled_back(engine, store, stamps, 5, same_cluster=same_cluster)
    store.resolved()
    assert store.resolved() == stamps[5]
    assert store.load("k") == b"5"
    for n in range(6):
        assert store.load("k", stamps[n]) == b"%d" % n
    for lost in stamps[6:]:
        assert store.load("k", lost) == b"5"
        assert not store.at(lost).final
    ts = store.save("k", b"new")
    assert ts > stamps[-1], "times never go back, whatever the engine does"
    assert store.load("k", ts) == b"new"
    assert store.load("k", ts - 1) == b"5"
    assert [c.ts for c in store.commits()] == [*stamps[:6], ts]


@pytest.mark.parametrize("lookup", [2, 5, 8, 9])
@pytest.mark.parametrize("same_cluster", [True, False])
def test_a_lookup_may_be_the_first_to_notice(exchangeable, lookup, same_cluster):
    store, engine, stamps = exchangeable
    rolled_back(engine, store, stamps, 5, same_cluster=same_cluster)
    assert store.load("k", stamps[lookup]) == b"%d" % min(lookup, 5)


@pytest.mark.parametrize("new", [1, 3, 4, 5, 12])
def test_commits_may_be_the_first_to_notice(exchangeable, clock, new):
    store, engine, stamps = exchangeable
    snap = store.at(stamps[8])
    rolled_back(engine, store, stamps, 5)
    again = []
    for n in range(new):
        again.append(store.save("k", b"new%d" % n))
        clock.advance(1_000)
    with pytest.raises(StoreRestoredError):
        snap["k"]
    for n, ts in enumerate(stamps):
        assert store.load("k", ts) == b"%d" % min(n, 5)
    for n, ts in enumerate(again):
        assert store.load("k", ts) == b"new%d" % n


def test_another_store_in_its_place(exchangeable, place):
    store, engine, stamps = exchangeable
    snap = store.at(stamps[2])
    engine.inner = MemoryEngine()
    for _ in range(2):
        for action in (store.resolved, store.at, lambda: store.save("k", b"x"), store.tick):
            with pytest.raises(StoreRecreatedError):
                action()
    with pytest.raises((StoreRestoredError, StoreRecreatedError)):
        snap["k"]
    assert engine.inner.read([]).header.revision == 1, "nothing is written into it"


def test_an_engine_that_only_compacted_was_not_restored(exchangeable, clock):
    store, _, stamps = exchangeable
    snap = store.at(stamps[2])
    clock.advance(200_000)
    store.compact(stamps[5])
    with pytest.raises(CompactedError):
        snap["k"]


# --- a server that was set back and written to since, while nobody looked ---


class Passing:
    """A clock of seconds that stands still until it is moved."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def passing(monkeypatch):
    passing = Passing()
    for module in (snapkv.timeline.continuity, snapkv.timeline.tracker):
        monkeypatch.setattr(module, "monotonic", passing)
    return passing


class Served(Exchangeable):
    """A server that can be hindered: `after_read` is called once with what was read."""

    after_read = None
    denies_watches = False

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.reads, self.watches = [], 0

    def read(self, ranges, **rest):
        self.reads.append(ranges)
        answer = self.inner.read(ranges, **rest)
        hook, self.after_read = self.after_read, None
        if hook is not None:
            hook()
        return answer

    def watch(self, key, range_end, *, start_revision):
        self.watches += 1
        watcher = super().watch(key, range_end, start_revision=start_revision)
        return Denied(self, watcher)


class Denied(Wrapped):
    """A watcher that ends for good once its user has lost the right."""

    def __init__(self, engine, inner) -> None:
        super().__init__(inner)
        self.engine, self.ended = engine, False

    def next(self, timeout):
        self.ended = self.ended or self.engine.denies_watches
        if self.ended:
            raise AccessDeniedError("permission denied")
        return self.inner.next(timeout)


class Place:
    """A store on a server, what it committed, and what others commit after a restore."""

    def __init__(self, place, clock, engines, passing, slots) -> None:
        self.clock, self.passing = clock, passing
        self.store = place.open(clock=clock, ring_slots=slots)
        self.engine = engines[0]
        self.original = self.engine.inner
        self.stamps = self.commit(self.store, b"%d", 10)
        self.again = []

    def commit(self, store, value, count):
        stamps = []
        for n in range(count):
            stamps.append(store.save("k", value % n))
            self.clock.advance(1_000)
        return stamps

    def restored(self, monkeypatch, to, new):
        """Set the server back to the commit number `to`; another program commits, time passes."""
        revision = self.store.at(self.stamps[to]).revision
        self.engine.inner = inner = backup(self.original, revision, same_cluster=True)
        monkeypatch.setattr(snapkv.store.open, "open_engine", lambda url, **rest: Wrapped(inner))
        self.other = snapkv.open("memory:other", clock=self.clock)
        self.again = self.commit(self.other, b"new%d", new)
        self.passing.now += 1

    def check(self, to):
        """Assert that every moment reads as the restored history has it."""
        for n, ts in enumerate(self.stamps):
            assert self.store.load("k", ts) == b"%d" % min(n, to)
            assert not self.store.load_with_prefix("k", ts)[1][0].startswith(b"new")
        for n, ts in enumerate(self.again):
            assert self.store.load("k", ts) == b"new%d" % n
            assert self.store.at(ts).revision == self.other.at(ts).revision
        self.store._core.timeline.tracker.check()


@pytest.fixture(params=[1, 4, 1_024], ids=lambda n: f"{n} slots")
def served(request, monkeypatch, place, clock, passing):
    served = Place(place, clock, wrap_engines(monkeypatch, Served), passing, request.param)
    yield served
    if served.engine.inner is not served.original:
        served.original.close()


FIRST = {
    "now": lambda store, snap: store.load("k"),
    "head": lambda store, snap: store.resolved(),
    "snapshot": lambda store, snap: snap["k"],
    "page": lambda store, snap: list(snap.items()),
    "difference": lambda store, snap: list(snap.diff(store.at())),
    "commit": lambda store, snap: store.tick(),
    "oldest": lambda store, snap: store.info(),
    "nothing": lambda store, snap: None,
}


@pytest.mark.parametrize("new", [4, 5, 20])
@pytest.mark.parametrize("first", FIRST)
def test_a_server_that_went_back_and_beyond(served, monkeypatch, first, new):
    store, stamps = served.store, served.stamps
    assert [store.load("k", ts) for ts in stamps] == [b"%d" % n for n in range(10)]
    snaps = [store.at(stamps[n]) for n in (7, 8, 9)]
    served.restored(monkeypatch, 5, new)
    try:
        assert FIRST[first](store, snaps[0]) not in (b"7", [("k", b"7")])
    except StoreRestoredError:
        assert first in ("snapshot", "page", "difference")
    for snap in snaps:
        for read in (lambda s=snap: s["k"], lambda s=snap: list(s.items())):
            with pytest.raises(StoreRestoredError):
                read()
    served.check(5)


def test_an_idle_store_asks_no_more_often_for_it(served):
    engine, store, stamps = served.engine, served.store, served.stamps
    for idle_s in (0.0, 1.0):
        store.load("k")
        for action in (
            lambda: store.load("k"),
            lambda: store.load("k", stamps[-1]),
            store.resolved,
            store.at,
        ):
            served.passing.now += idle_s
            engine.reads.clear()
            action()
            assert len(engine.reads) == 1
            assert len(engine.reads[0]) <= 2 + (idle_s > 0)


def test_a_server_that_only_compacted_was_not_restored(served, place, clock):
    store, stamps = served.store, served.stamps
    snap = store.at(stamps[9])
    other = place.open(clock=clock)
    again = served.commit(other, b"new%d", 10)
    clock.advance(200_000)
    assert other.compact(again[-1]).earliest == again[-1]
    for _ in range(2):
        served.passing.now += 1
        assert store.load("k") == b"new9"
        with pytest.raises(CompactedError):
            snap["k"]
        with pytest.raises(CompactedError):
            store.load("k", stamps[3])
        assert store.at(again[-1])["k"] == b"new9"
    assert store._core.timeline.tracker.continuity.epoch == 0, "what was learned is kept"


def test_a_search_on_its_way_keeps_nothing_of_the_old_history(served, monkeypatch):
    store, stamps = served.store, served.stamps

    def between():
        served.restored(monkeypatch, 5, 20)
        store.resolved()

    store.load("k", stamps[2])
    store._core.timeline.tracker.lookup.clear()
    store._core.timeline.tracker.ring.clear()
    served.engine.after_read = between
    assert store.load("k", stamps[7] + 1) == b"5"
    served.check(5)


@pytest.mark.parametrize("new", [0, 2, 4, 5, 20])
@pytest.mark.parametrize("to", [5, 8, 9])
def test_a_watch_over_a_restore(served, monkeypatch, to, new):
    store, stamps = served.store, served.stamps
    with store.watch(since=stamps[0], timeout=0) as watch:
        seen = [changes.changes[0].value for changes in watch]
        assert seen == [b"%d" % n for n in range(1, 10)]
        served.restored(monkeypatch, to, new)
        if to == 9:  # the backup holds all that was seen: nothing is lost
            values = [changes.changes[0].value for changes in watch]
            assert values == [b"new%d" % n for n in range(new)]
            return
        for _ in range(2):
            with pytest.raises(StoreRestoredError):
                watch.next(0)
    served.check(to)


def test_a_watch_says_that_its_store_was_removed(place, clock):
    store = place.open(clock=clock)
    store.save("k", b"1")
    with store.watch(timeout=0) as watch:
        write_raw(place.engine(), Delete(b"default/sys/ts"))
        with pytest.raises(StoreRecreatedError):
            watch.next(1)


def test_a_feed_that_was_denied_is_started_again(served):
    """A ring of one slot has no feed: nothing fills it."""
    engine, store, stamps = served.engine, served.store, served.stamps
    has_feed = store._core.timeline.tracker.ring.slots > 1
    store._core.timeline.tracker.ring.clear()
    assert store.load("k", stamps[2]) == b"2"
    for _ in range(2):
        engine.denies_watches = True
        store._core.timeline.tracker.lookup.clear()
        store._core.timeline.tracker.ring.clear()
        engine.watches = 0
        for n in (1, 3, 5, 7):
            assert store.load("k", stamps[n] + 1) == b"%d" % n
        assert engine.watches == 0, "not again at once"
        engine.denies_watches = False
        served.passing.now += 60
        store._core.timeline.tracker.lookup.clear()
        assert store.load("k", stamps[6] + 1) == b"6"
        assert engine.watches == has_feed


@pytest.mark.parametrize("new", [2, 20])
def test_an_observed_watch_over_a_restore(served, monkeypatch, new):
    monkeypatch.setattr(snapkv.store.open, "open_engine", lambda url, **rest: served.engine)
    observed = snapkv.observe("memory:observed", prefix="default/data/", clock=served.clock)
    with observed.watch(since=served.stamps[0], timeout=0) as watch:
        seen = [changes.changes[0].value for changes in watch]
        assert seen == [b"%d" % n for n in range(1, 10)]
        served.restored(monkeypatch, 5, new)
        for _ in range(2):
            with pytest.raises(StoreRestoredError):
                watch.next(0)
