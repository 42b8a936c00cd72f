"""Converts changes to batches of exactly the schema that Spark expects."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from snapkv.reading.arrow import Arrays
from snapkv.spark.schema import arrow_schema, batch_of, mismatch

SCHEMA = T.StructType(
    [
        T.StructField("seq", T.StringType()),
        T.StructField("id", T.StringType()),
        T.StructField("rev", T.StringType()),
        T.StructField("revs", T.ArrayType(T.StringType())),
        T.StructField("deleted", T.BooleanType()),
        T.StructField("doc", T.StringType()),
        T.StructField("_commit_timestamp", T.TimestampType()),
    ]
)
COLUMNS = arrow_schema(SCHEMA)
CELLS = pa.schema(
    [
        COLUMNS.field(name)
        for name in ("id", "doc", "seq", "rev", "revs", "deleted", "_commit_timestamp")
    ]
)
"""The same columns in the order of a row's cells: the one that may be large is second."""


class Shape:
    """The columns of a DataFrame: all of the feed's, or those that a schema names.

    Raises `SourceError` for a schema with unknown columns.
    """

    def __init__(self, schema: T.StructType) -> None:
        self.schema = arrow_schema(schema)
        self.names = self.schema.names
        for field in self.schema:
            if field.name not in COLUMNS.names or COLUMNS.field(field.name).type != field.type:
                raise mismatch(field, COLUMNS)

    @property
    def needs_value(self) -> bool:
        """Whether documents must be read."""
        return "doc" in self.names

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch of the schema. Raises `SourceError` for NULLs it forbids."""
        return batch_of(found, self.schema)
