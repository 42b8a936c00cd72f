"""Numbers that are no timestamps, and revisions as times, wherever a store takes a time."""

import io

import pytest
from store.engines import START_MS

import snapkv
from snapkv import CompactedError, KeyNotFoundError, ManualClock, pack
from snapkv.errors import (
    FutureRevisionError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
)

SECONDS = START_MS // 1_000
ENTRIES = {
    "load": lambda s, t: s.load("k", t),
    "entry": lambda s, t: s.entry("k", t),
    "entries_of": lambda s, t: s.entries_of(["k"], t),
    "entries_of many": lambda s, t: s.entries_of([f"k{n}" for n in range(200)], t),
    "load_with_prefix": lambda s, t: s.load_with_prefix("", t),
    "at": lambda s, t: s.at(t),
    "at, final": lambda s, t: s.at(t, final=True),
    "diff from": lambda s, t: list(s.diff(t)),
    "diff to": lambda s, t: list(s.diff(None, t)),
    "timestamp_of": lambda s, t: s.timestamp_of(t),
    "history_to_arrow since": lambda s, t: s.history_to_arrow(since=t),
    "history_to_arrow until": lambda s, t: s.history_to_arrow(until=t),
    "changes_to_arrow since": lambda s, t: s.changes_to_arrow(since=t),
    "changes_to_arrow until": lambda s, t: s.changes_to_arrow(until=t),
    "commits_to_arrow": lambda s, t: s.commits_to_arrow(t),
    "commits since": lambda s, t: list(s.commits(t)),
    "commits until": lambda s, t: list(s.commits(until=t)),
    "watch": lambda s, t: list(s.watch(since=t, timeout=0)),
    "compact": lambda s, t: s.compact(t),
    "restore": lambda s, t: s.restore(t),
    "restore, before the first": lambda s, t: s.restore(t, before_first=True),
    "dump": lambda s, t: s.dump(io.BytesIO(), t),
    "space at": lambda s, t: s.space("s").at(t),
    "space watch": lambda s, t: list(s.space("s").watch(since=t, timeout=0)),
}
MEANT = [
    (4, "'rev:4'"),
    (SECONDS, "unix seconds, write '2023-11-14T22:13:20Z'"),
    (START_MS + 5, "unix milliseconds, write '2023-11-14T22:13:20.005Z'"),
    (START_MS * 1_000, "unix microseconds"),
    (START_MS * 1_000_000, "unix nanoseconds"),
    (20_231_114, "write a date, as in"),
    ((1 << 64) - 1, "write a date, as in"),
]


@pytest.fixture
def three(store, clock):
    """The timestamps of three commits, an hour apart, at three revisions."""
    found = []
    for n in range(3):
        found.append(store.commit(puts={"k": b"%d" % n, f"k{n}": b""}))
        clock.advance(3_600_000)
    return found


def test_a_number_that_is_no_timestamp(three, place, clock, subtests: pytest.Subtests):
    before = place.revision()
    for entry, call in ENTRIES.items():
        store = place.open(clock=clock)  # it knows nothing of the past yet
        for number, meaning in MEANT:
            for when in (number, str(number)) if len(str(number)) != 8 else (number,):
                with subtests.test(entry=entry, when=when):
                    with pytest.raises(InvalidTimeError) as caught:
                        call(store, when)
                    assert meaning in str(caught.value)
                    told = f"{number} is not a timestamp of this store"
                    assert str(caught.value).startswith(told)
        assert place.revision() == before, f"{entry} wrote something"


