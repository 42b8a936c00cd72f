"""Arrow's forms of snapkv's values: one constant schema a kind of rows, and columns from rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from snapkv.base.extras import requires_extra
from snapkv.engine.contract import Columns
from snapkv.engine.version_columns import BATCH_BYTES as BATCH_BYTES
from snapkv.engine.version_columns import BATCH_ROWS as BATCH_ROWS
from snapkv.engine.version_columns import BYTES_MAX
from snapkv.errors import InvalidKeyError
from snapkv.layout import Keyspace, Layout, RawKeyspace, prefix_end
from snapkv.times import physical_ms

with requires_extra("arrow", "tables"):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import Schema as Schema
    from pyarrow import Table as Table

TIME = pa.timestamp("us", tz="UTC")
Arrays = dict[str, pa.Array]
Row = TypeVar("Row", bound=tuple[Any, ...])

SNAPSHOT = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("create_version", pa.int64()),
        ("mod_version", pa.int64()),
        ("key_version", pa.int64()),
    ]
)
SNAPSHOT_TIMED = SNAPSHOT.append(pa.field("mod_timestamp", TIME))
CHANGES = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_change_ordinal", pa.int32()),
        ("_commit_timestamp", TIME),
    ]
)
HISTORY = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("_version_from", pa.int64()),
        ("_version_to", pa.int64()),
        ("_timestamp_from", TIME),
        ("_timestamp_to", TIME),
    ]
)
COMMITS = pa.schema(
    [
        ("version", pa.int64()),
        ("timestamp", TIME),
        ("userName", pa.string()),
        ("operation", pa.string()),
        ("userMetadata", pa.string()),
        ("operationMetrics", pa.map_(pa.string(), pa.string())),
        ("meta", pa.string()),
    ]
)


def keyed_by_bytes(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose keys are bytes."""
    return schema.set(0, pa.field("key", pa.binary()))


def keys(stored: Sequence[bytes], space: Keyspace, *, text: bool) -> pa.Array:
    """Return stored keys as users write them: text, or bytes.

    Raises `InvalidKeyError` if keys are text and one is not valid UTF-8.
    """
    found = stored if isinstance(stored, pa.Array) else pa.array(stored, pa.binary())
    if not isinstance(space, RawKeyspace):
        found = pc.binary_slice(found, len(space.prefix), BYTES_MAX)
    if not text:
        return found
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        raise _no_text(found) from None


def _no_text(found: pa.Array) -> InvalidKeyError:
    for key in found.to_pylist():
        try:
            key.decode()
        except UnicodeDecodeError:
            return InvalidKeyError(f"key {key!r} is not valid UTF-8: ask for keys as bytes", key)
    raise AssertionError("Arrow and Python agree on what is UTF-8")


def microseconds(timestamp: int | None) -> int | None:
    """Return a timestamp as a column of times holds it: to the millisecond, as displayed."""
    return None if timestamp is None else physical_ms(timestamp) * 1_000


def repeated(value: Any, wanted: pa.DataType, rows: int) -> pa.Array:
    """Return a column that holds one value in every row."""
    return pa.repeat(pa.scalar(value, wanted), rows)


def times(timestamps: Iterable[int | None]) -> pa.Array:
    """Return a column of times."""
    return pa.array([microseconds(timestamp) for timestamp in timestamps], TIME)


def versions(found: Columns, space: Keyspace, *, text: bool) -> Arrays:
    """Return the columns of a snapshot."""
    return {
        "key": keys(found.keys, space, text=text),
        "value": found.values,
        "create_version": found.created,
        "mod_version": found.modified,
        "key_version": found.version,
    }


def columns(rows: Sequence[tuple[Any, ...]], schema: pa.Schema, space: Keyspace | None) -> Arrays:
    """Return the columns of rows that have a schema's fields; `space` decodes the keys."""
    found: Arrays = {}
    for field, cells in zip(schema, zip(*rows, strict=True), strict=True):
        if space is not None and field.name == "key":
            found["key"] = keys(cells, space, text=field.type == pa.string())
        elif field.type == TIME:
            found[field.name] = times(cells)
        else:
            found[field.name] = pa.array(cells, field.type)
    return found


def batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows that begin with key and value, in lists that fit into one batch."""
    some: list[Row] = []
    weight = 0
    for row in rows:
        some.append(row)
        weight += len(row[1] or b"")
        if len(some) == BATCH_ROWS or weight >= BATCH_BYTES:
            yield some
            some, weight = [], 0
    if some:
        yield some


def batch(found: Arrays, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns that a schema names, as a batch of exactly that schema."""
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)


def snapshot_table(found: Iterable[Columns], space: Keyspace) -> Table:
    """Return the columns of a snapshot as one table, keys as users write them."""
    schema = SNAPSHOT if space.text else keyed_by_bytes(SNAPSHOT)
    return table((versions(each, space, text=space.text) for each in found), schema)


def table(parts: Iterable[Arrays], schema: pa.Schema) -> Table:
    """Return columns, a batch at a time, as one table."""
    return pa.Table.from_batches([batch(found, schema) for found in parts], schema)


# --- ranges of stored keys, and how users write these keys ---

T = TypeVar("T")


class KeyRange(NamedTuple):
    """A range [start, end) of stored keys of one kind, and how users write these keys."""

    space: Keyspace
    start: bytes
    end: bytes
    text: bool

    def schema(self, schema: Schema) -> Schema:
        """Return a schema with keys as this range has them."""
        return schema if self.text else keyed_by_bytes(schema)


def key_range_of(space: Keyspace, prefix: Any) -> KeyRange:
    """Return the range of all keys with a prefix (None: all), which read as users write them."""
    return KeyRange(
        space, *space.range_of(space.default_prefix if prefix is None else prefix), space.text
    )


def all_keys_of(layout: Layout) -> KeyRange:
    """Return the range of all keys of a store, spaces included."""
    return KeyRange(layout.data, layout.data.prefix, prefix_end(layout.spaces), True)


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield rows in lists of at most a size."""
    rows = iter(rows)
    while some := list(islice(rows, size)):
        yield some
