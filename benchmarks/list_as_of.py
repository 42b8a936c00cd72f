"""What does listing a past state cost beside a bare LMDB scan and a SQLite query?"""

import tempfile
from pathlib import Path

from benchmarks.harness import Rival, measure, report, seeded
from benchmarks.stores import BE64, History, fill_lmdb, fill_snapkv, fill_sqlite

KEYS, COMMITS = 50_000, 100_000


def main() -> None:
    """List all keys and values as of a time half-way through the history."""
    rng = seeded("list_as_of")
    history = History.make(rng, KEYS, COMMITS)
    group = 50
    timestamp = history.writes[(KEYS + COMMITS) // 2 // group * group - 1][0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        store = fill_snapkv(path / "snapkv", history, group)
        env = fill_lmdb(path / "lmdb", history)
        db = fill_sqlite(path / "sqlite.db", history)

        def by_store(_: int) -> int:
            return len(store.load_with_prefix("", timestamp)[0])

        def by_scan(_: int) -> int:
            found, last = {}, b""
            limit = BE64.pack(2**64 - 1 - timestamp)
            with env.begin() as txn:
                for key, value in txn.cursor():
                    name, newer = key[:-9], key[-8:] < limit
                    if name != last and not newer:
                        found[name] = value
                        last = name
            return len(found)

        query = "SELECT key, value, max(ts) FROM kv WHERE ts <= ? GROUP BY key ORDER BY key"

        def by_query(_: int) -> int:
            return len(db.execute(query, (timestamp,)).fetchall())

        assert by_store(0) == by_scan(0) == by_query(0) == KEYS
        rows = measure(
            [
                Rival("py-lmdb scan (floor)", by_scan),
                Rival("snapkv load_with_prefix", by_store),
                Rival("SQLite as-of group", by_query),
            ],
            rounds=15,
        )
        store.close()
    title = f"{KEYS:,} keys of {COMMITS:,} versions (per listing)"
    report("list_as_of", "What does listing a past state cost?", {title: rows})
