"""Streaming a fleet: a batch ends at a time that is final, so asked for again it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from snapkv.base.waiting import monotonic, pause
from snapkv.clock import SystemClock
from snapkv.errors import MembersBehindError
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.fleets.batches import MemberBatches
from snapkv.spark.fleets.frontier import ALL, Frontier
from snapkv.spark.fleets.offset import FleetOffset
from snapkv.spark.fleets.options import policy_of
from snapkv.spark.fleets.pinned import Described
from snapkv.spark.fleets.tasks import MemberTask, member_batches
from snapkv.spark.limits import LIMITS_KNOWN, AvailableNow, Limit, default_limit, limit_of
from snapkv.spark.micro_batches import IDLE_S, Idle
from snapkv.spark.options import Options
from snapkv.spark.schema import Schema
from snapkv.spark.source_options import check_none_of
from snapkv.spark.stream import DATA_LOSS, FOR_BATCHES
from snapkv.spark.timing import timestamp_of
from snapkv.times import physical_ms

PAUSE_S = 0.05
VERIFIED_S = 5.0
"""A stream that finds nothing new looks so often whether its members are still the same stores."""


class FleetStream(DataSourceStreamReader, AvailableNow):
    """The stream of a fleet's changes, which may begin with a snapshot.

    One process of the driver keeps it while the query runs; workers get a pickled copy. The batch
    between two offsets is that between two commits of each member, so it never changes. Raises
    `SourceError` for options that a stream cannot have.
    """

    def __init__(self, options: Options, members: Described, schema: Schema) -> None:
        check_none_of(
            options.texts,
            (*FOR_BATCHES, "behind"),
            "for a batch; a stream ends with trigger(availableNow=True), and waits for members "
            "as `resolved` says",
        )
        policy = policy_of(options, len(members))
        if not LIMITS_KNOWN and (limit_of(options).bounded or policy != ALL):
            raise SourceError(
                errors.INVALID_OPTION, "limits per trigger and resolved need PySpark 4.2 or newer"
            )
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
            with coded(advice=DATA_LOSS):
                self._initial = self._start()
        return self._initial.to_json()

    def _start(self) -> FleetOffset:
        newest = self._frontier.resolved(ALL)
        text = self._options.text("startingTimestamp")
        if text is None:
            return self._frontier.start(newest, snapshot=not self._options.has_start)
        now_ms = SystemClock().now_ms()
        start = timestamp_of(text, self._options.zone, now_ms, start=True)
        if start > newest and physical_ms(start) > now_ms:
            raise SourceError(
                errors.TIMESTAMP_INVALID, f"startingTimestamp {text} is in the future"
            )
        return self._frontier.start(min(max(start - 1, 0), newest), snapshot=False)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch: the newest final time, or as far as limits allow.

        PySpark before 4.2 passes nothing, and calls this before `initialOffset`.
        """
        with coded(advice=DATA_LOSS):
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
        """Return the end of the next batch; the same offset if nothing is new.

        While a member holds the fleet back, nothing is new; a query that is to end fails then.
        """
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
        with coded():
            self._target = self._frontier.resolved()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest offset that is known, for the progress that Spark shows; with metrics.

        No round trip.
        """
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
        with coded(advice=DATA_LOSS):
            return list(self._batches.tasks(first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine of the member."""
        if isinstance(partition, MemberTask):
            yield from member_batches(partition, self._schema, advice=DATA_LOSS)
