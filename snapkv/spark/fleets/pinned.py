"""The members of a fleet, and one cut of them, pinned on the driver as values for all processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from snapkv.clock import SystemClock
from snapkv.errors import InvalidFileError
from snapkv.fleet.description import members_of
from snapkv.fleet.fleet import MEMBER_TIMEOUT_S
from snapkv.fleet.member import Member, archive_of, chosen, location_of
from snapkv.fleet.members import Members, allowed
from snapkv.fleet.pin import Pin
from snapkv.fleet.tick_rounds import aligned
from snapkv.layout import Mark
from snapkv.location import Location
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.fleets.options import behind_of
from snapkv.spark.location import absolute, absolute_archive
from snapkv.spark.options import SNAPSHOT, Options
from snapkv.spark.pinned import BACKWARDS
from snapkv.spark.source_options import SourceOptions
from snapkv.spark.timing import timestamp_of

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


@dataclass(frozen=True, slots=True)
class Place:
    """A member in a cut: where its rows come from, and the newest commit that the cut shows."""

    member: Member
    location: Location
    store: bytes
    mark: Mark


@dataclass(frozen=True, slots=True)
class Cut:
    """A moment of a fleet, with the members of which it shows something; can be pickled."""

    timestamp: int
    now_ms: int
    places: tuple[Place, ...]


def cut_of(options: Options, members: Described, now_ms: int) -> Cut:
    """Return the moment that a batch shows, or at which its range ends.

    A round trip of the slowest member, and one more without a time. Raises `SourceError`.
    """
    text = options.text("timestampAsOf" if options.view == SNAPSHOT else "endingTimestamp")
    timestamp = None if text is None else timestamp_of(text, options.zone, now_ms)
    start, behind = start_of(options, now_ms), behind_of(options)
    if timestamp is not None and start is not None and start > timestamp + 1:
        raise SourceError(errors.INVALID_RANGE, BACKWARDS)
    names = [member.name for member in members]
    with coded(compacted=errors.TIMESTAMP_EARLIER_THAN_RETENTION):
        connections = opened(members)
        try:
            if timestamp is None:
                timestamp = connections.resolved("all", names, known_only=behind != "error")
            if options.view == SNAPSHOT:
                timestamp, pins, _ = aligned(
                    timestamp, pins_at(connections, names, timestamp), connections
                )
            else:
                here = [member.name for member in members if (start or 0) <= member.left]
                pins = last_pins(connections, here, timestamp)
            pins = allowed(timestamp, pins, behind)
            return Cut(timestamp, now_ms, tuple(places_of(pins).values()))
        finally:
            connections.close()


def pins_at(connections: Members, names: Sequence[str], timestamp: int) -> dict[str, Pin]:
    """Return the members at a time, with the newest commit of each; archives are opened."""
    return connections.each(names, lambda each: each.pin(timestamp, whole=False))


def last_pins(connections: Members, names: Sequence[str], timestamp: int) -> dict[str, Pin]:
    """Return the same, but members that have left by then as they were at last."""
    return connections.each(
        names, lambda each: each.pin(min(timestamp, each.member.left), whole=False)
    )


def places_of(pins: Mapping[str, Pin]) -> dict[str, Place]:
    """Return the members of which something is seen, by name."""
    found = {name: _place_of(pin) for name, pin in pins.items()}
    return {name: place for name, place in found.items() if place is not None}


def _place_of(pin: Pin) -> Place | None:
    moment = pin.moment
    if moment is None:
        return None
    connection, reads = pin.connection, pin.reads
    assert reads is not None
    assert connection.store_id is not None
    is_archive = reads.reader.url.startswith("archive:")
    location = location_of_member(
        connection.member, archive_only=is_archive and not connection.member.is_archive
    )
    return Place(connection.member, location, connection.store_id, moment.mark)


def start_of(options: Options, now_ms: int) -> int | None:
    """Return the time at which a range starts, None without one. Raises `SourceError`."""
    text = options.text("startingTimestamp")
    return None if text is None else timestamp_of(text, options.zone, now_ms, start=True)
