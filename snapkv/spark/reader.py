"""Reading a batch: tasks planned on the driver, read by workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from snapkv.reading.reader import Reader
from snapkv.reading.tables import everything
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.keys import span_of
from snapkv.spark.location import Place
from snapkv.spark.options import CHANGES, COMMITS, HISTORY, SNAPSHOT, Options
from snapkv.spark.options_text import Given
from snapkv.spark.pinned import Anchor, Commits, anchor_in, found_again, moment_of, range_of
from snapkv.spark.tasks import (
    ChangesTask,
    CommitsTask,
    HistoryTask,
    Shaped,
    SnapshotTask,
    Task,
    cut_commits,
    cut_keys,
)


def anchored(options: Given) -> Anchor:
    """Return which store is there, and what now is; two round trips. Raises `SourceError`."""
    with coded(), options.place.open() as opened:
        return anchor_in(opened.reader)


def pin(options: Options, anchor: Anchor) -> Commits:
    """Pin what a batch shows, which is the same however often this is asked.

    Raises `SourceError`.
    """
    if options.view == CHANGES and not options.has_start:
        raise SourceError(codes.NO_START, "changes need startingVersion or startingTimestamp")
    reader = found_again(options.place, anchor.store, anchor.head)
    if options.view == SNAPSHOT:
        return moment_of(reader, options, anchor)
    return range_of(reader, options, anchor, standing=options.view == HISTORY)


def planned(options: Options, pinned: Commits) -> Sequence[Task]:
    """Return the tasks that read what was pinned. Raises `SourceError`."""
    reader = found_again(options.place, pinned.store, pinned.high)
    with coded():
        return _plan(reader, options, pinned)


def _plan(reader: Reader, options: Options, pinned: Commits) -> list[Task]:
    if options.view == COMMITS:
        whole = span_of(options) if options.place.observe is not None else everything(reader)
        inclusive = not options.has_start
        return [CommitsTask(pinned, whole, inclusive)]
    span = span_of(options)
    if options.view == CHANGES:
        parts = cut_commits(reader, pinned, options.partitions)
        preimages = options.flag("preimages")
        deletes = not options.flag("ignoreDeletes")
        return [ChangesTask(part, span, preimages, deletes) for part in parts]
    pinned = pinned.held(reader)
    groups = cut_keys(reader, span, pinned.reading, options.partitions)
    if options.view == HISTORY:  # keys that are no more stand between pieces of those that are
        starts = [span.start, *(group[0].key for group in groups[1:])]
        ends = [*starts[1:], span.end]
        spans = [span._replace(start=a, end=b) for a, b in zip(starts, ends, strict=True)]
        return [HistoryTask(pinned, each) for each in spans]
    return [
        SnapshotTask(pinned, span, tuple((piece.key, piece.range_end) for piece in group))
        for group in groups
    ]


class BatchReader(DataSourceReader):
    """What Spark asks for partitions and their rows; everything on it can be pickled."""

    def __init__(self, place: Place, shape: Shaped, plan: Callable[[], Sequence[Task]]) -> None:
        self._place, self._shape, self._plan = place, shape, plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; the empty one when there is nothing to read."""
        return list(self._plan()) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from an engine of this process."""
        if isinstance(partition, Task):
            yield from batches(self._place, partition, self._shape)


def batches(
    place: Place, task: Task, shape: Shaped, *, advice: str = codes.COMPACTED_ADVICE
) -> Iterator[pa.RecordBatch]:
    """Yield what a task reads, as Spark takes it; `advice` tells what to do about compaction.

    Raises `SourceError`.
    """
    reader = found_again(place, task.commits.store, task.commits.high)
    with coded(advice=advice):
        for found in task.read(reader, shape):
            yield shape.batch(found)
