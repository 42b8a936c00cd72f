"""A program with streaming queries, to be killed: `stream_driver.py FOLDER NUMBER QUERY...`.

A query is three words: the URL of its store, its folder, and its name in `STREAMS`. It takes long
to get ready, and then begins once there is a file `begin-NUMBER`. Each batch becomes a file of
rows, `batches/<batch>-<process>.json` in the query's folder, also when it comes again. While there
is a file `hold`, each query stops in the middle of its first batch with rows of commits, after they
were written, and says so by a file `held` in its folder. Once there is a file `finish` they bring
what there is, and end.
"""

import faulthandler
import json
import os
import sys
import threading
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from snapkv.spark.local import local_session
from snapkv.spark.micro_batches import LIMITS_KNOWN

ROWS_MAX = 200
CHANGES = ("key", "lower(hex(value))", "_change_type", "_commit_version", "_change_ordinal")
STREAMS = {
    "snapkv": ({"readChangeFeed": "true"}, CHANGES),
    "snapkv from an archive": (
        {"readChangeFeed": "true", "archive": "{folder}/archive", "startingVersion": "{start}"},
        CHANGES,
    ),
    "cdcmeta.changes": ({"database": "cat"}, ("seq", "id", "rev", "revs", "deleted", "doc")),
}
"""Formats, with their options and columns; the last one is not NULL in what commits bring.

`{start}` is the text of a file `start`.
"""
BATCHES_KEPT = 100_000
"""In the checkpoint, whose first batch the test reads. Spark keeps 100; quick queries pass that."""
POLL_S = 0.1
SLOW_S = 600
NEVER = threading.Event()


def main(folder: Path, number: str, queries: list[tuple[str, Path, str]]) -> None:
    """Run the queries until they are told to finish; they start one after the other."""
    with local_session() as spark:
        spark.conf.set("spark.sql.streaming.minBatchesToRetain", BATCHES_KEPT)
        while not (folder / f"begin-{number}").exists():
            NEVER.wait(POLL_S)
        faulthandler.dump_traceback_later(SLOW_S, exit=False)  # into the log of a test that fails
        running: list[StreamingQuery] = []
        for query in queries:
            running.append(started(spark, folder, *query))
            while running[-1].lastProgress is None and not held(folder, query[1]):
                running[-1] = polled(spark, folder, running[-1], query)
        while not (folder / "finish").exists():
            for at, query in enumerate(queries):
                running[at] = polled(spark, folder, running[at], query)
        for each in running:
            each.processAllAvailable()
            each.stop()


def held(common: Path, folder: Path) -> bool:
    """Whether a query stops in the middle of a batch."""
    return (common / "hold").exists() and (folder / "held").exists()


def polled(
    spark: SparkSession, common: Path, running: StreamingQuery, query: tuple[str, Path, str]
) -> StreamingQuery:
    """Wait a moment for a query; start it again if Spark gave a Python process up as too slow.

    Spark waits ten seconds for the connection of one, which a busy machine may need. Raises what
    else a query ended with.
    """
    try:
        running.awaitTermination(POLL_S)
    except StreamingQueryException as e:
        if "failed to connect back" not in str(e):
            raise
        return started(spark, common, *query)
    return running


def started(
    spark: SparkSession, common: Path, url: str, folder: Path, stream: str
) -> StreamingQuery:
    """Start a query."""
    options, columns = STREAMS[stream]

    def append(frame: DataFrame, batch: int) -> None:
        rows = [list(row) for row in frame.collect()]
        path = folder / "batches" / f"{batch:05}-{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(rows))
        path.with_suffix(".new").rename(path)
        if (common / "hold").exists() and any(row[-1] is not None for row in rows):
            (folder / "held").touch()
            NEVER.wait()

    limit = {"maxRowsPerTrigger": ROWS_MAX} if LIMITS_KNOWN else {}
    start = folder / "start"
    texts = {"folder": folder, "start": start.read_text() if start.exists() else ""}
    options = {name: text.format(**texts) for name, text in options.items()}
    source = spark.readStream.format(stream.partition(" ")[0])
    changes = source.options(**options, **limit).load(url)
    sink = changes.selectExpr(*columns).writeStream.option(
        "checkpointLocation", str(folder / "checkpoint")
    )
    return sink.foreachBatch(append).start()


if __name__ == "__main__":
    words = sys.argv[3:]
    main(
        Path(sys.argv[1]),
        sys.argv[2],
        [
            (url, Path(folder), name)
            for url, folder, name in zip(*(words[n::3] for n in range(3)), strict=True)
        ],
    )
