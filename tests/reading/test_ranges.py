"""Reading many keys at once, and ranges of keys bounded at either side."""

import pytest
from cases import cases

from snapkv.errors import (
    CompactedError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    KeyNotFoundError,
)


@pytest.fixture
def filled(store, clock):
    first = store.commit(puts={f"k{n:03d}": b"%d" % n for n in range(300)})
    clock.advance(1_000)
    store.commit(puts={"k001": b"new"}, deletes=["k002"])
    return store, first


def test_an_entry_now_and_at_a_time(filled):
    store, first = filled
    then, now = store.entry("k001", first.ts), store.entry("k001")
    assert (then.value, then.revision, then.version) == (b"1", first.revision, 1)
    assert (now.value, now.created, now.version) == (b"new", first.revision, 2)
    with pytest.raises(KeyNotFoundError):
        store.entry("k002")
    assert store.entry("k002", first.ts).value == b"2"


@cases("count", [0, 1, 127, 128, 129, 300])
def test_many_entries_are_of_one_moment(filled, count):
    store, first = filled
    keys = [f"k{n:03d}" for n in range(count)]
    expected = [b"%d" % n for n in range(count)]
    assert [e.value for e in store.entries_of(keys, first.ts)] == expected
    assert [e.value for e in store.at(first.ts).entries_of(keys)] == expected
    now = [e and e.value for e in store.entries_of(keys)]
    assert now == [{1: b"new", 2: None}.get(n, b"%d" % n) for n in range(count)]
    assert store.entries_of(["missing"]) == [None]
    with pytest.raises(InvalidKeyError):
        store.entries_of([""])


def test_entries_of_what_is_compacted(filled, clock):
    store, first = filled
    clock.advance(500_000)
    store.tick()
    store.compact("-0s")
    with pytest.raises(CompactedError):
        store.entries_of(["k001"], first.ts)


@cases(
    ("bounds", "expected"),
    [
        ({"start": "k297"}, ["k297", "k298", "k299"]),
        ({"end": "k001"}, ["k000"]),
        ({"start": "k010", "end": "k012"}, ["k010", "k011"]),
        ({"prefix": "k29", "start": "k298"}, ["k298", "k299"]),
        ({"prefix": "k00", "end": "k001x"}, ["k000", "k001"]),
        ({"start": "k012", "end": "k012"}, []),
        ({"start": "k012", "end": "k010"}, []),
        ({"prefix": "k01", "start": "k02"}, []),
        ({"prefix": "k01", "end": "k00"}, []),
    ],
)
def test_bounded_ranges(filled, bounds, expected):
    store, first = filled
    snap = store.at(first.ts)
    assert list(snap.keys(**bounds)) == expected
    assert [key for key, _ in snap.items(**bounds)] == expected
    assert [key for key, _ in snap.entries(**bounds)] == expected
    assert snap.count(**bounds) == len(expected)


def test_a_bound_is_a_key_of_the_space(filled):
    store, _ = filled
    with pytest.raises(InvalidKeyError):
        store.at().count(start="")
    space = store.space("s")
    space.commit(puts={b"a": b"1", b"b": b"2"})
    assert list(space.at().keys(start=b"a\x00")) == [b"b"]


@cases("limit", [1, 2, 9, 300, None])
def test_ranges_with_a_limit(filled, limit):
    """Each range has its own, and all are of one moment."""
    store, first = filled
    ranges = [("k000", "k009"), ("k100", "k101"), ("k200", "k200"), ("k290", "l")]
    every = [[f"k{n:03d}" for n in span] for span in (range(9), [100], (), range(290, 300))]
    found = store.at(first.ts).items_of(ranges, limit=limit)
    assert [[key for key, _ in items] for items in found] == [keys[:limit] for keys in every]
    assert ("k002", b"2") in store.at(first.ts).items_of([("k002", "l")], limit=1)[0]
    assert store.at().items_of([("k002", "l")], limit=1) == [[("k003", b"3")]]


@pytest.mark.parametrize("limit", [0, -1, 1.0, "2", True])
def test_limits_that_cannot_be(filled, limit):
    with pytest.raises((InvalidOptionError, InvalidTypeError), match="limit"):
        filled[0].at().items_of([("a", "b")], limit=limit)


def test_what_a_time_means(store):
    ts = store.timestamp_of("2026-11-20T14:05:00Z")
    assert store.timestamp_of(ts) == ts
    assert ts & 0x3FFFF == 0x3FFFF, "the end of its millisecond"
