"""The schema of a view, and its batches in exactly the form that Spark expects."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.spark.read_options import CHANGES, COMMITS, HISTORY, SNAPSHOT, ReadOptions
from snapkv.spark.value_formats import (
    BYTES,
    FORMATS,
    MODES,
    PERMISSIVE,
    UTF8,
    ValueDecoder,
    spark_name,
)

_VIEWS = {
    SNAPSHOT: arrow.SNAPSHOT_TIMED,
    CHANGES: arrow.CHANGES,
    HISTORY: arrow.HISTORY,
    COMMITS: arrow.COMMITS,
}
MEMBER = "member"
"""The column of a fleet that names the member of each row."""
_OPTIONAL = ("mod_timestamp",)
"""The columns that cost more than the rest: only read if they are named."""
# Types that are a struct of bytes in Arrow, which only Spark can make. PySpark 4.0 has the first.
_OPAQUE = tuple(
    getattr(T, name)
    for name in ("VariantType", "GeometryType", "GeographyType")
    if hasattr(T, name)
)


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for its own: times in UTC.

    Raises `SourceError` for types into which no value is decoded, and for duplicate names: columns
    are compared without case, as in Spark, fields of a struct with case.
    """
    names = [name.lower() for name in schema.names]
    for name in schema.names:
        if names.count(name.lower()) > 1:
            raise errors.INVALID_SCHEMA(f"the schema has two columns {name}")
    for kind in _leaves(schema):
        if isinstance(kind, _OPAQUE):
            kind_name = kind.simpleString().upper()
            raise errors.INVALID_SCHEMA(f"values are not decoded into {kind_name}")
    zoned = "timezone" in inspect.signature(to_arrow_schema).parameters
    utc = {"timezone": "UTC"} if zoned else {}
    try:
        return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, **utc)
    except PySparkException as e:
        raise errors.INVALID_SCHEMA(str(e)) from e


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield the types at the leaves of a nested type."""
    if isinstance(kind, T.StructType):
        parts = [field.dataType for field in kind]
    elif isinstance(kind, T.ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, T.MapType):
        parts = [kind.keyType, kind.valueType]
    else:
        yield kind
        return
    for part in parts:
        yield from _leaves(part)


def schema_of(options: ReadOptions) -> T.StructType | str:
    """Return the columns that options name; used if `.schema(...)` was not called.

    The option `schema` is DDL, which only Spark can parse, or Spark's JSON. Raises `SourceError`.
    """
    text = options.text("schema")
    if text is None:
        return _default_schema(options)
    if not text.lstrip().startswith("{"):
        return text
    try:
        return T.StructType.fromJson(json.loads(text))
    except (ValueError, KeyError, TypeError, PySparkException) as e:
        raise errors.INVALID_SCHEMA(
            f"the option schema is not a schema in Spark's JSON: {e}"
        ) from e


def _default_schema(options: ReadOptions) -> T.StructType:
    """Return all columns of a view, or the columns that the option `columns` names."""
    columns = _columns(options)
    names = options.columns
    if names is None:
        names = tuple(name for name in columns.names if name not in _OPTIONAL)
    if options.choice("valueFormat", *FORMATS) not in (BYTES, UTF8) and "value" in names:
        raise errors.MISSING_OPTION(
            "valueFormat=json and msgpack need the option schema, or .schema(...): its fields are "
            "taken from the value, except for columns of this format"
        )
    unknown = [name for name in names if name not in columns.names]
    if unknown or len(set(names)) < len(names):
        raise errors.INVALID_OPTION(f"columns are some of {', '.join(columns.names)}, not {names}")
    return from_arrow_schema(pa.schema([columns.field(name) for name in names]))


def _columns(options: ReadOptions) -> pa.Schema:
    """Return all columns of a view, with the types of keys and values that options ask for."""
    columns = _VIEWS[options.view]
    if options.is_of_fleet:
        columns = columns.insert(0, pa.field(MEMBER, pa.string()))
    if "key" in columns.names and not options.is_text:
        columns = arrow.keyed_by_bytes(columns)
    if "value" in columns.names and options.choice("valueFormat", *FORMATS) == UTF8:
        columns = columns.set(columns.get_field_index("value"), pa.field("value", pa.string()))
    return columns


class BatchSchema:
    """The schema of the batches that Spark gets, and whether values must be read for it."""

    def __init__(self, schema: T.StructType) -> None:
        self.arrow = arrow_schema(schema)
        self.names: list[str] = self.arrow.names
        self.needs_value = True

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch. Raises `SourceError` for a NULL in a NOT NULL column."""
        columns = []
        for field in self.arrow:
            column = found[field.name]
            column = column if column.type == field.type else column.cast(field.type)
            if column.null_count and not field.nullable:  # Spark would read undefined bytes
                raise errors.INVALID_SCHEMA(f"{field.name} is NOT NULL in the schema but has NULLs")
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


class FrameSchema(BatchSchema):
    """The schema of a DataFrame: some columns are the view's own, the rest fields of the value.

    Raises `SourceError` for a schema that the view cannot fill.
    """

    def __init__(self, schema: T.StructType, options: ReadOptions) -> None:
        super().__init__(schema)
        columns = _columns(options)
        format_ = options.choice("valueFormat", *FORMATS)
        permissive = options.choice("mode", *MODES) == PERMISSIVE
        self.own = [f.name for f in self.arrow if _is_own(f, columns, format_)]
        decoded = [f for f in self.arrow if f.name not in self.own]
        for field in decoded:
            if format_ in (BYTES, UTF8) or "value" not in columns.names:
                raise mismatch(field, columns)
        if options.columns is not None and options.columns != tuple(self.arrow.names):
            raise errors.INVALID_SCHEMA("give a schema or columns, not both")
        text = format_ == UTF8 and "value" in self.own
        self.decoder = ValueDecoder(decoded, format_, permissive) if decoded or text else None
        self.needs_value = "value" in self.own or self.decoder is not None

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch. Raises `SourceError` for a NULL in a NOT NULL column."""
        if self.decoder is not None:
            found = found | self.decoder.columns(found)
        return super().batch(found)


def _is_own(field: pa.Field, columns: pa.Schema, format_: str) -> bool:
    if field.name not in columns.names:
        return False
    if field.name == "value" and format_ not in (BYTES, UTF8):
        return bool(pa.types.is_binary(field.type))  # else it is the whole value, decoded
    if columns.field(field.name).type != field.type:
        raise mismatch(field, columns)
    return True


def mismatch(field: pa.Field, columns: pa.Schema) -> SourceError:
    """Return the error for a column that the view does not have."""
    known = ", ".join(f"{each.name} {spark_name(each.type)}" for each in columns)
    return errors.INVALID_SCHEMA(
        f"this view has no column {field.name} {spark_name(field.type)}; its columns are: {known}"
    )
