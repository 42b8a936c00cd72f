"""The ring, filled by commits, by loading and by watching: always the answer of a search.

Each lookup is compared with a search through the engine (a store with a ring of one slot) and
with the plain model; and where the ring should know the answer, it must not ask.
"""

from bisect import bisect_right

import pytest
from sampling import fewer_on_etcd
from store.engines import START_MS, assert_sound
from store.wrapping import Counting, wrap_engines

import snapkv.timeline.continuity
from snapkv import ManualClock, pack
from snapkv.base.waiting import monotonic

pytestmark = pytest.mark.slow

WAIT_S = 20
SLOTS = (1, 2, 7, 1_024)
EARLY = pack(START_MS) // 2
"""A timestamp of the year 1996: no store of these has commits there."""


class Written:
    """Commits to one key, each with its number as the value; answers from a list."""

    def __init__(self, store, clock):
        self.store, self.clock, self.stamps = store, clock, []

    def up_to(self, count):
        while len(self.stamps) < count:
            self.clock.advance(len(self.stamps) % 3)
            self.stamps.append(self.store.save("k", b"%d" % len(self.stamps)))

    def at(self, when):
        before = bisect_right(self.stamps, when)
        return before - 1 if before else None

    def moments(self):
        """Exact, between, below the first, above the last: all for few commits, else a sample."""
        stamps = self.stamps
        step = max(1, len(stamps) // 40)
        edges = [
            n
            for around in (0, len(stamps) - 1_024, len(stamps))
            for n in range(around - 3, around + 3)
            if 0 <= n < len(stamps)
        ]
        exact = {stamps[n] for n in [*range(0, len(stamps), step), *edges]}
        return sorted({0, EARLY} | exact | {ts - 1 for ts in exact} | {ts + 1 for ts in exact})


each_ring = pytest.mark.parametrize(
    ("place", "slots"), fewer_on_etcd(SLOTS, one_in=2), indirect=["place"]
)


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(snapkv.timeline.continuity, "GAP_S", WAIT_S)  # no answer counts as slow
    return wrap_engines(monkeypatch, Counting)


def assert_answers(reader, written, searcher):
    for when in written.moments():
        n = written.at(when)
        for asked in (reader, searcher):
            snap = asked.at(when)
            assert snap.get("k") == (None if n is None else b"%d" % n)
            assert snap.timestamp == when
            newest = written.stamps[-1] if written.stamps else 0
            assert snap.final == (when <= newest)
        assert reader.at(when).revision == searcher.at(when).revision


def assert_ring_knows(reader, engine, written, slots):
    """The newest `slots` commits are known, once the feed has come: finding them asks nothing."""
    stamps = written.stamps[-slots:][:: max(1, slots // 50)]

    def asked():
        found = [engine.during(lambda ts=ts: reader.at(ts)) for ts in stamps]
        return [*found, *(engine.during(lambda ts=ts: reader.load("k", ts)) for ts in stamps)]

    deadline = monotonic() + WAIT_S
    while asked() != [{}] * len(stamps) + [{"read": 1}] * len(stamps):
        assert monotonic() < deadline, "the feed does not bring what the ring should know"


def counts(slots):
    return sorted({0, 1, slots - 1, slots, slots + 1, 2 * slots})


@pytest.mark.long_after(2)
@each_ring
def test_by_own_commits(place, slots, counted):
    clock = ManualClock(START_MS)
    store = place.open(clock=clock, ring_slots=slots)
    searcher = place.open(clock=clock, ring_slots=1)
    written = Written(store, clock)
    for count in counts(slots):
        written.up_to(count)
        assert_ring_knows(store, counted[0], written, slots)
    assert_answers(store, written, searcher)
    assert_sound(store)


@each_ring
def test_by_own_commits_and_lookups_in_turn(place, slots, counted):
    clock = ManualClock(START_MS)
    store = place.open(clock=clock, ring_slots=slots)
    searcher = place.open(clock=clock, ring_slots=1)
    written = Written(store, clock)
    for count in counts(slots):
        written.up_to(count)
        assert_answers(store, written, searcher)
        store.at(written.stamps[-1] - 1 if count else 0)  # the feed catches up
        assert_ring_knows(store, counted[0], written, slots)
    assert_sound(store)


@pytest.mark.long_after(2)
@each_ring
def test_by_load_of_what_is_there(place, slots, counted):
    clock = ManualClock(START_MS)
    written = Written(place.open(clock=clock), clock)
    searcher = place.open(clock=clock, ring_slots=1)
    for count in counts(slots):
        written.up_to(count)
        reader = place.open(clock=clock, ring_slots=slots)
        engine = counted[-1]
        if count > 1:
            reader.load("k", written.stamps[0])  # the first historical read fills it
            assert_ring_knows(reader, engine, written, slots)
        assert_answers(reader, written, searcher)
        assert_sound(reader)


@pytest.mark.long_after(2)
@each_ring
def test_by_watching_another_writer(place, slots, counted):
    clock = ManualClock(START_MS)
    written = Written(place.open(clock=clock), clock)
    searcher = place.open(clock=clock, ring_slots=1)
    reader = place.open(clock=clock, ring_slots=slots)
    engine = counted[-1]
    written.up_to(2)
    assert reader.load("k", written.stamps[1]) == b"1"
    assert reader.load("k", written.stamps[0]) == b"0"
    for more in (0, 1, slots - 1, slots, slots + 1, 2 * slots):
        written.up_to(len(written.stamps) + more)
        reader.resolved()
        reader.at(written.stamps[-1] - 1)  # newer than the ring: the feed is drained on the way
        assert_ring_knows(reader, engine, written, slots)
    assert_answers(reader, written, searcher)
    assert_sound(reader)


@pytest.mark.parametrize("unseen", [1, 2, 5])
def test_an_own_commit_above_unseen_ones_waits_for_the_feed(place, counted, unseen):
    clock = ManualClock(START_MS)
    written = Written(place.open(clock=clock), clock)
    reader = place.open(clock=clock, ring_slots=7)
    written.up_to(9)
    reader.load("k", written.stamps[0])  # the feed runs from here on
    written.up_to(9 + unseen)
    written.store = reader
    written.up_to(10 + unseen)
    reader.at(written.stamps[-1] - 1)
    assert_ring_knows(reader, counted[-1], written, 7)
    assert_sound(reader)


@each_ring
def test_by_two_writers_in_turn(place, slots):
    clock = ManualClock(START_MS)
    a, b = (place.open(clock=clock, ring_slots=slots) for _ in "ab")
    searcher = place.open(clock=clock, ring_slots=1)
    written = Written(a, clock)
    for turn in range(12):
        written.store = (a, b)[turn % 2]
        written.up_to(len(written.stamps) + (1, 2, min(slots, 20))[turn % 3])
        if turn % 4 == 3:
            for asked in (a, b):
                assert_answers(asked, written, searcher)
    for asked in (a, b):
        assert_answers(asked, written, searcher)
        assert_sound(asked)
