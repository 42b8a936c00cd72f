"""A job of a cluster: `cluster_job.py URL FILE` reads and copies a store, and says who did it."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

TASKS = 4


def main(url: str, out: str) -> None:
    """Count keys, copy them below `copy/`, and write what was found."""
    with SparkSession.builder.getOrCreate() as spark:
        options = {"valueFormat": "utf8", "numPartitions": TASKS}
        frame = spark.read.format("snapkv").options(**options).load(url)
        read = frame.count()
        copied = frame.selectExpr("concat('copy/', key) AS key", "value")
        written = copied.write.format("snapkv").option("valueFormat", "utf8")
        written.mode("append").save(url)
        workers = spark.sparkContext.parallelize(range(TASKS), TASKS).mapPartitions(whereabouts)
        found = {"read": read, "workers": sorted(set(workers.collect()))}
    Path(out).write_text(json.dumps(found))


def whereabouts(_: Iterator[int]) -> Iterator[tuple[str, str]]:
    """The Python of a worker, and the folder of its executor."""
    import snapkv  # which the environment brings

    assert snapkv.open
    yield sys.executable, os.getcwd()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
