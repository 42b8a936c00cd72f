"""The sink: workers encode rows, the driver commits them, in as few commits as they fit into.

Spark runs `write` in a worker for each partition, and hands what it returns to `commit` on the
driver, after all of them succeeded. So a task that fails writes nothing, and rows that fit into
one commit appear together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from snapkv.spark import errors
from snapkv.spark.batch_commits import Batch, BatchCommits, Writes
from snapkv.spark.decoding import JSON, MSGPACK
from snapkv.spark.encoding import Encoder
from snapkv.spark.errors import SourceError, coded
from snapkv.spark.schema import arrow_schema
from snapkv.spark.sink_options import (
    CHANGE,
    ORDINAL,
    VERSION,
    KeyOptions,
    SinkOptions,
    value_fields,
)
from snapkv.spark.source_options import check_none_of

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark has the id of a query for its tasks."""
StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter)
"""PySpark 4.0 has no sinks of streams that take Arrow."""
_ADVICE = (
    ", and no column says which row is later: keep one row for each key, as by dropDuplicates, or "
    "the feed's columns"
)
_SAVES, _REMOVAL, _BEFORE = ("insert", "update_postimage"), "delete", "update_preimage"


@dataclass
class Rows(WriterCommitMessage):
    """The writes of one partition, as an Arrow stream, and the id of the query in a stream."""

    data: bytes
    query: str | None


class Sink(ABC):
    """What all sinks share: from rows to writes on workers, to commits on the driver."""

    order: tuple[str, ...]
    """The columns after `key` and `value`, by which a later row of a key is known."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @abstractmethod
    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns `key`, `value` (NULL: a removal) and those of `order`."""

    @abstractmethod
    def apply(self, writes: Writes, batch: Batch) -> None:
        """Commit the writes of a batch. Raises `SourceError`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Return the writes of a partition, encoded.

        Raises `SourceError` for a row without a key or a value, or with an unknown change.
        """
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        found = [batch for rows in iterator if (batch := self.encoded(rows)).num_rows]
        if not found:
            return Rows(b"", query)
        out = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(out, found[0].schema, options=options) as stream:
            for batch in found:
                stream.write_batch(batch)
        return Rows(out.getvalue().to_pybytes(), query)

    def joined(self, messages: Iterable[WriterCommitMessage | None]) -> Writes:
        """Return the writes of all partitions in order of keys, the last one of each key.

        Raises `SourceError` for a key that comes twice without columns that say which is later.
        """
        found = (each.data for each in messages if isinstance(each, Rows))
        tables = [pa.ipc.open_stream(data).read_all() for data in found if data]
        if not tables:
            return []
        table = pa.concat_tables(tables).sort_by([(n, "ascending") for n in ("key", *self.order)])
        keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
        places = list(zip(*(table.column(name).to_pylist() for name in self.order), strict=True))
        last = [True] * len(keys)
        for n, (key, following) in enumerate(pairwise(keys)):
            if key == following:
                last[n] = False
                if places[n] == places[n + 1]:
                    raise SourceError(errors.DUPLICATE_KEY, f"key {key!r} comes twice{_ADVICE}")
        rows = zip(keys, values, last, strict=True)
        return [(key, value) for key, value, is_last in rows if is_last]


class OfBatch(Sink, DataSourceArrowWriter):
    """Commits the rows of a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows. Raises `SourceError`."""
        name, number = self.options.batch or (None, 0)
        note = "written by Spark" if name is None else f"batch {number} of {name}"
        batch = Batch(name, number, self.options.text("note") or note)
        self.apply(self.joined(messages), batch)


class OfStream(Sink, StreamWriter):
    """Commits the rows of each micro-batch, once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of a micro-batch. Raises `SourceError`."""
        names = {each.query for each in messages if isinstance(each, Rows)}
        if None in names:
            raise SourceError(errors.FAILED, f"Spark does not give the id of the query: {QUERY_ID}")
        name = next(iter(names), None)  # without a partition there is none, and nothing to repeat
        note = self.options.text("note") or "Spark query"
        self.apply(self.joined(messages), Batch(name, batchId, f"{note} {name}, batch {batchId}"))


