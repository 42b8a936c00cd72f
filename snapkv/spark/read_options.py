"""Options of the format `snapkv`, checked together before anything is read; its keys' range."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from snapkv.base.arguments import whole_number
from snapkv.errors import InvalidOptionError, SnapKVError
from snapkv.fleet.members import BEHIND, Behind, Policy, check_policy
from snapkv.layout import Keyspace
from snapkv.reading.arrow import KeyRange
from snapkv.spark import errors, source_options
from snapkv.spark.source_options import ENGINE as ENGINE
from snapkv.spark.value_formats import FORMATS, MODES
from snapkv.store.location import Location

FORMAT = "snapkv"
SNAPSHOT, CHANGES, HISTORY, COMMITS = "snapshot", "changes", "history", "commits"
ALL = (SNAPSHOT, CHANGES, HISTORY, COMMITS)
KEYED = (SNAPSHOT, CHANGES, HISTORY)
RANGED = (CHANGES, HISTORY, COMMITS)
KEY_FORMATS = (source_options.TEXT, source_options.BINARY)

# The views that have each option.
KNOWN: dict[str, tuple[str, ...]] = {
    "store": ALL,
    "path": ALL,
    "fleet": ALL,
    "members": ALL,
    "behind": ALL,
    "resolved": (CHANGES,),
    "name": ALL,
    "space": KEYED,
    "observe": ALL,
    "archive": ALL,
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
LATEST = "latest"
"""The start that is the newest commit: of a stream, or of the log, which then has that row only."""
# Types of the options, except texts, times, and those whose type depends on the view or stream.
_FLAGS = ("preimages", "failOnDataLoss", "ignoreDeletes")
_COUNTS = (
    "numPartitions",
    "versionAsOf",
    "endingVersion",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
)
_CHOICES = {"behind": BEHIND, "keyFormat": KEY_FORMATS, "valueFormat": FORMATS, "mode": MODES}

FOR_STREAMS = ("maxRowsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss", "resolved")


@dataclass(frozen=True, slots=True)
class ReadOptions(source_options.SourceOptions):
    """What to read, from where, and how its values look."""

    view: str

    @property
    def is_of_fleet(self) -> bool:
        """Whether rows come from the members of a fleet."""
        return "fleet" in self.texts

    @property
    def has_start(self) -> bool:
        """Whether the range has a start."""
        return "startingTimestamp" in self.texts or "startingVersion" in self.texts

    @property
    def has_end(self) -> bool:
        """Whether the range has an end."""
        return "endingTimestamp" in self.texts or "endingVersion" in self.texts

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The option `columns`, None for the default columns of the view."""
        text = self.texts.get("columns")
        return None if text is None else tuple(name.strip() for name in text.split(","))


def parsed(raw: Mapping[str, str]) -> ReadOptions:
    """Return the options that Spark passes; its own additions are ignored.

    Raises `SourceError` for unknown options (listing the known ones), for options that the view or
    a fleet does not have, for invalid values, and if neither a store nor a fleet is named.
    """
    texts = source_options.canonical_names(raw, KNOWN)
    if texts.get("startingVersion") == "0":  # where Delta's versions begin
        texts["startingVersion"] = "1"
    view = _view(texts)
    if view == COMMITS and texts.get("startingVersion", "").lower() == LATEST:
        texts["startingVersion"] = LATEST
    for name in texts:
        if view not in KNOWN.get(name, ALL):
            views = " or ".join(KNOWN[name])
            raise errors.INVALID_OPTION(f"{name} is for {views}, this reads {view}")
    source_options.check_one_of(
        texts,
        (
            ("timestampAsOf", "versionAsOf"),
            ("startingTimestamp", "startingVersion"),
            ("endingTimestamp", "endingVersion"),
        ),
    )
    for one, others in (("keyPrefix", ("startKey", "endKey")), ("observe", ("space",))):
        if one in texts and any(other in texts for other in others):
            raise errors.INVALID_OPTION(f"give {one} or {'/'.join(others)}, not both")
    if "fleet" in texts:
        location = location_of_fleet(texts)
    else:
        check_without_fleet(texts)
        location = source_options.location_of(texts, raw, FORMAT)
    options = ReadOptions(location, texts, source_options.zone_in(texts), view)
    for name in _FLAGS:  # also of options that no reader reads later
        options.flag(name)
    for name in _COUNTS:
        options.count(name)
    for name, choices in _CHOICES.items():
        options.choice(name, *choices)
    return options


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as Spark passes them to the format: as texts, without options of None."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _view(texts: Mapping[str, str]) -> str:
    feed = source_options.flag_of("readChangeFeed", texts.get("readChangeFeed"), False)
    view = texts.get("view", CHANGES if feed else SNAPSHOT).lower()
    if feed and view != CHANGES:
        raise errors.INVALID_OPTION("give view or readChangeFeed=true, not both")
    if view not in ALL or (not feed and view == CHANGES):
        raise errors.INVALID_OPTION(
            f"view is snapshot, history or commits, not {view!r}; changes are readChangeFeed=true"
        )
    return view


