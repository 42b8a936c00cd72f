"""The stream of a fleet: a batch ends at a final time, so each plan of it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from snapkv.base.clocks import SystemClock
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import MembersBehindError, another
from snapkv.fleet.member import Member
from snapkv.fleet.member_link import AWAY
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
    location_of_member,
    planned,
    reading,
)
from snapkv.spark.fleet_offsets import ALL, At, FleetOffset, Frontier
from snapkv.spark.micro_batches import (
    IDLE_S,
    LIMITS_KNOWN,
    AvailableNow,
    ChangesOffset,
    Idle,
    Limit,
    Size,
    default_limit,
    limit_of,
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
        start = self._mark_of(reader, name, low)
        return _named(name, self._stream(name, location).sizes(reader, start, high.mark, limit))

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


def _named(name: str, sizes: Iterator[Size]) -> Iterator[Size]:
    with as_source_errors(member=name, advice=DATA_LOSS):
        yield from sizes


PAUSE_S = 0.05
VERIFIED_S = 5.0
"""The pause between two checks of a stream that finds nothing new whether its members are still the
same stores, in seconds."""


class FleetStream(DataSourceStreamReader, AvailableNow):
    """The stream of a fleet's changes, which may begin with a snapshot.

    One process of the driver keeps it while the query runs; workers get a pickled copy. The batch
    between two offsets is that between two commits of each member, so it never changes. Raises
    `SourceError` for options that a stream cannot have.
    """

    def __init__(self, options: ReadOptions, members: Described, schema: FrameSchema) -> None:
        check_none_of(
            options.texts,
            (*FOR_BATCHES, "behind"),
            "for a batch; a stream ends with trigger(availableNow=True), and waits for members "
            "as `resolved` says",
        )
        policy = policy_of(options, len(members))
        if not LIMITS_KNOWN and (limit_of(options).bounded or policy != ALL):
            raise errors.INVALID_OPTION("limits per trigger and resolved need PySpark 4.2 or newer")
        self._options, self._schema = options, schema
        self._frontier = Frontier(members, policy)
        self._batches = MemberBatches(options, members, schema)
        self._initial: FleetOffset | None = None
        self._target: int | None = None
        self._idle: Idle[FleetOffset] = Idle()
        self._verified: float | None = None
        self._newest: FleetOffset | None = None
        self._covered: FleetOffset | None = None  # was delivered, or soon is

    # --- where it is ---

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; every call returns the same."""
        if self._initial is None:
            with as_source_errors(advice=DATA_LOSS):
                self._initial = self._start()
        return self._initial.to_json()

    def _start(self) -> FleetOffset:
        newest = self._frontier.resolved(ALL)
        text = self._options.text("startingTimestamp")
        if text is None:
            return self._frontier.start(newest, snapshot=not self._options.has_start)
        start = start_of(text, self._options.zone, SystemClock().now_ms(), newest)
        return self._frontier.start(min(max(start - 1, 0), newest), snapshot=False)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch: the newest final time, or as far as limits allow.

        PySpark before 4.2 passes nothing, and calls this before `initialOffset`.
        """
        with as_source_errors(advice=DATA_LOSS):
            if start is None:
                self._covered = self._frontier.end(self._frontier.resolved(ALL))
                return self._covered.to_json()
            at = FleetOffset.from_json(start)
            self._batches.check_members(at)
            if not at.pinned:
                return at.started().to_json()
            self._covered = self._next_or_wait(at, limit)
            return self._covered.to_json()

    def _next_or_wait(self, at: FleetOffset, limit: Any) -> FleetOffset:
        """Return the end of the next batch; if Spark asks again and again, wait for `IDLE_S`."""
        if self._verified is None:
            self._verify(at)
        until = monotonic() + IDLE_S
        found = self._next(at, limit_of(self._options, limit))
        if found == at and monotonic() - (self._verified or 0.0) > VERIFIED_S:
            self._verify(at)
        if found != at or self._target is not None or not self._idle.is_asked_again(at):
            return found
        while found == at and monotonic() < until:
            pause(PAUSE_S)
            found = self._next(at, limit_of(self._options, limit))
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
        self._newest = newest
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

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest known offset, with metrics, for Spark's progress. No round trip."""
        end = self._covered or self._newest
        if end is None:
            return {}
        newest = self._newest or end
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

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the checkpoint is the only state."""

    def stop(self) -> None:
        """Close the connections to the members."""
        self._frontier.close()

    # --- rows ---

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch, none if it is empty."""
        first, last = FleetOffset.from_json(start), FleetOffset.from_json(end)
        self._covered = self._covered or last  # a batch that a driver before has planned
        with as_source_errors(advice=DATA_LOSS):
            return list(self._batches.tasks(first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine of the member."""
        if isinstance(partition, MemberTask):
            yield from partition.batches(partition.location, self._schema, advice=DATA_LOSS)


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
