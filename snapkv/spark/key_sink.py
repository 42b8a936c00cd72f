"""The sink: workers encode rows, the driver commits them, in as few commits as they fit into.

Spark runs `write` in a worker for each partition, and after all of them succeeded it hands what
they return to `commit` on the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from snapkv.errors import InvalidKeyError, SnapKVError
from snapkv.layout import NOTE_BYTES_MAX, WRITER_BYTES_MAX
from snapkv.reading import arrow
from snapkv.spark import errors
from snapkv.spark.batch_commits import SPACE, Batch, BatchCommits, Writes
from snapkv.spark.errors import as_source_errors
from snapkv.spark.read_options import FORMAT
from snapkv.spark.schema import arrow_schema
from snapkv.spark.source_options import (
    SourceOptions,
    canonical_names,
    check_none_of,
    keyspace_of,
    location_of,
    open_to_write,
)
from snapkv.spark.value_formats import FORMATS, JSON, MSGPACK, UTF8, WHOLE, Encoder

OF_SINKS = ("store", "path", "name", "note", "writer", "txnAppId", "txnVersion")
"""The options that the sinks of all formats have."""
KNOWN = (*OF_SINKS, "space", "keyFormat", "keyPrefix", "valueFormat")
NAME_BYTES_MAX = 200
"""The most bytes of the name, which is part of a key, as are the names of the store and of a
space."""
_OF_SPARK = ("checkpointlocation", "queryname")
"""The options of `writeStream` that Spark passes on."""
CHANGE, VERSION, ORDINAL = "_change_type", "_commit_version", "_change_ordinal"
OWN = {
    name
    for schema in (arrow.SNAPSHOT_TIMED, arrow.CHANGES, arrow.HISTORY)
    for name in schema.names
    if name != WHOLE
}
"""The columns of the views: they are never a part of a value, so what was read can be written."""


@dataclass(frozen=True, slots=True)
class SinkOptions(SourceOptions):
    """Where to write, and what is the same for the sinks of all formats."""

    @property
    def batch(self) -> tuple[str, int] | None:
        """The names of what writes a batch, and its number, by options. Raises `SourceError`."""
        name, text = self.text("txnAppId"), self.text("txnVersion")
        if name is None and text is None:
            return None
        if not name or text is None:
            raise errors.MISSING_OPTION("give txnAppId and txnVersion, or neither")
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise errors.INVALID_OPTION(f"txnVersion is a whole number, 0 or more, not {text!r}")
        return name, int(text)

    def check(self) -> None:
        """Raise `SourceError` for an invalid option."""
        _ = self.batch  # raises for an invalid name or number
        for name, most in (
            ("note", NOTE_BYTES_MAX // 2),
            ("writer", WRITER_BYTES_MAX),
            ("txnAppId", NAME_BYTES_MAX),
        ):
            if len(self.texts.get(name, "").encode()) > most:
                raise errors.INVALID_OPTION(f"{name} has more than {most} bytes")
        if self.location.url.startswith("archive:"):
            raise errors.INVALID_OPTION("an archive cannot be written: name its store")


def sink_texts(raw: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """Return the options of a sink by their names. Raises `SourceError` for unknown ones."""
    given = {name: text for name, text in raw.items() if name.lower() not in _OF_SPARK}
    if any(name.lower() == "fleet" for name in given):
        raise errors.INVALID_OPTION(
            "a fleet only reads: write to the store of one member, by its url"
        )
    return canonical_names(given, known)


@dataclass(frozen=True, slots=True)
class KeyOptions(SinkOptions):
    """Which keys are written, and how values look."""

    replace: bool
    """Whether rows replace the keys with the prefix, rather than being added."""

    @property
    def format(self) -> str:
        """The encoding of values."""
        return self.choice("valueFormat", *FORMATS)

    @property
    def prefix(self) -> str | bytes | None:
        """What all keys begin with; None: anything. Raises `SourceError`."""
        text = self.text("keyPrefix")
        if text is None or self.is_text:
            return text
        try:
            return bytes.fromhex(text)
        except ValueError as e:
            raise errors.INVALID_OPTION(
                f"keyPrefix is hexadecimal when keys are binary, not {text}"
            ) from e


def key_options(raw: Mapping[str, str], *, replace: bool) -> KeyOptions:
    """Return the options of a sink that Spark passes. Raises `SourceError`."""
    texts = sink_texts(raw, KNOWN)
    location = location_of(texts, raw, FORMAT)
    options = KeyOptions(location, texts, None, replace)
    options.check()
    try:
        keyspace_of(location, text=True)
    except SnapKVError as e:
        raise errors.INVALID_OPTION(str(e)) from e
    if location.space == SPACE:
        raise errors.INVALID_OPTION(f"the space {SPACE} says which batches are written")
    if replace and options.prefix is None:
        raise errors.MISSING_OPTION(
            "overwriting (and outputMode complete) replaces the keys with a prefix: give "
            "keyPrefix, which is '' for all keys"
        )
    if options.location.space is None and not options.is_text:
        raise errors.INVALID_OPTION("keyFormat=binary is for a space; a store's own keys are text")
    return options


def value_fields(schema: T.StructType, options: KeyOptions) -> list[str]:
    """Return the columns that make the value. Raises `SourceError` for a schema without it."""
    kinds = {field.name: field.dataType for field in schema}
    check_names(schema, {*OWN, WHOLE})
    for name, number in ((VERSION, T.LongType), (ORDINAL, T.IntegerType)):
        if name in kinds and not isinstance(kinds[name], T.IntegralType):
            check_kind(kinds, name, number())
    check_kind(kinds, "key", T.StringType() if options.is_text else T.BinaryType())
    fields = [name for name in kinds if name not in OWN]
    if options.format in (JSON, MSGPACK):
        if not fields:
            raise errors.INVALID_SCHEMA(f"no columns for a value: {_shown(schema)}")
        if WHOLE in fields and len(fields) > 1:
            raise errors.INVALID_SCHEMA(
                f"a column value is the whole value, so no other can be a member: {fields}"
            )
        return fields
    check_kind(kinds, WHOLE, T.StringType() if options.format == UTF8 else T.BinaryType())
    if len(fields) > 1:
        raise errors.INVALID_SCHEMA(
            f"valueFormat={options.format} writes the columns key and value, so nothing would "
            f"keep {', '.join(name for name in fields if name != WHOLE)}: drop them, or give "
            "valueFormat=json"
        )
    return [WHOLE]


def check_names(schema: T.StructType, special: Collection[str]) -> None:
    """Raise `SourceError` for names that differ in case only, from each other or a special one.

    Spark keeps the case that was typed, and a removal must not become a save by it.
    """
    if len({name.lower() for name in schema.names}) < len(schema.names):
        raise errors.INVALID_SCHEMA(f"two columns have one name: {schema.names}")
    known = {name.lower(): name for name in special}
    for name in schema.names:
        meant = known.get(name.lower(), name)
        if meant != name:
            raise errors.INVALID_SCHEMA(f"column {name} is written {meant}")


def check_kind(kinds: Mapping[str, T.DataType], name: str, kind: T.DataType) -> None:
    """Raise `SourceError` unless a column exists with this type."""
    found = kinds.get(name)
    if type(found) is not type(kind):
        given = "missing" if found is None else found.simpleString().upper()
        what = f"column {name} must be {kind.simpleString().upper()}, and is {given}"
        also = {"key": ", or give keyFormat", WHOLE: ", or give valueFormat"}.get(name, "")
        raise errors.INVALID_SCHEMA(f"{what}: cast it{also}")


def _shown(schema: T.StructType) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString().upper()}" for each in schema)


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
class EncodedRows(WriterCommitMessage):
    """The writes of one partition, as an Arrow stream, and the id of the query in a stream."""

    data: bytes
    query: str | None


class RowSink(ABC):
    """What all sinks share: from rows to writes on workers, to commits on the driver."""

    order: tuple[str, ...]
    """The columns after `key` and `value`, by which a later row of a key is known."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    @abstractmethod
    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns `key`, `value` (NULL: a removal) and the columns of `order`."""

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
            return EncodedRows(b"", query)
        out = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(out, found[0].schema, options=options) as stream:
            for batch in found:
                stream.write_batch(batch)
        return EncodedRows(out.getvalue().to_pybytes(), query)

    def joined(self, messages: Iterable[WriterCommitMessage | None]) -> Writes:
        """Return the writes of all partitions in order of keys, the last one of each key.

        Raises `SourceError` for a key that comes twice without columns that say which is later.
        """
        found = (each.data for each in messages if isinstance(each, EncodedRows))
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
                    raise errors.DUPLICATE_KEY(f"key {key!r} comes twice{_ADVICE}")
        rows = zip(keys, values, last, strict=True)
        return [(key, value) for key, value, is_last in rows if is_last]


class OfBatch(RowSink, DataSourceArrowWriter):
    """Commits the rows of a DataFrame."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows. Raises `SourceError`."""
        name, number = self.options.batch or (None, 0)
        note = "written by Spark" if name is None else f"batch {number} of {name}"
        batch = Batch(name, number, self.options.text("note") or note)
        self.apply(self.joined(messages), batch)


