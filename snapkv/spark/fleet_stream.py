"""The stream of a fleet: a batch ends at a final time, so each plan of it is the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from snapkv.base.clocks import SystemClock
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import MembersBehindError, another
from snapkv.fleet.member import Member
from snapkv.fleet.member_link import AWAY
from snapkv.fleet.members import Members, Policy, allowed
from snapkv.fleet.pin import Pin
from snapkv.layout import Mark
from snapkv.reading.reader import Reader
from snapkv.spark import errors, micro_batches
from snapkv.spark.changes_stream import DATA_LOSS, FOR_BATCHES, ChangesReader
from snapkv.spark.errors import SourceError, as_source_errors
from snapkv.spark.fleet_members import (
    Described,
    MemberTask,
    PinnedFleet,
    cut_of,
    described,
    in_parallel,
    last_pins,
    location_of_member,
    open_members,
    planned,
    reading,
)
from snapkv.spark.micro_batches import (
    IDLE_S,
    LIMITS_KNOWN,
    VERSION,
    ChangesOffset,
    Limit,
    Offset,
    Size,
    StreamReader,
    boolean,
    checking,
    number,
    store_and_mark,
    store_fields,
)
from snapkv.spark.read_options import CHANGES, COMMITS, FOR_STREAMS, ReadOptions, policy_of
from snapkv.spark.read_tasks import BatchReader
from snapkv.spark.schema import FrameSchema, schema_of
from snapkv.spark.sessions import check_fleet_pinned
from snapkv.spark.source_options import check_none_of
from snapkv.spark.timing import start_of
from snapkv.store.location import Location
from snapkv.store.open import Keys, open_to_read
from snapkv.times import physical_ms


class At(NamedTuple):
    """The place up to which a member was delivered: a commit of a store.

    Before its first commit that has the number 0, and `timestamp` is the time after which the
    member's changes are still to come.
    """

    store: bytes
    mark: Mark

    @staticmethod
    def after(timestamp: int) -> At:
        """Return the place of a member of which nothing was delivered, nor will be up to a time."""
        return At(b"", Mark(timestamp, 0, 0))

    @property
    def has_commit(self) -> bool:
        """Whether it names a commit."""
        return self.mark.ordinal > 0


@dataclass(frozen=True, slots=True)
class FleetOffset(Offset):
    """All changes up to a commit of each member were delivered, and up to `timestamp` in all.

    A member that was behind then has an earlier commit, and its next ones come later. `snapshot` is
    whether the state at these commits is still to be delivered first.
    """

    timestamp: int
    members: Mapping[str, At]
    snapshot: bool = False

    # For example, of a fleet of which the second member had no commit yet:
    #
    #     {"v": 1, "ts": 445644800032243719, "snapshot": false, "pinned": true, "members": {
    #         "eu-1": {"store": "5f..", "rev": 42, "ts": 445644800032243000, "commit": 17},
    #         "us-1": {"store": "", "rev": 0, "ts": 445644800032243719, "commit": 0}}}
    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        return {
            "v": VERSION,
            "ts": self.timestamp,
            "snapshot": self.snapshot,
            "pinned": self.pinned,
            "members": {name: store_fields(*at) for name, at in sorted(self.members.items())},
        }

    @staticmethod
    def from_json(checkpoint: Mapping[str, Any]) -> FleetOffset:
        """Return the offset in a checkpoint. Raises `SourceError` for anything else."""
        with checking(checkpoint):
            fields = checkpoint["members"]
            if not isinstance(fields, dict):
                raise TypeError(f"not members: {fields!r}")
            members = {name: At(*store_and_mark(each)) for name, each in fields.items()}
            snapshot, pinned = (boolean(checkpoint[name]) for name in ("snapshot", "pinned"))
            return FleetOffset(number(checkpoint["ts"]), members, snapshot, pinned=pinned)

    def of(self, member: str) -> At:
        """Return how far a member was delivered; one that is new begins after this offset."""
        return self.members.get(member) or At.after(self.timestamp)


ALL = "all"
LATE = ("behind", "missing")

_log = logging.getLogger(__name__)


class Frontier:
    """Finds the ends of a stream's batches; a pickled copy connects to the members anew.

    `late` are the members that were not final at the newest time that was asked for, with the
    reasons.
    """

    def __init__(self, members: Described, policy: Policy) -> None:
        self._members = {member.name: member for member in members}
        self.names = list(self._members)
        self.policy, self.late = policy, dict[str, str]()
        self._connections: Members | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connections": None}

    def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def resolved(self, policy: Policy | None = None) -> int:
        """Return the newest time at which as many members as the policy wants are final."""
        return self._open().resolved(self.policy if policy is None else policy, self.names)

    def start(self, timestamp: int, *, snapshot: bool) -> FleetOffset:
        """Return the offset from which a new query goes on, perhaps after the state there.

        A member that has left by then is not asked. Raises `MembersBehindError` unless all other
        members are final then.
        """
        here = [name for name in self.names if timestamp < self._members[name].left + snapshot]
        return replace(self._at(timestamp, here), snapshot=snapshot, pinned=False)

    def end(self, timestamp: int) -> FleetOffset:
        """Return the offset up to a time. Raises `MembersBehindError` unless all are final then."""
        return self._at(timestamp, self.names)

    def _at(self, timestamp: int, names: list[str]) -> FleetOffset:
        pins = allowed(timestamp, last_pins(self._open(), names, timestamp), "error")
        nothing = At.after(timestamp)
        return FleetOffset(
            timestamp, {name: _moved(nothing, pins.get(name), timestamp) for name in self.names}
        )

    def until(self, at: FleetOffset, timestamp: int) -> FleetOffset:
        """Return the offset at a later time; the same one if nothing is new.

        Members that are late keep their place; if the policy is "all", all members do.
        """
        here = [name for name in self.names if not self._has_ended(name, at)]
        pins = last_pins(self._open(), here, timestamp)
        late = {name: pin.why for name, pin in pins.items() if pin.state in LATE}
        if late.keys() - self.late.keys():
            _log.warning("members of the fleet are behind: %s", late)
        self.late = late
        if self.late and self.policy == ALL:
            return at
        found = {name: _moved(at.of(name), pins.get(name), timestamp) for name in self.names}
        is_same = all(each.mark.ordinal == at.of(name).mark.ordinal for name, each in found.items())
        if is_same and not at.snapshot:
            return at
        return replace(at, timestamp=max(timestamp, at.timestamp), members=found, snapshot=False)

    def check_none_late(self, timestamp: int) -> None:
        """Raise `MembersBehindError` if a member holds the stream back."""
        if self.late and self.policy == ALL:
            raise MembersBehindError(timestamp, self.late)

    def _has_ended(self, name: str, at: FleetOffset) -> bool:
        """Return whether all that a member did before it left was delivered."""
        place, left = at.of(name), self._members[name].left
        if not place.has_commit:
            return place.mark.timestamp >= left
        return at.timestamp >= left and self.policy == ALL

    def _open(self) -> Members:
        if self._connections is None:
            self._connections = open_members(tuple(self._members.values()))
        return self._connections


def _moved(at: At, pin: Pin | None, timestamp: int) -> At:
    """Return the place of a member in the offset of a time; the same one if it is late."""
    if pin is None or pin.state in LATE:
        return at
    if pin.moment is None:  # absent
        return at if at.has_commit else At.after(max(timestamp, at.mark.timestamp))
    mark, store = pin.moment.mark, pin.connection.store_id
    assert store is not None
    return At(store, mark) if mark.ordinal > at.mark.ordinal else at


class MemberBatches:
    """Plans the batches of all members; can be pickled."""

    def __init__(self, options: ReadOptions, members: Described, schema: FrameSchema) -> None:
        self._options, self._schema = options, schema
        self._members = {member.name: member for member in members}
        self._streams: dict[str, ChangesReader] = {}

    @property
    def lost(self) -> int:
        """The number of commits that compaction removed unread since the query started."""
        return sum(stream.lost for stream in self._streams.values())

    def check_members(self, at: FleetOffset) -> None:
        """Raise `SourceError` if the fleet lacks a member of a checkpoint."""
        gone = sorted(at.members.keys() - self._members.keys())
        if gone:
            raise errors.CHECKPOINT_INVALID(
                f"the checkpoint has the member {gone[0]!r}, which the fleet (or the option "
                "members) has not: keep it in the file, with the time `left`, or use a new "
                "checkpoint"
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
            start = ChangesOffset(high.store, self._mark_of(reader, name, low), after)
            stream = self._stream(name, location)
            tasks = stream.planned(reader, start, ChangesOffset(high.store, high.mark))
            return [MemberTask(name, location, task.commits, task) for task in tasks]

    def last_time(self, first: FleetOffset, last: FleetOffset, limit: Limit) -> int | None:
        """Return the last time that a batch may contain, None if it may contain all."""
        with ExitStack() as stack:
            parts = [
                self._sizes(stack, name, first.of(name), last.members[name], limit)
                for name in _changed(first, last)
            ]
            return limit.last(micro_batches.of_members(parts))

    def _sizes(
        self, stack: ExitStack, name: str, low: At, high: At, limit: Limit
    ) -> Iterator[Size]:
        at = low if low.has_commit else high
        reader, location = stack.enter_context(self._reading(name, at))
        with as_source_errors(member=name, advice=DATA_LOSS):
            start = self._mark_of(reader, name, low)
            yield from self._stream(name, location).sizes(reader, start, high.mark, limit)

    # --- one member ---

    @contextmanager
    def _reading(self, name: str, at: At) -> Iterator[tuple[Reader, Location]]:
        """Open a member, or, if its engine is away, its archive; errors name it."""
        with as_source_errors(member=name, advice=DATA_LOSS):
            opened, location = _open_member(self._members[name])
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


def _open_member(member: Member) -> tuple[Keys, Location]:
    location = location_of_member(member)
    try:
        return open_to_read(location), location
    except AWAY:
        if member.archive is None:
            raise
        location = location_of_member(member, archive_only=True)
        return open_to_read(location), location


PAUSE_S = 0.05
VERIFIED_S = 5.0
"""The pause between two checks of a stream that finds nothing new whether its members are still the
same stores, in seconds."""


class FleetStream(StreamReader[FleetOffset]):
    """The stream of a fleet's changes, which may begin with a snapshot.

    The batch between two offsets is that between two commits of each member, so it never changes.
    """

    advice = DATA_LOSS
    _options: ReadOptions

    def __init__(self, options: ReadOptions, members: Described, schema: FrameSchema) -> None:
        super().__init__(options, schema, FOR_BATCHES)
        why = "for a batch; a stream waits for members as `resolved` says"
        check_none_of(options.texts, ("behind",), why)
        policy = policy_of(options, len(members))
        if not LIMITS_KNOWN and policy != ALL:
            raise errors.INVALID_OPTION("resolved needs PySpark 4.2 or newer")
        self._frontier = Frontier(members, policy)
        self._batches = MemberBatches(options, members, schema)
        self._target: int | None = None
        self._verified: float | None = None
        self._latest: FleetOffset | None = None
        self._covered: FleetOffset | None = None  # was delivered, or soon is

    # --- where it is ---

    def _position(self, checkpoint: Mapping[str, Any]) -> FleetOffset:
        return FleetOffset.from_json(checkpoint)

    def _start(self) -> FleetOffset:
        newest = self._frontier.resolved(ALL)
        text = self._options.text("startingTimestamp")
        if text is None:
            return self._frontier.start(newest, snapshot=not self._options.has_start)
        start = start_of(text, self._options.zone, SystemClock().now_ms(), newest)
        return self._frontier.start(min(max(start - 1, 0), newest), snapshot=False)

    def _newest(self) -> FleetOffset:
        self._covered = self._frontier.end(self._frontier.resolved(ALL))
        return self._covered

    def _end(self, at: FleetOffset, limit: Limit) -> FleetOffset:
        self._batches.check_members(at)
        self._covered = self._next_or_wait(at, limit)
        return self._covered

    def _next_or_wait(self, at: FleetOffset, limit: Limit) -> FleetOffset:
        """Return the end of the next batch; if Spark asks again and again, wait for `IDLE_S`."""
        if self._verified is None:
            self._verify(at)
        until = monotonic() + IDLE_S
        found = self._next(at, limit)
        if found == at and monotonic() - (self._verified or 0.0) > VERIFIED_S:
            self._verify(at)
        if found != at or self._target is not None or not self._idle.is_asked_again(at):
            return found
        while found == at and monotonic() < until:
            pause(PAUSE_S)
            found = self._next(at, limit)
        return found

    def _next(self, at: FleetOffset, limit: Limit) -> FleetOffset:
        """Return the end of the next batch; the same offset if nothing is new, or one holds it."""
        target = self._target
        try:
            timestamp = self._frontier.resolved() if target is None else target
            newest = self._frontier.until(at, max(timestamp, at.timestamp))
            if target is not None:
                self._frontier.check_none_late(timestamp)
        except MembersBehindError:
            if target is not None:
                raise
            return at
        self._latest = newest
        if newest == at or at.snapshot or not limit.bounded:
            return newest
        last = self._batches.last_time(at, newest, limit)
        return newest if last is None else self._frontier.until(at, last)

    def _verify(self, at: FleetOffset) -> None:
        """Raise `SourceError` if a member was restored, which looks as if nothing were new."""
        try:
            self._batches.verify(at)
        except SourceError as e:
            if e.code == errors.STORE_MISMATCH:
                raise
        self._verified = monotonic()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest final time: the query ends there."""
        with as_source_errors():
            self._target = self._frontier.resolved()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest known offset, with metrics, for Spark's progress. No round trip."""
        end = self._covered or self._latest
        if end is None:
            return {}
        newest = self._latest or end
        behind = (
            at.mark.ordinal - end.of(name).mark.ordinal for name, at in newest.members.items()
        )
        metrics = {
            "commitsBehindLatest": sum(max(0, each) for each in behind),
            "msBehindLatest": max(0, physical_ms(newest.timestamp) - physical_ms(end.timestamp)),
            "commitsLost": self._batches.lost,
            "membersBehind": sorted(self._frontier.late),
        }
        return newest.to_json() | {"metrics": metrics}

    def stop(self) -> None:
        """Close the connections to the members."""
        self._frontier.close()

    # --- rows ---

    def _planned(self, first: FleetOffset, last: FleetOffset) -> Sequence[MemberTask]:
        self._covered = self._covered or last  # a batch that a driver before has planned
        return self._batches.tasks(first, last)


