"""Properties of a Spark session: its registered formats, and its time zone."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from snapkv.clock import SystemClock
from snapkv.errors import InvalidTimeError
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.spark.timing import exact, naive_of, timestamp_of, zone_of
from snapkv.times import TIMESTAMP_MAX, When, revision_of

_registered: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()
"""The formats registered by session: Spark warns when a format is registered again."""


def register_format(spark: SparkSession, source: type[DataSource]) -> None:
    """Make a format known to a session, if Spark has not found it by itself."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as e:  # PySpark 4.0 rejects a format that it found itself
        if e.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
    _registered.setdefault(spark, set()).add(source.name())


def ensure_registered(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a format once for each session."""
    if source.name() not in _registered.get(spark, ()):
        register_format(spark, source)


def use_this_python() -> None:
    """Let the workers of a session to come run this Python, if nothing else is said.

    Otherwise they run the `python3` of the path, which may be one without snapkv: a program that
    is run by the Python of an environment that is not activated gets DATA_SOURCE_NOT_FOUND.
    """
    if "PYSPARK_PYTHON" in os.environ or SparkContext._active_spark_context is not None:
        return
    found = shutil.which("python3")
    if found is None or Path(found).parent != Path(sys.executable).parent:
        os.environ["PYSPARK_PYTHON"] = sys.executable


use_this_python()  # at the import, because a session may be made right after it


class Times:
    """Resolves the times of one call, at the time of the call.

    Naive text is in the zone of the option `timeZone`, else in the session's. Python may not know
    that zone, so only a time without an offset looks it up.
    """

    def __init__(self, options: Mapping[str, Any], spark: SparkSession | None = None) -> None:
        lowered = {name.lower(): value for name, value in options.items()}
        zone = lowered.get("timezone")
        if not zone and spark is not None:
            zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
        self._zone = str(zone) if zone else None
        self._now_ms = SystemClock().now_ms()

    def end(self, when: When) -> int:
        """Return the timestamp of a time: the end of its millisecond. Raises `SourceError`."""
        zone = zone_of(self._zone) if self._zone and naive_of(when) is not None else None
        return timestamp_of(when, zone, self._now_ms)

    def after(self, when: When) -> int:
        """Return the first timestamp after a time. Raises `SourceError`."""
        end = self.end(when)
        if end == TIMESTAMP_MAX:
            raise SourceError(errors.TIMESTAMP_INVALID, f"no time is after {when!s}")
        return end + 1

    def as_of(self, when: When | None) -> dict[str, str]:
        """Return the option that names a moment, as a time or a version. Raises `SourceError`."""
        return self._option(when, "timestampAsOf", "versionAsOf")

    def bounds(self, since: When | None, until: When | None, *, after: bool) -> dict[str, str]:
        """Return the options of a range; None leaves a side open.

        It begins with the moment `since`, or `after` it. Raises `SourceError`.
        """
        start = self._option(since, "startingTimestamp", "startingVersion", after=after)
        return start | self._option(until, "endingTimestamp", "endingVersion")

    def _option(
        self, when: When | None, by_time: str, by_version: str, *, after: bool = False
    ) -> dict[str, str]:
        if when is None:
            return {}
        try:
            revision = revision_of(when)
        except InvalidTimeError as e:
            raise SourceError(errors.TIMESTAMP_INVALID, str(e)) from e
        if revision is not None:
            return {by_version: str(revision + after)}
        return {by_time: exact(self.after(when) if after else self.end(when))}
