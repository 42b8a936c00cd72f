"""Micro-batches: where a stream starts and continues, so that no row is read twice; its offsets."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Any, Generic, NamedTuple, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from snapkv.base.waiting import monotonic, pause
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading.change_replay import CommitChanges, Touched
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.errors import SourceError, as_source_errors
from snapkv.spark.pinned_commits import PinnedCommits
from snapkv.spark.process_readers import RESTORED, holds, own_reader, verified_reader
from snapkv.spark.read_tasks import Task
from snapkv.spark.schema import BatchSchema
from snapkv.spark.source_options import SourceOptions, check_none_of
from snapkv.times import physical_ms

VERSION = 1
_UINT64 = range(1 << 64)


@dataclass(frozen=True, slots=True)
class Offset(ABC):
    """How far a stream is; its checkpoints contain it.

    `pinned` is False only in the first offset of a new query, which Spark asks for twice and does
    not log. The next offset differs in `pinned` only: its batch is empty, and it puts the start
    into Spark's log.
    """

    pinned: bool = field(default=True, kw_only=True)

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""

    def started(self) -> Self:
        """Return the first offset as Spark logs it."""
        return replace(self, pinned=True)


@dataclass(frozen=True, slots=True)
class StreamOffset(Offset):
    """How far a stream of one store is: up to a commit."""

    store: bytes
    mark: Mark

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        place = {"v": VERSION} | store_fields(self.store, self.mark)
        return place | self.fields() | {"pinned": self.pinned}

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields of this kind of stream."""


@dataclass(frozen=True, slots=True)
class ChangesOffset(StreamOffset):
    """All commits up to a mark were delivered; or of the snapshot at that mark, all keys up to one.

    `after` is None once the snapshot is complete, or if the stream has none.
    """

    after: bytes | None = None

    def fields(self) -> dict[str, Any]:
        """Return how far the snapshot was delivered."""
        after = None if self.after is None else self.after.hex()
        return {"snapshot": self.after is not None, "after": after}

    @staticmethod
    def from_json(checkpoint: Mapping[str, Any]) -> ChangesOffset:
        """Return the offset in a checkpoint. Raises `SourceError` for anything else."""
        with checking(checkpoint):
            after = checkpoint["after"]
            found = None if after is None else bytes.fromhex(after)
            pinned = boolean(checkpoint["pinned"])
            return ChangesOffset(*store_and_mark(checkpoint), found, pinned=pinned)

    def at(self, mark: Mark, after: bytes | None = None) -> ChangesOffset:
        """Return the offset after all commits up to a mark, or after a key of its snapshot."""
        return ChangesOffset(self.store, mark, after)


# --- for every kind of stream ---


@contextmanager
def checking(checkpoint: Mapping[str, Any]) -> Iterator[None]:
    """Raise `SourceError` if a checkpoint has another version, or its fields are invalid."""
    try:
        version = checkpoint["v"]
        if version != VERSION:
            raise errors.CHECKPOINT_INVALID(
                f"the checkpoint has version {version!r}; this snapkv reads version {VERSION}"
            )
        yield
    except SourceError:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise errors.CHECKPOINT_INVALID(
            f"the checkpoint is not one of this format: {checkpoint!r}"
        ) from e


def store_fields(store: bytes, mark: Mark) -> dict[str, Any]:
    """Return the fields that name a store and a commit in it."""
    return {
        "store": store.hex(),
        "rev": mark.revision,
        "ts": mark.timestamp,
        "commit": mark.ordinal,
    }


def store_and_mark(checkpoint: Mapping[str, Any]) -> tuple[bytes, Mark]:
    """Return the store and the commit that a checkpoint names."""
    mark = Mark(*(number(checkpoint[name]) for name in ("ts", "rev", "commit")))
    return bytes.fromhex(checkpoint["store"]), mark


def boolean(value: Any) -> bool:
    """Return a bool. Raises `ValueError` for any other value."""
    if not isinstance(value, bool):
        raise ValueError(f"neither true nor false: {value!r}")
    return value


def number(value: Any) -> int:
    """Return a number of 64 bits. Raises `ValueError` for any other value."""
    if type(value) is not int or value not in _UINT64:
        raise ValueError(f"not a number of 64 bits: {value!r}")
    return value


try:
    from pyspark.sql.streaming import datasource as _spark
except ImportError:  # before 4.2
    _spark = None

LIMITS_KNOWN = _spark is not None
AvailableNow: Any = _spark.SupportsTriggerAvailableNow if LIMITS_KNOWN else object
"""The base class of streams that support Trigger.AvailableNow."""
Step = TypeVar("Step")
ValuesBefore = Callable[[Sequence[Touched]], Iterable[bytes | None]]
"""Returns the values of some keys just before they were touched."""


