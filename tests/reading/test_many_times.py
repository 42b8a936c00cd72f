"""Many times at once: each is answered as by `at`, in few calls, or none is read."""

import random
import threading
from datetime import datetime

import numpy as np
import pytest
from archive.histories import recorder
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st
from store.engines import ENGINES, START_MS, Place
from store.observed import Cluster
from store.wrapping import Counting, wrap_engines

from snapkv import ManualClock, format_time, to_datetime
from snapkv.errors import (
    CompactedError,
    FutureRevisionError,
    InvalidTimeError,
    InvalidTypeError,
    NotObservedError,
    ReadTimeoutError,
    SnapKVError,
    StoreClosedError,
)
from snapkv.timeline import timeline

SLOTS = 16
MILLISECOND = 1 << 18


class Line:
    """A time line of many commits at uneven intervals, with other revisions among them."""

    def __init__(self, place: Place, commits: int) -> None:
        self.place, self.clock, self.stamps = place, ManualClock(START_MS), []
        rng = random.Random("many times")
        with self.open() as store, place.open(clock=self.clock, name="other") as other:
            for n in range(commits):
                self.stamps.append(store.save("k", b"%d" % n))
                if rng.random() < 0.1:
                    other.save("k", b"")
                self.clock.advance(rng.choice([0, 1, 2, 50]))

    def open(self, **options):
        return self.place.open(clock=self.clock, ring_slots=SLOTS, **options)

    def times(self, rng: random.Random, count: int) -> list[int]:
        """Some times of and around commits, and before and after all of them."""
        near = [rng.choice(self.stamps) + rng.choice([-1, 0, 0, 1]) for _ in range(count)]
        return [*near, 0, self.stamps[0] - 1, self.stamps[-1], self.stamps[-1] + MILLISECOND]


@pytest.fixture(scope="module", params=ENGINES)
def line(request, tmp_path_factory):
    with Place(ENGINES[request.param], tmp_path_factory.mktemp("line")) as place:
        yield Line(place, 1_500)


@pytest.fixture
def expected(line):
    """What `at` answers, asked of another open store."""
    with line.open() as asked:
        yield lambda times: [asked.at(time).revision for time in times]


@pytest.mark.long_on("etcd")
@pytest.mark.long_after(2)
@pytest.mark.parametrize("search_marks", [0, 1, 256])
def test_each_is_answered_as_by_at(line, expected, monkeypatch, search_marks):
    monkeypatch.setattr(timeline, "SEARCH_MARKS", search_marks)
    monkeypatch.setattr(timeline, "PAGE_MARKS", 100)
    times = line.times(random.Random(1), 300)
    random.Random(2).shuffle(times)
    revisions = expected(times)
    with line.open() as store:
        assert store.revisions_at(times) == revisions
        assert store.revisions_at(times) == revisions, "now they are known"
        assert store.revisions_at(iter(times)) == revisions
    with line.open() as store:
        found = store.revisions_at(np.array(times))
        assert (found.tolist(), found.dtype) == (revisions, np.int64)
        assert store.revisions_at(np.array(times)).tolist() == revisions
        assert store.revisions_at(times) == revisions


