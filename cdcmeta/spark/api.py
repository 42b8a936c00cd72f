"""Functions that return DataFrames; unlike the format, they know the session's time zone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdcmeta.changes.database_state import Since
from cdcmeta.changes.feed import MAIN_ONLY
from cdcmeta.changes.sequence import Sequence
from cdcmeta.spark.feed_options import is_time
from cdcmeta.spark.feed_source import ChangesDataSource
from snapkv import When
from snapkv.spark import source_kit as kit


def register(spark: SparkSession) -> None:
    """Register the format `cdcmeta.changes` in a session, if Spark did not find it itself."""
    kit.register_format(spark, ChangesDataSource)


def changes_as_of(
    spark: SparkSession,
    url: str,
    database: str,
    as_of: When | None = None,
    *,
    since: Since = 0,
    until: Since | None = None,
    style: str = MAIN_ONLY,
    include_docs: bool = True,
    doc_ids: Iterable[str] | None = None,
    prefix: str = "",
    **options: Any,
) -> DataFrame:
    """Return a database's feed at a moment (None: now), with a row for each document.

    `since` is exclusive and `until` inclusive: a sequence, 0, "now", or a time. Naive text is in
    the session's time zone. The rest is as in `ChangesDB.changes`; `options` are options of the
    format: `name`, `numPartitions`, `user`, ... This call pins the moment.

        changes_as_of(spark, "etcd://localhost:2379", "catalogue", "2026-11-20 14:05")

    Raises Spark's `AnalysisException`, whose message has a code such as
    `[CDCMETA_DATABASE_NOT_FOUND]`, and `SourceError` for an invalid time, or for an option that is
    a parameter here.
    """
    times = kit.Times(options, spark)
    kit.ensure_registered(spark, ChangesDataSource)
    parameters = {
        "store": kit.absolute(url),
        "database": database,
        "timestampAsOf": None,
        **times.as_of(as_of),
        "since": _place(since, times),
        "until": None if until is None else _place(until, times),
        "style": style,
        "includeDocs": include_docs,
        "docIds": None if doc_ids is None else json.dumps(list(doc_ids)),
        "prefix": prefix,
    }
    kit.check_free(options, dict.fromkeys((*parameters, "path"), "use the parameter"))
    all_options = {k: v for k, v in parameters.items() if v is not None} | options
    return spark.read.format(ChangesDataSource.name()).options(**all_options).load()


def _place(since: Since, times: kit.Times) -> str:
    """Return a place in the feed as the text of an option."""
    if isinstance(since, Sequence):
        return str(since)
    if since == 0 or (isinstance(since, str) and not is_time(since)):
        return str(since)
    return kit.exact(times.end(since))