class Limit:
    """The most rows and bytes of a batch; a commit is never split."""

    def __init__(self, rows: int | None, size: int | None) -> None:
        self._rows, self._size = rows, size

    @property
    def bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self._rows is not None or self.sized

    @property
    def sized(self) -> bool:
        """Whether bytes are bounded."""
        return self._size is not None

    def last(self, steps: Iterable[tuple[Step, int, int]]) -> Step | None:
        """Return the last step of a batch, by the rows and bytes of each; None if it has all.

        The first rows always fit, and no step is split.
        """
        rows = size = 0
        last: Step | None = None
        for step, more_rows, more_bytes in steps:
            is_first = rows == 0
            rows, size = rows + more_rows, size + more_bytes
            over = self._rows is not None and rows > self._rows
            if not is_first and (over or (self._size is not None and size > self._size)):
                return last
            last = step
        return None


def limit_of(options: SourceOptions, read_limit: Any = None) -> Limit:
    """Return the limit of a batch, which the options give, unless Spark asks for everything."""
    if LIMITS_KNOWN and isinstance(read_limit, _spark.ReadAllAvailable):
        return Limit(None, None)
    return Limit(options.count("maxRowsPerTrigger"), options.count("maxBytesPerTrigger"))


def default_limit(options: SourceOptions) -> Any:
    """Return the limit of the options as Spark's class, which has one; a batch keeps both."""
    if (rows := options.count("maxRowsPerTrigger")) is not None:
        return _spark.ReadMaxRows(rows)
    if (size := options.count("maxBytesPerTrigger")) is not None:
        return _spark.ReadMaxBytes(size)
    return _spark.ReadAllAvailable()


# --- how far a batch goes ---


class Size(NamedTuple):
    """The part of a batch that a commit takes."""

    mark: Mark
    rows: int
    size: int


def sizes(
    commits: Iterable[CommitChanges], before: ValuesBefore | None, *, sized: bool, deletes: bool
) -> Iterator[Size]:
    """Yield commits with their rows; with their bytes, too, if `sized`.

    The writes that one observed tick stamps count as one commit. `before` reads the values before
    the changes, None if rows do not show them; they are read only if bytes are wanted.
    """
    rows = size = 0
    for mark, stamp, touched in commits:
        shown = [each for each in touched if each.exists or deletes]
        with_before = [each for each in shown if each.existed] if before else []
        size += sum(len(each.last.kv.key) + len(each.last.kv.value) for each in shown)
        rows += len(shown)
        for each in with_before:
            if each.exists:  # the one row of a removal shows the value before
                rows += 1
                size += len(each.last.kv.key)
        if before and sized:
            size += sum(len(value or b"") for value in before(with_before))
        if stamp is None:  # an observed write belongs to the mark that stamps it
            continue
        yield Size(mark, rows, size)
        rows = size = 0


def of_members(members: Iterable[Iterable[Size]]) -> Iterator[tuple[int, int, int]]:
    """Yield timestamps with the rows and bytes that several members committed at each."""
    for timestamp, commits in groupby(merge(*members, key=_time_of), key=_time_of):
        parts = list(commits)
        yield timestamp, sum(part.rows for part in parts), sum(part.size for part in parts)


def _time_of(commit: Size) -> int:
    return commit.mark.timestamp


