"""A stream into a store, to be killed: `sink_driver.py URL CHECKPOINT BATCHES ROWS`."""

import sys

from snapkv.spark.local import local_session

VALUE = "concat(string(value), repeat('x', 1000))"


def main(url: str, checkpoint: str, batches: int, rows: int) -> None:
    """Write so many batches, which are the same each time."""
    with local_session() as spark:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        source = source.option("numPartitions", 2).option("startTimestamp", 0)
        named = source.load().selectExpr("string(value) AS key", f"{VALUE} AS value")
        writer = named.writeStream.format("snapkv").option("valueFormat", "utf8")
        query = writer.option("checkpointLocation", checkpoint).start(url)
        while query.lastProgress is None or query.lastProgress["batchId"] < batches - 1:
            if query.awaitTermination(0.1):
                raise SystemExit("the query ended")
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
