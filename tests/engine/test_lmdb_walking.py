"""Walks over records: what they cost, and that they adapt to how many versions there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from lmdb_words import head, run_txn

from snapkv.engine.contract import Delete, Put
from snapkv.engine.lmdb import LmdbEngine, walking
from snapkv.engine.lmdb.environment import Transaction
from snapkv.engine.lmdb.records import span_of
from snapkv.engine.lmdb.walking import FoundRecords, Walk
from snapkv.errors import CorruptStoreError


class Counted:
    """A cursor that counts what is asked of it."""

    def __init__(self, cursor) -> None:
        self.cursor, self.asked = cursor, Counter()

    def __getattr__(self, name):
        def counted(*args):
            self.asked[name] += 1
            return getattr(self.cursor, name)(*args)

        return counted

    def iternext(self, keys=True, values=True):
        for each in self.cursor.iternext(keys=keys, values=values):
            self.asked["records"] += 1
            yield each


@pytest.fixture
def engine(tmp_path: Path):
    engine = LmdbEngine(tmp_path / "db", durability="none")
    yield engine
    assert engine.check() == []
    engine.close()


def walked(engine: LmdbEngine, revision: int, **options) -> tuple[list[bytes], Counter, int]:
    """Return the keys of a walk over everything, what it asked its cursor, and its steps."""
    walk, names, steps = Walk(*span_of(b"\0", b"\0"), revision, **options), [], 0
    with Transaction(engine._env) as txn:
        cursor = Counted(txn.cursor())
        while walk.target is not None:
            found = walk.step(cursor, txn.state.revision)
            assert isinstance(found, FoundRecords)
            assert len(found.raws) == len(found.names) == len(found.values)
            names += found.names
            steps += 1
    return names, cursor.asked, steps


def fill(engine: LmdbEngine, keys: int, versions: int) -> list[bytes]:
    names = [b"k%05d" % n for n in range(keys)]
    for n in range(versions):
        run_txn(engine, *(Put(name, b"%d" % n) for name in names))
    return names


def test_keys_of_one_version_are_walked_over_in_bulk(engine: LmdbEngine) -> None:
    names = fill(engine, 6_000, 1)
    found, asked, steps = walked(engine, head(engine))
    assert found == names
    assert asked["records"] < 2 * 6_000 + 100
    assert steps < 10
    assert asked["set_range"] <= steps + walking.SOUGHT_FIRST


@pytest.mark.slow
@pytest.mark.parametrize(("back", "seeks"), [(0, 1), (10, 2)])
def test_past_many_versions_it_seeks(engine: LmdbEngine, back: int, seeks: int) -> None:
    """One seek a key where the newest is wanted, two before, and hardly a record in vain."""
    names = fill(engine, 1_000, 20)
    found, asked, _ = walked(engine, head(engine) - back)
    assert found == names
    assert asked["set_range"] < seeks * 1_000 + 50
    assert asked["records"] < 2_000


@pytest.mark.slow
def test_one_hot_key_costs_the_others_little(engine: LmdbEngine) -> None:
    names = fill(engine, 3_000, 1)
    for n in range(5_000):
        run_txn(engine, Put(b"k01500", b"%d" % n))
    found, asked, _ = walked(engine, head(engine))
    assert found == names
    assert asked["records"] < 2 * 3_000 + 2 * walking.CHUNK_RECORDS
    assert asked["set_range"] < 2 * walking.SOUGHT_MIN


def test_removed_keys_end_no_walk(engine: LmdbEngine) -> None:
    names = fill(engine, 3_000, 1)
    run_txn(engine, Delete(b"k00100", b"k02900"))
    found, _, _ = walked(engine, head(engine))
    assert found == names[:100] + names[2_900:]
    assert walked(engine, head(engine) - 1)[0] == names


def test_a_short_range_does_not_read_what_is_behind_it(engine: LmdbEngine) -> None:
    names = fill(engine, 3_000, 1)
    walk = Walk(*span_of(names[7], names[10]), head(engine))
    with Transaction(engine._env) as txn:
        cursor = Counted(txn.cursor())
        assert walk.step(cursor, txn.state.revision).names == names[7:10]
        assert walk.target is None
    assert cursor.asked == {"set_range": 4, "key": 4, "value": 3}


def test_a_page_of_large_values_is_bounded(engine: LmdbEngine) -> None:
    for n in range(60):
        run_txn(engine, Put(b"k%02d" % n, bytes(1_000_000)))
    pages = list(engine.pairs(b"\0", b"\0", revision=head(engine)))
    assert sum(len(page.keys) for page in pages) == 60
    assert max(sum(map(len, page.values)) for page in pages) < 2 * walking.CHUNK_BYTES


@pytest.mark.parametrize("versions", [1, 30])
def test_a_record_that_is_cut_short_is_told(tmp_path: Path, versions: int) -> None:
    engine = LmdbEngine(tmp_path / "db", durability="none")
    fill(engine, 200, versions)
    run_txn(engine, Delete(b"k00100"))
    with Transaction(engine._env) as txn:
        cursor = txn.cursor()
        cursor.set_range(b"k00150")
        raw = cursor.key()
    engine._env.acquire(1)
    try:
        with Transaction(engine._env, write=True) as txn:
            txn.txn.put(raw, b"short", db=txn.databases.records)
            txn.commit()
    finally:
        engine._env.release()
    for listed in (engine.pairs, engine.scan, engine.columns):
        with pytest.raises(CorruptStoreError):
            list(listed(b"\0", b"\0", revision=head(engine)))
    engine.close()
