"""The options of a fleet, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

from snapkv.base.arguments import whole_number
from snapkv.errors import InvalidOptionError
from snapkv.fleet.members import BEHIND, Behind, Policy, check_policy
from snapkv.location import Location
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.spark.source_options import ENGINE, STORAGE, SourceOptions, is_store

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
        why = _DESCRIBED if name.startswith(STORAGE) else _WHY_NOT.get(name)
        if why is not None:
            raise SourceError(errors.INVALID_OPTION, f"no option {name} with fleet: {why}")
    if is_store(texts.get("path", "")):
        raise SourceError(errors.INVALID_OPTION, "give a path or the option fleet, not both")
    if texts.get("keyFormat", "utf8").lower() == "binary":
        raise SourceError(errors.INVALID_OPTION, f"no keyFormat=binary with fleet: {_TEXT}")
    if texts.get("startingVersion", "latest").lower() != "latest":
        raise SourceError(
            errors.INVALID_OPTION, f"startingVersion is 'latest' with fleet: {_ONE_MEMBER}"
        )
    if not texts["fleet"]:
        raise SourceError(errors.MISSING_OPTION, "fleet is the path of a TOML or JSON file")
    return Location(f"fleet:{os.path.abspath(texts['fleet'])}")


def check_without_fleet(texts: Mapping[str, str]) -> None:
    """Raise `SourceError` for an option that only a fleet has."""
    for name in ONLY_OF_FLEETS:
        if name in texts:
            raise SourceError(
                errors.INVALID_OPTION, f"{name} is for a fleet: give the option fleet, too"
            )


def behind_of(options: SourceOptions) -> Behind:
    """Return what a batch does about members without a final state. Raises `SourceError`."""
    return cast(Behind, options.choice("behind", *BEHIND))


def policy_of(options: SourceOptions, members: int) -> Policy:
    """Return how many members must be final at the end of a stream's batch: all, 99%, a number.

    Raises `SourceError` for an invalid policy of so many members.
    """
    text = (options.text("resolved", "all") or "").lower()
    number = whole_number(text)
    policy: Policy = text if number is None else number
    try:
        check_policy(policy, members)
    except InvalidOptionError as e:
        raise SourceError(errors.INVALID_OPTION, f"resolved: {e}") from e
    return policy