IDLE_S = 0.5
"""The time that an idle stream waits for a commit before it answers that nothing is new, in
seconds."""
AGAIN_S = 1.0
"""The longest pause between two questions of Spark that makes a stream idle, in seconds."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.005, 0.05

_log = logging.getLogger(__name__)


Where = TypeVar("Where")


class Idle(Generic[Where]):
    """Whether Spark asks again and again where nothing is new, which it does without a trigger."""

    def __init__(self) -> None:
        self._last: tuple[Where, float] | None = None

    def is_asked_again(self, at: Where) -> bool:
        """Return whether Spark asked just now, and there was nothing new."""
        last, self._last = self._last, (at, monotonic())
        return last is not None and last[0] == at and self._last[1] - last[1] < AGAIN_S


Place = TypeVar("Place", bound=Offset)


class StreamReader(DataSourceStreamReader, Generic[Place], AvailableNow):
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
        self._initial: Place | None = None
        self._idle: Idle[Place] = Idle()
        check_none_of(
            options.texts, for_batches, "for a batch; a stream ends with trigger(availableNow=True)"
        )
        if limit_of(options).bounded and not LIMITS_KNOWN:
            raise errors.INVALID_OPTION("limits per trigger need PySpark 4.2 or newer")

    # --- what each kind of stream does in its own way ---

    @abstractmethod
    def _position(self, checkpoint: Mapping[str, Any]) -> Place:
        """Return the position in a checkpoint. Raises `SourceError`."""

    @abstractmethod
    def _start(self) -> Place:
        """Return where a new query starts, with `pinned` False."""

    @abstractmethod
    def _newest(self) -> Place:
        """Return the newest position."""

    @abstractmethod
    def _end(self, at: Place, limit: Limit) -> Place:
        """Return the end of the next batch; the same position, after a wait, if nothing is new."""

    @abstractmethod
    def _planned(self, first: Place, last: Place) -> Sequence[Task]:
        """Return the tasks of a batch."""

    # --- what Spark asks ---

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; every call returns the same."""
        if self._initial is None:
            with as_source_errors():
                self._initial = self._start()
        return self._initial.to_json()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch: the newest commit, or as far as limits allow.

        PySpark before 4.2 passes nothing, and calls this before `initialOffset`.
        """
        with as_source_errors(advice=self.advice):
            if start is None:
                return self._newest().to_json()
            at = self._position(start)
            if not at.pinned:
                return at.started().to_json()
            return self._end(at, limit_of(self._options, limit)).to_json()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit of the options."""
        return default_limit(self._options)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: the checkpoint is the only state."""

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch, none if it is empty."""
        with as_source_errors(advice=self.advice):
            return self._planned(self._position(start), self._position(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine."""
        if isinstance(partition, Task):
            yield from partition.batches(self._location, self._schema, advice=self.advice)


At = TypeVar("At", bound=StreamOffset)


class MicroBatches(StreamReader[At]):
    """The stream of one store."""

    def __init__(
        self, options: SourceOptions, schema: BatchSchema, for_batches: Collection[str]
    ) -> None:
        super().__init__(options, schema, for_batches)
        self._fails = options.flag("failOnDataLoss", default=True)
        self._target: Mark | None = None
        self._covered: Mark | None = None  # all commits up to it were delivered, or soon are
        self._losses: dict[int, int] = {}  # by the number of the last commit that was delivered

    @abstractmethod
    def _next(self, at: At, limit: Limit) -> At:
        """Return the end of the next batch; the same position when nothing is new."""

    @abstractmethod
    def _tasks(self, reader: Reader, first: At, last: At) -> Sequence[Task]:
        """Return the tasks of a batch; both its ends were found in the store."""

    # --- where it is ---

    def _end(self, at: At, limit: Limit) -> At:
        self._covered = None
        found = self._next(at, limit)
        if found == at and self._idle.is_asked_again(at):
            self._wait_for_a_commit(at)
            found = self._next(at, limit)
        self._covered = self._covered or found.mark
        return found

    def _wait_for_a_commit(self, at: At) -> None:
        """Wait until there is a newer commit, for `IDLE_S` at most: Spark asks all the time."""
        if self._target is not None:
            return
        reader, until, length = own_reader(self._location), monotonic() + IDLE_S, PAUSE_MIN_S
        while monotonic() < until and reader.timeline.head().ordinal <= at.mark.ordinal:
            pause(length)
            length = min(2 * length, PAUSE_MAX_S)

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the newest commit: the query ends there."""
        with as_source_errors():
            self._target = own_reader(self._location).timeline.head()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest position, for the progress that Spark shows, and the metrics.

        A Python source has no other way to say them: only a reported offset is shown as it is.
        """
        with as_source_errors():
            newest = self._newest()
        mark = newest.mark
        end = self._covered or mark
        metrics = {
            "commitsBehindLatest": mark.ordinal - end.ordinal,
            "msBehindLatest": physical_ms(mark.timestamp) - physical_ms(end.timestamp),
            "commitsLost": self.lost,
        }
        return newest.to_json() | {"metrics": metrics}

    def stop(self) -> None:
        """Do nothing: the process that has the engine open ends with the query."""

    def _head(self, reader: Reader, after: Mark) -> Mark:
        """Return the newest commit that a batch may contain, or `after` if that is later."""
        newest = self._target or reader.timeline.head()
        return max(newest, after, key=lambda mark: mark.ordinal)

    # --- what compaction left ---

    def _moment_at(self, reader: Reader, mark: Mark) -> PinnedCommits:
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

    def _planned(self, first: At, last: At) -> Sequence[Task]:
        self._covered = self._covered or last.mark  # a batch that a driver before has planned
        reader = verified_reader(self._location, first.store, first.mark)
        return self.planned(reader, first, last)

    def planned(self, reader: Reader, first: At, last: At) -> list[Task]:
        """Return the tasks of a batch that begins in a reader's store; raise if its end is not."""
        if not holds(reader, last.store, last.mark):
            raise errors.STORE_MISMATCH(RESTORED)
        return list(self._tasks(reader, first, last))

    @property
    def lost(self) -> int:
        """The number of commits that compaction removed unread since the query started."""
        return sum(self._losses.values())


def moment(reader: Reader, mark: Mark) -> PinnedCommits:
    """Return the state at a commit, with a revision that can be read. Raises `CompactedError`."""
    return PinnedCommits(reader.format.store_id, mark, mark, mark.revision).held(reader)