def test_part_of_them_in_the_ring_and_in_blocks(line, expected):
    rng = random.Random(3)
    with line.open() as store:
        store.tick()
        for n in (40, 700, 1_300):
            store.at(line.stamps[n])  # a block of what is around it
        newest = line.stamps[-1]
        for times in (
            [newest - 1, newest, newest + 1],
            line.stamps[690:710],
            line.stamps[600:1_310],
            line.times(rng, 100),
        ):
            revisions = expected(times)
            assert store.revisions_at(np.array(times)).tolist() == revisions
            assert store.revisions_at(times) == revisions


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_any_times_of_any_time_line(data, tmp_path_factory):
    with Place(ENGINES["memory"], tmp_path_factory.mktemp("any")) as place:
        clock = ManualClock(START_MS)
        slots = data.draw(st.integers(1, 8), label="slots")
        gaps = data.draw(st.lists(st.sampled_from([0, 1, 3]), max_size=40), label="gaps")
        writer = place.open(clock=clock, ring_slots=slots)
        store = data.draw(st.sampled_from([writer, place.open(clock=clock, ring_slots=slots)]))
        stamps = [START_MS << 18]
        for gap in gaps:
            stamps.append(writer.save("k", b""))
            clock.advance(gap)
        offsets = st.sampled_from([-MILLISECOND, -1, 0, 1, MILLISECOND])
        times = st.lists(st.builds(int.__add__, st.sampled_from(stamps), offsets))
        other = place.open(clock=clock, ring_slots=slots)
        for _ in range(3):
            wanted = data.draw(times, label="times")
            revisions = [other.at(time).revision for time in wanted]
            if data.draw(st.booleans(), label="array"):
                assert store.revisions_at(np.array(wanted, np.int64)).tolist() == revisions
            else:
                assert store.revisions_at(wanted) == revisions


def test_times_of_every_kind(line, expected):
    some = line.stamps[100]
    kinds = [
        *(format_time(some), to_datetime(some), "-1s", "-0s", "+1h", str(some)),
        *("rev:7", " rev:9", some, "1970-01-01T00:00:00Z", 0),
    ]
    with line.open() as store:
        assert store.revisions_at(kinds) == expected(kinds)
        assert store.revisions_at(["rev:7", "rev:7"]) == expected(["rev:7"]) * 2
        assert store.revisions_at([to_datetime(some)]) == expected([to_datetime(some)])


def test_none_and_arrays_of_any_shape(line, expected):
    with line.open() as store:
        assert store.revisions_at([]) == []
        nothing = store.revisions_at(np.array([], np.uint64))
        assert (nothing.shape, nothing.dtype) == ((0,), np.int64)
        times = line.stamps[3:9]
        for kind in (np.int64, np.uint64, ">u8"):
            found = store.revisions_at(np.array(times, kind).reshape(2, 3))
            assert found.tolist() == [expected(times[:3]), expected(times[3:])]
        assert store.revisions_at(np.array(times[0])) == expected(times[:1])
        frozen = np.array(times)
        frozen.flags.writeable = False
        assert store.revisions_at(frozen).tolist() == expected(times)


BAD = [
    ([-1], InvalidTimeError),
    ([1 << 64], InvalidTimeError),
    ([4], InvalidTimeError),
    ([(START_MS << 18) * 3], InvalidTimeError),
    ([True], InvalidTypeError),
    ([1.5], InvalidTypeError),
    ([None], InvalidTypeError),
    ([b"-5m"], InvalidTypeError),
    ([np.int64(5)], InvalidTypeError),
    (["soon"], InvalidTimeError),
    (["rev:0"], InvalidTimeError),
    ([datetime(2026, 1, 1)], InvalidTimeError),
    ("-5m", InvalidTypeError),
    (5, InvalidTypeError),
    (None, InvalidTypeError),
    (np.array([1.5]), InvalidTypeError),
    (np.ma.array([1, 2], mask=[True, False]), InvalidTypeError),
    (np.array([True]), InvalidTypeError),
    (np.array(["2026-01-01"], "datetime64[ms]"), InvalidTypeError),
    (np.array([-1]), InvalidTimeError),
    (np.array([4]), InvalidTimeError),
]


@cases("bad, error", BAD)
def test_bad_ones_are_refused_as_by_at(store, bad, error):
    store.save("k", b"")
    with pytest.raises(error):
        store.revisions_at(bad)
    if isinstance(bad, list) and bad[0] is not None:
        with pytest.raises(error):
            store.at(bad[0])


