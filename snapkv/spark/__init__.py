"""Spark: any moment of a store as a DataFrame, and its changes as a stream.

The format `snapkv` has four *views* of a store: the snapshot of a moment, the changes between two
(in batch, and as a stream), the histories of its keys, and the commit log. Names follow Delta
Lake: a *version* is an engine's revision. It also writes DataFrames and streams into a store.

    df = spark.read.format("snapkv").option("timestampAsOf", "-1d").load("etcd://host:2379")

What a DataFrame shows is pinned when it is made. Errors have a code in brackets. Spark finds the
format by itself if snapkv is installed in its Python; otherwise call `register(spark)`. The
functions `read_snapshot`, `read_changes`, `read_history` and `diff` do the same, and take naive
text in the session's time zone. See `docs/spark.md`.

Reading the source: `read_options` defines what can be asked, `pinned_commits` the commits that are
meant, `read_tasks` what a worker reads, `process_readers` the stores that it keeps open, `schema`
what Spark gets; `data_source` and `changes_stream` join them. `native_parquet` lets Spark read an
archive's files instead, `functions` has SQL functions. Writing: `key_sink` makes writes of rows,
`batch_commits` commits them once. `fleet_members` and `fleet_stream` read many stores at one time,
each by the planner and the tasks of one. Other formats (that of `cdcmeta.spark`) use the kit
`source_kit`.
"""

from snapkv.base.extras import requires_extra

with requires_extra("spark", "Spark"):
    from snapkv.spark.api import diff, read_changes, read_history, read_snapshot, register
    from snapkv.spark.data_source import SnapKVDataSource
    from snapkv.spark.errors import SourceError

__all__ = [
    "SnapKVDataSource",
    "SourceError",
    "diff",
    "read_changes",
    "read_history",
    "read_snapshot",
    "register",
]
