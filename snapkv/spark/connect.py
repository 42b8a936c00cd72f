"""Spark Connect, which plans a DataFrame anew for each action: what pins it there.

On classic Spark the format pins what a DataFrame shows when it is made. A client of Spark Connect
sends its plan with every action, and the server makes a new source from it. So the plan must name
its end: the calls of `snapkv.spark` ask the server for the newest commit once and name that, and
the format rejects a plan that could show something else at the next action.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.spark.options import CHANGES, COMMITS, FORMAT, KNOWN, LATEST, SNAPSHOT, Options
from snapkv.spark.pinned import Present
from snapkv.spark.timing import timestamp_of

ARTIFACTS = "SPARK_JOB_ARTIFACT_UUID"
"""Spark sets it for each Python process: "default", or the session of Connect that it works for."""
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
    by_time, by_version = _names_of_end(_is_snapshot(options))
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
        raise SourceError(errors.NOT_PINNED, "the store has no commits up to then: make one first")
    return options | {by_version: str(newest.version)}


def _is_snapshot(options: Mapping[str, Any]) -> bool:
    return "readChangeFeed" not in options and options.get("view", SNAPSHOT) == SNAPSHOT


def _is_of_commits(name: str) -> bool:
    known = {each.lower(): each for each in KNOWN}.get(name.lower())
    return known is None or (known not in _OWN and COMMITS in KNOWN[known])


def _names_of_end(snapshot: bool) -> tuple[str, str]:
    return ("timestampAsOf", "versionAsOf") if snapshot else ("endingTimestamp", "endingVersion")


def check_pinned(options: Options, present: Present) -> None:
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
            raise SourceError(
                errors.NOT_PINNED,
                f"{name} {text} is later than the newest commit, so more may come; {ADVICE}"
                f"{by_version}",
            )
    version = options.count(by_version)
    is_observed = options.text("observe") is not None and options.view != SNAPSHOT
    if version is not None and is_observed and version > present.head.revision:
        raise SourceError(
            errors.NOT_PINNED,
            f"{by_version} {version} is later than the newest tick, so the next one may add rows; "
            f"{ADVICE}a version up to {present.head.revision}",
        )
    if options.text(by_time) is None and version is None:
        what = "changes need an end" if options.view == CHANGES else "the newest state moves on"
        raise SourceError(errors.NOT_PINNED, f"{what}; {ADVICE}{by_version} or {by_time}")


def _is_of_connect() -> bool:
    return os.environ.get(ARTIFACTS, CLASSIC) != CLASSIC


def _fixed(options: Options, name: str, text: str, now_ms: int, advice: str) -> int:
    """Return the timestamp of a time that names the same one a second later, or raise."""
    found, later = (
        timestamp_of(text, options.zone, each_ms) for each_ms in (now_ms, now_ms + 1_000)
    )
    if found != later:
        raise SourceError(errors.NOT_PINNED, f"{name} {text} moves on; {advice}a fixed time")
    return found


def check_fleet_pinned(options: Options, observed: int, now_ms: int) -> None:
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
            raise SourceError(
                errors.NOT_PINNED, f"the newest moment moves on; {ADVICE_OF_FLEETS}{by_time}"
            )
    if options.text("behind", "error") != "error":
        raise SourceError(
            errors.NOT_PINNED,
            f"a member that is behind may show more; {ADVICE_OF_FLEETS}no option behind",
        )
    if observed > 1 and options.view == SNAPSHOT:
        raise SourceError(
            errors.NOT_PINNED,
            "the newest round of ticks may be found only later; on Spark Connect choose one "
            "observed member with the option members",
        )
