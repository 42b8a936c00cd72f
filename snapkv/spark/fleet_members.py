"""Members of a fleet in Spark: pinned on the driver, and the tasks that read them in workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from snapkv.base.clocks import SystemClock
from snapkv.errors import InvalidFileError
from snapkv.fleet.description import members_of
from snapkv.fleet.fleet import MEMBER_TIMEOUT_S
from snapkv.fleet.member import Member, archive_of, chosen, location_of
from snapkv.fleet.members import THREADS_MAX, Members, allowed
from snapkv.fleet.pin import Pin
from snapkv.fleet.tick_rounds import aligned
from snapkv.layout import Mark
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, as_source_errors
from snapkv.spark.pinned_commits import BACKWARDS, PinnedCommits, Present, range_of
from snapkv.spark.process_readers import RESTORED, holds
from snapkv.spark.read_options import HISTORY, SNAPSHOT, ReadOptions, behind_of
from snapkv.spark.read_tasks import Task, plan
from snapkv.spark.schema import MEMBER, BatchSchema
from snapkv.spark.source_options import SourceOptions, absolute, absolute_archive
from snapkv.spark.timing import exact, timestamp_of
from snapkv.store.location import Location
from snapkv.store.open import Keys, open_to_read

Described = tuple[Member, ...]
_PLAIN = str | bool | int | float


def described(options: SourceOptions, now_ms: int) -> Described:
    """Return the members that options choose from the file of a fleet; none is opened.

    One listing for each place in `archives` of the file. Raises `SourceError`.
    """
    path = options.location.url.removeprefix("fleet:")
    try:
        with as_source_errors():
            found = {member.name: member for member in members_of(path, now_ms)}
            names = chosen(list(found), options.text("members"))
    except SourceError as e:
        if isinstance(e.__cause__, InvalidFileError):
            raise errors.INVALID_OPTION(f"fleet: {e.__cause__}") from e
        raise
    for name in names:
        location_of_member(found[name])
    return tuple(found[name] for name in names)


def open_members(members: Described) -> Members:
    """Return connections to members, each of which is opened when it is needed; to be closed."""
    return Members(members, MEMBER_TIMEOUT_S, SystemClock())


def location_of_member(member: Member, *, archive_only: bool = False) -> Location:
    """Return where the rows of a member come from.

    With `archive_only` that is the archive beside its engine. Raises `SourceError` for a store that
    lives in one process, and for an option that is not a plain value.
    """
    with as_source_errors(member=member.name):
        found = archive_of(member) if archive_only else location_of(member)
        for name, value in (*found.options, *found.storage):
            if not isinstance(value, _PLAIN):
                raise errors.INVALID_OPTION(
                    f"the option {name} is a {type(value).__name__}; Spark's workers take texts, "
                    "numbers, true and false"
                )
        archive = None if found.archive is None else absolute_archive(found.archive)
        return replace(found, url=absolute(found.url), archive=archive)


@dataclass(frozen=True, slots=True)
class PinnedMember:
    """A member in a cut: where its rows come from, and the newest commit that the cut shows."""

    member: Member
    location: Location
    store: bytes
    mark: Mark


@dataclass(frozen=True, slots=True)
class PinnedFleet:
    """A moment of a fleet, with the members of which it shows something; can be pickled."""

    timestamp: int
    now_ms: int
    places: tuple[PinnedMember, ...]


def cut_of(options: ReadOptions, members: Described, now_ms: int) -> PinnedFleet:
    """Return the moment that a batch shows, or at which its range ends.

    A round trip of the slowest member, and one more without a time. Raises `SourceError`.
    """
    text = options.text("timestampAsOf" if options.view == SNAPSHOT else "endingTimestamp")
    timestamp = None if text is None else timestamp_of(text, options.zone, now_ms)
    start, behind = start_of(options, now_ms), behind_of(options)
    if timestamp is not None and start is not None and start > timestamp + 1:
        raise errors.INVALID_RANGE(BACKWARDS)
    names = [member.name for member in members]
    with as_source_errors(compacted=errors.TIMESTAMP_EARLIER_THAN_RETENTION):
        connections = open_members(members)
        try:
            if timestamp is None:
                timestamp = connections.resolved("all", names, known_only=behind != "error")
            if options.view == SNAPSHOT:
                at = timestamp
                pins = connections.each(names, lambda m: m.pin(at, may_stay_closed=False))
                timestamp, pins, _ = aligned(timestamp, pins, connections)
            else:
                here = [member.name for member in members if (start or 0) <= member.left]
                pins = last_pins(connections, here, timestamp)
            pins = allowed(timestamp, pins, behind)
            places = (_place_of(pin) for pin in pins.values() if pin.moment is not None)
            return PinnedFleet(timestamp, now_ms, tuple(places))
        finally:
            connections.close()


def last_pins(connections: Members, names: Sequence[str], timestamp: int) -> dict[str, Pin]:
    """Return members at a time, or as they were when they left; archives are opened."""
    return connections.each(
        names, lambda each: each.pin(min(timestamp, each.member.left), may_stay_closed=False)
    )


def _place_of(pin: Pin) -> PinnedMember:
    connection, reads, moment = pin.connection, pin.reads, pin.moment
    assert reads is not None
    assert moment is not None
    assert connection.store_id is not None
    is_archive = reads.reader.url.startswith("archive:")
    location = location_of_member(
        connection.member, archive_only=is_archive and not connection.member.is_archive
    )
    return PinnedMember(connection.member, location, connection.store_id, moment.mark)


def start_of(options: ReadOptions, now_ms: int) -> int | None:
    """Return the time at which a range starts, None without one. Raises `SourceError`."""
    text = options.text("startingTimestamp")
    return None if text is None else timestamp_of(text, options.zone, now_ms, start=True)


@dataclass(frozen=True)
class MemberTask(Task):
    """A task of one store, which is a member of a fleet."""

    member: str
    location: Location
    commits: PinnedCommits
    task: Task

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of the view, with the member's name."""
        for found in self.task.read(reader, columns):
            rows = len(next(iter(found.values())))
            yield {MEMBER: arrow.repeated(self.member, pa.string(), rows), **found}

    def batches(
        self, location: Location, schema: BatchSchema, *, advice: str = errors.COMPACTED_ADVICE
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches from the member's own location; errors name the member."""
        with as_source_errors(member=self.member, advice=advice):
            yield from super().batches(self.location, schema, advice=advice)


Asked = TypeVar("Asked")
Found = TypeVar("Found")


def planned(options: ReadOptions, cut: PinnedFleet) -> Sequence[MemberTask]:
    """Return the tasks that read a cut, or a range that ends with it, in the order of members.

    Members are planned in parallel. Raises `SourceError`, which names the member; if one was
    restored since the cut was made, too.
    """
    parts = in_parallel(cut.places, lambda place: _planned(options, cut, place))
    return [task for part in parts for task in part]


def _planned(options: ReadOptions, cut: PinnedFleet, place: PinnedMember) -> list[MemberTask]:
    name, where = place.member.name, place.location
    with (
        as_source_errors(member=name),
        reading(open_to_read(where), where, place.store, place.mark) as (reader, location),
    ):
        own = own_options(options, cut, place.member, location)
        tasks = plan(reader, own, _commits_of(reader, own, cut, place))
        return [MemberTask(name, location, task.commits, task) for task in tasks]


def _commits_of(
    reader: Reader, options: ReadOptions, cut: PinnedFleet, place: PinnedMember
) -> PinnedCommits:
    if options.view == SNAPSHOT:
        low = reader.timeline.tracker.creation
        return PinnedCommits(place.store, low, place.mark, place.mark.revision)
    present = Present(place.store, place.mark, cut.now_ms)
    return range_of(reader, options, present, from_state=options.view == HISTORY)


def own_options(
    options: ReadOptions, cut: PinnedFleet, member: Member, location: Location
) -> ReadOptions:
    """Return the options of one member: its part of a range begins when it joined.

    Its range ends with the commit that is pinned.
    """
    texts = {name: text for name, text in options.texts.items() if name != "endingTimestamp"}
    start = max(start_of(options, cut.now_ms) or 0, member.joined)
    if start and options.view != SNAPSHOT:
        texts["startingTimestamp"] = exact(start)
    return replace(options, location=location, texts=texts)


@contextmanager
def reading(
    opened: Keys, location: Location, store: bytes, mark: Mark
) -> Iterator[tuple[Reader, Location]]:
    """Give an open member's reader, and its location with its store's name; close it at the end.

    Raises `SourceError` if it is another store, or does not have the commit that was pinned.
    """
    with opened:
        reader = opened.reader
        if not holds(reader, store, mark):
            raise errors.STORE_MISMATCH(RESTORED)
        yield reader, replace(location, name=reader.layout.name)


def in_parallel(asked: Sequence[Asked], ask: Callable[[Asked], Found]) -> list[Found]:
    """Return what a function returns for each, in order; raises the first error in that order."""
    if len(asked) < 2:
        return [ask(each) for each in asked]
    with ThreadPoolExecutor(min(THREADS_MAX, len(asked))) as pool:
        return list(pool.map(ask, asked))
