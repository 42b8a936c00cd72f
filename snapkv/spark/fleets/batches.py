"""A batch of a fleet's stream: for each member, what the stream of one store would deliver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from snapkv.fleet.link import AWAY
from snapkv.fleet.member import Member
from snapkv.layout import Mark
from snapkv.location import Location
from snapkv.reading.reader import Reader
from snapkv.spark import errors, limits
from snapkv.spark.errors import SourceError, of_member
from snapkv.spark.fleets.offset import At, FleetOffset
from snapkv.spark.fleets.pinned import Described, location_of_member
from snapkv.spark.fleets.planning import in_parallel, reading
from snapkv.spark.fleets.tasks import MemberTask
from snapkv.spark.limits import Limit, Size
from snapkv.spark.offset import Offset
from snapkv.spark.options import Options
from snapkv.spark.schema import Schema
from snapkv.spark.stream import DATA_LOSS, ChangesReader
from snapkv.store.observe import Keys, open_to_read


class MemberBatches:
    """Plans the batches of all members; can be pickled."""

    def __init__(self, options: Options, members: Described, schema: Schema) -> None:
        self._options, self._schema = options, schema
        self._members = {member.name: member for member in members}
        self._streams: dict[str, ChangesReader] = {}

    @property
    def lost(self) -> int:
        """How many commits compaction removed unread since the query started."""
        return sum(stream.lost for stream in self._streams.values())

    def check_members(self, at: FleetOffset) -> None:
        """Raise `SourceError` if the fleet lacks a member of a checkpoint."""
        gone = sorted(at.members.keys() - self._members.keys())
        if gone:
            raise SourceError(
                errors.CHECKPOINT_INVALID,
                f"the checkpoint has the member {gone[0]!r}, which the fleet (or the option "
                "members) has not: keep it in the file, with the time `left`, or use a new "
                "checkpoint",
            )

    def verify(self, at: FleetOffset) -> None:
        """Raise `SourceError` if a member is not the store of a checkpoint, or was restored."""

        def check(name: str) -> None:
            with self._reading(name, at.members[name]):
                pass

        in_parallel([name for name, each in at.members.items() if each.has_commit], check)

    def tasks(self, first: FleetOffset, last: FleetOffset) -> list[MemberTask]:
        """Return the tasks of a batch, in the order of members. Raises `SourceError`."""
        self.check_members(first)
        self.check_members(last)
        parts = in_parallel(_changed(first, last), lambda name: self._tasks(name, first, last))
        return [task for part in parts for task in part]

    def _tasks(self, name: str, first: FleetOffset, last: FleetOffset) -> list[MemberTask]:
        low, high = first.of(name), last.members[name]
        with self._reading(name, low if low.has_commit else high) as (reader, location):
            after = b"" if first.snapshot and low.has_commit else None
            start = Offset(high.store, self._mark_of(reader, name, low), after)
            stream = self._stream(name, location)
            tasks = stream.planned(reader, start, Offset(high.store, high.mark))
            return [MemberTask.of(name, location, task) for task in tasks]

    def last_time(self, first: FleetOffset, last: FleetOffset, limit: Limit) -> int | None:
        """Return the last time that a batch may contain, None if it may contain all."""
        with ExitStack() as stack:
            parts = [
                self._sizes(stack, name, first.of(name), last.members[name], limit)
                for name in _changed(first, last)
            ]
            return limits.last_time(parts, limit)

    def _sizes(
        self, stack: ExitStack, name: str, low: At, high: At, limit: Limit
    ) -> Iterator[Size]:
        at = low if low.has_commit else high
        reader, location = stack.enter_context(self._reading(name, at))
        start = self._mark_of(reader, name, low)
        return _named(name, self._stream(name, location).sizes(reader, start, high.mark, limit))

    # --- one member ---

    @contextmanager
    def _reading(self, name: str, at: At) -> Iterator[tuple[Reader, Location]]:
        """Open a member, or, if its engine is away, its archive; errors name it."""
        with of_member(name, advice=DATA_LOSS):
            opened, location = _opened(self._members[name])
            with reading(opened, location, at.store, at.mark) as found:
                yield found

    def _mark_of(self, reader: Reader, name: str, at: At) -> Mark:
        """Return the commit after which a member's changes are still to be delivered."""
        if at.has_commit:
            return at.mark
        joined = self._members[name].joined
        return reader.timeline.at(max(at.mark.timestamp, joined - 1)).mark

    def _stream(self, name: str, location: Location) -> ChangesReader:
        """Return what plans the stream of a member; its keys are the same in its archive."""
        found = self._streams.get(name)
        if found is None:
            own = replace(self._options, location=location)
            found = self._streams[name] = ChangesReader(own, self._schema)
        return found


def _changed(first: FleetOffset, last: FleetOffset) -> Sequence[str]:
    """Return the members of which a batch has rows to read."""
    ends = {name: at for name, at in last.members.items() if at.has_commit}
    delivers = first.snapshot and not last.snapshot
    return [name for name, at in sorted(ends.items()) if delivers or at != first.of(name)]


def _opened(member: Member) -> tuple[Keys, Location]:
    location = location_of_member(member)
    try:
        return open_to_read(location), location
    except AWAY:
        if member.archive is None:
            raise
        location = location_of_member(member, archive_only=True)
        return open_to_read(location), location


def _named(name: str, sizes: Iterator[Size]) -> Iterator[Size]:
    with of_member(name, advice=DATA_LOSS):
        yield from sizes
