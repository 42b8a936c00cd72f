"""Columns: in bulk, the same as a scan."""

from __future__ import annotations

import random

import pytest
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.contract import Columns, Delete, Put
from snapkv.engine.version_columns import BATCH_BYTES
from snapkv.errors import CompactedError, FutureRevisionError

pytestmark = pytest.mark.slow

Rows = list[tuple[bytes, bytes, int, int, int]]


def in_columns(db: Driver, revision: int, key: bytes = FIRST, end: bytes = ALL) -> Rows:
    rows: Rows = []
    for part in db.engine.columns(key, end, revision=revision):
        assert isinstance(part, Columns)
        assert len(part.keys), "a part is never empty"
        rows += zip(*(column.to_pylist() for column in part), strict=True)
    return rows


def scanned(db: Driver, revision: int, key: bytes = FIRST, end: bytes = ALL) -> Rows:
    pages = db.engine.scan(key, end, revision=revision)
    return [
        (kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version)
        for page in pages
        for kv in page
    ]


@pytest.mark.parametrize("seed", range(3))
def test_as_a_scan_at_any_revision(db: Driver, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = (b"\0", b"\x01", b"a", b"b", b"\xfe", b"\xff")
    names = sorted({b"k" + b"".join(rng.choices(alphabet, k=rng.randrange(5))) for _ in range(200)})
    empty = db.head()
    for _ in range(120):
        some = rng.sample(names, rng.randrange(1, 9))
        gone = {name for name in some if rng.random() < 0.3}
        ops = [Delete(k) if k in gone else Put(k, rng.randbytes(rng.randrange(40))) for k in some]
        db.txn(*ops)
    for revision in rng.sample(range(empty, db.head() + 1), 20):
        start, end = sorted(rng.sample(names, 2))
        assert in_columns(db, revision) == scanned(db, revision)
        assert in_columns(db, revision, start, end) == scanned(db, revision, start, end)
        assert in_columns(db, revision, start, b"") == scanned(db, revision, start, b"")


def test_many_versions_of_few_keys_and_large_values(db: Driver) -> None:
    empty = db.head()
    for n in range(400):
        db.txn(*(Put(b"hot%d" % k, b"%d" % n) for k in range(3)))
    for n in range(40):
        db.put(b"large%02d" % n, bytes([n]) * 300_000)
    db.txn(*(Put(b"small%05d" % n, b"") for n in range(3_000)))
    for revision in (empty, empty + 199, empty + 401, db.head() - 1, db.head()):
        assert in_columns(db, revision) == scanned(db, revision)


@pytest.mark.large
def test_large_values_behind_small_ones(db: Driver) -> None:
    """What a part holds is bounded, whatever the values before were like."""
    db.txn(*(Put(b"a%05d" % n, b"") for n in range(5_000)))
    for n in range(80):
        db.put(b"b%02d" % n, bytes([n]) * 1_000_000)
    parts = list(db.engine.columns(FIRST, ALL, revision=db.head()))
    assert max(part.values.nbytes for part in parts) < BATCH_BYTES + 2_000_000
    assert in_columns(db, db.head()) == scanned(db, db.head())
    some = in_columns(db, db.head(), b"a04990", b"b03")
    assert [row[0] for row in some][-4:] == [b"a04999", b"b00", b"b01", b"b02"]


def test_keys_of_leases_are_among_them(db: Driver) -> None:
    db.put(b"a", b"1")
    lease = db.engine.grant(60).id
    db.txn(Put(b"b", b"2", lease=lease), Put(b"c", b"3"))
    assert in_columns(db, db.head()) == scanned(db, db.head())
    assert [row[0] for row in in_columns(db, db.head())] == [b"a", b"b", b"c"]


def test_keys_only(db: Driver) -> None:
    db.txn(*(Put(b"k%d" % n, b"value") for n in range(9)))
    (part,) = db.engine.columns(FIRST, ALL, revision=db.head(), keys_only=True)
    assert part.keys.to_pylist() == [b"k%d" % n for n in range(9)]
    assert set(part.values.to_pylist()) == {b""}
    assert part.modified.to_pylist() == [db.head()] * 9


@pytest.mark.new_engine
def test_what_is_not_there(db: Driver) -> None:
    for n in range(9):
        db.put(b"k", b"%d" % n)
    assert in_columns(db, db.head(), b"x", ALL) == []
    assert in_columns(db, 1) == []
    db.engine.compact(5)
    with pytest.raises(CompactedError):
        in_columns(db, 4)
    with pytest.raises(FutureRevisionError):
        in_columns(db, db.head() + 1)
    assert in_columns(db, 5) == scanned(db, 5)
