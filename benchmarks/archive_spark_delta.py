"""The feeds and a moment of `archive_spark`, in a Python whose PySpark Delta Lake runs with.

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
from snapkv.spark import read_changes, read_snapshot
from snapkv.spark.local import local_session

DELTA = "4.0.0"
COMMITS, CHANGED = 10, 100_000
FEW_KEYS, FEW_COMMITS, FEW_CHANGED = 100_000, 50, 20_000
"""The history of which moments are asked: a million changes."""
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
        past = _moments(spark, folder)
        tables = {
            "a feed of 1,000,000 changes, all columns": _table(feeds, noop),
            "a feed of 1,000,000 changes, counted by type": _table(feeds, _counted),
            f"a past moment of {FEW_KEYS:,} keys, {FEW_COMMITS * FEW_CHANGED:,} changes": past,
        }
    versions = f"PySpark {version('pyspark')}, Delta {DELTA}"
    found = {"versions": versions, "tables": {t: [asdict(r) for r in tables[t]] for t in tables}}
    Path(folder, "tables.json").write_text(json.dumps(found))


def _moments(spark: Any, folder: str) -> list[Row]:
    """Read past moments of equal histories: after each tenth commit."""
    ours, times = _snapkv_past(spark, f"{folder}/few")
    delta = _delta_past(spark, f"{folder}/few-delta")
    asked = range(FEW_COMMITS // 10, FEW_COMMITS, FEW_COMMITS // 10)
    for commit in asked:
        counts = ours(times[commit]).count(), delta(commit).count()
        assert counts == (FEW_KEYS, FEW_KEYS), counts
    rivals = [
        Rival("Delta timestampAsOf (floor)", lambda i: noop(delta(asked[i % len(asked)]))),
        Rival("read_snapshot", lambda i: noop(ours(times[asked[i % len(asked)]]))),
    ]
    return measure(rivals, rounds=2 * len(asked), warmup=2, cpu=False)


def _table(feeds: dict[str, Feed], read: Callable[[Any], None]) -> list[Row]:
    rivals = [
        Rival(name, lambda i, feed=feed: read(feed()))  # type: ignore[misc]
        for name, feed in sorted(feeds.items(), key=lambda item: "floor" not in item[0])
    ]
    return measure(rivals, rounds=ROUNDS, warmup=2, cpu=False)


def _counted(frame: Any) -> None:
    noop(frame.groupBy("_change_type").count())


def _snapkv_past(spark: Any, folder: str) -> tuple[Callable[[int], Any], list[int]]:
    url, archive = f"lmdb:{folder}/meta", f"{folder}/archive"
    rng, keys, times = seeded("archive_spark_delta/past"), list(names())[:FEW_KEYS], []
    with snapkv.open(url, durability="none") as store:
        for at in range(0, FEW_KEYS, 10_000):
            store.commit(puts={key: rng.randbytes(64) for key in keys[at : at + 10_000]})
        for n in range(FEW_COMMITS):
            times.append(store.resolved())
            store.commit(puts={key: rng.randbytes(64) for key in rng.sample(keys, FEW_CHANGED)})
            if n % (FEW_COMMITS // 10) == 0:
                snapkv.record(url, into=archive, options=FAST).catch_up()
        snapkv.record(url, into=archive, options=FAST).catch_up()
    return lambda ts: read_snapshot(spark, f"archive:{archive}", ts), times


def _delta_past(spark: Any, path: str) -> Callable[[int], Any]:
    """Return a reader of the moment just after a commit."""
    rows(spark, 0, FEW_KEYS).drop("id").write.format("delta").save(path)
    for n in range(1, FEW_COMMITS):
        part = FEW_KEYS // FEW_CHANGED
        merge(spark, path, rows(spark, n, FEW_KEYS).where(f"id % {part} = {n % part}"))
    history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").collect()
    at = {row.version: row.timestamp.isoformat(" ", "milliseconds") for row in history}
    as_of = spark.read.format("delta")
    return lambda n: as_of.option("timestampAsOf", at[n]).load(path)


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
    path = f"{folder}/delta"
    options = {"delta.enableChangeDataFeed": "true"}
    rows(spark, 0, KEYS).drop("id").write.format("delta").options(**options).save(path)
    for n in range(1, COMMITS + 1):
        merge(spark, path, rows(spark, n, KEYS).where(f"id % {COMMITS} = {n - 1}"))
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1)
    return lambda: feed.load(path).where("_change_type <> 'update_preimage'")


def rows(spark: Any, seed: int, keys: int) -> Any:
    """Return keys, with values of 64 bytes that depend on the seed, and their numbers."""
    from pyspark.sql import functions as F

    key = F.format_string("table/%06d/col/%08d", (F.col("id") / 1_000).cast("long"), F.col("id"))
    value = F.unhex(F.concat(*(F.sha2(F.concat("id", F.lit(f"/{seed}/{n}")), 256) for n in "ab")))
    return spark.range(keys).select(key.alias("key"), value.alias("value"), "id")


def merge(spark: Any, path: str, changed: Any) -> None:
    changed.drop("id").createOrReplaceTempView("changed")
    spark.sql(
        f"MERGE INTO delta.`{path}` t USING changed c ON t.key = c.key "
        "WHEN MATCHED THEN UPDATE SET t.value = c.value"
    )


if __name__ == "__main__":
    main(sys.argv[1])
