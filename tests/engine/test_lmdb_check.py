"""`check` tells every kind of broken rule that is planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from lmdb_words import delete, put, run_txn

from snapkv.engine.contract import Put
from snapkv.engine.lmdb import LmdbEngine
from snapkv.engine.lmdb.records import HEADER, StoredState, be64, encode_changes, stem_of, suffix_of


def at(key: bytes, revision: int) -> bytes:
    return stem_of(key) + suffix_of(revision)


Plant = Callable[[Any, Any, Any, Any], object]

# what is planted (given a transaction and the three databases), and a word of what check says
PLANTS: dict[str, tuple[Plant, str]] = {
    "a record without a log entry": (
        lambda t, m, r, g: t.put(at(b"z", 4), HEADER.pack(4, 1, 0), db=r),
        "the log has",
    ),
    "a log entry without its record": (
        lambda t, m, r, g: t.delete(at(b"b", 4), db=r),
        "no record exists",
    ),
    "a missing log entry": (lambda t, m, r, g: t.delete(be64(5), db=g), "log: revision"),
    "a log that ends early": (lambda t, m, r, g: t.delete(be64(7), db=g), "log: ends"),
    "a record from the future": (
        lambda t, m, r, g: t.put(at(b"z", 99), HEADER.pack(99, 1, 0), db=r),
        "the newest revision is",
    ),
    "a version that does not follow": (
        lambda t, m, r, g: t.put(at(b"a", 5), HEADER.pack(2, 9, 0), db=r),
        "it should be",
    ),
    "a creation that changes": (
        lambda t, m, r, g: t.put(at(b"a", 5), HEADER.pack(4, 3, 0), db=r),
        "it should be",
    ),
    "a removal with a version": (
        lambda t, m, r, g: t.put(at(b"a", 6), HEADER.pack(2, 4, 1), db=r),
        "a removal with version",
    ),
    "a removal that the log calls a put": (
        lambda t, m, r, g: t.put(be64(6), encode_changes({b"a": False}), db=g),
        "disagree",
    ),
    "two removals": (
        lambda t, m, r, g: t.put(at(b"a", 5), HEADER.pack(0, 0, 1), db=r),
        "removed twice",
    ),
    "keys out of order in the log": (
        lambda t, m, r, g: t.put(
            be64(7), encode_changes({b"d": False}) + encode_changes({b"c": False}), db=g
        ),
        "not ascending",
    ),
    "a superseded record": (
        lambda t, m, r, g: t.put(b"state", StoredState(7, 7, 7).encode(), db=m),
        "was superseded",
    ),
    "freeing ahead of compaction": (
        lambda t, m, r, g: t.put(b"state", StoredState(7, 3, 4).encode(), db=m),
        "state:",
    ),
    "a state of the past": (
        lambda t, m, r, g: t.put(b"state", StoredState(6, 0, 0).encode(), db=m),
        "the newest revision is",
    ),
    "a short record": (lambda t, m, r, g: t.put(at(b"b", 4), b"x", db=r), "too short"),
    "no record at all": (lambda t, m, r, g: t.put(b"garbage...", b"x", db=r), "has an invalid key"),
    "a log entry that is cut": (lambda t, m, r, g: t.put(be64(7), b"\0\0", db=g), "cut short"),
}


@pytest.mark.parametrize("name", list(PLANTS))
def test_what_is_planted_is_found(path: Path, name: str) -> None:
    engine = LmdbEngine(path, map_bytes=1 << 20)
    put(engine, b"a")  # 2
    put(engine, b"a")  # 3
    put(engine, b"b")  # 4
    put(engine, b"a")  # 5
    delete(engine, b"a")  # 6
    run_txn(engine, Put(b"c", b"1"), Put(b"d", b"1"))  # 7
    assert engine.check() == []
    engine.close()
    plant, word = PLANTS[name]
    with lmdb.open(str(path), max_dbs=4, map_size=1 << 20) as env:
        databases = [env.open_db(each) for each in (b"meta", b"records", b"log")]
        with env.begin(write=True) as txn:
            plant(txn, *databases)
    engine = LmdbEngine(path)
    problems = engine.check()
    engine.close()
    assert any(word in problem for problem in problems), problems
