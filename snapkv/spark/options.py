"""Options of the format `snapkv`, checked as a whole before anything is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

from snapkv.spark import codes
from snapkv.spark.codes import SourceError
from snapkv.spark.place import Place, absolute
from snapkv.spark.timing import zone_of

SNAPSHOT, CHANGES, HISTORY, COMMITS = "snapshot", "changes", "history", "commits"
ALL = (SNAPSHOT, CHANGES, HISTORY, COMMITS)
KEYED = (SNAPSHOT, CHANGES, HISTORY)
RANGED = (CHANGES, HISTORY, COMMITS)

PARTITIONS_MAX = 16
"""One etcd serves all tasks: more of them than this bring nothing."""

# The views that each option is for. Spark hands options over in lower case.
KNOWN: dict[str, tuple[str, ...]] = {
    "store": ALL,
    "path": ALL,
    "name": ALL,
    "space": KEYED,
    "observe": ALL,
    "keyPrefix": KEYED,
    "startKey": KEYED,
    "endKey": KEYED,
    "keyFormat": KEYED,
    "columns": ALL,
    "schema": ALL,
    "valueFormat": KEYED,
    "mode": KEYED,
    "numPartitions": KEYED,
    "timeZone": ALL,
    "view": ALL,
    "readChangeFeed": ALL,
    "timestampAsOf": (SNAPSHOT,),
    "versionAsOf": (SNAPSHOT,),
    "startingTimestamp": RANGED,
    "startingVersion": RANGED,
    "endingTimestamp": RANGED,
    "endingVersion": RANGED,
    "preimages": (CHANGES,),
    "maxRowsPerTrigger": (CHANGES,),
    "maxBytesPerTrigger": (CHANGES,),
    "failOnDataLoss": (CHANGES,),
    "ignoreDeletes": (CHANGES,),
}
# Options of etcd's engine, with or without underscores.
ENGINE = ("user", "password", "tls", "ca_cert", "cert", "key")
_NAMES = {name.lower(): name for name in KNOWN} | {
    spelling: name for name in ENGINE for spelling in (name, name.replace("_", ""))
}
# What Spark hands over beside the options of CREATE TABLE, which then come twice.
_TABLE, _AGAIN = "provider", "option."
_SCHEMES = ("lmdb", "etcd", "memory")

DROPPED = (
    "name the store: .load('lmdb:./meta'), .load('etcd://host:2379') or the option store. Spark "
    "drops the OPTIONS of CREATE TABLE when it reads the table: "
    "use CREATE TEMPORARY VIEW v USING snapkv OPTIONS (...), which keeps them"
)


@dataclass(frozen=True, slots=True)
class Options:
    """What to read, from where, and how its values look."""

    place: Place
    view: str
    given: Mapping[str, str] = field(repr=False)  # it may hold a password
    zone: tzinfo | None

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option as it was given."""
        return self.given.get(name, default)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return an option that is true or false."""
        return _flag(name, self.given.get(name), default)

    def count(self, name: str) -> int | None:
        """Return an option that is a whole number above 0, None when it was not given."""
        text = self.given.get(name)
        if text is None:
            return None
        digits = text.isascii() and text.isdigit() and len(text) < 20
        if not digits or not 0 < int(text) < 1 << 63:
            raise SourceError(
                codes.INVALID_OPTION, f"{name} is a whole number above 0, not {text!r}"
            )
        return int(text)

    def choice(self, name: str, *choices: str) -> str:
        """Return an option that is one of some words, the first of which is its default."""
        text = self.given.get(name, choices[0])
        for choice in choices:
            if choice.lower() == text.lower():
                return choice
        raise SourceError(codes.INVALID_OPTION, f"{name} is one of {choices}, not {text!r}")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns asked for, None when the view's usual ones are wanted."""
        text = self.given.get("columns")
        return None if text is None else tuple(name.strip() for name in text.split(","))

    @property
    def partitions(self) -> int:
        """How many tasks read at once at most."""
        usual = min(2 * (os.cpu_count() or 1), PARTITIONS_MAX)
        return self.count("numPartitions") or usual


