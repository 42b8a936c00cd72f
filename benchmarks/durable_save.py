"""What does a durable `save` cost beside a bare LMDB commit?"""

import sqlite3
import tempfile
from pathlib import Path

import lmdb

import snapkv
from benchmarks.harness import Rival, Row, measure, measure_threads, report, seeded
from benchmarks.stores import BE64

THREADS, SAVES_EACH = 8, 25


def main() -> None:
    """Save 100 bytes durably: from one thread, and from eight at once."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {
            "one thread": _one_thread(Path(folder) / "one"),
            f"{THREADS} threads, {SAVES_EACH} saves each (per save)": _threads(
                Path(folder) / "many"
            ),
        }
    notes = (
        "The floor of one thread writes records of the same sizes as a save does, of the key, the "
        "timestamp key and the log, to one database in one synchronous LMDB transaction; snapkv's "
        "are in three databases, with its counters. The floor of the threads writes one record. "
        "Threads share transactions. SQLite: WAL, synchronous=FULL, one row."
    )
    report("durable_save", "What does a durable save cost?", tables, notes)


def _contestants(folder: Path) -> tuple[snapkv.SnapshotKV, lmdb.Environment, sqlite3.Connection]:
    folder.mkdir()
    store = snapkv.open(f"lmdb:{folder / 'snapkv'}")
    env = lmdb.open(str(folder / "lmdb"), map_size=1 << 30)
    db = sqlite3.connect(folder / "sqlite.db", isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE kv (key TEXT, ts INTEGER, value BLOB, PRIMARY KEY (key, ts DESC))")
    return store, env, db


def _one_thread(folder: Path) -> list[Row]:
    store, env, db = _contestants(folder)
    values = [seeded("durable_save").randbytes(100) for _ in range(100)]

    def by_store(i: int) -> None:
        store.save(f"catalog/{i % 1_000}", values[i % 100])

    def three_records(i: int) -> None:
        older = BE64.pack(2**64 - 1 - i)
        with env.begin(write=True) as txn:
            key = b"default/data/catalog/%d" % (i % 1_000)
            txn.put(key + b"\0\1" + older, bytes(17) + values[i % 100])
            txn.put(b"default/sys/ts\0\1" + older, bytes(56))
            txn.put(b"log" + BE64.pack(i), bytes(20) + key)

    def one_record(i: int) -> None:
        with env.begin(write=True) as txn:
            txn.put(f"catalog/{i % 1_000}".encode() + BE64.pack(i), values[i % 100])

    def by_sqlite(i: int) -> None:
        db.execute("INSERT INTO kv VALUES (?, ?, ?)", (f"catalog/{i % 1_000}", i, values[i % 100]))

    rivals = [
        Rival("py-lmdb commit, the same three records (floor)", three_records),
        Rival("py-lmdb commit, one record", one_record),
        Rival("snapkv save", by_store),
        Rival("SQLite insert", by_sqlite),
    ]
    return measure(rivals, rounds=1_000, block=1)


def _threads(folder: Path) -> list[Row]:
    store, env, _ = _contestants(folder)
    value = bytes(100)

    def by_store(i: int) -> None:
        store.save(f"catalog/{i}", value)

    def by_lmdb(i: int) -> None:
        with env.begin(write=True) as txn:
            txn.put(f"catalog/{i}".encode(), value)

    return measure_threads(
        [("py-lmdb commits (floor)", by_lmdb), ("snapkv saves", by_store)],
        threads=THREADS,
        each=SAVES_EACH,
        rounds=40,
    )
