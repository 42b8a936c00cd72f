"""The members of a fleet, as values that Spark sends to every process."""

from __future__ import annotations

from dataclasses import replace

from snapkv.clock import SystemClock
from snapkv.errors import InvalidFileError
from snapkv.fleet.description import members_of
from snapkv.fleet.member import Member, archive_of, chosen, location_of
from snapkv.fleet.members import Members
from snapkv.fleet.opening import MEMBER_TIMEOUT_S
from snapkv.location import Location
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.location import absolute, absolute_archive
from snapkv.spark.source_options import SourceOptions

Described = tuple[Member, ...]
_PLAIN = str | bool | int | float


def described(options: SourceOptions, now_ms: int) -> Described:
    """Return the members that options choose from the file of a fleet; none is opened.

    One listing for each place in `archives` of the file. Raises `SourceError`.
    """
    path = options.location.url.removeprefix("fleet:")
    try:
        with coded():
            found = {member.name: member for member in members_of(path, now_ms)}
            names = chosen(list(found), options.text("members"))
    except SourceError as e:
        if isinstance(e.__cause__, InvalidFileError):
            raise SourceError(errors.INVALID_OPTION, f"fleet: {e.__cause__}") from e
        raise
    for name in names:
        location_of_member(found[name])
    return tuple(found[name] for name in names)


def opened(members: Described) -> Members:
    """Return connections to members, each of which is opened when it is needed; to be closed."""
    return Members(members, MEMBER_TIMEOUT_S, SystemClock())


def location_of_member(member: Member, *, archive_only: bool = False) -> Location:
    """Return where the rows of a member come from.

    With `archive_only` that is the archive beside its engine. Raises `SourceError` for a store that
    lives in one process, and for an option that is not a plain value.
    """
    with errors.of_member(member.name):
        found = archive_of(member) if archive_only else location_of(member)
        for name, value in (*found.options, *found.storage):
            if not isinstance(value, _PLAIN):
                raise SourceError(
                    errors.INVALID_OPTION,
                    f"the option {name} is a {type(value).__name__}; Spark's workers take texts, "
                    "numbers, true and false",
                )
        archive = None if found.archive is None else absolute_archive(found.archive)
        return replace(found, url=absolute(found.url), archive=archive)
