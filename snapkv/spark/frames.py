"""DataFrames by a call, where the session's time zone can be asked: the format cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from snapkv.spark import codes
from snapkv.spark.codes import SourceError
from snapkv.spark.keys import kinds
from snapkv.spark.options import BINARY
from snapkv.spark.place import absolute
from snapkv.spark.sessions import Times, ensure_told, tell
from snapkv.spark.source import SnapKVDataSource
from snapkv.spark.timing import exact
from snapkv.times import When

ADDED, CHANGED, REMOVED = "added", "changed", "removed"
COMPARED = ("key", "value")
"""The columns of the two moments that differences are of."""


def register(spark: SparkSession) -> None:
    """Make the format `snapkv` known to a session, where Spark has not found it by itself."""
    tell(spark, SnapKVDataSource)


def read_snapshot(
    spark: SparkSession,
    url: str,
    as_of: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Return a store as it was at a moment (None: now), a row for each key.

    `as_of` is a time as everywhere in snapkv; naive text is in the session's time zone. `prefix`
    is exact to the byte, and bytes where keys are. `schema` names the columns, which `valueFormat`
    json and msgpack need. `options` are those of the format: `name`, `columns`, `valueFormat`, ...
    The moment is pinned by this call: all actions on the DataFrame see the same rows.

        spark_df = read_snapshot(spark, "etcd://localhost:2379", "2026-11-20 14:05", "schema/")

    Raises Spark's `AnalysisException`, whose message has a code such as
    `[SNAPKV_TIMESTAMP_EARLIER_THAN_RETENTION]`, and `SourceError` for a time that is none and a
    prefix that is not as keys are.
    """
    if as_of is not None:
        options["timestampAsOf"] = exact(Times(spark, options).end(as_of))
    return _frame(spark, url, prefix, schema, options)


def read_changes(
    spark: SparkSession,
    url: str,
    since: When,
    until: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Return what the commits after `since` up to `until` (None: now) changed, a row for each.

    `since` is exclusive and `until` inclusive, as everywhere in snapkv; naive text is in the
    session's time zone. Raises as `read_snapshot`, most of it at the first action.
    """
    times = Times(spark, options)
    options["readChangeFeed"] = True
    options |= times.bounds(times.after(since), until)
    return _frame(spark, url, prefix, schema, options)


def read_history(
    spark: SparkSession,
    url: str,
    since: When | None = None,
    until: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Return every version of every key that stood at some time in [since, until].

    Without `since` from what compaction left; without `until` to now. Raises as `read_snapshot`.
    """
    times = Times(spark, options)
    options["view"] = "history"
    options |= times.bounds(None if since is None else times.end(since), until)
    return _frame(spark, url, prefix, schema, options)


def diff(
    spark: SparkSession,
    url: str,
    t1: When,
    t2: When | None = None,
    prefix: str | bytes = "",
    **options: Any,
) -> DataFrame:
    """Return the keys that differ between two moments (None: now), a row for each.

    Columns: key, change (added, changed, removed), before, after. Values are compared as they are
    decoded, so a key that was changed and changed back does not differ. `schema` names the key and
    the value. Both moments are read as a whole, and joined. Raises as `read_snapshot`, and
    `SourceError` for `columns` and other schemas.
    """
    before, after = (
        _compared(spark, url, when, prefix, options).select(
            "key", F.col("value").alias(name), F.lit(True).alias(f"is_{name}")
        )
        for when, name in ((t1, "before"), (t2, "after"))
    )
    change = (
        F.when(F.col("is_before").isNull(), ADDED)
        .when(F.col("is_after").isNull(), REMOVED)
        .otherwise(CHANGED)
    )
    stood = F.col("is_before").eqNullSafe(F.col("is_after"))  # a value may be NULL where it stands
    return (
        before.join(after, "key", "full_outer")
        .where(~(stood & F.col("before").eqNullSafe(F.col("after"))))
        .select("key", change.alias("change"), "before", "after")
    )


def _compared(
    spark: SparkSession,
    url: str,
    when: When | None,
    prefix: str | bytes,
    options: Mapping[str, Any],
) -> DataFrame:
    """Return the keys and values of a moment."""
    names = {name.lower() for name in options}
    if "columns" in names:
        raise SourceError(codes.INVALID_OPTION, "columns: those of a difference are given")
    columns = {} if "schema" in names else {"columns": ",".join(COMPARED)}
    frame = read_snapshot(spark, url, when, prefix, **options, **columns)
    if sorted(frame.columns) != sorted(COMPARED):
        raise SourceError(
            codes.INVALID_SCHEMA,
            f"the schema of a difference is of key and value, not {', '.join(frame.columns)}",
        )
    return frame


def _frame(
    spark: SparkSession,
    url: str,
    prefix: str | bytes,
    schema: StructType | str | None,
    options: dict[str, Any],
) -> DataFrame:
    ensure_told(spark, SnapKVDataSource)
    options["store"] = absolute(url)
    if prefix:
        options["keyPrefix"] = _text_of(prefix, options)
    if schema is not None:  # as an option, for with .schema() Spark would pin at the first action
        options["schema"] = schema.json() if isinstance(schema, StructType) else schema
    return spark.read.format(SnapKVDataSource.name()).options(**options).load()


def _text_of(prefix: str | bytes, options: Mapping[str, Any]) -> str:
    """Return a prefix as the text of an option. Raises `SourceError` if keys are not like it."""
    given = {name.lower(): value for name, value in options.items()}
    format_ = str(given.get("keyformat", kinds("space" in given)[0])).lower()
    wanted = bytes if format_ == BINARY else str
    if not isinstance(prefix, wanted):
        raise SourceError(
            codes.INVALID_OPTION,
            f"keys are {wanted.__name__} here, and so is their prefix, not {prefix!r}",
        )
    return prefix.hex() if isinstance(prefix, bytes) else prefix