def parsed(raw: Mapping[str, str]) -> Options:
    """Return the options that Spark hands over; its own additions are passed over.

    Raises `SourceError` for unknown options (which lists the known), for those that the view
    does not have, and without a store.
    """
    given: dict[str, str] = {}
    for key, value in raw.items():
        name = _NAMES.get(key.lower())
        if name is not None:
            given[name] = value
        elif not _is_of_table(key.lower(), raw):
            raise _unknown(key)
    if given.get("startingVersion") == "0":  # where Delta's versions begin
        given["startingVersion"] = "1"
    view = _view(given)
    for name in given:
        if view not in KNOWN.get(name, ALL):
            views = " or ".join(KNOWN[name])
            raise SourceError(codes.INVALID_OPTION, f"{name} is for {views}, this reads {view}")
    for one, other in (
        ("timestampAsOf", "versionAsOf"),
        ("startingTimestamp", "startingVersion"),
        ("endingTimestamp", "endingVersion"),
    ):
        if one in given and other in given:
            raise SourceError(codes.MULTIPLE_BOUNDARY, f"give {one} or {other}, not both")
    for one, others in (("keyPrefix", ("startKey", "endKey")), ("observe", ("space",))):
        if one in given and any(other in given for other in others):
            raise SourceError(codes.INVALID_OPTION, f"give {one} or {'/'.join(others)}, not both")
    zone = zone_of(given["timeZone"]) if "timeZone" in given else None
    return Options(_place(given), view, given, zone)


def _is_of_table(key: str, raw: Mapping[str, str]) -> bool:
    """Return whether Spark tells of a table: its owner, comment and properties, not an option."""
    return _TABLE in raw and (key.startswith(_AGAIN) or _AGAIN + key not in raw)


def _unknown(key: str) -> SourceError:
    if key == "paths":
        return SourceError(codes.INVALID_OPTION, "a DataFrame is of one store: load one path")
    known = ", ".join(sorted(KNOWN) + list(ENGINE))
    return SourceError(codes.UNKNOWN_OPTION, f"unknown option {key!r}; known are: {known}")


def _view(given: Mapping[str, str]) -> str:
    feed = _flag("readChangeFeed", given.get("readChangeFeed"), False)
    view = given.get("view", CHANGES if feed else SNAPSHOT).lower()
    if feed and view != CHANGES:
        raise SourceError(codes.INVALID_OPTION, "give view or readChangeFeed=true, not both")
    if view not in ALL or (not feed and view == CHANGES):
        raise SourceError(
            codes.INVALID_OPTION,
            f"view is snapshot, history or commits, not {view!r}; changes are readChangeFeed=true",
        )
    return view


def _place(given: Mapping[str, str]) -> Place:
    path = given.get("path", "")
    is_store = path.partition(":")[0] in _SCHEMES  # else a table's own folder in the warehouse
    if "store" in given and is_store:
        raise SourceError(codes.INVALID_OPTION, "give a path or the option store, not both")
    url = given.get("store", path if is_store else None)
    if url is None:
        wrong = f"{path!r} is no store; " if path and "@" not in path else ""  # no secrets
        raise SourceError(codes.MISSING_OPTION, wrong + DROPPED)
    engine: dict[str, Any] = {name: given[name] for name in ENGINE if name in given}
    if engine and not url.startswith("etcd:"):
        raise SourceError(codes.INVALID_OPTION, f"{', '.join(engine)}: only etcd has these options")
    if "tls" in engine:
        engine["tls"] = _flag("tls", engine["tls"], False)
    return Place(
        absolute(url),
        given.get("name", "default"),
        given.get("space"),
        given.get("observe"),
        tuple(sorted(engine.items())),
    )


def _flag(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise SourceError(codes.INVALID_OPTION, f"{name} is true or false, not {text!r}")
    return text.lower() == "true"
