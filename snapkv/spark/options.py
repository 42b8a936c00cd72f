"""Options of the format `snapkv`, checked as a whole before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from snapkv.spark import errors as codes
from snapkv.spark.decoding import FORMATS, MODES
from snapkv.spark.errors import SourceError
from snapkv.spark.options_text import ENGINE as ENGINE
from snapkv.spark.options_text import Given, check_one_of, flag_of, named, place_of, zone_in

FORMAT = "snapkv"
SNAPSHOT, CHANGES, HISTORY, COMMITS = "snapshot", "changes", "history", "commits"
ALL = (SNAPSHOT, CHANGES, HISTORY, COMMITS)
KEYED = (SNAPSHOT, CHANGES, HISTORY)
RANGED = (CHANGES, HISTORY, COMMITS)
TEXT, BINARY = "utf8", "binary"
KEY_FORMATS = (TEXT, BINARY)

# The views that each option is for.
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
# What each of them says, but for texts and times, and for what only a stream or a view can tell.
_FLAGS = ("preimages", "failOnDataLoss", "ignoreDeletes")
_COUNTS = (
    "numPartitions",
    "versionAsOf",
    "endingVersion",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
)
_CHOICES = {"keyFormat": KEY_FORMATS, "valueFormat": FORMATS, "mode": MODES}

FOR_STREAMS = ("maxRowsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class Options(Given):
    """What to read, from where, and how its values look."""

    view: str

    @property
    def has_start(self) -> bool:
        """Whether the range has a start."""
        return "startingTimestamp" in self.given or "startingVersion" in self.given

    @property
    def has_end(self) -> bool:
        """Whether the range has an end."""
        return "endingTimestamp" in self.given or "endingVersion" in self.given

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns asked for, None when the view's usual ones are wanted."""
        text = self.given.get("columns")
        return None if text is None else tuple(name.strip() for name in text.split(","))


def parsed(raw: Mapping[str, str]) -> Options:
    """Return the options that Spark hands over; its own additions are passed over.

    Raises `SourceError` for unknown options (which lists the known), for those that the view
    does not have, for values that mean nothing, and without a store.
    """
    given = named(raw, KNOWN)
    if given.get("startingVersion") == "0":  # where Delta's versions begin
        given["startingVersion"] = "1"
    view = _view(given)
    for name in given:
        if view not in KNOWN.get(name, ALL):
            views = " or ".join(KNOWN[name])
            raise SourceError(codes.INVALID_OPTION, f"{name} is for {views}, this reads {view}")
    check_one_of(
        given,
        (
            ("timestampAsOf", "versionAsOf"),
            ("startingTimestamp", "startingVersion"),
            ("endingTimestamp", "endingVersion"),
        ),
    )
    for one, others in (("keyPrefix", ("startKey", "endKey")), ("observe", ("space",))):
        if one in given and any(other in given for other in others):
            raise SourceError(codes.INVALID_OPTION, f"give {one} or {'/'.join(others)}, not both")
    options = Options(place_of(given, raw, FORMAT), given, zone_in(given), view)
    _check_values(options)
    return options


def _check_values(options: Options) -> None:
    """Raise `SourceError` for what no reader may ask for, but means nothing all the same."""
    for name in _FLAGS:
        options.flag(name)
    for name in _COUNTS:
        options.count(name)
    for name, choices in _CHOICES.items():
        options.choice(name, *choices)


def _view(given: Mapping[str, str]) -> str:
    feed = flag_of("readChangeFeed", given.get("readChangeFeed"), False)
    view = given.get("view", CHANGES if feed else SNAPSHOT).lower()
    if feed and view != CHANGES:
        raise SourceError(codes.INVALID_OPTION, "give view or readChangeFeed=true, not both")
    if view not in ALL or (not feed and view == CHANGES):
        raise SourceError(
            codes.INVALID_OPTION,
            f"view is snapshot, history or commits, not {view!r}; changes are readChangeFeed=true",
        )
    return view