# --- which keys are read ---


def key_text(key: str | bytes, options: Mapping[str, Any], name: str) -> str:
    """Return a key or prefix as the text of an option; `name` is the parameter that gives it.

    Raises `SourceError` if keys have another type.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    usual, _ = source_options.key_formats("space" in lowered)
    is_binary = str(lowered.get("keyformat", usual)).lower() == source_options.BINARY
    kind = bytes if is_binary else str
    if not isinstance(key, kind):
        raise errors.INVALID_OPTION(
            f"keys are {kind.__name__} here, so {name} must be, too, not {key!r}"
        )
    return key.hex() if isinstance(key, bytes) else key


def span_of(options: ReadOptions) -> KeyRange:
    """Return the range of stored keys; binary ones are hexadecimal. Raises `SourceError`."""
    text = options.is_text
    try:
        space = source_options.keyspace_of(options.location, text=text)
    except SnapKVError as e:
        raise errors.INVALID_OPTION(str(e)) from e
    start, end = space.range_of(space.default_prefix)
    prefix = _range_of(options, "keyPrefix", space)
    first, last = _range_of(options, "startKey", space), _range_of(options, "endKey", space)
    if prefix is not None:
        start, end = prefix
    if first is not None:
        start = first[0]
    if last is not None:
        end = last[0]
        if end < start:
            raise errors.INVALID_RANGE("endKey is before startKey")
    return KeyRange(space, start, end, text)


def _range_of(options: ReadOptions, name: str, space: Keyspace) -> tuple[bytes, bytes] | None:
    """Return the range of stored keys that begin with an option's text, None without the option."""
    text = options.text(name)
    if text is None:
        return None
    try:
        return space.range_of(text if space.text else bytes.fromhex(text))
    except SnapKVError as e:
        raise errors.INVALID_OPTION(f"{name}: {e}") from e
    except ValueError as e:
        raise errors.INVALID_OPTION(
            f"{name} is hexadecimal when keys are binary, not {text!r}"
        ) from e


ONLY_OF_FLEETS = ("members", "behind", "resolved")
_DESCRIBED = "the file of the fleet describes each member"
_ONE_MEMBER = "a version means something in one member only: give a time"
_TEXT = "a fleet has the text keys of its members: read one member by its own URL"
_WHY_NOT = {
    "store": f"{_DESCRIBED}: give fleet or store",
    "name": _DESCRIBED,
    "observe": f"{_DESCRIBED}, by its prefix",
    "archive": f"{_DESCRIBED}, also its archive",
    "space": _TEXT,
    "versionAsOf": _ONE_MEMBER,
    "endingVersion": _ONE_MEMBER,
} | dict.fromkeys(ENGINE, _DESCRIBED)


def location_of_fleet(texts: Mapping[str, str]) -> Location:
    """Return a location that names the file of a fleet; each member has a location of its own.

    Raises `SourceError` for options that only one store has.
    """
    for name in texts:
        why = _DESCRIBED if name.startswith(source_options.STORAGE) else _WHY_NOT.get(name)
        if why is not None:
            raise errors.INVALID_OPTION(f"no option {name} with fleet: {why}")
    if source_options.is_store(texts.get("path", "")):
        raise errors.INVALID_OPTION("give a path or the option fleet, not both")
    if texts.get("keyFormat", "utf8").lower() == "binary":
        raise errors.INVALID_OPTION(f"no keyFormat=binary with fleet: {_TEXT}")
    if texts.get("startingVersion", "latest").lower() != "latest":
        raise errors.INVALID_OPTION(f"startingVersion is 'latest' with fleet: {_ONE_MEMBER}")
    if not texts["fleet"]:
        raise errors.MISSING_OPTION("fleet is the path of a TOML or JSON file")
    return Location(f"fleet:{os.path.abspath(texts['fleet'])}")


def check_without_fleet(texts: Mapping[str, str]) -> None:
    """Raise `SourceError` for an option that only a fleet has."""
    for name in ONLY_OF_FLEETS:
        if name in texts:
            raise errors.INVALID_OPTION(f"{name} is for a fleet: give the option fleet, too")


def behind_of(options: source_options.SourceOptions) -> Behind:
    """Return what a batch does about members without a final state. Raises `SourceError`."""
    return cast(Behind, options.choice("behind", *BEHIND))


def policy_of(options: source_options.SourceOptions, members: int) -> Policy:
    """Return how many members must be final at the end of a stream's batch: all, 99%, a number.

    Raises `SourceError` for an invalid policy of so many members.
    """
    text = (options.text("resolved", "all") or "").lower()
    number = whole_number(text)
    policy: Policy = text if number is None else number
    try:
        check_policy(policy, members)
    except InvalidOptionError as e:
        raise errors.INVALID_OPTION(f"resolved: {e}") from e
    return policy
