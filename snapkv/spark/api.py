"""Functions that return DataFrames; unlike the format they know the session's time zone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from snapkv.spark import errors
from snapkv.spark import native_parquet as native_files
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.functions import FUNCTIONS
from snapkv.spark.read_options import HISTORY, key_text, option_texts, parsed
from snapkv.spark.sessions import Times, end_pinned, ensure_registered, register_format
from snapkv.spark.source_options import (
    STORAGE,
    absolute,
    absolute_archive,
    check_free,
    with_options,
)
from snapkv.times import When

ADDED, CHANGED, REMOVED = "added", "changed", "removed"
COMPARED = ("key", "value")
"""The columns that are read of both moments."""
_SET_BY_CALL = {
    "store": "give url",
    "path": "give url",
    "keyPrefix": "give prefix",
    "schema": "give schema, in this spelling",
    "view": "each call has one view, the format has all",
    "readChangeFeed": "read_changes reads changes",
}
"""The options of the format that every function sets itself, and what its caller gives instead."""
_OF_RANGE = {"startingTimestamp": "give since", "endingTimestamp": "give until"}
_OF_DIFFERENCE = {
    "timestampAsOf": "give t1 and t2",
    "versionAsOf": "give t1 and t2",
    "columns": "a difference has its own",
}
PARAMETER = "a parameter"


def register(spark: SparkSession) -> None:
    """Make the format `snapkv` and SQL's table functions `snapkv_as_of` ... known to a session.

    Spark finds the format by itself where snapkv is installed; the functions need this call, once
    for each session. See the part about SQL of `docs/spark.md`.

        register(spark)
        spark.sql("SELECT * FROM snapkv_as_of('etcd://localhost:2379', '-1d', 'schema/')").show()
    """
    register_format(spark, SnapKVDataSource)
    for name, function in FUNCTIONS.items():
        spark.udtf.register(name, F.udtf(function))


def read_snapshot(
    spark: SparkSession,
    url: str,
    as_of: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    archive: str | None = None,
    storage: Mapping[str, Any] | None = None,
    native: bool | None = None,
    **options: Any,
) -> DataFrame:
    """Return a store as it was at a moment (None: now), a row for each key.

    `as_of` is a time as everywhere in snapkv, or `rev:4`; naive text is in the session's time zone.
    `prefix` is exact to the byte, and `bytes` if keys are binary. `schema` names the columns, which
    `valueFormat` json and msgpack need. `options` are the format's: `name`, `columns`,
    `valueFormat`, ... The moment is pinned by this call: all actions on the DataFrame see the same
    rows.

    `archive` is the URL of the store's archive, `storage` are options of its object store. Where
    Spark's own Parquet reader is faster it reads the archive's files; `native` forces that, or
    forbids it. It never does where values are decoded, or the archive does not have the moment.

        spark_df = read_snapshot(spark, "etcd://localhost:2379", "2026-11-20 14:05", "schema/")

    Raises Spark's `AnalysisException`, whose message has a code such as
    `[SNAPKV_TIMESTAMP_EARLIER_THAN_RETENTION]`, and `SourceError` for an invalid time, for a prefix
    of another type than keys, and for options that are parameters.
    """
    check_free(options, _SET_BY_CALL | {"timestampAsOf": "give as_of"})
    options = with_options(options, Times(options, spark).as_of(as_of), PARAMETER)
    options |= _archived(archive, storage)
    return _frame(spark, url, prefix, schema, options, native_files.snapshot, native)


def read_changes(
    spark: SparkSession,
    url: str,
    since: When,
    until: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    archive: str | None = None,
    storage: Mapping[str, Any] | None = None,
    native: bool | None = None,
    **options: Any,
) -> DataFrame:
    """Return what the commits after `since` up to `until` (None: now) changed, a row for each.

    `since` is exclusive and `until` inclusive, as everywhere in snapkv; naive text is in the
    session's time zone. `archive`, `storage` and `native` are as for `read_snapshot`. With a prefix
    Spark's own reader is used if `columns` leave `_change_ordinal` out. Raises as `read_snapshot`,
    most of it at the first action.
    """
    check_free(options, _SET_BY_CALL | _OF_RANGE | {"startingVersion": "give since"})
    bounds = Times(options, spark).bounds(since, until, after=True)
    options = with_options(options, bounds, PARAMETER) | {"readChangeFeed": True}
    options |= _archived(archive, storage)
    return _frame(spark, url, prefix, schema, options, native_files.changes, native)


def read_history(
    spark: SparkSession,
    url: str,
    since: When | None = None,
    until: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    archive: str | None = None,
    storage: Mapping[str, Any] | None = None,
    **options: Any,
) -> DataFrame:
    """Return every version of every key that was current at some time in [since, until].

    The default of `since` is the oldest moment that compaction left, of `until` now. Raises as
    `read_snapshot`.
    """
    check_free(options, _SET_BY_CALL | _OF_RANGE)
    bounds = Times(options, spark).bounds(since, until, after=False)
    options = with_options(options, bounds, PARAMETER) | {"view": HISTORY}
    options |= _archived(archive, storage)
    return _frame(spark, url, prefix, schema, options)


def diff(
    spark: SparkSession,
    url: str,
    t1: When,
    t2: When | None = None,
    prefix: str | bytes = "",
    *,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Return the keys that differ between two moments (None: now), a row for each.

    Columns: key, change (added, changed, removed), before, after. Values are compared as they are
    decoded: a key that was changed and changed back does not differ, and the order of a map's keys
    does not matter. `schema` names the key and the value. Both moments are read completely and
    joined. Raises as `read_snapshot`, and `SourceError` for `columns` and other schemas.
    """
    check_free(options, _SET_BY_CALL | _OF_DIFFERENCE)
    before, after = (
        _compared(spark, url, when, prefix, schema, options).select(
            "key", F.col("value").alias(name), F.lit(True).alias(f"is_{name}")
        )
        for when, name in ((t1, "before"), (t2, "after"))
    )
    change = (
        F.when(F.col("is_before").isNull(), ADDED)
        .when(F.col("is_after").isNull(), REMOVED)
        .otherwise(CHANGED)
    )
    both = F.col("is_before").eqNullSafe(F.col("is_after"))  # the value of a key may be NULL
    kind = before.schema["before"].dataType
    same = _comparable(F.col("before"), kind).eqNullSafe(_comparable(F.col("after"), kind))
    return (
        before.join(after, "key", "full_outer")
        .where(~(both & same))
        .select("key", change.alias("change"), "before", "after")
    )


