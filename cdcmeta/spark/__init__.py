"""Spark: the feed of a database as a DataFrame, at any moment, or as a stream.

The format `cdcmeta.changes` has a row for each document: where its last change stands, its winner
and, where asked for, all leaves, and the document as JSON.

    df = (spark.read.format("cdcmeta.changes").option("database", "catalogue")
        .option("timestampAsOf", "-1d").load("etcd://host:2379"))

`changes_as_of` does the same by a call, and takes naive text in the session's time zone. It goes
by the rules of `snapkv.spark`: what a DataFrame shows is pinned when it is made, a stream loses
and repeats nothing, errors have a code in brackets. See `docs/couch_spark.md`.

`with_stream` adds to any DataFrame the CDC stream of each row (`cdcmeta.generations`).

Reading the source: `options` says what can be asked, `tasks` is what a worker reads, `reader` and
`stream` pin it.
"""

from snapkv.extras import extra

with extra("spark", "Spark"):
    from cdcmeta.spark.api import changes_as_of as changes_as_of
    from cdcmeta.spark.api import register as register
    from cdcmeta.spark.source import ChangesDataSource as ChangesDataSource
    from cdcmeta.spark.streams import with_stream as with_stream
    from snapkv.spark.errors import SourceError as SourceError
