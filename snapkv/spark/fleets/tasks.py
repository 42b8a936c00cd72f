"""Tasks of members: what a worker reads of one of them, with the member's name in each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from snapkv.location import Location
from snapkv.reading import arrow
from snapkv.reading.arrow import Arrays
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.batch_reader import batches
from snapkv.spark.errors import of_member
from snapkv.spark.pinned import Commits
from snapkv.spark.schema import MEMBER
from snapkv.spark.tasks import BatchSchema, Columns, Task


@dataclass(frozen=True)
class MemberTask(Task):
    """A task of one store, which is a member of a fleet."""

    member: str
    location: Location
    commits: Commits
    task: Task

    @staticmethod
    def of(member: str, location: Location, task: Task) -> MemberTask:
        """Return a task as one of a member."""
        return MemberTask(member, location, task.commits, task)

    def read(self, reader: Reader, columns: Columns) -> Iterator[Arrays]:
        """Yield the columns of the view, with the member's name."""
        for found in self.task.read(reader, columns):
            rows = len(next(iter(found.values())))
            yield {MEMBER: arrow.repeated(self.member, pa.string(), rows), **found}


def member_batches(
    task: MemberTask, schema: BatchSchema, *, advice: str = errors.COMPACTED_ADVICE
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a member's task, as `batches`; errors name the member."""
    with of_member(task.member, advice=advice):
        yield from batches(task.location, task, schema, advice=advice)


class FleetReader(DataSourceReader):
    """Answers Spark which partitions there are, and reads their rows; can be pickled."""

    def __init__(self, schema: BatchSchema, plan: Callable[[], Sequence[Task]]) -> None:
        self._schema, self._plan = schema, plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, or an empty partition if there is nothing to read."""
        return list(self._plan()) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a task, from this process's own engine of the member."""
        if isinstance(partition, MemberTask):
            yield from member_batches(partition, self._schema)
