"""Changes in bulk: the same as the events of a watch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from conformance_driver import ALL, FIRST, Driver
from sampling import SOAK, first_of

from snapkv.engine.bulk_reads import replayed
from snapkv.engine.contract import ChangeColumns, Delete, Put, Range, Replay
from snapkv.engine.lmdb import LmdbEngine, columns
from snapkv.engine.version_columns import BATCH_BYTES
from snapkv.errors import CompactedError

pytestmark = pytest.mark.slow

Rows = list[tuple[bytes, bytes | None, int, int]]
OPERATIONS = 100
"""The most reads that the tests send in one request: etcd takes 128."""


def in_columns(
    db: Driver, first: int, last: int, key: bytes = FIRST, end: bytes = ALL, **options: bool
) -> list[tuple]:
    rows: list[tuple] = []
    for part in db.engine.changes(Replay(key, end, first, last, **options)):
        assert isinstance(part, ChangeColumns)
        assert len(part.keys), "a part is never empty"
        columns = [column.to_pylist() for column in part if column is not None]
        assert not rows or rows[-1][2] < columns[2][0], "a part has whole revisions"
        rows += zip(*columns, strict=True)
    return rows


def watched(db: Driver, first: int, last: int, key: bytes = FIRST, end: bytes = ALL) -> Rows:
    return [
        (kv.key, None if removed else kv.value, kv.mod_revision, kv.version)
        for batch in replayed(db.engine, key, end, first, last)
        for kv, removed in batch.events
    ]


def befores(db: Driver, rows: Rows) -> list[bytes | None]:
    wanted = [Range(key, revision=revision - 1) for key, _, revision, _ in rows]
    found: list[bytes | None] = []
    for first in range(0, len(wanted), OPERATIONS):
        for result in db.engine.read(wanted[first : first + OPERATIONS]).results:
            found.append(result.kvs[0].value if result.kvs else None)
    return found


@pytest.mark.parametrize("seed", first_of(range(3), one_in=3))
def test_as_a_watch_of_any_revisions(db: Driver, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = (b"\0", b"\x01", b"a", b"b", b"\xfe", b"\xff")
    names = sorted({b"k" + b"".join(rng.choices(alphabet, k=rng.randrange(5))) for _ in range(60)})
    empty = db.head()
    lease = db.grant()
    for _ in range(120):
        some = rng.sample(names, rng.randrange(1, 9))
        gone = {name for name in some if rng.random() < 0.3}
        ops = [
            Delete(k)
            if k in gone
            else Put(k, rng.randbytes(rng.randrange(40)), lease=rng.choice((0, 0, 0, lease)))
            for k in some
        ]
        db.txn(*ops)
    for _ in range(12):
        first, last = sorted(rng.sample(range(empty + 1, db.head() + 1), 2))
        start, end = sorted(rng.sample(names, 2))
        for span in ((FIRST, ALL), (start, end), (start, b"")):
            expected = watched(db, first, last, *span)
            assert in_columns(db, first, last, *span) == expected
            with_befores = [
                (*row, old) for row, old in zip(expected, befores(db, expected), strict=True)
            ]
            assert in_columns(db, first, last, *span, before=True) == with_befores


def test_keys_only(db: Driver) -> None:
    first = db.put(b"a", b"1")
    db.put(b"a", b"2")
    last = db.delete(b"a")
    rows = in_columns(db, first, last, keys_only=True)
    assert rows == [
        (b"a", None, first, 1),
        (b"a", None, first + 1, 2),
        (b"a", None, last, 0),
    ]


def test_no_revisions(db: Driver) -> None:
    revision = db.put(b"a", b"1")
    assert in_columns(db, revision + 1, revision) == []
    assert in_columns(db, revision, revision, b"b", b"c") == []
    assert in_columns(db, revision, revision, b"b", b"") == []


def test_what_compaction_left(db: Driver) -> None:
    db.put(b"a", b"1")
    db.put(b"b", b"1")
    removed = db.delete(b"b")
    db.put(b"a", b"2")
    head = db.put(b"c", b"3")
    db.engine.compact(removed)
    for key, end in ((FIRST, ALL), (b"a", b""), (b"b", b"")):
        expected = watched(db, removed, head, key, end)
        assert in_columns(db, removed, head, key, end) == expected
        with pytest.raises(CompactedError) as caught:
            in_columns(db, removed - 1, head, key, end)
        assert caught.value.unit == "revision"
    assert in_columns(db, removed + 1, head, before=True) == [
        (b"a", b"2", removed + 1, 2, b"1"),
        (b"c", b"3", head, 1, None),
    ]
    with pytest.raises(CompactedError):
        in_columns(db, removed, head, before=True)


@pytest.mark.parametrize("share", [0.0, 2.0], ids=["by a scan", "by seeks"])
@pytest.mark.parametrize("seeds", [8] if SOAK else [1, pytest.param(2, marks=pytest.mark.long)])
def test_both_ways_of_lmdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, seeds: int
) -> None:
    """A scan of records or seeks: the same, whatever share of the history is asked for."""
    monkeypatch.setattr(columns, "SHARE_MIN", share)
    monkeypatch.setattr(columns, "CHUNK_RECORDS", 7)  # chunks end within a key's versions
    monkeypatch.setattr(columns, "CHUNK_RECORDS_FIRST", 3)
    monkeypatch.setattr(columns, "CHANGES_ROWS", 5)
    for n, test in enumerate((test_what_compaction_left, test_keys_only, test_no_revisions)):
        db = Driver(LmdbEngine(tmp_path / f"{n}", durability="none"))
        test(db)
        db.finish()
    for seed in range(seeds):
        db = Driver(LmdbEngine(tmp_path / f"seed {seed}", durability="none"))
        test_as_a_watch_of_any_revisions(db, seed)
        db.finish()


@pytest.mark.long_on("etcd")
@pytest.mark.large
def test_what_a_part_holds_is_bounded(db: Driver) -> None:
    first = db.head() + 1
    for n in range(80):
        db.put(b"large%02d" % n, bytes([n]) * 1_000_000)
    for n in range(60):
        db.txn(*(Put(b"small%03d" % k, b"%d" % n) for k in range(100)))
    for span in ((FIRST, ALL), (b"large07", b"")):
        for part in db.engine.changes(Replay(*span, first, db.head())):
            assert part.values.nbytes < BATCH_BYTES
            assert len(part.keys) < 10_000
    assert in_columns(db, first, db.head()) == watched(db, first, db.head())


@pytest.mark.long_on("asyncio etcd")
def test_many_versions_of_one_key(db: Driver) -> None:
    first = db.head() + 1
    for n in range(5_000 if not db.engine.remote else 300):
        db.put(b"hot", b"%d" % n)
    for key in (b"hot", b"ho", b"hot\0"):
        expected = watched(db, first, db.head(), key, b"")
        assert in_columns(db, first, db.head(), key, b"") == expected
        middle = first + 150
        assert in_columns(db, middle, middle, key, b"") == watched(db, middle, middle, key, b"")
