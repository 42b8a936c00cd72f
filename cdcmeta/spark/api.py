"""DataFrames by a call, where the session's time zone can be asked: the format cannot."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cdcmeta.changes.feed import MAIN_ONLY
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import Since
from cdcmeta.spark.options import is_time
from cdcmeta.spark.source import ChangesDataSource
from snapkv import When
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError
from snapkv.spark.location import absolute
from snapkv.spark.sessions import Times, ensure_told, tell
from snapkv.spark.timing import exact


def register(spark: SparkSession) -> None:
    """Make the format `cdcmeta.changes` known to a session, where Spark has not found it itself."""
    tell(spark, ChangesDataSource)


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
    """Return a database's feed as it was at a moment (None: now), a row for each document.

    `since` is exclusive and `until` inclusive: a sequence, 0, "now", or a time. Naive text is in
    the session's time zone. The rest is as in `ChangesDB.changes`; `options` are those of the
    format: `name`, `numPartitions`, `user`, ... The moment is pinned by this call.

        changes_as_of(spark, "etcd://localhost:2379", "catalogue", "2026-11-20 14:05")

    Raises Spark's `AnalysisException`, whose message has a code such as
    `[CDCMETA_DATABASE_NOT_FOUND]`, and `SourceError` for a time that is none and for options that
    parameters stand for.
    """
    times = Times(spark, options)
    ensure_told(spark, ChangesDataSource)
    given = {
        "store": absolute(url),
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
    said = {name.lower() for name in given} | {"path"}
    for name in options:
        if name.lower() in said:
            raise SourceError(codes.INVALID_OPTION, f"no option {name} here: give the parameter")
    asked = {name: value for name, value in given.items() if value is not None} | options
    return spark.read.format(ChangesDataSource.name()).options(**asked).load()


def _place(since: Since, times: Times) -> str:
    """Return a place in the feed as the text of an option."""
    if isinstance(since, Sequence):
        return str(since)
    if since == 0 or (isinstance(since, str) and not is_time(since)):
        return str(since)
    return exact(times.end(since))