def _compared(
    spark: SparkSession,
    url: str,
    when: When | None,
    prefix: str | bytes,
    schema: StructType | str | None,
    options: Mapping[str, Any],
) -> DataFrame:
    """Return the keys and values of a moment."""
    columns: dict[str, Any] = {} if schema is not None else {"columns": ",".join(COMPARED)}
    frame = read_snapshot(spark, url, when, prefix, schema=schema, **options, **columns)
    if sorted(frame.columns) != sorted(COMPARED):
        raise errors.INVALID_SCHEMA(
            f"the schema of a difference has key and value, not {', '.join(frame.columns)}"
        )
    return frame


def _comparable(column: Column, kind: DataType) -> Column:
    """Return a value that Spark can compare: each map becomes its sorted entries."""
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType).add("value", kind.valueType)
        entries = F.transform(F.map_entries(column), lambda each: _comparable(each, entry))
        return F.array_sort(entries)
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _comparable(each, kind.elementType))
    if isinstance(kind, StructType) and len(kind):
        parts = (_comparable(column.getField(f.name), f.dataType).alias(f.name) for f in kind)
        return F.when(column.isNotNull(), F.struct(*parts))
    return column


def _archived(archive: str | None, storage: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of an archive."""
    found = {f"{STORAGE}{name}": value for name, value in (storage or {}).items()}
    return found if archive is None else found | {"archive": absolute_archive(archive)}


def _frame(
    spark: SparkSession,
    url: str,
    prefix: str | bytes,
    schema: StructType | str | None,
    options: dict[str, Any],
    by_spark: Callable[..., DataFrame | None] | None = None,
    native: bool | None = None,
) -> DataFrame:
    """Return a DataFrame of Spark's own reader if `by_spark` makes one, else of the format."""
    ensure_registered(spark, SnapKVDataSource)
    options["store"] = absolute(url)
    if prefix:
        options["keyPrefix"] = key_text(prefix, options, "prefix")
    if schema is not None:  # not by .schema(), with which Spark would pin at the first action
        options["schema"] = schema.json() if isinstance(schema, StructType) else schema
    options = end_pinned(spark, options)
    archived = "archive" in options or options["store"].startswith("archive:")
    if native and not archived:
        raise errors.INVALID_OPTION("native=True reads an archive: give archive, too")
    if by_spark is not None and native is not False and archived:
        frame = by_spark(spark, parsed(option_texts(options)), forced=bool(native))
        if frame is not None:
            return frame
    return spark.read.format(SnapKVDataSource.name()).options(**options).load()
