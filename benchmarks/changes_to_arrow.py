"""How fast do changes become a table, beside a bare scan of as many records?"""

import tempfile
from pathlib import Path

import lmdb
import pyarrow as pa

import snapkv
from benchmarks.harness import Rival, measure, report, seeded
from benchmarks.spark_snapshot import names

KEYS, VERSIONS, COMMIT = 100_000, 10, 1_000
ROWS = KEYS * VERSIONS
MAP_BYTES = 2 << 30
ROUNDS = 5


def main() -> None:
    """Write 100,000 keys ten times, and ask for all changes, and for a tenth of them."""
    rng, keys = seeded("changes_to_arrow"), list(names())[:KEYS]
    with (
        tempfile.TemporaryDirectory() as folder,
        snapkv.open(f"lmdb:{folder}/meta", durability="none") as store,
    ):
        Path(folder, "flat").mkdir()
        with lmdb.open(f"{folder}/flat", map_size=MAP_BYTES, sync=False) as flat:
            for n in range(VERSIONS):
                tenth = store.resolved()
                for at in range(0, KEYS, COMMIT):
                    puts = {key: rng.randbytes(64) for key in keys[at : at + COMMIT]}
                    store.commit(puts=puts)
                    with flat.begin(write=True) as txn:
                        for key, value in puts.items():
                            txn.put(f"{n:02} {key}".encode(), value)
            assert store.changes_to_arrow().num_rows == ROWS
            assert store.changes_to_arrow(since=tenth).num_rows == KEYS

            def watched(_: int) -> None:
                with store.watch(since=tenth, timeout=0) as watch:
                    assert sum(1 for changes in watch for _ in changes) == KEYS

            tables = {
                f"all of {ROWS:,} changes": measure(
                    [
                        Rival("py-lmdb scan into a table (floor)", lambda _: _scan(flat)),
                        Rival("changes_to_arrow", lambda _: store.changes_to_arrow()),
                        Rival(
                            "with the values before",
                            lambda _: store.changes_to_arrow(preimages=True),
                        ),
                    ],
                    rounds=ROUNDS,
                ),
                f"the last {KEYS:,} of them": measure(
                    [
                        Rival("changes_to_arrow", lambda _: store.changes_to_arrow(since=tenth)),
                        Rival(
                            "with the values before",
                            lambda _: store.changes_to_arrow(since=tenth, preimages=True),
                        ),
                        Rival("watch, an object a change", watched),
                    ],
                    rounds=ROUNDS,
                ),
            }
    rates = "; ".join(
        f"{title}, {row.rival}: {(ROWS if title.startswith('all') else KEYS) / row.median_us:.2f} M"
        for title, rows in tables.items()
        for row in rows
    )
    notes = f"Values of 64 bytes, commits of {COMMIT:,} keys. Changes a second: {rates}."
    report("changes_to_arrow", "How fast do changes become a table?", tables, notes)


def _scan(flat: lmdb.Environment) -> None:
    with flat.begin() as txn:
        found = list(txn.cursor())
    keys, values = zip(*found, strict=True)
    assert pa.table({"key": pa.array(keys), "value": pa.array(values)}).num_rows == ROWS


if __name__ == "__main__":
    main()
