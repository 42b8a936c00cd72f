"""What does `load(key, ts)` cost beside a bare LMDB seek and an indexed SQLite query?"""

import tempfile
from pathlib import Path

from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.stores import BE64, History, fill_lmdb, fill_snapkv, fill_sqlite

KEYS, COMMITS, LOADS = 2_000, 20_000, 10_000


def main() -> None:
    """Load random keys at random times: in the ring, and far below it."""
    with tempfile.TemporaryDirectory() as folder:
        tables = {
            f"{title}: {KEYS:,} keys, {COMMITS:,} commits": _compare(Path(folder) / title, newest)
            for title, newest in (("in the ring", 1_000), ("anywhere", COMMITS - KEYS))
        }
    notes = (
        "The floor knows no revisions, no compaction and one writer only. SQLite's value is that "
        "of its own C code, in the same process. Anchors are warm after the first lookups."
    )
    report("load_as_of", "What does load(key, ts) cost?", tables, notes)


def _compare(folder: Path, newest: int) -> list[Row]:
    folder.mkdir()
    rng = seeded("load_as_of")
    history = History.make(rng, KEYS, COMMITS)
    store = fill_snapkv(folder / "snapkv", history)
    env = fill_lmdb(folder / "lmdb", history)
    db = fill_sqlite(folder / "sqlite.db", history)
    times = [timestamp for timestamp, _, _ in history.writes[-newest:]]
    asked = [(rng.choice(history.keys), rng.choice(times)) for _ in range(LOADS)]
    seeks = [(k.encode() + b"\0", BE64.pack(2**64 - 1 - t)) for k, t in asked]

    def by_store(i: int) -> bytes:
        key, timestamp = asked[i % LOADS]
        return store.load(key, timestamp)

    def by_seek(i: int) -> bytes:
        prefix, suffix = seeks[i % LOADS]
        with env.begin() as txn:
            cursor = txn.cursor()
            cursor.set_range(prefix + suffix)
            return cursor.value()  # type: ignore[no-any-return]

    query = "SELECT value FROM kv WHERE key = ? AND ts <= ? ORDER BY ts DESC LIMIT 1"

    def by_query(i: int) -> bytes:
        return db.execute(query, asked[i % LOADS]).fetchone()[0]  # type: ignore[no-any-return]

    for i in range(LOADS):
        assert by_store(i) == by_seek(i) == by_query(i)
    rivals = [
        Rival("py-lmdb seek (floor)", by_seek),
        Rival("snapkv load", by_store),
        Rival("SQLite as-of query", by_query),
    ]
    rows = measure(rivals, rounds=200, block=50)
    store.close()
    env.close()
    db.close()
    return rows
