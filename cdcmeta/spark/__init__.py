"""Spark: the feed of a database as a DataFrame, at any moment, or as a stream.

The format `cdcmeta.changes` has a row for each document: the sequence of its last change, its
winner, optionally all leaves, and the document as JSON.

    df = (spark.read.format("cdcmeta.changes").option("database", "catalogue")
        .option("timestampAsOf", "-1d").load("etcd://host:2379"))

The function `changes_as_of` does the same, and takes naive times in the session's time zone. The
rules of `snapkv.spark` apply: a DataFrame shows the state at which it was made, a stream neither
loses nor repeats changes, and errors have a code in brackets. See `docs/couch_spark.md`.

`with_stream` adds to any DataFrame the CDC stream of each row (`cdcmeta.generations`).

To read the code: `feed_options` checks the options, `feed_source` and `feed_stream` pin what is
read, `feed_tasks` reads it in the workers.
"""

from snapkv.base.extras import requires_extra

with requires_extra("spark", "Spark"):
    from cdcmeta.spark.api import changes_as_of, register
    from cdcmeta.spark.feed_source import ChangesDataSource
    from cdcmeta.spark.stream_column import with_stream
    from snapkv.spark.source_kit import SourceError

__all__ = ["ChangesDataSource", "SourceError", "changes_as_of", "register", "with_stream"]
