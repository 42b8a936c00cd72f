"""Reading a moment: which one a time names, whether the answer is for ever, and what it holds."""

from collections.abc import Mapping
from datetime import timedelta

import pytest
from store.engines import START_MS, write_raw

from snapkv import ClockSkewError, Entry, KeyNotFoundError, format_time, pack, to_datetime
from snapkv.engine.contract import Put
from snapkv.errors import (
    FutureRevisionError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTimeError,
    InvalidTypeError,
    dated,
)


@pytest.fixture
def saved(store, clock):
    """Five values of one key, ten seconds apart."""
    stamps = []
    for n in range(5):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(10_000)
    return stamps


# --- which moment ---


def test_exactly_at_before_and_after_each_commit(store, saved):
    for n, ts in enumerate(saved):
        assert store.at(ts)["k"] == b"%d" % n
        assert store.at(ts + 1)["k"] == b"%d" % n
        assert store.at(ts - 1).get("k") == (b"%d" % (n - 1) if n else None)
        assert store.at(ts).timestamp == ts
    assert store.at(saved[2] + 77).timestamp == saved[2] + 77
    assert store.at(saved[2] + 77).revision == store.at(saved[2]).revision


def test_a_time_copied_from_a_display_finds_its_commit(store, saved):
    store.save("x", b"")
    store.save("x", b"")  # a second one in the same millisecond
    for n, ts in enumerate(saved):
        for when in (format_time(ts), to_datetime(ts), to_datetime(ts).isoformat()):
            assert store.at(when)["k"] == b"%d" % n
            assert store.load("k", when) == b"%d" % n
    shown = format_time(store.save("x", b"last"))
    assert store.at(shown)["x"] == b"last"


def test_relative_times_count_from_the_clock(store, saved, clock):
    for n in range(5):
        assert store.load("k", f"-{(5 - n) * 10}s") == b"%d" % n
        assert store.load("k", f"-{(5 - n) * 10 - 9}s") == b"%d" % n
    assert store.at("-51s").get("k") is None
    clock.advance(60_000)
    assert store.load("k", "-1m") == b"4"
    assert store.load("k", to_datetime(saved[0]) + timedelta(seconds=12)) == b"1"


def test_by_revision(store, saved):
    for n, ts in enumerate(saved):
        revision = store.at(ts).revision
        snap = store.at(revision=revision)
        assert (snap["k"], snap.timestamp, snap.revision, snap.final) == (
            b"%d" % n,
            ts,
            revision,
            True,
        )


def test_by_a_revision_between_two_commits(store, place, saved):
    last = store.at().revision
    other = place.open(name="other")
    for _ in range(3):
        other.save("k", b"foreign")
    store.save("k", b"new")
    for revision in range(last, place.revision()):
        snap = store.at(revision=revision)
        assert snap["k"] == b"4"
        assert (snap.timestamp, snap.revision) == (saved[-1], last)
    assert store.at(revision=place.revision())["k"] == b"new"


def test_revisions_that_are_none(store, place, saved):
    with pytest.raises(FutureRevisionError) as caught:
        store.at(revision=place.revision() + 1)
    assert (caught.value.requested, caught.value.current) == (
        place.revision() + 1,
        place.revision(),
    )
    for wrong, error in [
        (0, InvalidTimeError),
        (-1, InvalidTimeError),
        (True, InvalidTypeError),
        (1.5, InvalidTypeError),
        ("5", InvalidTypeError),
    ]:
        with pytest.raises(error):
            store.at(revision=wrong)
    with pytest.raises(InvalidOptionError):
        store.at(5, revision=5)
    with pytest.raises(InvalidOptionError):
        store.at(revision=5, final=True)


