"""Spark sessions: their registered formats, their time zone, and Spark Connect.

A client of Spark Connect sends its plan with every action, so the plan must name its end: the calls
of `snapkv.spark` ask for the newest commit once and name that, and the format rejects a plan that
could show something else at the next action.
"""

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

from snapkv.base.clocks import SystemClock
from snapkv.errors import InvalidTimeError
from snapkv.spark import errors
from snapkv.spark.pinned_commits import Present
from snapkv.spark.read_options import CHANGES, COMMITS, FORMAT, KNOWN, LATEST, SNAPSHOT, ReadOptions
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
            raise errors.TIMESTAMP_INVALID(f"no time is after {when!s}")
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
            raise errors.TIMESTAMP_INVALID(str(e)) from e
        if revision is not None:
            return {by_version: str(revision + after)}
        return {by_time: exact(self.after(when) if after else self.end(when))}


ARTIFACTS = "SPARK_JOB_ARTIFACT_UUID"
"""The variable that Spark sets for each Python process: "default", or the session of Connect that
it works for."""
CLASSIC = "default"
_OWN = (
    "columns",
    "schema",
    "view",
    "readChangeFeed",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
)
ADVICE = (
    "Spark Connect plans a DataFrame anew for each action: call read_snapshot, read_changes, "
    "read_history or diff of snapkv.spark, which pin what they show, or give "
)

ADVICE_OF_FLEETS = "Spark Connect plans a DataFrame anew for each action: of a fleet give "


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is a client of Spark Connect."""
    return ".connect." in type(spark).__module__


def end_pinned(spark: SparkSession, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with a version as their end; unchanged on classic Spark.

    On Connect an action, which asks the server for the newest commit up to their end. Raises
    `SourceError` if the store has no commits.
    """
    if not is_connect(spark):
        return options
    view = CHANGES if "readChangeFeed" in options else options.get("view", SNAPSHOT)
    by_time, by_version = _names_of_end(view == SNAPSHOT)
    names = {name.lower(): name for name in options}
    if by_version.lower() in names:
        return options
    text = options.pop(names.get(by_time.lower(), by_time), None)
    asked = {name: value for name, value in options.items() if _is_of_commits(name)}
    asked |= {"view": COMMITS, "columns": "version", "startingVersion": LATEST}
    if text is not None:
        asked["endingTimestamp"] = text
    newest = spark.read.format(FORMAT).options(**asked).load().first()
    if newest is None:
        raise errors.NOT_PINNED("the store has no commits up to then: make one first")
    return options | {by_version: str(newest.version)}


def _is_of_commits(name: str) -> bool:
    known = {each.lower(): each for each in KNOWN}.get(name.lower())
    return known is None or (known not in _OWN and COMMITS in KNOWN[known])


def _names_of_end(snapshot: bool) -> tuple[str, str]:
    return ("timestampAsOf", "versionAsOf") if snapshot else ("endingTimestamp", "endingVersion")


def check_pinned(options: ReadOptions, present: Present) -> None:
    """Raise `SourceError` in a process of Connect if a batch may be another one at the next action.

    A time may name an end that no commit can come before: up to the newest commit.
    """
    if not _is_of_connect():
        return
    if options.view == COMMITS and options.text("startingVersion") == LATEST:
        return
    by_time, by_version = _names_of_end(options.view == SNAPSHOT)
    for name in (by_time, "startingTimestamp"):
        text = options.text(name)
        if text is None:
            continue
        found = _fixed(options, name, text, present.now_ms, ADVICE)
        if name == by_time and found > present.head.timestamp:
            raise errors.NOT_PINNED(
                f"{name} {text} is later than the newest commit, so more may come; {ADVICE}"
                f"{by_version}"
            )
    version = options.count(by_version)
    is_observed = options.text("observe") is not None and options.view != SNAPSHOT
    if version is not None and is_observed and version > present.head.revision:
        raise errors.NOT_PINNED(
            f"{by_version} {version} is later than the newest tick, so the next one may add rows; "
            f"{ADVICE}a version up to {present.head.revision}"
        )
    if options.text(by_time) is None and version is None:
        what = "changes need an end" if options.view == CHANGES else "the newest state moves on"
        raise errors.NOT_PINNED(f"{what}; {ADVICE}{by_version} or {by_time}")


def _is_of_connect() -> bool:
    return os.environ.get(ARTIFACTS, CLASSIC) != CLASSIC


def _fixed(options: ReadOptions, name: str, text: str, now_ms: int, advice: str) -> int:
    """Return the timestamp of a time that names the same one a second later, or raise."""
    found, later = (
        timestamp_of(text, options.zone, each_ms) for each_ms in (now_ms, now_ms + 1_000)
    )
    if found != later:
        raise errors.NOT_PINNED(f"{name} {text} moves on; {advice}a fixed time")
    return found


def check_fleet_pinned(options: ReadOptions, observed: int, now_ms: int) -> None:
    """Raise `SourceError` in a process of Connect if a fleet may be another one at the next action.

    A time that is final on all members names the same state of each, always. But the newest round
    of ticks up to a time may be known only later, which matters to the `observed` members if they
    are several.
    """
    if not _is_of_connect():
        return
    by_time, _ = _names_of_end(options.view == SNAPSHOT)
    for name in (by_time, "startingTimestamp"):
        text = options.text(name)
        if text is not None:
            _fixed(options, name, text, now_ms, ADVICE_OF_FLEETS)
        elif name == by_time:
            raise errors.NOT_PINNED(f"the newest moment moves on; {ADVICE_OF_FLEETS}{by_time}")
    if options.text("behind", "error") != "error":
        raise errors.NOT_PINNED(
            f"a member that is behind may show more; {ADVICE_OF_FLEETS}no option behind"
        )
    if observed > 1 and options.view == SNAPSHOT:
        raise errors.NOT_PINNED(
            "the newest round of ticks may be found only later; on Spark Connect choose one "
            "observed member with the option members"
        )
