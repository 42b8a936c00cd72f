"""Writes as Spark makes them, but without Spark: everything is pickled from step to step."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from direct import ZONE, handed_over
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from snapkv.spark import batch_commits, key_sink
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.errors import SourceError
from snapkv.store.writes import CommitRoom

TEXTS = "key STRING, value STRING"
KINDS = {"STRING": T.StringType(), "BINARY": T.BinaryType(), "INT": T.IntegerType(),
         "BIGINT": T.LongType(), "BOOLEAN": T.BooleanType()}  # fmt: skip


def schema_of(columns: str) -> T.StructType:
    """A schema of scalars, written as DDL."""
    fields = [column.split() for column in columns.split(", ")]
    return T.StructType([T.StructField(name, KINDS[kind]) for name, kind in fields])


class Sink:
    """A sink of a format, and what the driver and the workers do with it."""

    format = SnapKVDataSource

    def __init__(
        self,
        url: str,
        columns: str | T.StructType = TEXTS,
        *,
        overwrite: bool = False,
        stream: bool = False,
        **options: Any,
    ) -> None:
        texts = {name.lower(): str(value) for name, value in options.items()} | {"path": url}
        if stream:
            texts |= {"checkpointlocation": "/checkpoint", "queryname": "named"}
        self.schema = schema_of(columns) if isinstance(columns, str) else columns
        source = handed_over(self.format(texts))
        made = source.streamWriter if stream else source.writer
        self.writer = handed_over(made(self.schema, overwrite))

    def written(self, *rows: tuple, tasks: int = 2) -> list:
        """What the tasks of a batch return: each of them has some of the rows."""
        schema = to_arrow_schema(self.schema, **ZONE)
        messages = []
        for task in range(tasks):
            some = rows[task::tasks]
            columns = [[row[n] for row in some] for n in range(len(schema))]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            messages.append(handed_over(self.writer.write(iter([batch]))))
        return messages

    def write(self, *rows: tuple, tasks: int = 2) -> None:
        """One batch, or one micro-batch."""
        self.writer.commit(self.written(*rows, tasks=tasks))

    def micro_batch(self, number: int, *rows: tuple, tasks: int = 2) -> None:
        """One micro-batch of a stream."""
        self.writer.commit(self.written(*rows, tasks=tasks), number)


class Task:
    """What a worker knows of its task."""

    def getLocalProperty(self, name: str) -> str:
        assert name == "sql.streaming.queryId"
        return "0eee7a21"

    @classmethod
    def get(cls) -> Task:
        return cls()


SMALL_BYTES = 4_000


@pytest.fixture
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a sink have little room."""

    class Small(CommitRoom):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.bytes_max = SMALL_BYTES

    monkeypatch.setattr(batch_commits, "CommitRoom", Small)


@pytest.fixture
def in_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks are those of a query."""
    monkeypatch.setattr(key_sink, "TaskContext", Task)


def refused(code: str, call: Any, *values: Any, **options: Any) -> str:
    """The message of an error with this code."""
    with pytest.raises(SourceError) as caught:
        call(*values, **options)
    assert f"[SNAPKV_{code}]" in str(caught.value)
    return str(caught.value)
