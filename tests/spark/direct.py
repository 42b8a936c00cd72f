"""Reads as Spark makes them, but without Spark: everything is pickled from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from snapkv.spark import process_readers
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.errors import SourceError

_pickled = CPickleSerializer()
# PySpark before 4.2 does not ask: times are in UTC.
ZONE = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def forget_all() -> None:
    """Close all locations that this process has open."""
    while process_readers._kept:
        process_readers._kept.popitem()[1].close()


def handed_over(thing: Any) -> Any:
    """What another process gets of a thing."""
    return _pickled.loads(_pickled.dumps(thing))


class Planned:
    """A DataFrame that is made, and not yet read.

    `schema` are columns that the user gives, as (name, type) or (name, type, nullable).
    """

    format = SnapKVDataSource

    def __init__(self, url: str, schema: list[tuple] | None = None, **options: Any) -> None:
        texts = {name.lower(): _text(value) for name, value in options.items()}
        source = self.format(texts | {"path": url})
        self.schema = T.StructType([T.StructField(*field) for field in schema or ()])
        if schema is None:
            self.schema = source.schema()
        self.source = handed_over(source)

    def reader(self) -> Reader:
        """What an action asks for its rows; every action of PySpark 4.0 makes one of its own."""
        return Reader(self.source.reader(self.schema), self.schema)


class Reader:
    """The tasks of one action, and what each of them reads."""

    def __init__(self, reader: Any, schema: T.StructType) -> None:
        partitions = reader.partitions()
        assert isinstance(partitions, list)
        assert partitions
        self._reader, self.tasks = handed_over(reader), [handed_over(p) for p in partitions]
        self._schema = to_arrow_schema(schema, **ZONE)

    def batches(self, task: int) -> Iterator[pa.RecordBatch]:
        for batch in handed_over(self._reader).read(self.tasks[task]):
            assert batch.schema.equals(self._schema, check_metadata=True)
            batch.validate(full=True)
            assert batch.num_rows > 0
            yield batch

    def rows(self, *tasks: int) -> list[tuple]:
        """The rows of some tasks, or of all of them, one after the other."""
        which = tasks or range(len(self.tasks))
        batches = [batch for task in which for batch in self.batches(task)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read(url: str, schema: list[tuple] | None = None, **options: Any) -> list[tuple]:
    """All rows of a DataFrame."""
    return Planned(url, schema, **options).reader().rows()


def columns(url: str, *names: str, **options: Any) -> list[tuple]:
    """All rows, with these columns only."""
    return read(url, columns=",".join(names), **options)


def refused(code: str, url: str, schema: list[tuple] | None = None, **options: Any) -> str:
    """Assert that a DataFrame cannot be made, or planned, for that reason; return the message."""
    with pytest.raises(SourceError) as caught:
        read(url, schema, **options)
    message = str(caught.value)
    assert message.startswith(f"[SNAPKV_{code}] "), message
    return message


def new_worker() -> None:
    """From here on this process has opened nothing, as a worker that just began."""
    forget_all()


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
