"""Micro-batches: where a stream starts and continues, so that no row is read twice."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from snapkv.base.waiting import monotonic, pause
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.spark import errors, limits
from snapkv.spark.batch_reader import batches
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.limits import AvailableNow, Limit, default_limit, limit_of
from snapkv.spark.location import opened
from snapkv.spark.pinned import RESTORED, Commits, holds, verified_reader
from snapkv.spark.source_options import SourceOptions, check_none_of
from snapkv.spark.tasks import BatchSchema, Task
from snapkv.times import physical_ms

IDLE_S = 0.5
"""How long an idle stream waits for a commit before it answers that nothing is new."""
AGAIN_S = 1.0
"""A stream is idle if Spark asks again so soon."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.005, 0.05

_log = logging.getLogger(__name__)


class Position(Protocol):
    """What checkpoints contain; see `Offset` for `pinned`."""

    @property
    def store(self) -> bytes:
        """The id of the store."""
        ...

    @property
    def mark(self) -> Mark:
        """The commit at which the stream is."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether Spark logs it: all but the first offset of a new query."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        ...

    def started(self) -> Self:
        """Return the first offset as Spark logs it."""
        ...


At = TypeVar("At", bound=Position)
Where = TypeVar("Where")


class Idle(Generic[Where]):
    """Whether Spark asks again and again where nothing is new, which it does without a trigger."""

    def __init__(self) -> None:
        self._last: tuple[Where, float] | None = None

    def is_asked_again(self, at: Where) -> bool:
        """Return whether Spark asked just now, and there was nothing new."""
        last, self._last = self._last, (at, monotonic())
        return last is not None and last[0] == at and self._last[1] - last[1] < AGAIN_S


class MicroBatches(DataSourceStreamReader, Generic[At], AvailableNow):
    """Answers Spark where a stream is and how far it may go, and reads the rows in between.

    One process of the driver keeps it while the query runs; workers get a pickled copy.
    Raises `SourceError` for options that a stream cannot have.
    """

    advice: str
    """What to do when compaction removed history that the stream needs."""

    def __init__(
        self, options: SourceOptions, schema: BatchSchema, for_batches: Collection[str]
    ) -> None:
        self._location, self._schema, self._options = options.location, schema, options
        self._fails = options.flag("failOnDataLoss", default=True)
        self._initial: At | None = None
        self._target: Mark | None = None
        self._idle: Idle[At] = Idle()
        self._covered: Mark | None = None  # all commits up to it were delivered, or soon are
        self._losses: dict[int, int] = {}  # by the number of the last commit that was delivered
        check_none_of(
            options.texts,
            for_batches,
            "for a batch; a stream ends with trigger(availableNow=True)",
        )
        if limit_of(options).bounded and not limits.LIMITS_KNOWN:
            raise SourceError(errors.INVALID_OPTION, "limits per trigger need PySpark 4.2 or newer")

    # --- what each kind of stream does in its own way ---

    @abstractmethod
    def _position(self, checkpoint: Mapping[str, Any]) -> At:
        """Return the position in a checkpoint. Raises `SourceError`."""

    @abstractmethod
    def _start(self, reader: Reader) -> At:
        """Return where a new query starts, with `pinned` False."""

    @abstractmethod
    def _newest(self, reader: Reader) -> At:
        """Return the newest position."""

    @abstractmethod
    def _next(self, at: At, limit: Limit) -> At:
        """Return the end of the next batch; the same position when nothing is new."""

    @abstractmethod
    def _tasks(self, reader: Reader, first: At, last: At) -> Sequence[Task]:
        """Return the tasks of a batch; both its ends were found in the store."""

    # --- where it is ---

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; every call returns the same."""
        if self._initial is None:
            with coded():
                self._initial = self._start(opened(self._location))
        return self._initial.to_json()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch: the newest commit, or as far as limits allow.

        PySpark before 4.2 passes nothing, and calls this before `initialOffset`.
        """
        with coded(advice=self.advice):
            if start is None:
                return self._newest(opened(self._location)).to_json()
            at = self._position(start)
            self._covered = None
            if not at.pinned:
                return at.started().to_json()
            found = self._next(at, limit_of(self._options, limit))
            if found == at and self._idle.is_asked_again(at):
                self._wait_for_a_commit(at)
                found = self._next(at, limit_of(self._options, limit))
            self._covered = self._covered or found.mark
            return found.to_json()

    def _wait_for_a_commit(self, at: At) -> None:
        """Wait until there is a newer commit, for `IDLE_S` at most.

        Spark asks a hundred times a second, and each time costs milliseconds in several processes.
        """
        if self._target is not None:
            return
        reader, until, length = opened(self._location), monotonic() + IDLE_S, PAUSE_MIN_S
        while monotonic() < until and reader.timeline.head().ordinal <= at.mark.ordinal:
            pause(length)
            length = min(2 * length, PAUSE_MAX_S)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest commit: the query ends there."""
        with coded():
            self._target = opened(self._location).timeline.head()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest position, for the progress that Spark shows, and the metrics.

        A Python source has no other way to say them: only a reported offset is shown as it is.
        """
        with coded():
            newest = self._newest(opened(self._location))
        mark = newest.mark
        end = self._covered or mark
        metrics = {
            "commitsBehindLatest": mark.ordinal - end.ordinal,
            "msBehindLatest": physical_ms(mark.timestamp) - physical_ms(end.timestamp),
            "commitsLost": self.lost,
        }
        return newest.to_json() | {"metrics": metrics}

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the checkpoint is the only state."""

    def stop(self) -> None:
        """Do nothing: the process that has the engine open ends with the query."""

    def _head(self, reader: Reader, after: Mark) -> Mark:
        """Return the newest commit that a batch may contain, or `after` if that is later."""
        return later(self._target or reader.timeline.head(), after)

    # --- what compaction left ---

    def _moment_at(self, reader: Reader, mark: Mark) -> Commits:
        """Return the moment of a commit, or of the oldest one left if data loss is allowed."""
        try:
            return moment(reader, mark)
        except CompactedError as e:
            return moment(reader, self._lost(reader, mark, e))

    def _lost(self, reader: Reader, mark: Mark, error: CompactedError) -> Mark:
        """Return the oldest commit left. Raises the error unless failOnDataLoss is false."""
        if self._fails:
            raise error
        oldest = bounds(reader, None, None)[0]
        self._losses[mark.ordinal] = oldest.ordinal - mark.ordinal
        _log.warning("commits compacted unread: %d", self._losses[mark.ordinal])
        return oldest

    # --- rows ---

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch, none if it is empty."""
        first, last = self._position(start), self._position(end)
        self._covered = self._covered or last.mark  # a batch that a driver before has planned
        with coded(advice=self.advice):
            reader = verified_reader(self._location, first.store, first.mark)
            return self.planned(reader, first, last)

    def planned(self, reader: Reader, first: At, last: At) -> list[Task]:
        """Return the tasks of a batch whose start is in the store of a reader.

        Raises `SourceError` if its end is not.
        """
        if not holds(reader, last.store, last.mark):
            raise SourceError(errors.STORE_MISMATCH, RESTORED)
        return list(self._tasks(reader, first, last))

    @property
    def lost(self) -> int:
        """How many commits compaction removed unread since the query started."""
        return sum(self._losses.values())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine."""
        if isinstance(partition, Task):
            yield from batches(self._location, partition, self._schema, advice=self.advice)


def moment(reader: Reader, mark: Mark) -> Commits:
    """Return the state at a commit, with a revision that can be read. Raises `CompactedError`."""
    return Commits(reader.format.store_id, mark, mark, mark.revision).held(reader)


def earlier(one: Mark, other: Mark) -> Mark:
    """Return the earlier one of two commits."""
    return min(one, other, key=lambda mark: mark.ordinal)


def later(one: Mark, other: Mark) -> Mark:
    """Return the later one of two commits."""
    return max(one, other, key=lambda mark: mark.ordinal)
