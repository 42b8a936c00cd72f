"""Tasks: pinned values that say what one worker reads, and how it reads that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from snapkv.reading import arrow, change_tables, tables
from snapkv.reading.arrow import Arrays
from snapkv.reading.commit_times import CommitTimes
from snapkv.reading.reader import Reader
from snapkv.reading.spans import Span
from snapkv.spark.pinned import Commits


class Columns(Protocol):
    """The columns that are asked for."""

    names: Sequence[str]

    @property
    def needs_value(self) -> bool:
        """Whether values must be read at all."""
        ...


class BatchSchema(Columns, Protocol):
    """The schema of the batches that Spark gets."""

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch of exactly the schema. Raises `SourceError`."""
        ...


class Task(InputPartition, ABC):
    """What one worker reads: pickled on the driver, read after its commits were verified."""

    commits: Commits

    @abstractmethod
    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
        """Yield the columns of the view, a batch at a time."""


@dataclass(frozen=True)
class SnapshotTask(Task):
    """Some ranges of keys at one moment."""

    commits: Commits
    span: Span
    ranges: tuple[tuple[bytes, bytes], ...]

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
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

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
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

    commits: Commits
    span: Span
    preimages: bool
    deletes: bool

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
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

    commits: Commits
    span: Span

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
        """Yield the columns of histories."""
        yield from tables.history(reader, self.span, self.commits.low, self.commits.high)


@dataclass(frozen=True)
class CommitsTask(Task):
    """The log of some commits."""

    commits: Commits
    span: Span
    inclusive: bool

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
        """Yield the columns of the log, newest first."""
        observed = not reader.policy.at_head  # its range selects the commits
        counted = observed or not {"operation", "operationMetrics"}.isdisjoint(columns.names)
        low, high = self.commits.low, self.commits.high
        yield from tables.commits(
            reader, self.span if counted else None, low, high, inclusive=self.inclusive
        )
