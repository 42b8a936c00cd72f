"""A program with a streaming query, to be killed: `stream_driver.py URL FOLDER STREAM NUMBER`.

It takes long to get ready, and then begins once there is a file `begin-NUMBER`. Each batch becomes
a file of rows, `batches/<batch>-<process>.json`, also when it comes again. While there is a file
`hold`, it stops in the middle of the first batch with rows of commits, after they were written, and
says so by a file `held`. Once there is a file `finish` it brings what there is, and ends.
"""

import json
import os
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from snapkv.spark.limits import LIMITS_KNOWN
from snapkv.spark.local import local_session

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
POLL_S = 0.1


def main(url: str, folder: Path, stream: str, number: str) -> None:
    """Run the query until it is told to finish."""
    never = threading.Event()
    options, columns = STREAMS[stream]

    def append(frame: DataFrame, batch: int) -> None:
        rows = [list(row) for row in frame.collect()]
        path = folder / "batches" / f"{batch:05}-{os.getpid()}.json"
        path.with_suffix(".new").write_text(json.dumps(rows))
        path.with_suffix(".new").rename(path)
        if (folder / "hold").exists() and any(row[-1] is not None for row in rows):
            (folder / "held").touch()
            never.wait()

    with local_session() as spark:
        while not (folder / f"begin-{number}").exists():
            never.wait(POLL_S)
        limit = {"maxRowsPerTrigger": ROWS_MAX} if LIMITS_KNOWN else {}
        start = folder / "start"
        texts = {"folder": folder, "start": start.read_text() if start.exists() else ""}
        options = {name: text.format(**texts) for name, text in options.items()}
        source = spark.readStream.format(stream.partition(" ")[0])
        changes = source.options(**options, **limit).load(url)
        sink = changes.selectExpr(*columns).writeStream.option(
            "checkpointLocation", str(folder / "checkpoint")
        )
        query = sink.foreachBatch(append).start()
        while not (folder / "finish").exists():
            query.awaitTermination(POLL_S)  # raises when the query failed
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