def check_of_stream(options: SinkOptions) -> None:
    """Raise `SourceError` for options that a stream's sink does not have."""
    if StreamWriter is DataSourceArrowWriter:
        raise SourceError(errors.FAILED, "a sink of a stream needs PySpark 4.1 or newer")
    check_none_of(options.texts, ("txnAppId", "txnVersion"), "for a batch: a stream has its own")


class KeySink(Sink):
    """Writes keys and values."""

    options: KeyOptions
    order = ("version", "ordinal")

    def __init__(self, schema: StructType, options: KeyOptions) -> None:
        super().__init__(options)
        self._fields = value_fields(schema, options)
        self._encoder = None
        if options.format in (JSON, MSGPACK):
            arrow = arrow_schema(schema)
            self._encoder = Encoder([arrow.field(name) for name in self._fields], options.format)

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns key, value (NULL: a removal), version and ordinal of some rows."""
        names = rows.schema.names
        changes = rows.column(CHANGE).to_pylist() if CHANGE in names else [_SAVES[0]] * len(rows)
        kept = [n for n, change in enumerate(changes) if change != _BEFORE]
        if len(kept) < len(changes):
            rows, changes = rows.take(pa.array(kept, pa.int64())), [changes[n] for n in kept]
        keys = rows.column("key").to_pylist()
        saved = self._checked(keys, changes)
        if self._encoder is None:
            values = rows.column(self._fields[0]).cast(pa.large_binary()).to_pylist()
        else:
            values = self._encoder.values(rows, keys)
        for n, value in enumerate(values):
            if not saved[n]:
                values[n] = None
            elif value is None:
                raise SourceError(
                    errors.VALUE_MALFORMED,
                    f"the value of key {keys[n]!r} is NULL: a removal is a row whose "
                    f"{CHANGE} is {_REMOVAL!r}",
                )
        zeros = pa.array([0] * len(rows), pa.int64())
        place = [rows.column(name) if name in names else zeros for name in (VERSION, ORDINAL)]
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.large_string() if self.options.is_text else pa.large_binary()),
                pa.array(values, pa.large_binary()),
                *(column.cast(pa.int64()) for column in place),
            ],
            names=["key", "value", "version", "ordinal"],
        )

    def _checked(self, keys: Sequence[Any], changes: Sequence[str | None]) -> list[bool]:
        """Return for each row whether it is a save, not a removal."""
        prefix = self.options.prefix
        for key, change in zip(keys, changes, strict=True):
            if key is None:
                raise SourceError(errors.INVALID_SCHEMA, "a row has no key: its key is NULL")
            if prefix and not key.startswith(prefix):
                raise SourceError(
                    errors.INVALID_OPTION, f"key {key!r} does not begin with keyPrefix {prefix!r}"
                )
            if change not in _SAVES and change != _REMOVAL:
                known = ", ".join((*_SAVES, _REMOVAL, _BEFORE))
                raise SourceError(
                    errors.VALUE_MALFORMED,
                    f"{CHANGE} of key {key!r} is {change!r}: it is one of {known}",
                )
        return [change != _REMOVAL for change in changes]

    def apply(self, writes: Writes, batch: Batch) -> None:
        """Commit the writes of a batch. Raises `SourceError`."""
        options, prefix = self.options, self.options.prefix
        if not writes and not options.replace:
            return
        if options.is_text and options.location.space is not None:  # whose keys are bytes
            writes = [(key.encode(), value) for key, value in writes]
            prefix = prefix.encode() if isinstance(prefix, str) else prefix
        with coded(), options.location.open_to_write(options.text("writer")) as store:
            commits = BatchCommits(store, options.location.space, batch)
            if commits.done:
                return
            if options.replace:
                commits.replace(prefix, [write for write in writes if write[1] is not None])
            else:
                commits.add(writes)


class BatchSink(KeySink, OfBatch):
    """Writes the rows of a DataFrame."""


class StreamSink(KeySink, OfStream):
    """Writes the rows of a stream."""