def test_dates_are_free_and_so_is_the_beginning(store, three):
    for when in (0, "0", "1970-01-01T00:00:00.004Z", "1975-01-01T00:00:00Z", three[0].ts // 2):
        assert dict(store.at(when).items()) == {}
    for when in ("2199-01-01T00:00:00Z", pack(START_MS + 90 * 365 * 86_400_000)):
        assert store.load("k", when) == b"2"


def test_what_is_likely_costs_nothing(store, three, clock):
    engine = store.reader.engine
    asked = []
    read = engine.read
    store.reader.timeline.tracker.engine.read = lambda *a, **k: asked.append(a) or read(*a, **k)
    try:
        for when in (three[0].ts, three[1].ts + 5, three[2].ts + 10**12, three[0].ts // 50, 0):
            assert store.timestamp_of(when) == when
    finally:
        del store.reader.timeline.tracker.engine.read
    assert asked == []


def test_stores_under_small_clocks(place):
    clock = ManualClock(0)
    store = place.open(clock=clock)
    stamps = [store.save("k", b"%d" % n) for n in range(5)]
    assert stamps == [1, 2, 3, 4, 5]
    assert [store.load("k", ts) for ts in stamps] == [b"%d" % n for n in range(5)]
    clock.advance(1_000)
    late = store.save("k", b"late")
    assert store.load("k", 450 << 18) == b"4"
    assert store.load("k", late) == b"late"


def test_commits_of_another_age_stay_valid(place):
    """A store that began under a small clock and went on under the machine's."""
    clock = ManualClock(3)
    store = place.open(clock=clock)
    early = [store.save("k", b"%d" % n) for n in range(3)]
    clock.set(START_MS)
    store.save("k", b"late")
    assert [store.load("k", ts) for ts in early] == [b"0", b"1", b"2"]
    assert len(list(store.watch(since=early[0], timeout=0))) == 3
    with pytest.raises(InvalidTimeError, match="a revision, write 'rev:2'"):
        store.load("k", 2)


def test_a_reader_that_was_opened_before_the_first_commit(place):
    clock = ManualClock(START_MS)
    reader, writer = place.open(clock=clock), place.open(clock=clock)
    writer.save("k", b"1")
    with pytest.raises(InvalidTimeError, match="unix seconds"):
        reader.at(SECONDS)


def test_observed_keys(place, clock):
    ticker = place.open(clock=clock)
    tick = ticker.commit(puts={"k": b"1"})
    clock.advance(1_000)
    ticker.commit(puts={"k": b"2"})
    with snapkv.observe(place.url, prefix="", clock=clock, **place.kind.options) as observed:
        key = "default/data/k"
        assert observed.load(key, tick.ts) == observed.load(key, f"rev:{tick.revision}") == b"1"
        reads = (
            lambda t: observed.load(key, t),
            observed.at,
            lambda t: observed.watch(since=t, timeout=0),
            lambda t: observed.changes_to_arrow(since=t),
        )
        for read in reads:
            with pytest.raises(InvalidTimeError, match="'rev:4'"):
                read(4)


# --- revisions ---


def test_a_revision_is_a_moment(store, three, place):
    other = place.open(name="other")
    for n, commit in enumerate(three):
        for when in (f"rev:{commit.revision}", f" rev:{commit.revision} "):
            assert store.load("k", when) == store.at(when)["k"] == b"%d" % n
            assert store.entry("k", when).revision == commit.revision
            assert store.timestamp_of(when) == commit.ts
    assert store.entries_of(["k", "k1"], f"rev:{three[0].revision}")[1] is None
    foreign = other.save("k", b"elsewhere")  # a revision between two commits of this store
    between = place.revision()
    last = store.save("k", b"last")
    assert store.load("k", f"rev:{between}") == b"2"
    assert store.timestamp_of(f"rev:{between}") == three[2].ts
    assert foreign
    first, second = three[0].revision, three[1].revision
    assert [c.ts for c in store.commits(f"rev:{first}", f"rev:{second}")] == [three[1].ts]
    assert [c.ts for c in store.commits(f"rev:{between}")] == [last]
    with store.watch(since=f"rev:{between}", timeout=0) as watch:
        assert [changes.commit.ts for changes in watch] == [last]
    assert store.changes_to_arrow(since=f"rev:{second}", until=f"rev:{between}").num_rows == 2
    assert [d.key for d in store.diff(f"rev:{first}", f"rev:{second}")] == ["k", "k1"]
    assert store.dump(io.BytesIO(), f"rev:{first}") == 2
    store.restore(f"rev:{first}")
    assert dict(store.at().items()) == dict(store.at(three[0].ts).items())


def test_revisions_that_are_none(store, three, place, clock):
    for wrong in ("rev:", "rev:0", "rev:-1", "rev:x", "rev:1.5", "rev: 4", "rev:\uff14"):
        with pytest.raises(InvalidTimeError, match="is not a revision: write rev:4"):
            store.load("k", wrong)
    newest = place.revision()
    for entry in ENTRIES.values():
        with pytest.raises((FutureRevisionError, InvalidOptionError)) as caught:
            entry(store, f"rev:{newest + 5}")
    with pytest.raises(FutureRevisionError) as caught:
        store.at(f"rev:{newest + 5}")
    assert str(caught.value) == f"revision {newest + 5} is in the future; the newest is {newest}"
    with pytest.raises(KeyNotFoundError):
        store.load("k", "rev:1")
    clock.advance(200_000)
    store.compact("-0s")
    with pytest.raises(CompactedError, match=f"revision {three[0].revision} was compacted"):
        store.load("k", f"rev:{three[0].revision}")


def test_final_is_a_bool(store):
    for wrong in ("x", 1, None):
        with pytest.raises(InvalidTypeError, match="final must be True or False"):
            store.at(final=wrong)
    with pytest.raises(InvalidOptionError):
        store.at("rev:1", final=True)


# --- clocks ---


class Strange:
    """A clock that returns what it was given."""

    def __init__(self, now):
        self.now = now

    def now_ms(self):
        return self.now


NO_TIMES = (None, float("nan"), True, 1.5, "5", -1, 1 << 46)


def test_a_clock_that_is_none(place, subtests: pytest.Subtests):
    for now in NO_TIMES:
        with subtests.test(now=now):
            assert_no_clock(place, now)


def assert_no_clock(place, now):
    error = InvalidTimeError if type(now) is int else InvalidTypeError
    with pytest.raises(error, match="clock"):
        place.open(clock=Strange(now))
    clock = Strange(START_MS)
    store = place.open(clock=clock)
    store.save("k", b"1")
    clock.now = now
    for call in (
        lambda: store.save("k", b"2"),
        lambda: store.load("k", "-1m"),
        store.tick,
        lambda: store.compact(0),
        lambda: store.at(pack(START_MS + 5), final=True),
    ):
        with pytest.raises(error, match="clock"):
            call()
    clock.now = START_MS
    assert store.load("k") == b"1"
