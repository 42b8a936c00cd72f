"""Spark: any moment of a store as a DataFrame, and its changes as a stream.

The format `snapkv` has four *views* of a store: the snapshot of a moment, the changes between two
(in batch, and as a stream), the histories of its keys, and the commit log. Names follow Delta
Lake: a *version* is an engine's revision.

    df = spark.read.format("snapkv").option("timestampAsOf", "-1d").load("etcd://host:2379")

What a DataFrame shows is pinned when it is made. Errors have a code in brackets. Spark finds the
format by itself where snapkv is installed beside it; otherwise `register(spark)`. `read_snapshot`,
`read_changes`, `read_history` and `diff` do the same by a call, and take naive text in the
session's time zone. See `docs/spark.md`.

Reading the source: `options` says what can be asked, `pinned` names the commits that are meant,
`tasks` is what a worker reads, `shape` what Spark gets, `reader` and `stream` join them. What other
formats share stands by itself: `given`, `micro_batches`, `sessions`.
"""

from snapkv.extras import extra

with extra("spark", "Spark"):
    from snapkv.spark.api import diff as diff
    from snapkv.spark.api import read_changes as read_changes
    from snapkv.spark.api import read_history as read_history
    from snapkv.spark.api import read_snapshot as read_snapshot
    from snapkv.spark.api import register as register
    from snapkv.spark.errors import SourceError as SourceError
    from snapkv.spark.source import SnapKVDataSource as SnapKVDataSource
