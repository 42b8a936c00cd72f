"""Pairs: the keys and the values of a scan, without the rest."""

from __future__ import annotations

import random

import pytest
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.contract import Delete, Put
from snapkv.errors import CompactedError, FutureRevisionError

ALPHABET = (b"\0", b"\x01", b"\x02", b"a", b"\xfe", b"\xff")


def same_as_scanned(db: Driver, revision: int, key: bytes = FIRST, end: bytes = ALL) -> int:
    """Hold pairs against a scan, with and without values; return the number of keys."""
    pages = db.engine.scan(key, end, revision=revision)
    scanned = [(kv.key, kv.value) for page in pages for kv in page]
    pages = list(db.engine.pairs(key, end, revision=revision))
    assert all(page.keys for page in pages), "a page is never empty"
    assert [pair for page in pages for pair in zip(page.keys, page.values, strict=True)] == scanned
    pages = list(db.engine.pairs(key, end, revision=revision, keys_only=True))
    assert all(page.keys and page.values == [] for page in pages)
    assert [key for page in pages for key in page.keys] == [key for key, _ in scanned]
    return len(scanned)


@pytest.mark.parametrize("seed", range(3))
def test_as_a_scan_at_any_revision(db: Driver, seed: int) -> None:
    rng = random.Random(seed)
    names = sorted({b"k" + b"".join(rng.choices(ALPHABET, k=rng.randrange(5))) for _ in range(200)})
    first = db.head()
    for _ in range(100):
        some = rng.sample(names, rng.randrange(1, 9))
        gone = {name for name in some if rng.random() < 0.3}
        db.txn(*(Delete(k) if k in gone else Put(k, rng.randbytes(9)) for k in some))
    for revision in rng.sample(range(first, db.head() + 1), 15):
        start, end = sorted(rng.sample(names, 2))
        expected = db.range(FIRST, ALL, revision=revision).kvs
        assert same_as_scanned(db, revision) == len(expected)
        assert same_as_scanned(db, revision, start, end) == sum(
            start <= kv.key < end for kv in expected
        )
        same_as_scanned(db, revision, start, b"")


@pytest.mark.slow
def test_versions_that_become_many_and_few_again(db: Driver) -> None:
    """Keys of one version, a hundred and two: read at the first, the last and between."""
    db.txn(*(Put(b"a%04d" % n, b"a") for n in range(900)))
    for n in range(100):
        db.txn(*(Put(b"b%02d" % k, b"%d" % n) for k in range(70)), Put(b"hot", b"%d" % n))
    early = db.head()
    db.txn(*(Put(b"c%04d" % n, b"c") for n in range(900)))
    db.txn(*(Put(b"c%04d" % n, b"d") for n in range(900)))
    db.delete(b"b10", b"b30")
    db.txn(*(Put(b"b1%d" % n, b"again") for n in range(5)))
    head = db.head()
    assert same_as_scanned(db, head) == 900 + 50 + 5 + 900 + 1
    assert same_as_scanned(db, head - 3) == 900 + 70 + 900 + 1
    for revision in (early, early - 50, early - 99):
        assert same_as_scanned(db, revision) == 900 + 70 + 1
        assert same_as_scanned(db, revision, b"b5", b"c") == 20
    assert same_as_scanned(db, early - 100) == 900
    for limit in (1, 2, 40, 899, 901, 969, 970, 971, 5_000):
        found = db.range(FIRST, ALL, revision=early, limit=limit)
        assert (len(found.kvs), found.count) == (min(limit, 971), 971)
        assert found.kvs == db.range(FIRST, ALL, revision=early).kvs[:limit]


def test_large_values_and_keys_of_leases(db: Driver) -> None:
    for n in range(12):
        db.put(b"large%02d" % n, bytes([n]) * 900_000)
    lease = db.grant()
    db.txn(Put(b"l", b"leased", lease=lease), Put(b"m", b"free"), Put(b"n", b"", lease=lease))
    assert same_as_scanned(db, db.head()) == 15
    at = db.head()
    db.revoke(lease)
    assert same_as_scanned(db, db.head()) == 13
    assert same_as_scanned(db, at) == 15


def test_pairs_go_on_when_compaction_comes_up_to_them(db: Driver) -> None:
    for base in range(0, 12_000, 3_000):
        db.txn(*(Put(b"k%06d" % i, b"%d" % i) for i in range(base, base + 3_000)))
    db.delete(b"k000100", b"k000200")
    head = db.head()
    pages = db.engine.pairs(FIRST, ALL, revision=head)
    first = next(pages)
    newest = db.put(b"k011999", b"newer")
    db.engine.compact(head)
    rest = list(pages)
    assert sum(len(page.keys) for page in (first, *rest)) == 11_900
    assert rest[-1].values[-1] == b"11999"
    pages = db.engine.pairs(FIRST, ALL, revision=head)
    next(pages)
    db.engine.compact(newest)
    with pytest.raises(CompactedError) as caught:
        list(pages)
    assert (caught.value.requested, caught.value.earliest) == (head, newest)


@pytest.mark.new_engine
def test_what_is_not_there(db: Driver) -> None:
    for n in range(9):
        db.put(b"k", b"%d" % n)
    assert same_as_scanned(db, db.head(), b"x", ALL) == 0
    assert same_as_scanned(db, db.head(), b"k\0", ALL) == 0
    assert same_as_scanned(db, 1) == 0
    db.engine.compact(5)
    with pytest.raises(CompactedError):
        list(db.engine.pairs(FIRST, ALL, revision=4))
    with pytest.raises(FutureRevisionError):
        list(db.engine.pairs(FIRST, ALL, revision=db.head() + 1))
    assert same_as_scanned(db, 5) == 1


def test_keys_up_to_the_limit_and_beyond(db: Driver) -> None:
    longest = min(db.engine.limits.key_bytes, 4_096)
    keys = [b"k" * size for size in (1, longest - 1, longest)]
    db.txn(*(Put(key, b"v") for key in keys))
    db.txn(*(Put(key, b"w") for key in keys))
    for start, end, found in (
        (FIRST, keys[2] + b"\xff", 3),
        (keys[1] + b"\0", ALL, 1),
        (keys[2] + b"\0", ALL, 0),
        (keys[0] + b"\0", keys[2], 1),
    ):
        assert same_as_scanned(db, db.head(), start, end) == found
        assert same_as_scanned(db, db.head() - 1, start, end) == found
