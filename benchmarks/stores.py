"""The same history in snapkv, in bare LMDB and in SQLite, for the benchmarks that compare them."""

from __future__ import annotations

import random
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

import lmdb

import snapkv

BE64 = struct.Struct(">Q")


@dataclass
class History:
    """`commits` commits of one key each over `keys` keys, a millisecond apart."""

    keys: list[str]
    writes: list[tuple[int, str, bytes]]  # (timestamp, key, value)

    @classmethod
    def make(cls, rng: random.Random, keys: int, commits: int) -> History:
        """Write every key once, then random keys."""
        names = [f"catalog/table-{i:06d}" for i in range(keys)]
        start = 1_700_000_000_000
        writes = []
        for i in range(commits):
            name = names[i] if i < keys else rng.choice(names)
            writes.append((snapkv.pack(start + i), name, rng.randbytes(100)))
        return cls(names, writes)


def fill_snapkv(path: Path, history: History, group: int = 1) -> snapkv.SnapshotKV:
    """Commit the history, `group` writes a commit; the time is that of the first of them."""
    clock = snapkv.ManualClock()
    store = snapkv.open(f"lmdb:{path}", clock=clock, durability="none")
    for at in range(0, len(history.writes), group):
        chunk = history.writes[at : at + group]
        clock.set(chunk[0][0] >> 18)
        store.commit(puts={key: value for _, key, value in chunk})
    return store


def fill_lmdb(path: Path, history: History) -> lmdb.Environment:
    """Write `key 00 ~timestamp -> value`: what a careful person would write by hand."""
    env = lmdb.open(str(path), map_size=4 << 30, sync=False)
    with env.begin(write=True) as txn:
        for timestamp, key, value in history.writes:
            txn.put(key.encode() + b"\0" + BE64.pack(2**64 - 1 - timestamp), value)
    return env


def fill_sqlite(path: Path, history: History) -> sqlite3.Connection:
    """Write a table (key, timestamp, value) with the index that its as-of query wants."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(
        "CREATE TABLE kv (key TEXT, ts INTEGER, value BLOB, PRIMARY KEY (key, ts DESC)) "
        "WITHOUT ROWID"
    )
    db.execute("BEGIN")
    db.executemany("INSERT INTO kv VALUES (?, ?, ?)", [(k, t, v) for t, k, v in history.writes])
    db.execute("COMMIT")
    return db