def test_nothing_is_read_when_one_is_bad(line, monkeypatch):
    counted = wrap_engines(monkeypatch, Counting)
    with line.open() as store:
        good = [*line.stamps[:50], "rev:5"]
        for bad in (-1, 1 << 64, "soon", "rev:0", 1.5, datetime(2026, 1, 1)):
            for times in ([*good, bad], [bad, *good]):
                with pytest.raises(SnapKVError):
                    counted[-1].during(lambda times=times: store.revisions_at(times))
        assert counted[-1].calls == {"read": 1}, "that was to open it"


def test_a_revision_of_the_future(store):
    store.save("k", b"")
    with pytest.raises(FutureRevisionError):
        store.revisions_at([0, "rev:999999"])


def test_an_empty_store(store, clock):
    (creation,) = {store.at(time).revision for time in (0, START_MS << 18)}
    assert store.revisions_at([0, START_MS << 18, (START_MS << 18) + 1]) == [creation] * 3
    assert store.revisions_at(np.array([START_MS << 18, 0])).tolist() == [creation] * 2


def test_what_compaction_took(place, clock):
    writer = place.open(clock=clock, ring_slots=SLOTS)
    stamps = []
    for n in range(200):
        stamps.append(writer.save("k", b"%d" % n))
        clock.advance(10_000)
    writer.compact(before=stamps[60])
    for wanted in (stamps, stamps[::-1], [stamps[100], stamps[59]]):
        for times in (wanted, np.array(wanted)):
            with place.open(clock=clock, ring_slots=SLOTS) as store:
                with pytest.raises(CompactedError) as caught:
                    store.revisions_at(times)
                assert caught.value.requested == min(wanted)
                assert caught.value.earliest == stamps[60]
    with place.open(clock=clock, ring_slots=SLOTS) as store:
        left = [store.at(time).revision for time in stamps[60:]]
    with place.open(clock=clock, ring_slots=SLOTS) as store:
        assert store.revisions_at(stamps[60:]) == left


def test_an_archive_has_what_compaction_takes_meanwhile(place, clock, tmp_path, monkeypatch):
    writer = place.open(clock=clock, ring_slots=SLOTS)
    stamps = []
    for n in range(200):
        stamps.append(writer.save("k", b"%d" % n))
        clock.advance(10_000)
    revisions = [writer.at(time).revision for time in stamps]
    recorder(writer, tmp_path / "archive").catch_up()
    plain = timeline.Timeline.revisions_of
    before = [stamps[100]]

    def compacted(*args):
        if before:
            writer.compact(before=before.pop(0))
        return plain(*args)

    with place.open(clock=clock, ring_slots=SLOTS, archive=str(tmp_path / "archive")) as store:
        monkeypatch.setattr(timeline.Timeline, "revisions_of", compacted)
        for times in (stamps, np.array(stamps)):
            assert list(store.revisions_at(times)) == revisions
    assert not before


def test_what_an_iterable_raises_is_its_own(store):
    store.save("k", b"")
    with pytest.raises(TypeError, match="NoneType"):
        store.revisions_at(int(text) for text in ["1", None])
    with pytest.raises(TypeError, match="NoneType"):
        store.entries_of("k" * len(text) for text in [None])


def test_compaction_while_the_marks_are_read(place, clock, monkeypatch):
    monkeypatch.setattr(timeline, "PAGE_MARKS", 10)
    writer = place.open(clock=clock, ring_slots=SLOTS)
    stamps = []
    for n in range(400):
        stamps.append(writer.save("k", b"%d" % n))
        clock.advance(10_000)
    store = place.open(clock=clock, ring_slots=SLOTS)
    between = timeline._Search._between

    searched = []

    def compacted(self, first, *args):
        searched.append(self._timestamps[first])
        writer.compact(before=stamps[300])
        between(self, first, *args)

    monkeypatch.setattr(timeline._Search, "_between", compacted)
    with pytest.raises(CompactedError) as caught:
        store.revisions_at(stamps)
    # some are known: they were looked up before the compaction
    assert stamps[0] < searched[0] < stamps[300]
    assert (caught.value.requested, caught.value.earliest) == (searched[0], stamps[300])


