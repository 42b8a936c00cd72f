"""The least that a Python data source of Spark costs: one that yields Arrow batches it finds ready.

A source in Python runs in a process beside the JVM, which asks it for partitions and copies its
batches. This one does nothing else: it maps a file of Arrow batches and yields them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

NAME = "ready"


def keep(frame: Any, path: str, batch_rows: int = 10_000) -> None:
    """Write the rows of a DataFrame to the file that the source yields."""
    table = frame.toArrow()
    Path(path + ".schema").write_text(
        ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in frame.schema)
    )
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=batch_rows)


def register(spark: Any) -> None:
    """Register the source; its classes are pickled by value, so workers need no module of ours."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )

    def batches(path: str) -> Iterator[Any]:
        import pyarrow

        with pyarrow.memory_map(path) as source:
            file = pyarrow.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)

    class Reader(DataSourceReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def read(self, partition: Any) -> Iterator[Any]:
            return batches(self.path)

    class Stream(DataSourceStreamReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def latestOffset(self) -> dict[str, int]:
            return {"at": 1}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
            return [InputPartition(0)] if start != end else []

        def read(self, partition: Any) -> Iterator[Any]:
            return batches(self.path)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return NAME

        def schema(self) -> str:
            return Path(self.options["path"] + ".schema").read_text()

        def reader(self, schema: Any) -> Any:
            return Reader(self.options["path"])

        def streamReader(self, schema: Any) -> Any:
            return Stream(self.options["path"])

    spark.dataSource.register(Source)
