"""What check() finds, and what info() tells."""

import io

import pytest

import snapkv
from snapkv import Ops, SpaceOps
from snapkv.engine.contract import Delete, Put, Range
from snapkv.errors import CorruptStoreError, FormatError, NotAStoreError, StoreRecreatedError
from snapkv.layout import FormatRecord, StampRecord

from .engines import assert_sound, write_raw

TS, FORMAT = b"default/sys/ts", b"default/sys/format"


@pytest.fixture
def damaged(place, clock):
    """A store with some commits, and the bare engine to do damage with."""
    store = place.open(clock=clock)
    for n in range(5):
        store.save(f"k{n}", b"%d" % n)
    return store, place.engine()


def test_nothing_is_the_matter(store, clock):
    assert store.check().problems == ()
    for n in range(5):
        store.commit(
            lambda stamp, n=n: Ops(
                puts={f"k{n}": b""}, deletes=["k0"], spaces={"s": SpaceOps(puts={b"\xff": b""})}
            )
        )
    store.tick()
    report = store.check()
    assert report.problems == ()
    assert report.keys == 4
    assert report.commits >= 6
    clock.advance(200_000)
    store.compact("-0s")
    store.save("k", b"")
    assert_sound(store)


def test_neighbours_are_nobodys_problem(store, place, clock):
    place.open(name="other", clock=clock).save("k", b"1")
    write_raw(place.engine(), Put(b"elsewhere", b"1"), Put(b"default/live/x", b"1"))
    assert_sound(store)


@pytest.mark.parametrize("key", [b"default/data/raw", b"default/data/k1", b"default/space/s/k"])
@pytest.mark.parametrize("what", ["put", "delete"])
def test_a_write_without_a_timestamp(damaged, key, what):
    store, raw = damaged
    store.space("s").commit(puts={b"k": b"1"})
    if key.endswith(b"raw") and what == "delete":
        store.save("raw", b"1")
    revision = write_raw(raw, Put(key, b"x") if what == "put" else Delete(key))
    store.tick()
    (problem,) = store.check().problems
    assert repr(key) in problem
    assert str(revision) in problem


def test_the_newest_write_may_be_the_one_without(damaged):
    store, raw = damaged
    revision = write_raw(raw, Put(b"default/data/raw", b"x"))
    (problem,) = store.check().problems
    assert str(revision) in problem


def test_a_key_that_is_no_text(damaged):
    store, raw = damaged
    write_raw(raw, Put(b"default/data/\xff", b"x"))
    store.tick()
    assert any("UTF-8" in problem for problem in store.check().problems)


def test_the_timestamp_key_is_gone(damaged, place):
    store, raw = damaged
    write_raw(raw, Delete(TS))
    assert any("timestamp key" in problem for problem in store.check().problems)


def test_the_timestamp_key_was_recreated(damaged):
    store, raw = damaged
    value = raw.read([Range(TS)]).results[0].kvs[0].value
    write_raw(raw, Delete(TS))
    write_raw(raw, Put(TS, value))
    assert any("timestamp key" in problem for problem in store.check().problems)


def test_a_timestamp_that_goes_back(damaged):
    store, raw = damaged
    write_raw(raw, Put(TS, StampRecord(5, b"n" * 16, "mallory").encode()))
    store.tick()
    assert store.check().problems


def test_a_timestamp_that_is_none(damaged):
    store, raw = damaged
    write_raw(raw, Put(TS, StampRecord(store.resolved() + 1, b"n" * 16, "m").encode() + b"junk"))
    store.tick()
    assert store.check().problems


# --- opening what is damaged ---


def test_opening_without_a_timestamp_key(damaged, place):
    _, raw = damaged
    write_raw(raw, Delete(TS))
    with pytest.raises(CorruptStoreError):
        place.open()


def test_opening_without_a_format(damaged, place):
    _, raw = damaged
    write_raw(raw, Delete(FORMAT))
    with pytest.raises(NotAStoreError):
        place.open()


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (FORMAT, FormatRecord(b"i" * 16, format=2).encode(), FormatError),
        (FORMAT, b"junk", CorruptStoreError),
        (FORMAT, b"", CorruptStoreError),
        (TS, b"junk", CorruptStoreError),
        (TS, b"12345678junk", CorruptStoreError),
    ],
)
def test_opening_with_a_value_that_is_none_of_ours(damaged, place, key, value, error):
    _, raw = damaged
    revision = write_raw(raw, Put(key, value))
    with pytest.raises(error):
        place.open()
    assert place.revision() == revision


def test_writing_after_the_timestamp_key_was_recreated(damaged):
    store, raw = damaged
    value = StampRecord(0, b"n" * 16, "mallory").encode()
    write_raw(raw, Delete(TS))
    revision = write_raw(raw, Put(TS, value))
    for action in (
        lambda: store.save("k", b"1"),
        lambda: store.tick(),
        lambda: store.resolved(),
        lambda: store.at(),
        lambda: store.load("k1", "+1d"),
    ):
        with pytest.raises(StoreRecreatedError):
            action()
    assert raw.read([Range(TS)]).header.revision == revision
    assert isinstance(StoreRecreatedError("x"), snapkv.SnapKVError)


# --- info ---


def test_info(store, place, clock):
    assert store.info()["commits"] == 0
    ts = store.save("k", b"1")
    store.tick()
    info = store.info()
    assert info["url"] == place.url
    assert info["name"] == "default"
    assert len(info["store_id"]) == 32
    assert info["format"] == 1
    assert info["commits"] == 2
    assert info["newest_timestamp"] == store.resolved() > ts
    assert info["newest_revision"] == place.revision()
    assert info["earliest_timestamp"] == 0
    assert info["newest_writer"] == "ann@test"
    assert info["newest_age_s"] == 0.0
    assert info["writers"] == {"ann@test": 2}
    assert (info["sessions"], info["leaders"], info["recordings_lag_s"]) == (0, {}, {})
    assert info["retain_ms"] is None
    assert info["engine"]["revision"] == place.revision()
    bob = place.open(clock=clock, writer="bob@test")
    bob.save("k", b"2")
    clock.advance(90_000)
    info = bob.info()
    assert (info["newest_writer"], info["newest_age_s"]) == ("bob@test", 90.0)
    assert info["writers"] == {"bob@test": 1, "ann@test": 2}
    with store.session(60), store.election("e", ttl=60).campaign(b"v"):
        info = bob.info()
        assert (info["sessions"], info["leaders"]) == (2, {"e": "ann@test"})
    assert place.open(clock=clock).info()["store_id"] == info["store_id"]
    assert place.open(name="other").info()["store_id"] != info["store_id"]


def test_check_and_dump_tell_how_far_they_are(store: snapkv.SnapshotKV) -> None:
    for n in range(5):
        store.save(f"key-{n}", b"x")
    checked: list[int] = []
    assert store.check(progress=checked.append).commits == checked[-1] == len(checked) == 5
    dumped: list[int] = []
    assert store.dump(io.BytesIO(), progress=dumped.append) == dumped[-1] == 5
