"""Observed prefixes: what stands there at each tick, when that is final, and what is unknown."""

from datetime import UTC, datetime

import pytest
from cases import cases
from sampling import fewer_on_etcd
from store.engines import write_raw
from store.wrapping import Counting

import snapkv.store.open
from snapkv import CompactedError, Difference, Entry, KeyNotFoundError, format_time, pack
from snapkv.engine.contract import Put
from snapkv.errors import (
    FutureRevisionError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    NotObservedError,
    StoreClosedError,
    StoreNotFoundError,
)
from snapkv.store.open import observe
from snapkv.timeline import moment

pytestmark = pytest.mark.slow


@pytest.fixture
def three(cluster):
    """Three ticks; between any two of them a key is written twice; the last writes are unticked."""
    ticks = []
    for n in range(3):
        cluster.write(a=b"%d" % n, b=b"old")
        cluster.write(a=b"%d+" % n)
        ticks.append(cluster.tick())
    cluster.write(a=b"unseen", c=b"unseen")
    return ticks


# --- which moment ---


def test_a_moment_is_its_newest_tick(cluster, three):
    observed = cluster.observe()
    for n, tick in enumerate(three):
        for when in (tick.ts, tick.ts + 1, pack(cluster.clock.now_ms(), 5) if n == 2 else tick.ts):
            snap = observed.at(when)
            assert dict(snap.items()) == {"/r/a": b"%d+" % n, "/r/b": b"old"}
            assert snap.revision == tick.revision
            assert observed.load("/r/a", when) == b"%d+" % n
        if n:
            assert observed.load("/r/a", tick.ts - 1) == b"%d+" % (n - 1)


def test_now_is_the_newest_tick_and_not_the_head(cluster, three):
    observed = cluster.observe()
    assert observed.load("/r/a") == b"2+"
    assert observed.at()["/r/a"] == b"2+"
    assert observed.load_with_prefix("/r/") == (["/r/a", "/r/b"], [b"2+", b"old"])
    assert "/r/c" not in observed.at()
    with pytest.raises(KeyNotFoundError):
        observed.load("/r/c")
    later = pack(cluster.clock.now_ms() + 1_000)
    assert observed.load("/r/a", later) == b"2+"
    cluster.tick()
    assert observed.load("/r/a") == observed.at()["/r/c"] == b"unseen"


def test_a_date_names_the_same_moment(cluster, three):
    observed = cluster.observe()
    shown = format_time(three[1].ts)
    assert observed.load("/r/a", shown) == b"1+"
    assert observed.load("/r/a", "-1s") == b"1+"
    moment = datetime.fromtimestamp(cluster.clock.now_ms() / 1_000, UTC)
    assert observed.load("/r/a", moment) == b"2+"


def test_final_up_to_the_newest_tick_and_not_beyond(cluster, three):
    observed = cluster.observe()
    newest = three[-1].ts
    assert observed.resolved() == newest
    assert [observed.at(ts).final for ts in (newest - 1, newest, newest + 1)] == [True, True, False]
    assert observed.at().final
    assert observed.at().timestamp == newest
    early = observed.at(newest + 1)
    tick = cluster.tick(0)
    assert tick.ts == newest + 1
    assert observed.at(newest + 1)["/r/a"] == b"unseen"
    assert early["/r/a"] == b"2+", "a snapshot never changes"


def test_final_true_is_refused_for_it_would_tick(cluster, three):
    observed, before = cluster.observe(), cluster.place.revision()
    for when in ("-0s", three[0].ts):
        with pytest.raises(InvalidOptionError, match="snapkv tick"):
            observed.at(when, final=True)
    assert cluster.place.revision() == before


def test_commits_of_the_store_stamp_as_ticks_do(cluster):
    observed = cluster.observe()
    cluster.write(a=b"1")
    ts = cluster.ticker.save("mine", b"x")
    assert observed.load("/r/a", ts) == b"1"
    assert list(observed.at().keys()) == ["/r/a"], "the store's own keys are elsewhere"


def test_another_time_line(cluster, place, clock):
    cluster.write(a=b"1")
    cluster.tick()
    other = place.open(name="other/line", clock=clock)
    cluster.write(a=b"2")
    tick = other.tick()
    assert cluster.observe().load("/r/a") == b"1"
    observed = cluster.observe(name="other/line")
    assert observed.load("/r/a") == b"2"
    with pytest.raises(NotObservedError):
        observed.load("/r/a", tick.ts - 1)