class OfStream(RowSink, StreamWriter):
    """Commits the rows of each micro-batch, once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of a micro-batch. Raises `SourceError`."""
        names = {each.query for each in messages if isinstance(each, EncodedRows)}
        if None in names:
            raise errors.FAILED(f"Spark does not give the id of the query: {QUERY_ID}")
        name = next(iter(names), None)  # without a partition there is none, and nothing to repeat
        note = self.options.text("note") or "Spark query"
        batch = Batch(name, batchId, f"{note} {name}, batch {batchId}", of_stream=True)
        self.apply(self.joined(messages), batch)


def check_of_stream(options: SinkOptions) -> None:
    """Raise `SourceError` for options that a stream's sink does not have."""
    if StreamWriter is DataSourceArrowWriter:
        raise errors.FAILED("a sink of a stream needs PySpark 4.1 or newer")
    check_none_of(options.texts, ("txnAppId", "txnVersion"), "for a batch: a stream has its own")


def texts_of(rows: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column as Python values. Raises `SourceError` for text that is not UTF-8."""
    try:
        found: list[Any] = rows.column(name).to_pylist()
        return found
    except UnicodeDecodeError as e:
        raise errors.VALUE_MALFORMED(f"a {name} is not UTF-8: {e}") from e


class KeySink(RowSink):
    """Writes keys and values."""

    options: KeyOptions
    order = ("version", "ordinal")

    def __init__(self, schema: StructType, options: KeyOptions) -> None:
        super().__init__(options)
        self._fields = value_fields(schema, options)
        self._encoder = None
        arrow = arrow_schema(schema)
        is_raw = self._fields == [WHOLE] and pa.types.is_binary(arrow.field(WHOLE).type)
        if options.format in (JSON, MSGPACK) and not is_raw:  # as BINARY it is encoded already
            self._encoder = Encoder([arrow.field(name) for name in self._fields], options.format)

    def encoded(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns key, value (NULL: a removal), version and ordinal of some rows."""
        names = rows.schema.names
        changes = rows.column(CHANGE).to_pylist() if CHANGE in names else [_SAVES[0]] * len(rows)
        kept = [n for n, change in enumerate(changes) if change != _BEFORE]
        if len(kept) < len(changes):
            rows, changes = rows.take(pa.array(kept, pa.int64())), [changes[n] for n in kept]
        keys = texts_of(rows, "key")
        self._check(keys, changes)
        values: list[bytes | None] = [None] * len(rows)
        saved = [n for n, change in enumerate(changes) if change != _REMOVAL]
        if len(saved) < len(rows):
            found = self._values(rows.take(pa.array(saved, pa.int64())), [keys[n] for n in saved])
        else:
            found = self._values(rows, keys)
        for n, value in zip(saved, found, strict=True):
            values[n] = value
        zeros = pa.array([0] * len(rows), pa.int64())
        version = rows.column(VERSION).cast(pa.int64()) if VERSION in names else zeros
        if version.null_count:
            raise errors.INVALID_SCHEMA(f"a row has no version: {VERSION} is NULL")
        ordinal = rows.column(ORDINAL).cast(pa.int64()) if ORDINAL in names else zeros
        kind = pa.large_string() if self.options.is_text else pa.large_binary()
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, kind),
                pa.array(values, pa.large_binary()),
                version,
                ordinal.fill_null(-1),
            ],
            names=["key", "value", "version", "ordinal"],
        )

    def _values(self, rows: pa.RecordBatch, keys: Sequence[Any]) -> Sequence[bytes]:
        """Return the values of rows that are saved."""
        if self._encoder is not None:
            return self._encoder.values(rows, keys)
        if self.options.format == UTF8:
            texts_of(rows, WHOLE)
        values: list[bytes] = rows.column(WHOLE).cast(pa.large_binary()).to_pylist()
        for key, value in zip(keys, values, strict=True):
            if value is None:
                raise errors.VALUE_MALFORMED(
                    f"the value of key {key!r} is NULL: a removal is a row whose "
                    f"{CHANGE} is {_REMOVAL!r}"
                )
        return values

    def _check(self, keys: Sequence[Any], changes: Sequence[str | None]) -> None:
        """Raise `SourceError` for a row that cannot be written."""
        prefix = self.options.prefix
        for key, change in zip(keys, changes, strict=True):
            if key is None:
                raise errors.INVALID_SCHEMA("a row has no key: its key is NULL")
            if prefix and not key.startswith(prefix):
                raise errors.INVALID_OPTION(f"key {key!r} does not begin with keyPrefix {prefix!r}")
            if change not in _SAVES and change != _REMOVAL:
                known = ", ".join((*_SAVES, _REMOVAL, _BEFORE))
                raise errors.VALUE_MALFORMED(
                    f"{CHANGE} of key {key!r} is {change!r}: it is one of {known}"
                )

    def apply(self, writes: Writes, batch: Batch) -> None:
        """Commit the writes of a batch. Raises `SourceError`."""
        options, prefix = self.options, self.options.prefix
        if not writes and not options.replace:
            return
        if options.is_text and options.location.space is not None:  # whose keys are bytes
            writes = [(key.encode(), value) for key, value in writes]
            prefix = prefix.encode() if isinstance(prefix, str) else prefix
        with as_source_errors(), open_to_write(options.location, options.text("writer")) as store:
            commits = BatchCommits(store, options.location.space, batch)
            if commits.done:
                return
            try:
                if options.replace:
                    commits.replace(prefix, [write for write in writes if write[1] is not None])
                else:
                    commits.add(writes)
            except InvalidKeyError as e:  # whose code and advice are for reading
                message = f"a key cannot be written: {e}"
                raise errors.VALUE_MALFORMED(message) from e


class BatchSink(KeySink, OfBatch):
    """Writes the rows of a DataFrame."""


class StreamSink(KeySink, OfStream):
    """Writes the rows of a stream."""
