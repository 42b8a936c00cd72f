"""From columns of ours to batches of exactly the schema that Spark expects."""

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
from snapkv.spark import errors as codes
from snapkv.spark.decoding import BYTES, FORMATS, MODES, PERMISSIVE, UTF8, Decoder
from snapkv.spark.errors import SourceError
from snapkv.spark.keys import is_text
from snapkv.spark.options import CHANGES, COMMITS, HISTORY, SNAPSHOT, Options

_VIEWS = {
    SNAPSHOT: arrow.SNAPSHOT_TIMED,
    CHANGES: arrow.CHANGES,
    HISTORY: arrow.HISTORY,
    COMMITS: arrow.COMMITS,
}
_UNASKED = ("mod_timestamp",)
"""Columns that cost more than the rest: there only when they are named."""
# What Arrow has as a struct of bytes that only Spark can make. PySpark 4.0 has the first alone.
_OPAQUE = tuple(
    getattr(T, name)
    for name in ("VariantType", "GeometryType", "GeographyType")
    if hasattr(T, name)
)


def arrow_schema(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark takes for its own: times in UTC.

    Raises `SourceError` for types that nothing is decoded into, and for names that come twice:
    those of columns in any case, as Spark has them, and those in a struct to the letter.
    """
    names = [name.lower() for name in schema.names]
    for name in schema.names:
        if names.count(name.lower()) > 1:
            raise SourceError(codes.INVALID_SCHEMA, f"the schema has two columns {name}")
    for kind in _leaves(schema):
        if isinstance(kind, _OPAQUE):
            kind_name = kind.simpleString().upper()
            raise SourceError(codes.INVALID_SCHEMA, f"values are not decoded into {kind_name}")
    zoned = "timezone" in inspect.signature(to_arrow_schema).parameters
    utc = {"timezone": "UTC"} if zoned else {}
    try:
        return to_arrow_schema(schema, error_on_duplicated_field_names_in_struct=True, **utc)
    except PySparkException as e:
        raise SourceError(codes.INVALID_SCHEMA, str(e)) from e


def _leaves(kind: T.DataType) -> Iterator[T.DataType]:
    """Yield the types that a type is made of in the end."""
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


def schema_of(options: Options) -> T.StructType | str:
    """Return the columns that options ask for, where Spark's own `.schema(...)` does not.

    The option `schema` is DDL, which only Spark can read, or Spark's JSON. Raises `SourceError`.
    """
    given = options.text("schema")
    if given is None:
        return _usual_schema(options)
    if not given.lstrip().startswith("{"):
        return given
    try:
        return T.StructType.fromJson(json.loads(given))
    except (ValueError, KeyError, TypeError, PySparkException) as e:
        raise SourceError(
            codes.INVALID_SCHEMA, f"the option schema is no JSON of Spark: {e}"
        ) from e


def _usual_schema(options: Options) -> T.StructType:
    """Return all columns of a view, or those of the option `columns`."""
    columns = _columns(options)
    names = options.columns
    if names is None:
        names = tuple(name for name in columns.names if name not in _UNASKED)
    if options.choice("valueFormat", *FORMATS) not in (BYTES, UTF8) and "value" in names:
        raise SourceError(
            codes.MISSING_OPTION,
            "valueFormat=json and msgpack need the option schema, or .schema(...): its fields are "
            "taken from the value, but for those that are columns of this format",
        )
    unknown = [name for name in names if name not in columns.names]
    if unknown or len(set(names)) < len(names):
        raise SourceError(
            codes.INVALID_OPTION, f"columns are some of {', '.join(columns.names)}, not {names}"
        )
    return from_arrow_schema(pa.schema([columns.field(name) for name in names]))


def _columns(options: Options) -> pa.Schema:
    """Return all columns of a view, as options have keys and values."""
    columns = _VIEWS[options.view]
    if "key" in columns.names and not is_text(options):
        columns = arrow.keyed_by_bytes(columns)
    if "value" in columns.names and options.choice("valueFormat", *FORMATS) == UTF8:
        columns = columns.set(columns.get_field_index("value"), pa.field("value", pa.string()))
    return columns


class Shape:
    """The schema of a DataFrame: which of its columns are ours, and which come from the value.

    Raises `SourceError` for a schema that the view cannot fill.
    """

    def __init__(self, schema: T.StructType, options: Options) -> None:
        columns = _columns(options)
        format_ = options.choice("valueFormat", *FORMATS)
        permissive = options.choice("mode", *MODES) == PERMISSIVE
        self.schema = arrow_schema(schema)
        self.names = self.schema.names
        self.own = [f.name for f in self.schema if _is_ours(f, columns, format_)]
        decoded = [f for f in self.schema if f.name not in self.own]
        for field in decoded:
            if format_ in (BYTES, UTF8) or "value" not in columns.names:
                raise mismatch(field, columns)
        if options.columns is not None and options.columns != tuple(self.schema.names):
            raise SourceError(codes.INVALID_SCHEMA, "give a schema or columns, not both")
        text = format_ == UTF8 and "value" in self.own
        self.decoder = Decoder(decoded, format_, permissive) if decoded or text else None

    @property
    def needs_value(self) -> bool:
        """Whether values have to be read at all."""
        return "value" in self.own or self.decoder is not None

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch of the schema. Raises `SourceError` for NULLs it rules out."""
        if self.decoder is not None:
            found = found | self.decoder.columns(found)
        return batch_of(found, self.schema)


def batch_of(found: Arrays, schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as a batch of a schema. Raises `SourceError` for NULLs it rules out."""
    columns = [_cast(found[field.name], field.type) for field in schema]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:  # Spark would read what is not there
            raise SourceError(
                codes.INVALID_SCHEMA, f"{field.name} is NOT NULL in the schema, and has NULLs"
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_ours(field: pa.Field, columns: pa.Schema, format_: str) -> bool:
    if field.name not in columns.names:
        return False
    if field.name == "value" and format_ not in (BYTES, UTF8):
        return bool(pa.types.is_binary(field.type))  # else it is the value, decoded as a whole
    if columns.field(field.name).type != field.type:
        raise mismatch(field, columns)
    return True


def mismatch(field: pa.Field, columns: pa.Schema) -> SourceError:
    """Return the error for a column that is not among those there are."""
    known = ", ".join(f"{each.name} {each.type}" for each in columns)
    return SourceError(
        codes.INVALID_SCHEMA, f"no column {field.name} {field.type} here; there are: {known}"
    )


def _cast(found: pa.Array, wanted: pa.DataType) -> pa.Array:
    return found if found.type == wanted else found.cast(wanted)
