"""Streaming changes: offsets that lose and repeat nothing, and limits that split no commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from snapkv.changed import changed, first_after
from snapkv.errors import CompactedError
from snapkv.history import bounds
from snapkv.reading import Reader
from snapkv.records import Mark
from snapkv.spark import codes, limits
from snapkv.spark.codes import SourceError, coded
from snapkv.spark.keys import span_of
from snapkv.spark.limits import AvailableNow, Limit, default_limit, limit_of
from snapkv.spark.offset import Offset
from snapkv.spark.options import Options
from snapkv.spark.pinned import RESTORED, Anchor, Commits, anchor_in, found_again, holds, low_of
from snapkv.spark.place import opened
from snapkv.spark.reader import batches
from snapkv.spark.shape import Shape
from snapkv.spark.tasks import ChangesTask, InitialTask, Task, cut_commits, cut_keys
from snapkv.spark.timing import timestamp_of
from snapkv.tables import Span
from snapkv.times import physical_ms

_log = logging.getLogger(__name__)

LATEST = "latest"
DATA_LOSS = (
    "the stream has not read all of it: start it with a new checkpoint, which begins with a "
    "snapshot, or with failOnDataLoss=false, which goes on with what is left"
)


class ChangesReader(DataSourceStreamReader, AvailableNow):
    """What Spark asks where a stream is, how far it may go, and for the rows in between.

    It lives as long as the query in one process of the driver; workers get a pickled copy.
    Raises `SourceError` for options that a stream cannot have.
    """

    def __init__(self, options: Options, shape: Shape) -> None:
        self._options, self._shape = options, shape
        self._span = span_of(options)
        self._preimages = options.flag("preimages")
        self._deletes = not options.flag("ignoreDeletes")
        self._fails = options.flag("failOnDataLoss", default=True)
        self._initial: Offset | None = None
        self._target: Mark | None = None
        for name in options.given:
            if name.startswith("ending"):
                raise SourceError(
                    codes.INVALID_OPTION,
                    f"{name} is for a batch: a stream ends with trigger(availableNow=True)",
                )
        if limit_of(options).bounded and not limits.LIMITS_KNOWN:
            raise SourceError(codes.INVALID_OPTION, "limits per trigger need PySpark 4.2 or newer")

    # --- where it is ---

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts; the same however often it is asked."""
        if self._initial is None:
            with coded():
                self._initial = self._start()
        return self._initial.to_json()

    def _start(self) -> Offset:
        reader = opened(self._options.place)
        anchor = anchor_in(reader)
        if any(name.startswith("starting") for name in self._options.given):
            return Offset(anchor.store, self._start_mark(reader, anchor), pinned=False)
        newest = reader.reads.showing.pin_head().mark
        return Offset(anchor.store, newest, b"", pinned=False)

    def _start_mark(self, reader: Reader, anchor: Anchor) -> Mark:
        """Return the last commit before the start that options name."""
        if (self._options.text("startingVersion") or "").lower() == LATEST:
            return reader.reads.showing.pin_head().mark
        if (text := self._options.text("startingTimestamp")) is not None:
            start = timestamp_of(text, self._options.zone, anchor.now_ms, start=True)
            if start > anchor.head.timestamp and physical_ms(start) > anchor.now_ms:
                raise SourceError(codes.TIMESTAMP_INVALID, f"startingTimestamp {text} is to come")
        try:
            low = low_of(reader, self._options, anchor)
            assert low is not None
            return self._left(reader, low)
        except SourceError as e:
            if self._fails or not isinstance(e.__cause__, CompactedError):
                raise
            return self._lost(reader, reader.timeline.creation, e.__cause__)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return how far the next batch goes: to the newest commit, or as far as limits let it.

        PySpark before 4.2 passes nothing, and asks for this before it asks where to start.
        """
        with coded(advice=DATA_LOSS):
            if start is None:
                return self._newest()
            at = Offset.from_json(start)
            if not at.pinned:
                return at.started().to_json()
            return self._next(at, limit_of(self._options, limit)).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember what is there now: the query ends with it."""
        with coded():
            self._target = opened(self._options.place).timeline.head()

    def getDefaultReadLimit(self) -> Any:
        """Return the limit that options name."""
        return default_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest there is, for the progress that Spark shows."""
        with coded():
            return self._newest()

    def _newest(self) -> dict[str, Any]:
        reader = opened(self._options.place)
        return Offset(reader.format.store_id, reader.timeline.head()).to_json()

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: a checkpoint holds all there is to keep."""

    def stop(self) -> None:
        """Do nothing: the process that holds the engine ends with the query."""

    # --- how far it may go ---

    def _next(self, at: Offset, limit: Limit) -> Offset:
        reader = found_again(self._options.place, at.store, at.mark)
        if at.after is not None and limit.bounded:
            return self._next_keys(reader, at, limit)
        head = _later(self._target or reader.timeline.head(), at.mark)
        if at.after is None and head.ordinal == at.mark.ordinal:
            return at
        if limit.bounded:
            return at.at(self._next_commit(reader, at.mark, head, limit))
        return at.at(head)

    def _next_keys(self, reader: Reader, at: Offset, limit: Limit) -> Offset:
        state = self._standing(reader, at.mark)
        span = self._behind(at)
        source = reader.moment(state.high)
        pages = source.scan(span.start, span.end, keys_only=not limit.sized)
        return at.at(state.high, limits.last_key(pages, limit))

    def _next_commit(self, reader: Reader, low: Mark, head: Mark, limit: Limit) -> Mark:
        low = self._left(reader, low)
        commits = changed(reader, self._span.start, self._span.end, low, head)
        found = limits.last_commit(commits, limit, preimages=self._preimages, deletes=self._deletes)
        return found or head

    def _behind(self, at: Offset) -> Span:
        """Return the keys of the snapshot that are still to come."""
        if not at.after:
            return self._span
        return self._span._replace(start=max(self._span.start, at.after + b"\0"))

    # --- what compaction left ---

    def _left(self, reader: Reader, low: Mark) -> Mark:
        """Return `low`, or the oldest commit left where changes after it are gone and may be."""
        try:
            first_after(reader, low)
            if self._preimages:
                _moment(reader, low)
            return low
        except CompactedError as e:
            return self._lost(reader, low, e)

    def _standing(self, reader: Reader, mark: Mark) -> Commits:
        """Return the moment of a commit, or the oldest one left where that is gone and may be."""
        try:
            return _moment(reader, mark)
        except CompactedError as e:
            return _moment(reader, self._lost(reader, mark, e))

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
        first, last = Offset.from_json(start), Offset.from_json(end)
        with coded(advice=DATA_LOSS):
            reader = found_again(self._options.place, first.store, first.mark)
            if not holds(reader, last.store, last.mark):
                raise SourceError(codes.STORE_MISMATCH, RESTORED)
            low = first.mark
            tasks: list[Task] = []
            if first.after is not None and last.after != first.after:
                low, tasks = self._snapshot_tasks(reader, first, last)
            if last.after is None and low.ordinal < last.mark.ordinal:
                tasks += self._changes_tasks(reader, low, last.mark)
            return tasks

    def _snapshot_tasks(
        self, reader: Reader, first: Offset, last: Offset
    ) -> tuple[Mark, list[Task]]:
        """Return the commit whose state is read, and the tasks for its keys.

        A batch 0 of PySpark before 4.2 may end before a start that was asked for later.
        """
        mark = last.mark if last.after is not None else _earlier(first.mark, last.mark)
        span = self._behind(first)
        if last.after:
            span = span._replace(end=last.after + b"\0")
        state = self._standing(reader, mark)
        groups = cut_keys(reader, span, state.reading, self._options.partitions)
        return state.high, [
            InitialTask(state, span, tuple((piece.key, piece.range_end) for piece in group))
            for group in groups
        ]

    def _changes_tasks(self, reader: Reader, low: Mark, high: Mark) -> list[Task]:
        low = self._left(reader, low)
        commits = Commits(reader.format.store_id, low, high, high.revision)
        return [
            ChangesTask(part, self._span, self._preimages, self._deletes)
            for part in cut_commits(reader, commits, self._options.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from an engine of this process."""
        if isinstance(partition, Task):
            yield from batches(self._options.place, partition, self._shape, advice=DATA_LOSS)


def _moment(reader: Reader, mark: Mark) -> Commits:
    """Return the state at a commit, where it can be read now. Raises `CompactedError`."""
    moment = Commits(reader.format.store_id, mark, mark, mark.revision)
    pin = moment.pin(reader)
    reader.reads.hold(pin)
    return replace(moment, reading=pin.reading)


def _earlier(one: Mark, other: Mark) -> Mark:
    return min(one, other, key=lambda mark: mark.ordinal)


def _later(one: Mark, other: Mark) -> Mark:
    return max(one, other, key=lambda mark: mark.ordinal)
