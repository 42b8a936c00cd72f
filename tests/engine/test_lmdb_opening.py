"""Opening: what is there, what is not, what is damaged, what is not ours."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from lmdb_words import get, head, keys, put

from snapkv.engine.lmdb import LmdbEngine
from snapkv.errors import (
    CorruptStoreError,
    FormatError,
    InvalidOptionError,
    NotAStoreError,
    SnapKVError,
    StoreNotFoundError,
)

Opened = Callable[..., LmdbEngine]


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def refused(path: Path, kind: type[SnapKVError]) -> None:
    """Opening fails with that error, either way, and changes nothing."""
    before = contents(path) if path.is_dir() else None
    for create in (False, True):
        with pytest.raises(kind):
            LmdbEngine(path, create=create)
    if before is not None:
        after = contents(path)
        for names in (before, after):
            names.pop("lock.mdb", None)  # the table of readers, rewritten by every opener
        assert after == before


def filled(path: Path, count: int = 50) -> None:
    engine = LmdbEngine(path, map_bytes=1 << 20)
    for i in range(count):
        put(engine, b"%d" % i, b"x" * 1_000)
    engine.close()


def test_what_was_written_is_there_after_reopening(path: Path) -> None:
    engine = LmdbEngine(path)
    revisions = [put(engine, b"a", b"%d" % i) for i in range(3)]
    engine.compact(revisions[0])
    cluster = engine.read([]).header.cluster
    engine.close()
    again = LmdbEngine(path, create=False)
    assert [get(again, b"a", revision) for revision in revisions] == [b"0", b"1", b"2"]
    assert again.compacted_revision() == revisions[0]
    assert again.read([]).header == (revisions[-1], cluster)
    assert put(again, b"a") == revisions[-1] + 1
    again.close()


def test_two_stores_are_two_clusters(tmp_path: Path) -> None:
    engines = [LmdbEngine(tmp_path / name) for name in "ab"]
    assert len({engine.read([]).header.cluster for engine in engines}) == 2
    for engine in engines:
        engine.close()


def test_a_missing_path_is_made_with_its_parents_or_not_at_all(tmp_path: Path) -> None:
    deep = tmp_path / "x" / "y" / "z"
    with pytest.raises(StoreNotFoundError):
        LmdbEngine(deep, create=False)
    assert not (tmp_path / "x").exists()
    LmdbEngine(deep).close()
    LmdbEngine(deep, create=False).close()


def test_an_empty_directory_becomes_a_store_only_when_wanted(path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreNotFoundError):
        LmdbEngine(path, create=False)
    assert list(path.iterdir()) == []
    LmdbEngine(path).close()


def test_text_paths_and_relative_paths(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LmdbEngine("store")
    assert engine.url == "lmdb:store"
    monkeypatch.chdir("/")
    put(engine, b"a")
    other = LmdbEngine(str(path), create=False)
    assert get(other, b"a") == b"v"
    other.close()
    engine.close()


def test_a_path_through_a_link_is_the_same_store(path: Path) -> None:
    engine = LmdbEngine(path)
    link = path.with_name("link")
    link.symlink_to(path)
    other = LmdbEngine(link)
    put(engine, b"a")
    assert get(other, b"a") == b"v"
    engine.close()
    put(other, b"b")
    other.close()


def test_options_are_checked(path: Path) -> None:
    with pytest.raises(InvalidOptionError):
        LmdbEngine(path, durability="hope")
    assert not path.exists()


# --- not ours ------------------------------------------------------------------------------


def test_a_file_is_not_a_store(path: Path) -> None:
    path.write_bytes(b"hello")
    refused(path, NotAStoreError)
    refused(path / "below", NotAStoreError)
    assert path.read_bytes() == b"hello"


def test_a_directory_of_other_things_is_not_a_store(path: Path) -> None:
    path.mkdir()
    (path / "letters.txt").write_bytes(b"hello")
    refused(path, NotAStoreError)


def test_a_data_file_of_somebody_else_is_not_a_store(path: Path) -> None:
    path.mkdir()
    for text in (b"x" * 9_000, b"hello", bytes(20_000)):
        (path / "data.mdb").write_bytes(text)
        refused(path, NotAStoreError)


@pytest.mark.parametrize("names", [0, 2])
def test_an_lmdb_environment_of_somebody_else_is_not_a_store(path: Path, names: int) -> None:
    with lmdb.open(str(path), max_dbs=4) as env:
        for name in range(names):
            env.open_db(b"theirs%d" % name)
        with env.begin(write=True) as txn:
            txn.put(b"key", b"value")
    refused(path, NotAStoreError)
    assert sorted(contents(path)) == ["data.mdb", "lock.mdb"]


def test_an_empty_lmdb_environment_of_somebody_else_is_not_a_store(path: Path) -> None:
    lmdb.open(str(path)).close()
    refused(path, NotAStoreError)


def test_a_newer_format_is_told(path: Path) -> None:
    filled(path)
    with lmdb.open(str(path), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            old = txn.get(b"format", db=meta)
            txn.put(b"format", struct.pack(">I", 3) + old[4:] + b"new things", db=meta)
    refused(path, FormatError)
    with pytest.raises(FormatError) as caught:
        LmdbEngine(path)
    assert (caught.value.found, caught.value.supported) == (3, 2)


# --- damaged -------------------------------------------------------------------------------


def used_bytes(path: Path) -> int:
    engine = LmdbEngine(path)
    used = int(engine.info()["used_bytes"])
    engine.close()
    return used


def test_a_file_that_was_cut_is_damaged_at_any_length(path: Path) -> None:
    """Never a crash: LMDB reads through a memory map, beyond its end is death."""
    filled(path)
    data, used = path / "data.mdb", used_bytes(path)
    for size in (used - 1, used - 4_096, used // 2, 8_192, 8_191, 4_096, 100, 16, 1, 0):
        os.truncate(data, size)
        refused(path, CorruptStoreError)


def test_a_cut_of_unused_space_is_no_damage(path: Path) -> None:
    filled(path)
    os.truncate(path / "data.mdb", used_bytes(path))
    engine = LmdbEngine(path)
    assert len(keys(engine)) == 50
    put(engine, b"new", b"x" * 100_000)
    assert engine.check() == []
    engine.close()
    LmdbEngine(path).close()


def test_a_missing_data_file_is_damage(path: Path) -> None:
    """A store that was there is never silently replaced by an empty one."""
    filled(path)
    (path / "data.mdb").unlink()
    refused(path, CorruptStoreError)


@pytest.mark.parametrize("page", [0, 1])
def test_a_damaged_meta_page_is_told(path: Path, page: int) -> None:
    filled(path)
    with open(path / "data.mdb", "r+b") as file:
        file.seek(page * 4_096)
        file.write(os.urandom(4_096))
    refused(path, CorruptStoreError)


def test_zeroed_pages_are_told_at_opening_or_reading(path: Path) -> None:
    filled(path)
    used = used_bytes(path)
    with open(path / "data.mdb", "r+b") as file:
        file.seek(8_192)
        file.write(bytes(used - 8_192))
    with pytest.raises(CorruptStoreError):
        keys(LmdbEngine(path))


def test_records_that_break_the_rules_are_told_when_read(opened: Opened, path: Path) -> None:
    filled(path)
    with lmdb.open(str(path), max_dbs=4) as env:
        meta, records = env.open_db(b"meta"), env.open_db(b"records")
        with env.begin(write=True) as txn:
            txn.put(next(txn.cursor(records).iternext(values=False)), b"short", db=records)
    engine = LmdbEngine(path)
    for read in (lambda: get(engine, b"0"), lambda: keys(engine)):
        with pytest.raises(CorruptStoreError):
            read()
    assert engine.check() != []
    engine.close()
    with (
        lmdb.open(str(path), max_dbs=4) as env,
        env.begin(write=True) as txn,
    ):
        txn.put(b"state", b"??", db=env.open_db(b"meta", txn=txn))
    with pytest.raises(CorruptStoreError):
        head(LmdbEngine(path))
    assert meta is not None


# --- half made -----------------------------------------------------------------------------


def test_a_store_whose_making_was_cut_short_is_made(path: Path) -> None:
    path.mkdir()
    (path / "writer.lock").touch()
    with pytest.raises(StoreNotFoundError):
        LmdbEngine(path, create=False)
    engine = LmdbEngine(path)
    assert put(engine, b"a") == 2
    engine.close()


def test_a_making_cut_short_after_the_data_file(path: Path) -> None:
    for _ in range(2):
        lmdb.open(str(path)).close()
        (path / "writer.lock").touch()
        engine = LmdbEngine(path)
        assert head(engine) == 1
        engine.close()
        (path / "writer.lock").write_bytes(b"")  # as if killed just before the mark
        engine = LmdbEngine(path)
        assert head(engine) == 1
        engine.close()
        path = path.with_name("other")


def test_a_copy_without_the_lock_files_is_a_store(path: Path, tmp_path: Path) -> None:
    filled(path)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data.mdb").write_bytes((path / "data.mdb").read_bytes())
    engine = LmdbEngine(copy, create=False)
    assert len(keys(engine)) == 50
    put(engine, b"new")
    assert engine.check() == []
    engine.close()
    (copy / "data.mdb").unlink()
    refused(copy, CorruptStoreError)


def test_random_damage_never_goes_unnoticed_as_a_crash(path: Path) -> None:
    """Meta pages with random bytes changed: opens, or tells; it never dies."""
    filled(path, 10)
    whole, seed = (path / "data.mdb").read_bytes(), random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            page = chance.randrange(2) * 4_096
            damaged[page + 16 + chance.randrange(24)] ^= chance.randrange(1, 256)
        (path / "data.mdb").write_bytes(damaged)
        try:
            engine = LmdbEngine(path, create=False)
        except SnapKVError:
            continue
        assert len(keys(engine)) == 10
        engine.close()
