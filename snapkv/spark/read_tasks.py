"""Tasks: pinned values of what one worker reads; planned on the driver, read by workers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from snapkv.archive.engine import ArchiveEngine
from snapkv.archive.live_and_archive import JoinedEngine, archive_of
from snapkv.archive.manifest import File
from snapkv.archive.state_rows import changes_of
from snapkv.engine.contract import RangePiece, Replay
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading import arrow, change_tables, tables
from snapkv.reading.arrow import Arrays, KeyRange, all_keys_of
from snapkv.reading.change_tables import columns_of
from snapkv.reading.reader import Reader
from snapkv.reading.tables import CommitTimes
from snapkv.spark import errors
from snapkv.spark.errors import as_source_errors
from snapkv.spark.pinned_commits import (
    PinnedCommits,
    Present,
    mark_at,
    moment_of,
    present_in,
    range_of,
)
from snapkv.spark.process_readers import verified_reader
from snapkv.spark.read_options import (
    CHANGES,
    COMMITS,
    HISTORY,
    LATEST,
    SNAPSHOT,
    ReadOptions,
    span_of,
)
from snapkv.spark.schema import BatchSchema
from snapkv.spark.source_options import SourceOptions
from snapkv.store.location import Location
from snapkv.store.open import open_to_read


class Task(InputPartition, ABC):
    """What one worker reads: pickled on the driver, read after its commits were verified."""

    commits: PinnedCommits

    @abstractmethod
    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of the view, a batch at a time."""

    def batches(
        self, location: Location, schema: BatchSchema, *, advice: str = errors.COMPACTED_ADVICE
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches in Spark's schema; `advice` is for compaction. Raises `SourceError`."""
        reader = verified_reader(location, self.commits.store, self.commits.high)
        with as_source_errors(advice=advice):
            for found in self.read(reader, schema):
                yield schema.batch(found)


@dataclass(frozen=True)
class SnapshotTask(Task):
    """Some ranges of keys at one moment."""

    commits: PinnedCommits
    span: KeyRange
    ranges: tuple[tuple[bytes, bytes], ...]

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of a snapshot in key order."""
        source = self.commits.moment(reader)
        timed = "mod_timestamp" in columns.names
        times = CommitTimes(reader, self.commits.high) if timed else None
        for start, end in self.ranges:
            part = self.span._replace(start=start, end=end)
            yield from tables.snapshot(source, part, times, keys_only=not columns.needs_value)


@dataclass(frozen=True)
class InitialTask(SnapshotTask):
    """Some ranges of keys, as the first rows of a stream: each key is an insert."""

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of changes in key order."""
        mark = self.commits.high
        cells = {
            "_change_type": change_tables.INSERT,
            "_commit_version": mark.revision,
            "_change_ordinal": None,
            "_commit_timestamp": arrow.microseconds(mark.timestamp),
        }
        for found in super().read(reader, columns):
            rows = len(found["key"])
            same = {
                name: arrow.repeated(cell, arrow.CHANGES.field(name).type, rows)
                for name, cell in cells.items()
            }
            yield {"key": found["key"], "value": found["value"], **same}


@dataclass(frozen=True)
class ChangesTask(Task):
    """What some commits changed."""

    commits: PinnedCommits
    span: KeyRange
    preimages: bool
    deletes: bool

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of changes in commit order."""
        low, high = self.commits.low, self.commits.high
        yield from tables.changes(
            reader,
            self.span,
            low,
            high,
            preimages=self.preimages,
            deletes=self.deletes,
            keys_only=not columns.needs_value,
        )


@dataclass(frozen=True)
class HistoryTask(Task):
    """The versions of a range of keys."""

    commits: PinnedCommits
    span: KeyRange

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of histories."""
        yield from tables.history(reader, self.span, self.commits.low, self.commits.high)


@dataclass(frozen=True)
class CommitsTask(Task):
    """The log of some commits."""

    commits: PinnedCommits
    span: KeyRange
    inclusive: bool

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of the log, newest first."""
        observed = not reader.policy.at_head  # its range selects the commits
        counted = observed or not {"operation", "operationMetrics"}.isdisjoint(columns.names)
        low, high = self.commits.low, self.commits.high
        yield from tables.commits(
            reader, self.span if counted else None, low, high, inclusive=self.inclusive
        )


PIECE_ROWS = 50_000
"""The keys of one bounded range; a task reads several, in order."""
TASK_ROWS = 25_000
"""The least changes that are worth a task of their own."""
TASK_COMMITS = 2_000
"""The same for commits of a remote engine, which cannot say how much they changed."""
SAMPLES = 64
"""The revisions whose changes are counted, to cut commits by rows."""
STRIDE = 27
"""The distance between two samples: odd, so that steps of it reach each of the samples."""
SAMPLED_ROWS = 20_000
"""The number of changes after which no further revisions are sampled."""


def cut_keys(
    reader: Reader, span: KeyRange, revision: int, tasks: int, rows: int | None = None
) -> list[list[RangePiece]]:
    """Return bounded pieces of a range, in order, grouped into tasks of about equally many keys.

    Pieces have about `rows` keys (None: `PIECE_ROWS`). They are bounded at both ends, because etcd
    counts all the rest of an open range.
    """
    pieces = reader.engine.pieces(span.start, span.end, revision=revision, rows=rows or PIECE_ROWS)
    total = sum(piece.rows for piece in pieces)
    tasks = min(tasks, len(pieces))
    groups: list[list[RangePiece]] = [[] for _ in range(tasks)]
    before = 0
    for piece in pieces:
        middle = before + piece.rows // 2
        groups[min(middle * tasks // max(total, 1), tasks - 1)].append(piece)
        before += piece.rows
    return [group for group in groups if group]


def cut_commits(
    reader: Reader, span: KeyRange, commits: PinnedCommits, tasks: int, *, exactly: bool = False
) -> list[PinnedCommits]:
    """Return a range of commits in parts of about as many changes, in order; none if it is empty.

    There are `tasks` parts if there are so many commits, unless that makes parts of few changes, or
    more than there are processors; `exactly` makes these, too. Counts the changes of a sample of
    revisions, or of all if they are few; a remote engine cannot count them fast, and its parts have
    equally many commits. A round trip for each cut, 6 on a remote engine.
    """
    low, high = commits.low, commits.high
    if high.revision <= low.revision:
        return []
    count = high.ordinal - low.ordinal
    if reader.engine.remote:
        parts = min(tasks, count if exactly else max(1, count // TASK_COMMITS))
        ordinals = [low.ordinal + count * n // parts for n in range(1, parts)]
        inner: list[Mark] = [reader.timeline.by_ordinal(ordinal) for ordinal in ordinals]
    else:
        inner = _even_marks(reader, span, commits, tasks, exactly)
    return [commits.between(a, b) for a, b in pairwise([low, *inner, high])]


def _even_marks(
    reader: Reader, span: KeyRange, commits: PinnedCommits, tasks: int, exactly: bool
) -> list[Mark]:
    """Return the marks between parts of about as many changes; they ascend."""
    low, high = commits.low.revision, commits.high.revision
    low = max(
        low, reader.engine.compacted_revision() - 1
    )  # compaction left only what the state needs
    if tasks == 1 or low >= high:
        return []
    try:
        revisions, rows = _sample(reader, span, low, high)
    except CompactedError:  # just now; the task finds out whether changes are gone
        return []
    total = int(sum(rows))
    parts = tasks if exactly else min(tasks, os.cpu_count() or 1, max(1, total // TASK_ROWS))
    before = list(accumulate(rows, initial=0))
    inner: list[Mark] = []
    for n in range(1, parts):
        target = total * n / parts
        at = min(bisect_right(before, target), len(rows)) - 1
        start, end = revisions[at], revisions[at + 1]
        within = (target - before[at]) / rows[at] if rows[at] else 0.0
        mark = mark_at(reader, start + round((end - start) * within))
        last = inner[-1] if inner else commits.low
        if last.revision < mark.revision < high:
            inner.append(mark)
    return inner


def _sample(reader: Reader, span: KeyRange, low: int, high: int) -> tuple[list[int], list[float]]:
    """Cut (low, high] evenly; return `low`, the ends of the pieces, and estimates of their rows."""
    count = min(SAMPLES, high - low)
    ends = [low + (high - low) * n // count for n in range(count + 1)]
    seen: dict[int, int] = {}
    for n in range(count):
        if sum(seen.values()) >= SAMPLED_ROWS:
            break
        at = n * STRIDE % count if count == SAMPLES else n  # not all of them from the beginning
        found = reader.engine.changes(
            Replay(span.start, span.end, ends[at + 1], ends[at + 1], keys_only=True)
        )
        seen[at] = sum(len(part.keys) for part in found)
    mean = sum(seen.values()) / len(seen)
    return ends, [seen.get(n, mean) * (ends[n + 1] - ends[n]) for n in range(count)]


ARCHIVED_TASK_ROWS = 50_000
"""The least archived changes that are worth a task of their own."""
LIVE_ROWS = 5_000
"""The most changes that are read from the live engine if it still has them: an archive may be far
away."""


def changes_tasks(
    reader: Reader, options: ReadOptions, span: KeyRange, commits: PinnedCommits
) -> list[Task]:
    """Return tasks for what some commits changed, in the order of commits.

    The values before come from `ChangesTask` only, because that reads them key by key.
    """
    preimages, deletes = options.flag("preimages"), not options.flag("ignoreDeletes")
    parts, exactly = options.partitions, options.count("numPartitions") is not None
    old = [] if preimages else _archived(reader, commits, parts)
    tasks: list[Task] = [ArchivedTask(part, span, deletes) for part in old]
    low = old[-1].high if old else commits.low
    live = commits.between(low, commits.high)
    rest = cut_commits(reader, span, live, parts, exactly=exactly and not old)
    return tasks + [ChangesTask(part, span, preimages, deletes) for part in rest]


def _archived(reader: Reader, commits: PinnedCommits, parts: int) -> list[PinnedCommits]:
    """Return the commits that are read from the archive, cut between its files."""
    archive = archive_of(reader.engine)
    low, high = commits.low.revision, commits.high.revision
    if archive is None or low < archive.manifest.since:
        return []
    files = archive.manifest.of_kind("delta", low + 1, high)
    rows = sum(file.rows for file in files)
    live = reader.engine.live if isinstance(reader.engine, JoinedEngine) else None
    if not files or (live is not None and rows < LIVE_ROWS and low >= live.compacted_revision()):
        return []
    ends = _ends(files, min(parts, max(1, rows // ARCHIVED_TASK_ROWS)))
    marks = [mark_at(reader, end) for end in ends if end < high]
    last = commits.high if files[-1].high >= high else mark_at(reader, files[-1].high)
    return [commits.between(a, b) for a, b in pairwise([commits.low, *marks, last])]


def _ends(files: Sequence[File], parts: int) -> list[int]:
    """Return after which revisions to cut files into parts of about as many rows."""
    total, before = sum(file.rows for file in files), 0
    ends: list[int] = []
    for file in files[:-1]:
        before += file.rows
        if before * parts >= (len(ends) + 1) * total:
            ends.append(file.high)
    return ends


@dataclass(frozen=True)
class ArchivedTask(Task):
    """What some commits changed, read from the files of an archive as columns."""

    commits: PinnedCommits
    span: KeyRange
    deletes: bool

    def read(self, reader: Reader, columns: BatchSchema) -> Iterator[Arrays]:
        """Yield the columns of changes in commit order; one delta is in memory at a time."""
        archive = archive_of(reader.engine)
        assert isinstance(archive, ArchiveEngine), "the location of this task has an archive"
        low, high = self.commits.low.revision, self.commits.high.revision
        for found in archive.delta_changes(self.span.start, self.span.end, low + 1, high):
            if not found.exact:  # another program wrote between two commits
                ends = (self._mark(reader, end) for end in (found.low - 1, found.high))
                yield from tables.changes(
                    reader, self.span, *ends, preimages=False, deletes=self.deletes
                )
            elif found.rows.table.num_rows:
                times = found.rows.table["time"].combine_chunks()
                part = changes_of(found.rows, keys_only=not columns.needs_value)
                yield from columns_of(part, times, self.span, preimages=False, deletes=self.deletes)

    def _mark(self, reader: Reader, revision: int) -> Mark:
        known = (mark for mark in (self.commits.low, self.commits.high))
        return next((m for m in known if m.revision == revision), None) or mark_at(reader, revision)


Options = TypeVar("Options", bound=SourceOptions)


def located(options: Options) -> tuple[Options, Present]:
    """Return options with the name of the store, which an archive knows, and the present.

    Two round trips. Raises `SourceError`.
    """
    with as_source_errors(), open_to_read(options.location) as opened:
        location = replace(options.location, name=opened.reader.layout.name)
        return replace(options, location=location), present_in(opened.reader)


def pin(options: ReadOptions, present: Present) -> PinnedCommits:
    """Return the commits that a batch shows: the same at every call. Raises `SourceError`."""
    if options.view == CHANGES and not options.has_start:
        raise errors.NO_START("changes need startingVersion or startingTimestamp")
    reader = verified_reader(options.location, present.store, present.head)
    if options.view == SNAPSHOT:
        return moment_of(reader, options, present)
    return range_of(reader, options, present, from_state=options.view == HISTORY)


def planned(options: ReadOptions, pinned: PinnedCommits) -> Sequence[Task]:
    """Return the tasks that read the pinned commits. Raises `SourceError`."""
    reader = verified_reader(options.location, pinned.store, pinned.high)
    with as_source_errors():
        return plan(reader, options, pinned)


def plan(reader: Reader, options: ReadOptions, pinned: PinnedCommits) -> list[Task]:
    """Return the tasks that read pinned commits of an open store, which has them."""
    if options.view == COMMITS:
        whole = (
            span_of(options) if options.location.prefix is not None else all_keys_of(reader.layout)
        )
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
            yield from partition.batches(self._location, self._schema)
