"""What does Spark pay for the past of a million keys, and for a million changes, in an archive?"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

import snapkv
from benchmarks.harness import Rival, Row, measure, report, seeded
from benchmarks.spark_snapshot import KEYS, names, noop
from snapkv.spark import read_snapshot
from snapkv.spark.local import local_session

FAST = {"durability": "none"}
ROUNDS = 7
CHANGED = 100_000
"""Keys changed after the base, for the second table."""
DELTA_PYTHON = Path(".venv-spark4.0/bin/python")
"""Made by `make .venv-spark4.0/.installed`: Delta Lake needs an older PySpark."""


def main() -> None:
    """Read moments of 1,000,000 keys with values of 64 bytes; then compare feeds with Delta's."""
    with tempfile.TemporaryDirectory() as folder:
        tables = _moments(folder)
    notes = (
        f"local[2]. One operation makes the DataFrame and reads all {KEYS:,} rows into Spark's "
        "noop sink. The floor reads two Parquet files of the same rows and columns, zstd. 'By "
        "workers' is native=False: Python workers merge the archive's files. "
    )
    if DELTA_PYTHON.exists():
        feeds, versions = _feeds()
        tables |= feeds
        notes += (
            f"The feeds: {versions}; 10 commits that update 100,000 of 1,000,000 keys each, in "
            "Delta by MERGE with the change data feed on; its rows before updates are left out. "
            "The past moment: 50 commits that update 20,000 of 100,000 keys each, by MERGE without "
            "the feed; recorded each fifth commit; one operation reads all rows and columns of the "
            "moment after each fifth commit."
        )
    else:
        notes += "No feeds: make .venv-spark4.0/.installed was not run."
    report("archive_spark", "What does Spark pay for an archive's past?", tables, notes)


def _moments(folder: str) -> dict[str, list[Row]]:
    url, archive = f"lmdb:{folder}/meta", f"{folder}/archive"
    rng = seeded("archive_spark")
    keys = list(names())
    with snapkv.open(url, durability="none") as store:
        for at in range(0, KEYS, 10_000):
            store.commit(puts={key: rng.randbytes(64) for key in keys[at : at + 10_000]})
        base = store.resolved()
        snapkv.record(url, into=archive, options=FAST).catch_up()
        for _ in range(10):
            some = rng.sample(keys, CHANGED // 10)
            store.commit(puts={key: rng.randbytes(64) for key in some})
        later = store.resolved()
        snapkv.record(url, into=archive, options=FAST).catch_up()
    moments = {"at a base": base, f"{CHANGED:,} changes after it": later}
    with local_session({"spark.master": "local[2]"}) as spark:
        return {
            f"a moment of {KEYS:,} keys, {title}": _moment(spark, f"archive:{archive}", then)
            for title, then in moments.items()
        }


def _moment(spark, url: str, then: int) -> list[Row]:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as parquet:
        with snapkv.open(url) as store:
            table = store.at(then).to_arrow()
        half = len(table) // 2
        for n, part in enumerate((table.slice(0, half), table.slice(half))):
            pq.write_table(part, f"{parquet}/part-{n}.parquet", compression="zstd")
        rivals = [
            Rival("spark.read.parquet (floor)", lambda i: noop(spark.read.parquet(parquet))),
            Rival("read_snapshot", lambda i: noop(read_snapshot(spark, url, then))),
            Rival(
                "read_snapshot by workers",
                lambda i: noop(read_snapshot(spark, url, then, native=False)),
            ),
        ]
        assert read_snapshot(spark, url, then).count() == len(table) == KEYS
        return measure(rivals, rounds=ROUNDS, warmup=3, cpu=False)


def _feeds() -> tuple[dict[str, list[Row]], str]:
    """Run `archive_spark_delta` where Delta Lake runs, and return its tables and versions."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(DELTA_PYTHON), "-m", "benchmarks.archive_spark_delta", folder]
        subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": "."})
        found = json.loads(Path(folder, "tables.json").read_text())
    tables = {title: [Row(**row) for row in rows] for title, rows in found["tables"].items()}
    return tables, found["versions"]


if __name__ == "__main__":
    main()
