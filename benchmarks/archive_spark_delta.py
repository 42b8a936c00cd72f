"""The feeds of `archive_spark`, in a Python whose PySpark Delta Lake runs with.

Spark fetches Delta's jars itself. `python -m benchmarks.archive_spark_delta FOLDER` writes
`FOLDER/tables.json`.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import snapkv
from benchmarks.harness import Rival, Row, measure, seeded
from benchmarks.spark_snapshot import KEYS, names, noop
from snapkv.spark import read_changes
from snapkv.spark.local import local_session

DELTA = "4.0.0"
COMMITS, CHANGED = 10, 100_000
FAST = {"durability": "none"}
ROUNDS = 5
SETTINGS = {
    "spark.master": "local[2]",
    "spark.jars.packages": f"io.delta:delta-spark_2.13:{DELTA}",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.driver.memory": "3g",
}
Feed = Callable[[], Any]


def main(folder: str) -> None:
    """Make both histories, and read what the commits after the first load changed."""
    with local_session(SETTINGS) as spark:
        feeds = _snapkv(spark, folder) | {"Delta readChangeFeed (floor)": _delta(spark, folder)}
        counts = {name: feed().count() for name, feed in feeds.items()}
        assert set(counts.values()) == {COMMITS * CHANGED}, counts
        tables = {
            "a feed of 1,000,000 changes, all columns": _table(feeds, noop),
            "a feed of 1,000,000 changes, counted by type": _table(feeds, _counted),
        }
    versions = f"PySpark {version('pyspark')}, Delta {DELTA}"
    found = {"versions": versions, "tables": {t: [asdict(r) for r in tables[t]] for t in tables}}
    Path(folder, "tables.json").write_text(json.dumps(found))


def _table(feeds: dict[str, Feed], read: Callable[[Any], None]) -> list[Row]:
    rivals = [
        Rival(name, lambda i, feed=feed: read(feed()))  # type: ignore[misc]
        for name, feed in sorted(feeds.items(), key=lambda item: "floor" not in item[0])
    ]
    return measure(rivals, rounds=ROUNDS, warmup=2, cpu=False)


def _counted(frame: Any) -> None:
    noop(frame.groupBy("_change_type").count())


def _snapkv(spark: Any, folder: str) -> dict[str, Feed]:
    url, archive = f"lmdb:{folder}/meta", f"{folder}/archive"
    rng, keys = seeded("archive_spark_delta"), list(names())
    with snapkv.open(url, durability="none") as store:
        for at in range(0, KEYS, 10_000):
            store.commit(puts={key: rng.randbytes(64) for key in keys[at : at + 10_000]})
        since = store.resolved()
        snapkv.record(url, into=archive, options=FAST).catch_up()
        for _ in range(COMMITS):
            store.commit(puts={key: rng.randbytes(64) for key in rng.sample(keys, CHANGED)})
        snapkv.record(url, into=archive, options=FAST).catch_up()
    alone = f"archive:{archive}"
    few = "key,value,_change_type,_commit_version,_commit_timestamp"
    return {
        "read_changes": lambda: read_changes(spark, alone, since),
        "read_changes without ordinals": lambda: read_changes(spark, alone, since, columns=few),
    }


def _delta(spark: Any, folder: str) -> Feed:
    from pyspark.sql import functions as F

    path = f"{folder}/delta"
    key = F.format_string("table/%06d/col/%08d", (F.col("id") / 1_000).cast("long"), F.col("id"))

    def rows(seed: int) -> Any:
        value = F.unhex(
            F.concat(*(F.sha2(F.concat("id", F.lit(f"/{seed}/{n}")), 256) for n in "ab"))
        )
        return spark.range(KEYS).select(key.alias("key"), value.alias("value"), "id")

    options = {"delta.enableChangeDataFeed": "true"}
    rows(0).drop("id").write.format("delta").options(**options).save(path)
    for n in range(1, COMMITS + 1):
        changed = rows(n).where(F.col("id") % COMMITS == n - 1).drop("id")
        changed.createOrReplaceTempView("changed")
        spark.sql(
            f"MERGE INTO delta.`{path}` t USING changed c ON t.key = c.key "
            "WHEN MATCHED THEN UPDATE SET t.value = c.value"
        )
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    return lambda: feed.load(path).where("_change_type <> 'update_preimage'")


if __name__ == "__main__":
    main(sys.argv[1])
