"""A client of Spark Connect: `connect_client.py FOLDER SEED URL ...`.

It prints what DataFrames show, as JSON, and `equal` if the stores of the URLs show what git has.

It has a process of its own, because a session of classic Spark and one of Connect cannot share it.
"""

import json
import sys
from typing import Any

from connect_git import compare_moments

import snapkv
from snapkv.spark import diff, read_changes, read_history, read_snapshot
from snapkv.spark.sessions import is_connect

PLANS = 40
"""More than the server's cache of plans keeps."""


def main(folder: str, seed: int, urls: list[str]) -> None:
    """Ask both in one session: most of the time goes into the start of Java."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    assert is_connect(spark)
    ask_again(spark, folder)
    compare_moments(spark, folder, seed, urls)
    print("equal")
    spark.stop()


def ask_again(spark: Any, folder: str) -> None:
    """Make DataFrames, ask them, commit, let the server forget their plans, and ask again."""
    url = f"lmdb:{folder}/meta"
    with snapkv.open(url) as store:
        first = store.commit(puts={"a": b"1"})
        second = store.commit(puts={"b": b"1"})
    frames = {
        "snapshot": read_snapshot(spark, url),
        "prefix": read_snapshot(spark, url, prefix="b"),
        "changes": read_changes(spark, url, 0),
        "a schema": read_snapshot(spark, url, schema="key STRING, value BINARY"),
        "history": read_history(spark, url),
        "diff": diff(spark, url, first.ts),
        "a version": load(spark, url, versionAsOf=first.revision),
        "a time": load(spark, url, timestampAsOf=second.ts),
    }
    before = {name: frame.count() for name, frame in frames.items()}
    with snapkv.open(url) as store:
        store.commit(puts={"a": b"2", "c": b"3", "bb": b""})
    for n in range(PLANS):
        assert spark.range(n).selectExpr(f"id + {n} as x").columns == ["x"]
    after = {name: frame.count() for name, frame in frames.items()}
    print(json.dumps({"before": before, "after": after, "now": read_snapshot(spark, url).count()}))
    print(json.dumps(rejected(spark, url)))
    print(json.dumps(streamed(spark, url, folder)))


def load(spark: Any, url: str, **options: object) -> Any:
    return spark.read.format("snapkv").options(**options).load(url)


def rejected(spark: Any, url: str) -> list[str]:
    """The errors of DataFrames that could show something else at the next action."""
    found = []
    for options in (
        {},
        {"timestampAsOf": "2999-01-01T00:00:00Z"},
        {"readChangeFeed": "true", "startingVersion": "1"},
        {"view": "commits"},
    ):
        try:
            found.append(str(load(spark, url, **options).count()))
        except Exception as e:
            found.append(str(e))
    return found


def streamed(spark: Any, url: str, folder: str) -> list[str]:
    """The keys of a stream's rows: its checkpoint says where it is, so it needs no end."""
    source = spark.readStream.format("snapkv").option("readChangeFeed", "true").load(url)
    sink = source.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
    query = sink.trigger(availableNow=True).start(f"{folder}/rows")
    assert query.awaitTermination(600)
    return sorted(row.key for row in spark.read.parquet(f"{folder}/rows").collect())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
