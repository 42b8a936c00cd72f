"""What every stream answers Spark: where it starts and goes on, so that nothing comes twice."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading.history import bounds
from snapkv.reading.reader import Reader
from snapkv.spark import errors as codes
from snapkv.spark import limits
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.limits import AvailableNow, Limit, default_limit, limit_of
from snapkv.spark.location import opened
from snapkv.spark.options_text import Given, check_none_of
from snapkv.spark.pinned import RESTORED, Commits, found_again, holds
from snapkv.spark.reader import batches
from snapkv.spark.tasks import Shaped, Task

_log = logging.getLogger(__name__)


class Position(Protocol):
    """What checkpoints hold.

    `pinned` is False only in the first one of a new query, which Spark asks for twice and does not
    log: the next one is the same but for that word, makes an empty batch, and so brings the start
    into the log.
    """

    @property
    def store(self) -> bytes:
        """The id of the store."""
        ...

    @property
    def mark(self) -> Mark:
        """The commit that it was seen at."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether the log has it."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint."""
        ...

    def started(self) -> Self:
        """Return the first one as the log has it."""
        ...


At = TypeVar("At", bound=Position)


class MicroBatches(DataSourceStreamReader, Generic[At], AvailableNow):
    """What Spark asks where a stream is, how far it may go, and for the rows in between.

    It lives as long as the query in one process of the driver; workers get a pickled copy.
    Raises `SourceError` for options that a stream cannot have.
    """

    advice: str
    """What to do when history is gone that the stream needs."""

    def __init__(self, options: Given, shape: Shaped, for_batches: Collection[str]) -> None:
        self._place, self._shape, self._options = options.place, shape, options
        self._fails = options.flag("failOnDataLoss", default=True)
        self._initial: At | None = None
        self._target: Mark | None = None
        check_none_of(
            options.given,
            for_batches,
            "for a batch: a stream ends with trigger(availableNow=True)",
        )
        if limit_of(options).bounded and not limits.LIMITS_KNOWN:
            raise SourceError(codes.INVALID_OPTION, "limits per trigger need PySpark 4.2 or newer")

    # --- what each kind of stream does in its own way ---

    @abstractmethod
    def _position(self, given: Mapping[str, Any]) -> At:
        """Return the position that a checkpoint holds. Raises `SourceError`."""

    @abstractmethod
    def _start(self, reader: Reader) -> At:
        """Return where a new query starts, not pinned."""

    @abstractmethod
    def _newest(self, reader: Reader) -> At:
        """Return the end of what is there now."""

    @abstractmethod
    def _next(self, at: At, limit: Limit) -> At:
        """Return how far the next batch goes; the same position when nothing is new."""

    @abstractmethod
    def _tasks(self, reader: Reader, first: At, last: At) -> Sequence[Task]:
        """Return the tasks of a batch, whose both ends are of the store that is there."""

    # --- where it is ---

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; the same however often it is asked."""
        if self._initial is None:
            with coded():
                self._initial = self._start(opened(self._place))
        return self._initial.to_json()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return how far the next batch goes: to the newest commit, or as far as limits let it.

        PySpark before 4.2 passes nothing, and asks for this before it asks where to start.
        """
        with coded(advice=self.advice):
            if start is None:
                return self._newest(opened(self._place)).to_json()
            at = self._position(start)
            if not at.pinned:
                return at.started().to_json()
            return self._next(at, limit_of(self._options, limit)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: the query ends with it."""
        with coded():
            self._target = opened(self._place).timeline.head()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit that options name."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest there is, for the progress that Spark shows."""
        with coded():
            return self._newest(opened(self._place)).to_json()

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: a checkpoint holds all there is to keep."""

    def stop(self) -> None:
        """Do nothing: the process that holds the engine ends with the query."""

    def _head(self, reader: Reader, after: Mark) -> Mark:
        """Return the newest commit that a batch may bring, or `after` where that is later."""
        return later(self._target or reader.timeline.head(), after)

    # --- what compaction left ---

    def _standing(self, reader: Reader, mark: Mark) -> Commits:
        """Return the moment of a commit, or the oldest one left where that is gone and may be."""
        try:
            return moment(reader, mark)
        except CompactedError as e:
            return moment(reader, self._lost(reader, mark, e))

    def _lost(self, reader: Reader, mark: Mark, error: CompactedError) -> Mark:
        """Return the oldest commit left. Raises the error unless options say to go on."""
        if self._fails:
            raise error
        oldest = bounds(reader, None, None)[0]
        _log.warning("commits compacted unread: %d", oldest.ordinal - mark.ordinal)
        return oldest

    # --- rows ---

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the tasks of a batch: none when it is empty."""
        first, last = self._position(start), self._position(end)
        with coded(advice=self.advice):
            reader = found_again(self._place, first.store, first.mark)
            if not holds(reader, last.store, last.mark):
                raise SourceError(codes.STORE_MISMATCH, RESTORED)
            return list(self._tasks(reader, first, last))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from an engine of this process."""
        if isinstance(partition, Task):
            yield from batches(self._place, partition, self._shape, advice=self.advice)


def moment(reader: Reader, mark: Mark) -> Commits:
    """Return the state at a commit, where it can be read now. Raises `CompactedError`."""
    return Commits(reader.format.store_id, mark, mark, mark.revision).held(reader)


def earlier(one: Mark, other: Mark) -> Mark:
    """Return the earlier one of two commits."""
    return min(one, other, key=lambda mark: mark.ordinal)


def later(one: Mark, other: Mark) -> Mark:
    """Return the later one of two commits."""
    return max(one, other, key=lambda mark: mark.ordinal)