def test_any_revision_can_be_read(cluster, three):
    observed = cluster.observe()
    first = three[0].revision - 2
    for revision, value in ((first, b"0"), (first + 1, b"0+"), (first + 3, b"1")):
        snap = observed.at(revision=revision)
        assert (snap["/r/a"], snap.revision, snap.final) == (value, revision, True)
        assert snap.timestamp == (three[0].ts if revision > three[0].revision else 0)
    newest = observed.at(revision=cluster.place.revision())
    assert newest["/r/a"] == b"unseen"
    assert list(newest.diff(observed.at())) == [
        Difference("/r/a", b"unseen", b"2+"),
        Difference("/r/c", b"unseen", None),
    ]
    assert dict(observed.at(revision=1).items()) == {}
    with pytest.raises(FutureRevisionError):
        observed.at(revision=cluster.place.revision() + 1)
    for wrong, error in ((0, InvalidTimeError), (True, InvalidTypeError), ("1", InvalidTypeError)):
        with pytest.raises(error):
            observed.at(revision=wrong)
    with pytest.raises(InvalidOptionError):
        observed.at(three[0].ts, revision=3)


# --- before the first tick ---


def test_before_the_first_tick_nothing_is_known(cluster):
    observed = cluster.observe()
    cluster.write(a=b"1")
    for read in (
        observed.at,
        lambda: observed.load("/r/a"),
        lambda: observed.at(0),
        lambda: observed.load("/r/a", "-0s"),
        lambda: observed.load_with_prefix("/r/", pack(cluster.clock.now_ms())),
        lambda: list(observed.diff(0)),
        lambda: list(observed.history("/r/a")),
    ):
        with pytest.raises(NotObservedError) as caught:
            read()
        assert caught.value.first is None
    assert observed.resolved() == 0
    assert observed.info()["ticks"] == 0
    assert observed.info()["earliest_timestamp"] is None