def test_before_the_first_commit_everything_is_absent(store, saved):
    for when in (0, saved[0] // 2, saved[0] - 1, "1970-01-01T00:00:00Z", "-1d"):
        snap = store.at(when)
        assert dict(snap.items()) == {}
        assert (len(snap), list(snap), "k" in snap, snap.final) == (0, [], False, True)
        with pytest.raises(KeyNotFoundError):
            store.load("k", when)
        assert store.load_with_prefix("", when) == ([], [])


def test_an_empty_store(store, place):
    for when in (None, 0, 5, pack(START_MS), "-5m"):
        snap = store.at(when)
        assert dict(snap.items()) == {}
        assert snap.count() == 0
        with pytest.raises(KeyNotFoundError):
            store.load("k", when)
    assert store.resolved() == store.at().timestamp == 0
    assert list(store.commits()) == list(store.history("k")) == list(store.diff(0)) == []
    assert list(store.watch(since=0, timeout=0)) == []
    assert list(store.commits(newest_first=True)) == []


# --- whether it is final ---


def test_final_up_to_the_newest_commit_and_not_beyond(store, saved):
    assert store.at().final
    assert store.at().timestamp == saved[-1]
    for ts in saved:
        assert store.at(ts).final
        assert store.at(ts - 1).final
    beyond = store.at(saved[-1] + 1)
    assert not beyond.final
    assert beyond["k"] == b"4"
    assert beyond.timestamp == saved[-1] + 1


def test_final_as_seen_by_a_store_that_did_not_commit(store, place, saved, clock):
    other = place.open(clock=clock)
    assert other.at(saved[-1]).final
    assert not other.at(saved[-1] + 1).final
    ts = store.save("k", b"5")
    assert other.at(saved[-1] + 1).final, "what others committed since makes it final"
    assert other.at(ts).final
    assert other.at(ts)["k"] == b"5"


def test_a_moment_that_was_not_final_can_change_a_snapshot_of_it_cannot(store, saved, clock):
    moment = pack(clock.now_ms() + 1_000)
    early = store.at(moment)
    clock.advance(500)
    store.save("k", b"late")
    assert early["k"] == b"4"
    assert store.at(moment)["k"] == b"late"
    assert not store.at(moment).final


def test_final_true_ticks_so_that_nothing_comes_below(store, saved, clock):
    commits = len(list(store.commits()))
    snap = store.at("-0s", final=True)
    assert snap.final
    assert snap["k"] == b"4"
    assert len(list(store.commits())) == commits + 1
    assert store.save("k", b"5") > snap.timestamp
    assert store.at(snap.timestamp)["k"] == b"4"
    store.at(saved[0], final=True)
    store.at(final=True)
    assert len(list(store.commits())) == commits + 2, "what is final needs no tick"


def test_final_true_up_to_the_skew_ahead_and_not_beyond(store, saved, clock, place):
    before = place.revision()
    with pytest.raises(ClockSkewError) as caught:
        store.at(pack(clock.now_ms() + 5_001), final=True)
    assert (caught.value.skew_ms, caught.value.limit_ms) == (5_001, 5_000)
    assert place.revision() == before
    ahead = pack(clock.now_ms() + 5_000)
    assert store.at(ahead, final=True).final
    assert store.save("k", b"5") > ahead


# --- ticks ---


def test_a_tick_moves_the_resolved_time_and_nothing_else(store, saved, clock, place):
    assert store.resolved() == saved[-1]
    state = dict(store.at().items())
    tick = store.tick()
    assert tick.ts == store.resolved() == pack(clock.now_ms())
    assert tick.revision == place.revision()
    assert dict(store.at().items()) == state
    assert [c.ts for c in store.commits()] == [*saved, tick.ts]
    assert store.tick().ts > tick.ts


# --- what a snapshot is ---


def test_a_snapshot_is_a_mapping(store):
    ts = store.multi_save({"b": b"2", "a/1": b"1", "a/2": b"", "ab": b"4"})
    store.multi_save_and_remove_with_prefix({"z": b"9"}, ["a"])
    snap = store.at(ts)
    assert isinstance(snap, Mapping)
    everything = {"a/1": b"1", "a/2": b"", "ab": b"4", "b": b"2"}
    assert snap == everything
    assert dict(snap) == everything
    assert list(snap) == list(snap.keys()) == list(everything)
    assert list(snap.items()) == list(everything.items())
    assert list(snap.values()) == list(everything.values())
    assert len(snap) == snap.count() == 4
    assert list(snap.keys("a/")) == ["a/1", "a/2"]
    assert list(snap.items("a/")) == [("a/1", b"1"), ("a/2", b"")]
    assert list(snap.values("a/")) == [b"1", b""]
    assert (snap.count("a/"), snap.count("a"), snap.count("zz")) == (2, 3, 0)
    assert "a/2" in snap
    assert snap["a/2"] == b""
    assert snap.get("z") is None
    assert snap.get("z", b"?") == b"?"
    assert store.at() == {"b": b"2", "z": b"9"}


def test_membership_of_what_is_no_key(store):
    store.save("a", b"1")
    snap = store.at()
    for wrong in ("", b"a", 5, None, ("a",)):
        assert wrong not in snap
    with pytest.raises(KeyNotFoundError):
        snap["b"]
    with pytest.raises(InvalidKeyError):
        snap[""]
    for wrong in (b"a", 5):
        with pytest.raises(InvalidTypeError):
            snap[wrong]
        with pytest.raises(InvalidTypeError):
            list(snap.items(wrong))


def test_a_snapshot_says_what_it_is(store):
    ts = store.save("a", b"1")
    snap = store.at(ts)
    assert repr(snap) == f"<Snapshot {dated(ts)} revision={snap.revision} final>"
    assert repr(store.at(ts + 1)).endswith("not final>")
    with pytest.raises(AttributeError):
        snap.timestamp = 5


def test_entries(store):
    store.save("a", b"1")
    created = store.at().revision
    store.save("a", b"2")
    entry = store.at().entry("a")
    assert entry == Entry(b"2", created + 1, created, 2)
    assert list(store.at().entries()) == [("a", entry)]
    store.remove("a")
    store.save("a", b"3")
    assert store.at().entry("a") == Entry(b"3", created + 3, created + 3, 1)
    assert store.at(revision=created).entry("a") == Entry(b"1", created, created, 1)


@pytest.mark.long_on("etcd")
def test_more_keys_than_a_page_while_they_change(store):
    keys = {f"k{n:05}": b"%d" % n for n in range(12_000)}
    ts = store.multi_save(keys)
    snap = store.at(ts)
    seen = {}
    for at, (key, value) in enumerate(snap.items()):
        seen[key] = value
        if at % 5_000 == 100:
            store.multi_save_and_remove_with_prefix({"k11999": b"x", f"new{at}": b""}, ["k1"])
    assert seen == keys
    assert list(snap) == list(keys)
    assert len(snap) == 12_000
    assert list(snap.keys("k0499")) == [f"k0499{n}" for n in range(10)]
    found, values = store.load_with_prefix("", ts)
    assert dict(zip(found, values, strict=True)) == keys
    assert len(list(store.diff(ts))) == 2_000 + 3


def test_every_key_there_can_be(store):
    keys = ["\0", "a\0b", "/", "//", "a/../b", " ", "\n", "\U0010ffff", "\u00e9" * 40, "data/", "%"]
    ts = store.multi_save({key: key.encode() for key in keys})
    assert list(store.at(ts)) == sorted(keys)
    for key in keys:
        assert store.load(key, ts) == key.encode()
        store.remove(key)
    assert len(store.at()) == 0
    assert len(store.at(ts)) == len(keys)


def test_unstamped_writes_of_others_show_from_the_next_commit_on(place, clock):
    store = place.open(clock=clock)
    ts = store.save("k", b"1")
    write_raw(place.engine(), Put(b"default/data/raw", b"1"))
    assert "raw" not in store.at(ts)
    tick = store.tick()
    assert store.at(tick.ts)["raw"] == b"1"
    assert "raw" not in store.at(ts)
    assert "raw" not in place.open(clock=clock).at(tick.ts - 1)


def test_get_answers_an_absent_key_with_the_default(store, saved):
    assert (store.get("k"), store.get("k", b"none", saved[1])) == (b"4", b"1")
    assert (store.get("absent"), store.get("absent", 7)) == (None, 7)
    assert store.get("k", "before it", saved[0] - 1) == "before it"
    assert store.space("s").get(b"k", default=b"") == b""
    with pytest.raises(InvalidKeyError):
        store.get("")