def test_what_another_writer_commits_is_found(place, clock):
    store, other = (place.open(clock=clock, ring_slots=SLOTS) for _ in range(2))
    stamps = [store.save("k", b"") for _ in range(5)]
    for _ in range(3):
        stamps += [other.save("k", b"") for _ in range(3 * SLOTS)]
        wanted = [*stamps, stamps[-1] + 1]
        with place.open(clock=clock) as asked:
            revisions = [asked.at(time).revision for time in wanted]
        assert store.revisions_at(wanted) == revisions
        assert store.revisions_at(np.array(wanted)).tolist() == revisions


def test_while_other_threads_commit(place, clock):
    store = place.open(clock=clock, ring_slots=SLOTS)
    stamps = [store.save("k", b"") for _ in range(3 * SLOTS)]
    revisions = [store.at(time).revision for time in stamps]
    ended = threading.Event()

    def save() -> None:
        while not ended.is_set():
            store.save("k", b"")

    writer = threading.Thread(target=save)
    writer.start()
    try:
        for _ in range(50):
            assert store.revisions_at(stamps) == revisions
            assert store.revisions_at(np.array(stamps)).tolist() == revisions
    finally:
        ended.set()
        writer.join()


def test_many_below_the_ring_cost_few_calls(line, expected, monkeypatch):
    times = [*line.stamps[::2], *line.stamps[:-5]]
    revisions = expected(times)
    counted = wrap_engines(monkeypatch, Counting)
    with line.open() as store:
        first = counted[-1].during(lambda: store.revisions_at(times))
        assert sum(first.values()) <= 16, "the feed is started, two are searched, one watch"
        assert first["watch"] <= 2
        again = counted[-1].cheapest(lambda: store.revisions_at(np.array(times)))
        assert again == {}
        assert store.revisions_at(times) == revisions


def test_what_is_in_the_ring_costs_nothing(line, monkeypatch):
    counted = wrap_engines(monkeypatch, Counting)
    with line.open() as store:
        stamps = [store.save("ring", b"") for _ in range(SLOTS)]
        wanted = [time for time in stamps for _ in range(100)]
        assert counted[-1].during(lambda: store.revisions_at(wanted)) == {}
        assert counted[-1].during(lambda: store.revisions_at(np.array(wanted))) == {}


def test_of_an_observed_prefix(place, clock):
    cluster = Cluster(place, clock)
    observed = cluster.observe(ring_slots=SLOTS)
    with pytest.raises(NotObservedError):
        observed.revisions_at([START_MS << 18])
    ticks = []
    for n in range(3 * SLOTS):
        cluster.write(a=b"%d" % n)
        ticks.append(cluster.tick())
    times = [time for tick in ticks for time in (tick.ts, tick.ts + 1)]
    revisions = [tick.revision for tick in ticks for _ in range(2)]
    assert observed.revisions_at(times) == revisions
    assert observed.revisions_at(np.array(times)).tolist() == revisions
    middle = (ticks[3].revision + ticks[4].revision) // 2
    assert observed.revisions_at([f"rev:{middle}"]) == [observed.at(f"rev:{middle}").revision]
    for bad in ([*times, ticks[0].ts - 1], np.array([*times, ticks[0].ts - 1])):
        with pytest.raises(NotObservedError):
            observed.revisions_at(bad)


def test_the_time_it_may_take(line):
    with line.open() as store, pytest.raises(ReadTimeoutError):
        store.revisions_at(line.stamps, timeout=0)
    with pytest.raises(StoreClosedError):
        store.revisions_at([0])
    with pytest.raises(StoreClosedError):
        store.revisions_at(np.array([0]))


def test_a_space_answers_as_its_store(store):
    stamps = [store.save("k", b"") for _ in range(3)]
    assert store.space("s").revisions_at(stamps) == store.revisions_at(stamps)