def test_a_time_before_the_first_tick_tells_which_was_the_first(cluster, three):
    observed = cluster.observe()
    for when in (0, three[0].ts // 2, three[0].ts - 1, "-1d"):
        for read in (observed.at, lambda ts: observed.load("/r/a", ts)):
            with pytest.raises(NotObservedError) as caught:
                read(when)
            assert caught.value.first == three[0].ts
    with pytest.raises(NotObservedError) as caught:
        observed.load("/r/a", three[0].ts - 7)
    assert caught.value.requested == three[0].ts - 7
    assert observed.at(three[0].ts)["/r/a"] == b"0+"


# --- compaction ---


@pytest.mark.parametrize(
    ("place", "at", "beyond"),
    fewer_on_etcd([0, 1, 2], [-1, 0, 1], one_in=4),
    indirect=["place"],
)
def test_a_moment_ends_when_compaction_passes_its_tick(
    cluster, three, beyond, at, subtests: pytest.Subtests
):
    every = [
        (slots, known, cluster.observe(ring_slots=slots))
        for slots in (1, 2, 1_024)
        for known in (True, False)
    ]
    for _, known, observed in every:
        for tick in three if known else ():
            assert observed.load("/r/a", tick.ts) is not None
    cluster.compact(three[at].revision + beyond)
    earliest = cluster.model.earliest()
    assert earliest == ([t.ts for t in three] + [None])[at + (beyond > 0)]
    for slots, known, observed in every:
        with subtests.test(slots=slots, known=known):
            assert observed.info()["earliest_timestamp"] == earliest
            assert_readable(observed, cluster.model, three)


def assert_readable(observed, model, ticks):
    """Every moment not compacted answers, every other one says what is left."""
    for n, tick in enumerate(ticks):
        for when in (tick.ts, tick.ts + 1):
            for read in (
                lambda when=when: observed.load("/r/a", when),
                lambda when=when: observed.at(when)["/r/a"],
                lambda when=when: dict(observed.at(when).items())["/r/a"],
                lambda when=when, n=n: observed.at(when).count() and b"%d+" % n,
            ):
                if tick.revision >= model.compacted:
                    assert read() == b"%d+" % n
                else:
                    with pytest.raises(CompactedError) as caught:
                        read()
                    assert (caught.value.unit, caught.value.requested) == ("timestamp", when)
                    assert caught.value.earliest == model.earliest()


def test_a_snapshot_that_compaction_passed_tells_so(cluster, three):
    observed = cluster.observe()
    snaps = [observed.at(tick.ts) for tick in three]
    cluster.compact(three[1].revision + 1)
    for snap in snaps[:2]:
        for read in (
            lambda s=snap: s["/r/a"],
            lambda s=snap: list(s.items()),
            lambda s=snap: len(s),
        ):
            with pytest.raises(CompactedError) as caught:
                read()
            assert caught.value.earliest == three[2].ts
    assert snaps[2]["/r/a"] == b"2+"


def test_compaction_beyond_the_newest_tick_leaves_nothing_until_the_next(cluster, three):
    observed = cluster.observe()
    cluster.compact(cluster.place.revision())
    for read in (lambda: observed.load("/r/a"), lambda: observed.at()["/r/a"]):
        with pytest.raises(CompactedError) as caught:
            read()
        assert caught.value.earliest is None
    tick = cluster.tick()
    assert observed.load("/r/a") == b"unseen"
    with pytest.raises(CompactedError) as caught:
        observed.load("/r/a", three[2].ts)
    assert caught.value.earliest == tick.ts


def test_compacted_before_the_first_tick(cluster):
    revision = cluster.write(a=b"1")
    cluster.write(a=b"2")
    cluster.compact(revision)
    tick = cluster.tick()
    observed = cluster.observe()
    assert observed.load("/r/a") == b"2"
    with pytest.raises(NotObservedError) as caught:
        observed.at(tick.ts - 1)
    assert caught.value.first == tick.ts
    assert observed.info()["earliest_timestamp"] == tick.ts


# --- keys ---


def test_keys_are_whole_and_stay_inside(cluster, three):
    observed = cluster.observe(prefix="/r/b")
    assert list(observed.at()) == ["/r/b"]
    assert observed.at().count("/r/b") == observed.at().count() == 1
    for outside in ("/r/a", "b", "", "/r/"):
        for use in (
            observed.load,
            observed.load_with_prefix,
            observed.history,
            observed.watch,
            observed.at().entry,
            observed.at().count,
            lambda key: list(observed.at().items(key)),
            lambda key: list(observed.diff(three[0].ts, prefix=key)),
        ):
            with pytest.raises(InvalidKeyError):
                use(outside)
        assert outside not in observed.at()


def test_keys_of_any_bytes(cluster):
    write_raw(cluster.engine, Put(b"/r/\xff\x00", b"1"), Put("/r/é".encode(), b"2"))
    cluster.tick()
    text, raw = cluster.observe(), cluster.observe(prefix=b"/r/")
    assert dict(text.at().items()) == {"/r/é": b"2", "/r/\udcff\x00": b"1"}
    assert dict(raw.at().items()) == {"/r/é".encode(): b"2", b"/r/\xff\x00": b"1"}
    for observed in (text, raw):
        for key, value in observed.at().items():
            assert observed.load(key) == value
            assert [v.value for v in observed.history(key)] == [value]
    with pytest.raises(InvalidTypeError):
        raw.load("/r/é")
    with pytest.raises(InvalidTypeError):
        text.load(b"/r/")


def test_the_empty_prefix_is_everything_in_the_engine(cluster):
    cluster.write(a=b"1")
    cluster.noise()
    cluster.ticker.save("mine", b"2")
    for prefix, form in (("", str), (b"", bytes)):
        snap = cluster.observe(prefix=prefix).at()
        keys = [key if form is bytes else key.encode() for key in snap]
        assert keys == [
            b"/r/a",
            b"default/data/mine",
            b"default/sys/format",
            b"default/sys/ts",
            b"elsewhere",
        ]
        assert len(snap) == 5
        assert snap.count(form() + keys[4].decode()[:2] if form is str else b"el") == 1


def test_a_snapshot_is_a_mapping(cluster):
    created = cluster.write(a=b"1", b=b"2")
    changed = cluster.write(a=b"3")
    cluster.tick()
    snap = cluster.observe().at()
    assert snap == {"/r/a": b"3", "/r/b": b"2"}
    assert snap.entry("/r/a") == Entry(b"3", changed, created, 2)
    assert list(snap.entries("/r/b")) == [("/r/b", Entry(b"2", created, created, 1))]
    assert list(snap.keys("/r/a")) == ["/r/a"]
    assert list(snap.values()) == [b"3", b"2"]


def test_differences(cluster, three, monkeypatch):
    observed = cluster.observe()
    cluster.write(b=None)
    last = cluster.tick()
    wanted = [
        Difference("/r/a", b"0+", b"unseen"),
        Difference("/r/b", b"old", None),
        Difference("/r/c", None, b"unseen"),
    ]
    for a, b in ((three[0].ts, None), (three[0].ts, last.ts), (three[0].ts, last.ts + 9)):
        assert list(observed.diff(a, b)) == wanted
        assert list(observed.diff(a, b, "/r/b")) == wanted[1:2]
    back = [Difference(d.key, d.after, d.before) for d in wanted]
    assert list(observed.diff(last.ts, three[0].ts)) == back
    for name in ("DIFF_REPLAY_EVENTS_MAX", "DIFF_REPLAY_COMMITS_MAX"):
        monkeypatch.setattr(moment, name, 1)
        assert list(observed.diff(three[0].ts)) == wanted, "scanning both tells the same"
    with pytest.raises(InvalidTypeError):
        list(observed.at().diff(cluster.ticker.at()))


# --- life ---


def test_there_must_be_a_time_line(place, clock):
    with pytest.raises(StoreNotFoundError, match="snapkv tick --every 1s"):
        observe(place.url, prefix="/r/", **place.kind.options)
    engine = place.engine()
    before = engine.read([]).header.revision
    with pytest.raises(StoreNotFoundError, match="snapkv tick --every 1s"):
        observe(place.url, prefix="/r/", **place.kind.options)
    place.open(clock=clock)
    with pytest.raises(StoreNotFoundError, match="no store named 'other'"):
        observe(place.url, prefix="/r/", name="other", **place.kind.options)
    assert engine.read([]).header.revision == before + 1, "only the store that was opened"


def test_nothing_is_ever_written(cluster, three):
    before = cluster.place.revision()
    with cluster.observe() as observed:
        list(observed.diff(three[0].ts))
        list(observed.history("/r/a"))
        list(observed.watch(since=0, timeout=0))
        observed.info()
    assert cluster.place.revision() == before


@cases(
    ("options", "error"),
    [
        ({"prefix": None}, InvalidTypeError),
        ({"prefix": 5}, InvalidTypeError),
        ({"prefix": "/r/\ud800"}, InvalidKeyError),
        ({"name": "a/sys"}, InvalidOptionError),
        ({"name": 5}, InvalidTypeError),
        ({"ring_slots": 0}, InvalidOptionError),
        ({"ring_slots": "9"}, InvalidTypeError),
        ({"clock": 5}, InvalidTypeError),
        ({"retain": "7d"}, InvalidTypeError),
        ({"writer": "me"}, InvalidTypeError),
    ],
)
def test_bad_options(cluster, options, error):
    with pytest.raises(error) as caught:
        observe(cluster.place.url, **({"prefix": "/r/"} | cluster.place.kind.options | options))
    if error is InvalidTypeError and options.keys() <= {"retain", "writer"}:
        assert {"prefix", "name", "ring_slots", "clock"} <= set(caught.value.known)
        assert "retain" not in caught.value.known


def test_a_url_without_an_engine():
    with pytest.raises(InvalidOptionError):
        observe("nowhere:", prefix="")


def test_after_closing(cluster, three):
    with cluster.observe() as observed:
        snap, watch = observed.at(), observed.watch()
    observed.close()
    for use in (
        observed.at,
        observed.resolved,
        observed.info,
        observed.watch,
        lambda: observed.load("/r/a"),
        lambda: list(observed.history("/r/a")),
        lambda: watch.next(0),
        observed.__enter__,
    ):
        with pytest.raises(StoreClosedError):
            use()
    if not cluster.place.url.startswith("memory:"):  # that one is shared
        with pytest.raises(StoreClosedError):
            snap["/r/a"]


def test_facts(cluster, three):
    observed = cluster.observe()
    info = observed.info()
    assert {k: info[k] for k in ("url", "prefix", "name", "ticks", "newest_timestamp")} == {
        "url": cluster.place.url,
        "prefix": "/r/",
        "name": "default",
        "ticks": 3,
        "newest_timestamp": three[-1].ts,
    }
    assert info["newest_revision"] == three[-1].revision
    assert info["earliest_timestamp"] == three[0].ts
    assert repr(observed) == f"<Observed {cluster.place.url} prefix='/r/' name='default'>"


def test_what_it_costs(cluster, three, monkeypatch):
    engines = []

    def opened(url, **how):
        engines.append(Counting(snapkv.store.location.open_engine(url, **how)))
        return engines[-1]

    monkeypatch.setattr(snapkv.store.open, "open_engine", opened)
    observed = cluster.observe()
    (engine,) = engines
    assert engine.calls == {"read": 1}
    assert engine.during(observed.resolved) == {"read": 1}
    assert engine.during(lambda: observed.load("/r/a")) == {"read": 2}
    assert engine.during(lambda: observed.load("/r/a", "+1h")) == {"read": 2}
    assert engine.during(observed.at) == {"read": 1}
    observed.at(three[0].ts)
    assert engine.during(lambda: observed.at(three[0].ts)) == {}
    assert engine.during(lambda: observed.load("/r/a", three[1].ts)) == {"read": 1}
