"""The short way of reads: one point read, few calls, and the careful way for all that is odd."""

import re
import sys
from pathlib import Path

import pytest
from store.engines import Place, write_raw
from store.wrapping import Wrapped, wrap_engines

import snapkv
from snapkv.errors import CompactedError, KeyNotFoundError, StoreClosedError
from snapkv.timeline import continuity

WAIT_S = 20
WALKS = (Path(__file__).parents[2] / "docs/architecture.md").read_text()


def calls_in(walk: str) -> int:
    """Return the number of calls in the heading of a walk; one more call has to earn its place."""
    found = re.search(rf"^### {re.escape(walk)}.*: (\d+) calls", WALKS, re.MULTILINE)
    assert found, f"docs/architecture.md has no walk {walk!r}"
    return int(found[1])


LOAD_CALLS_MAX = calls_in("`store.load(key, ts)`")
SAVE_CALLS_MAX = calls_in("`store.save(key, value)` alone")
OPEN_CALLS_MAX = calls_in("Opening a store that exists")
BELOW_CALLS_MAX = calls_in("A lookup below the ring")


class Seeing(Wrapped):
    """Notes the ranges of each read, and each point read."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.reads, self.points, self.blocks = [], [], 0

    def read(self, ranges, **options):
        self.reads.append(ranges)
        return self.inner.read(ranges, **options)

    def get(self, key, revision=0):
        self.points.append((key, revision))
        return self.inner.get(key, revision)

    def versions(self, key, revision, limit):
        self.blocks += 1
        return self.inner.versions(key, revision, limit)

    def seen(self, action):
        """Return (point reads, other reads) of an action."""
        self.reads.clear()
        self.points.clear()
        self.blocks = 0
        action()
        return len(self.points), len(self.reads) + self.blocks


@pytest.fixture
def seeing(place: Place, clock, monkeypatch):
    """A store of three commits of a key, 10 ms apart, and its engine, which notes what is read."""
    monkeypatch.setattr(continuity, "GAP_S", WAIT_S)  # no answer counts as slow
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Seeing)
        store = place.open(clock=clock, ring_slots=8)
    stamps = []
    for n in range(3):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(10)
    store.load("k")  # on etcd, from now on the server is known to be the same
    return store, engines[0], stamps


def calls_of(action, *, below: str = "") -> list[str]:
    """Return the Python functions that an action enters, of files whose path has `below` in it."""
    calls = []

    def note(frame, event, arg):
        if event == "call" and below in frame.f_code.co_filename:
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls[0 if below else 1 :]  # without the action itself


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_few_calls_of_a_save(place):
    store = place.open()
    for n in range(3):
        store.save("k", b"%d" % n)
    tries = [calls_of(lambda: store.save("k", b"3")) for _ in range(3)]
    calls = min(tries, key=len)  # the collector may come in between
    assert len(calls) <= SAVE_CALLS_MAX, calls
    assert store.load("k") == b"3"


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_few_calls_of_opening_a_store_that_exists(place):
    place.open().close()
    tries, stores = [], []
    for _ in range(3):
        tries.append(calls_of(lambda: stores.append(snapkv.open(place.url)), below="/snapkv/"))
        stores.pop().close()  # a store that is open would share its environment with the next one
    calls = min(tries, key=len)
    assert len(calls) <= OPEN_CALLS_MAX, calls


def test_a_store_that_only_reads_makes_no_committer(place):
    place.open().save("k", b"1")
    store = place.open(create=False)
    assert store.load("k") == b"1"
    assert (store.stats().commits, store.stats().waiting) == (0, 0)
    assert store.guards_max is None or store.guards_max > 1
    assert store._core.made_committer is None
    store.save("k", b"2")
    assert store.stats().commits == 1


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
def test_few_calls_below_the_ring(place):
    store = place.open(ring_slots=8)
    stamps = [store.save("k", b"%d" % n) for n in range(100)]
    assert store.load("k", stamps[20]) == b"20"  # takes the marks around it along
    calls = calls_of(lambda: store.load("k", stamps[17]))
    assert len(calls) <= BELOW_CALLS_MAX, calls
    assert store.load("k", stamps[17]) == b"17"


@pytest.mark.parametrize("place", ["lmdb"], indirect=True)
@pytest.mark.parametrize("when", ["in the ring", "newest", "ahead", "now"])
def test_few_calls(place, clock, when):
    store = place.open(clock=clock)
    stamps = [store.save("k", b"%d" % n) for n in range(10)]
    times = {"in the ring": stamps[4], "newest": stamps[-1], "ahead": stamps[-1] + 9, "now": None}
    store.load("k")  # looks up the state of the engine, once for each commit
    calls = calls_of(lambda: store.load("k", times[when]))
    assert len(calls) <= LOAD_CALLS_MAX, calls
    snapshot = store.at(times[when])
    assert len(calls_of(lambda: snapshot["k"])) <= 2 * LOAD_CALLS_MAX


def test_one_point_read_and_nothing_else(seeing):
    store, engine, stamps = seeing
    loads = {
        "in the ring": lambda: store.load("k", stamps[1]),
        "between two": lambda: store.load("k", stamps[1] + 1),
        "newest": lambda: store.load("k", stamps[2]),
        "after it": lambda: store.load("k", stamps[2] + 5),
        "now": lambda: store.load("k"),
        "entry": lambda: store.entry("k", stamps[0]),
    }
    for name, load in loads.items():
        assert engine.seen(load) in ((1, 0), (0, 1)), name  # (0, 1): etcd was asked long ago
    assert engine.seen(lambda: [store.load("k", stamps[1]) for _ in range(20)])[0] > 0
    snapshot = store.at(stamps[1])
    assert engine.seen(lambda: snapshot["k"]) in ((1, 0), (0, 1))


def test_it_gives_what_the_careful_way_gives(seeing):
    store, _, stamps = seeing
    for when in (None, *(stamp + d for stamp in stamps for d in (0, 1))):
        assert store.entry("k", when) == store.entries_of(["k"], when)[0]
        assert store.load("k", when) == store.at(when)["k"] == store.entry("k", when).value
    for when in (None, stamps[0], stamps[2] + 1):
        with pytest.raises(KeyNotFoundError):
            store.load("absent", when)
        with pytest.raises(KeyNotFoundError):
            store.at(when)["absent"]
    with pytest.raises(KeyNotFoundError):
        store.load("k", stamps[0] - 1)


def test_what_others_wrote_after_the_newest_commit_is_looked_up_once(seeing):
    """Then the newest commit known may not be the newest: the timestamp key is read with it."""
    store, engine, stamps = seeing
    write_raw(engine.inner, snapkv.engine.contract.Put(b"foreign", b""))
    late = stamps[2] + 5
    assert store.load("k", late) == b"2"
    assert any(len(ranges) > 1 for ranges in engine.reads)
    points, reads = engine.seen(lambda: store.load("k", late))
    assert (points, reads) in ((1, 0), (0, 1))


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
def test_a_commit_of_another_process_counts(place, clock):
    a, b = place.open(clock=clock), place.open(clock=clock)
    first = a.save("k", b"1")
    assert a.load("k", first + 5) == b"1"
    clock.advance(1)
    second = b.save("k", b"2")
    assert (a.load("k"), a.load("k", second)) == (b"2", b"2")
    assert a.load("k", first) == b"1"


def test_compacted_moments(seeing):
    store, engine, stamps = seeing
    snapshot = store.at(stamps[0])
    assert snapshot["k"] == b"0"
    engine.compact(store.at(stamps[2]).revision)
    with pytest.raises(CompactedError):
        store.load("k", stamps[0])
    with pytest.raises(CompactedError):
        snapshot["k"]
    assert store.load("k", stamps[2]) == b"2"


def test_of_a_closed_store(seeing):
    store, _, stamps = seeing
    store.close()
    for read in (lambda: store.load("k"), lambda: store.load("k", stamps[0])):
        with pytest.raises(StoreClosedError):
            read()


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_below_the_ring_a_lookup_makes_those_nearby_free(place, clock, monkeypatch):
    with monkeypatch.context() as patch:
        engines = wrap_engines(patch, Seeing)
        store = place.open(clock=clock, ring_slots=8)
    stamps = []
    for n in range(600):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(n % 3)
    assert store.load("k", stamps[300]) == b"300"
    blocks = 0
    for at in reversed(range(50, 301)):
        points, reads = engines[0].seen(lambda at=at: store.load("k", stamps[at]))
        assert (points, reads) == (1, 0) or reads == engines[0].blocks, at
        blocks += reads
        assert store.load("k", stamps[at]) == b"%d" % at
        assert engines[0].seen(lambda at=at: store.load("k", stamps[at])) == (1, 0), at
    assert blocks <= 4, "each search reads the marks around what it finds"
    for at in (301, 400, 20, 0, 591, 599):
        for when in (stamps[at], stamps[at] + 1):
            floor = max(i for i, stamp in enumerate(stamps) if stamp <= when)
            assert store.load("k", when) == b"%d" % floor
    store._core.timeline.tracker.check()


@pytest.mark.parametrize("place", ["memory", "lmdb"], indirect=True)
def test_blocks_of_compacted_moments(place, clock):
    store = place.open(clock=clock, ring_slots=8)
    stamps = []
    for n in range(100):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1)
    assert store.load("k", stamps[60]) == b"60"
    engine = store._core.engine
    engine.compact(store.at(stamps[50]).revision)
    with pytest.raises(CompactedError):
        store.load("k", stamps[40])
    assert store.load("k", stamps[50]) == b"50"
    assert store.load("k", stamps[55]) == b"55"
