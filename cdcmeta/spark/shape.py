"""From changes to batches of exactly the schema that Spark expects."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as T

from snapkv.reading.arrow import Arrays
from snapkv.spark.shape import arrow_schema, batch_of, mismatch

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
"""The same in the order of rows that are put into batches: what may be large comes second."""


class Shape:
    """The columns of a DataFrame: all of the feed's, or those that a schema names.

    Raises `SourceError` for a schema that has others.
    """

    def __init__(self, schema: T.StructType) -> None:
        self.schema = arrow_schema(schema)
        self.names = self.schema.names
        for field in self.schema:
            if field.name not in COLUMNS.names or COLUMNS.field(field.name).type != field.type:
                raise mismatch(field, COLUMNS)

    @property
    def needs_value(self) -> bool:
        """Whether documents have to be read at all."""
        return "doc" in self.names

    def batch(self, found: Arrays) -> pa.RecordBatch:
        """Return columns as a batch of the schema. Raises `SourceError` for NULLs it rules out."""
        return batch_of(found, self.schema)
