"""Reading a batch: tasks planned on the driver, read by workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from snapkv.location import Location
from snapkv.reading.reader import Reader
from snapkv.reading.spans import everything
from snapkv.spark import errors
from snapkv.spark.archived_tasks import changes_tasks
from snapkv.spark.cuts import cut_keys
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.options import CHANGES, COMMITS, HISTORY, LATEST, SNAPSHOT, Options, span_of
from snapkv.spark.pinned import Commits, Present, moment_of, present_in, range_of, verified_reader
from snapkv.spark.source_options import SourceOptions
from snapkv.spark.tasks import (
    BatchSchema,
    CommitsTask,
    HistoryTask,
    SnapshotTask,
    Task,
)
from snapkv.store.observe import open_to_read


def present_of(options: SourceOptions) -> Present:
    """Return the store's identity, its newest commit and the clock; two round trips.

    Raises `SourceError`.
    """
    with coded(), open_to_read(options.location) as opened:
        return present_in(opened.reader)


def located(options: Options) -> tuple[Options, Present]:
    """Return options with the name of the store, which an archive knows, and the present.

    Two round trips. Raises `SourceError`.
    """
    with coded(), open_to_read(options.location) as opened:
        location = replace(options.location, name=opened.reader.layout.name)
        return replace(options, location=location), present_in(opened.reader)


def pin(options: Options, present: Present) -> Commits:
    """Return the commits that a batch shows: the same at every call. Raises `SourceError`."""
    if options.view == CHANGES and not options.has_start:
        raise SourceError(errors.NO_START, "changes need startingVersion or startingTimestamp")
    reader = verified_reader(options.location, present.store, present.head)
    if options.view == SNAPSHOT:
        return moment_of(reader, options, present)
    return range_of(reader, options, present, from_state=options.view == HISTORY)


def planned(options: Options, pinned: Commits) -> Sequence[Task]:
    """Return the tasks that read the pinned commits. Raises `SourceError`."""
    reader = verified_reader(options.location, pinned.store, pinned.high)
    with coded():
        return plan(reader, options, pinned)


def plan(reader: Reader, options: Options, pinned: Commits) -> list[Task]:
    """Return the tasks that read pinned commits of an open store, which has them."""
    if options.view == COMMITS:
        whole = span_of(options) if options.location.prefix is not None else everything(reader)
        inclusive = not options.has_start or options.text("startingVersion") == LATEST
        return [CommitsTask(pinned, whole, inclusive)]
    span = span_of(options)
    if options.view == CHANGES:
        return changes_tasks(reader, options, span, pinned)
    pinned = pinned.held(reader)
    groups = cut_keys(reader, span, pinned.reading, options.partitions)
    if options.view == HISTORY:  # removed keys lie between the pieces, which are of existing keys
        starts = [span.start, *(group[0].key for group in groups[1:])]
        ends = [*starts[1:], span.end]
        spans = [span._replace(start=a, end=b) for a, b in zip(starts, ends, strict=True)]
        return [HistoryTask(pinned, each) for each in spans]
    return [
        SnapshotTask(pinned, span, tuple((piece.key, piece.range_end) for piece in group))
        for group in groups
    ]


class BatchReader(DataSourceReader):
    """Answers Spark which partitions there are, and reads their rows; can be pickled."""

    def __init__(
        self, location: Location, schema: BatchSchema, plan: Callable[[], Sequence[Task]]
    ) -> None:
        self._location, self._schema, self._plan = location, schema, plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, or an empty partition if there is nothing to read."""
        return list(self._plan()) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine."""
        if isinstance(partition, Task):
            yield from batches(self._location, partition, self._schema)


def batches(
    location: Location, task: Task, schema: BatchSchema, *, advice: str = errors.COMPACTED_ADVICE
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task in Spark's schema; `advice` says what to do after compaction.

    Raises `SourceError`.
    """
    reader = verified_reader(location, task.commits.store, task.commits.high)
    with coded(advice=advice):
        for found in task.read(reader, schema):
            yield schema.batch(found)
