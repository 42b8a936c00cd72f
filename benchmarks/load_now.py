"""What does `load(key)` of now, and of the newest commit's time, cost beside a bare LMDB seek?"""

import tempfile
from pathlib import Path

from benchmarks.harness import Rival, measure, report, seeded
from benchmarks.stores import BE64, History, fill_lmdb, fill_snapkv, fill_sqlite

KEYS, COMMITS, LOADS = 2_000, 20_000, 10_000


def main() -> None:
    """Load random keys as they are now: without a time, and at that of the newest commit."""
    rng = seeded("load_now")
    history = History.make(rng, KEYS, COMMITS)
    keys = [rng.choice(history.keys) for _ in range(LOADS)]
    prefixes = [key.encode() + b"\0" for key in keys]
    newest = history.writes[-1][0]
    suffix = BE64.pack(2**64 - 1 - newest)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = fill_snapkv(path / "snapkv", history)
        env = fill_lmdb(path / "lmdb", history)
        db = fill_sqlite(path / "sqlite.db", history)

        def by_seek(i: int) -> bytes:
            with env.begin() as txn:
                cursor = txn.cursor()
                cursor.set_range(prefixes[i % LOADS] + suffix)
                return cursor.value()  # type: ignore[no-any-return]

        query = "SELECT value FROM kv WHERE key = ? AND ts <= ? ORDER BY ts DESC LIMIT 1"

        def by_query(i: int) -> bytes:
            return db.execute(query, (keys[i % LOADS], newest)).fetchone()[0]  # type: ignore[no-any-return]

        for i in range(LOADS):
            assert by_seek(i) == by_query(i) == store.load(keys[i]) == store.load(keys[i], newest)
        rivals = [
            Rival("py-lmdb seek (floor)", by_seek),
            Rival("snapkv load(key)", lambda i: store.load(keys[i % LOADS])),
            Rival(
                "snapkv load(key, ts of the newest)", lambda i: store.load(keys[i % LOADS], newest)
            ),
            Rival("SQLite as-of query", by_query),
        ]
        rows = measure(rivals, rounds=200, block=50)
        store.close()
        env.close()
        db.close()
    notes = (
        "The floor seeks the newest version of a key, in a read transaction of its own; it knows "
        "no revisions, no compaction and one writer only."
    )
    title = f"{KEYS:,} keys, {COMMITS:,} commits"
    report("load_now", "What does a load of the newest state cost?", {title: rows}, notes)