class FleetSource:
    """A fleet whose members and one cut are pinned now; can be pickled. Raises `SourceError`."""

    def __init__(self, options: ReadOptions) -> None:
        now_ms = SystemClock().now_ms()
        self.options, self._now_ms = options, now_ms
        self._members = described(options, now_ms)
        self._cut: PinnedFleet | SourceError
        if options.view != CHANGES:
            self._check_pinned()
        try:
            self._cut = cut_of(options, self._members, now_ms)
        except SourceError as e:
            if options.view != CHANGES:  # a stream of them may wait for members
                raise
            self._cut = e

    def schema(self) -> StructType | str:
        """Return the columns of the view, with the member before."""
        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = self.options
        check_none_of(options.texts, FOR_STREAMS, "for a stream, without effect in a batch")
        if options.view == CHANGES and options.text("startingTimestamp") is None:
            raise errors.NO_START("changes of a fleet need startingTimestamp")
        if options.view != COMMITS:
            check_none_of(options.texts, ("startingVersion",), "for a stream, and for view=commits")
        plan = partial(planned, options, self._pinned())
        return BatchReader(options.location, FrameSchema(schema, options), plan)

    def stream(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream of changes."""
        return FleetStream(self.options, self._members, FrameSchema(schema, self.options))

    def _pinned(self) -> PinnedFleet:
        self._check_pinned()
        if isinstance(self._cut, SourceError):
            raise another(self._cut)
        return self._cut

    def _check_pinned(self) -> None:
        observed = sum(member.prefix is not None for member in self._members)
        check_fleet_pinned(self.options, observed, self._now_ms)
