"""What Spark does with a stream, but without Spark: drivers that come and go, and a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from direct import forget_all, handed_over
from pyspark.sql import types as T

from snapkv import to_datetime
from snapkv.spark.data_source import SnapKVDataSource
from snapkv.spark.errors import SourceError
from snapkv.spark.micro_batches import LIMITS_KNOWN

BATCHES_MAX = 200

needs_limits = pytest.mark.spark_since("4.2", "a limit per trigger")
LIMITS = [
    pytest.param({}, id="all"),
    pytest.param({"maxRowsPerTrigger": 1}, id="one", marks=needs_limits),
]
"""Options that let a batch bring all there is, and as little as can be."""


class Checkpoint:
    """What outlives a driver: offsets, which of their batches are done, and what came of them."""

    def __init__(self) -> None:
        self.offsets: list[str] = []
        self.done = 0
        self.batches: list[list[list[tuple]]] = []  # batch, task, row

    def rows(self) -> list[tuple]:
        return [row for batch in self.batches for task in batch for row in task]


class Query:
    """One driver's life, as `MicroBatchExecution` leads it.

    Offsets go through JSON, everything else through pickles; an initial offset is asked for as
    often as it is needed. A driver dies by being forgotten. `passes_start=False` is PySpark before
    4.2, which asks for the latest offset without saying anything, and first.
    """

    format = SnapKVDataSource
    usual: ClassVar[dict[str, str]] = {"readChangeFeed": "true"}

    def __init__(
        self,
        url: str,
        checkpoint: Checkpoint | None = None,
        *,
        schema: T.StructType | None = None,
        passes_start: bool = True,
        **options: Any,
    ) -> None:
        forget_all()
        texts = {name: str(value) for name, value in options.items()}
        source = self.format({"path": url, **self.usual, **texts})
        self._schema = schema or source.schema()
        self._source, self._passes_start = handed_over(source), passes_start
        self.reader = self._source.streamReader(self._schema)
        self.checkpoint = checkpoint or Checkpoint()

    def initial(self) -> str:
        return json.dumps(self.reader.initialOffset())

    def latest(self, start: str, limit: Any = None) -> str:
        if not self._passes_start:
            return json.dumps(self.reader.latestOffset())
        if LIMITS_KNOWN:
            limit = limit or self.reader.getDefaultReadLimit()
        return json.dumps(self.reader.latestOffset(json.loads(start), limit))

    def read(self, start: str, end: str) -> list[list[tuple]]:
        """Plan a batch, and read each of its tasks in a worker of its own."""
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        assert isinstance(tasks, list)
        found = []
        for task in tasks:
            worker = handed_over(self._source).streamReader(self._schema)
            batches = list(worker.read(handed_over(task)))
            found.append([tuple(row.values()) for batch in batches for row in batch.to_pylist()])
        return found

    # --- batches ---

    def log(self, limit: Any = None) -> bool:
        """Write down what the next batch is; False when there is nothing new."""
        offsets = self.checkpoint.offsets
        assert len(offsets) == self.checkpoint.done
        if offsets:
            start, end = offsets[-1], self.latest(offsets[-1], limit)
        elif self._passes_start:
            start = self.initial()
            end = self.latest(start, limit)
        else:
            start, end = "", self.latest("")
        if end == start:
            return False
        offsets.append(end)
        return True

    def run(self) -> list[list[tuple]]:
        """Read the batch that was logged, and hand it to the sink; done is only said later."""
        checkpoint, n = self.checkpoint, self.checkpoint.done
        start = checkpoint.offsets[n - 1] if n else self.initial()
        rows = self.read(start, checkpoint.offsets[n])
        if n < len(checkpoint.batches):
            assert rows == checkpoint.batches[n], "a batch that is read again is the same"
        else:
            checkpoint.batches.append(rows)
        return rows

    def commit(self) -> None:
        self.checkpoint.done += 1
        if self.checkpoint.done > 1:  # Spark says it one batch late
            self.reader.commit(json.loads(self.checkpoint.offsets[self.checkpoint.done - 2]))

    def batches(self, limit: Any = None) -> Iterator[list[list[tuple]]]:
        """Do all the batches there are, beginning with one that was logged and not done."""
        for _ in range(BATCHES_MAX):
            if len(self.checkpoint.offsets) == self.checkpoint.done and not self.log(limit):
                return
            rows = self.run()
            self.commit()
            yield rows
        raise AssertionError(f"no end after {BATCHES_MAX} batches")

    def drained(self) -> list[tuple]:
        """The rows of all batches there are."""
        return [row for batch in self.batches() for task in batch for row in task]

    def available_now(self) -> list[tuple]:
        """The rows of the batches of `trigger(availableNow=True)`."""
        self.reader.prepareForTriggerAvailableNow()
        return self.drained()

    def once(self) -> list[tuple]:
        """The rows of the batch of `trigger(once=True)`."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        for batch in self.batches(ReadAllAvailable()):
            return [row for task in batch for row in task]
        return []


# --- what is expected ---


def inserted(commit, /, **values: bytes) -> list[tuple]:
    """The rows of a snapshot at a commit."""
    at = commit.revision, None, to_datetime(commit.ts)
    return [(key, values[key], "insert", *at) for key in sorted(values)]


def changes(*commits: tuple, existed: str = "") -> list[tuple]:
    """The rows of some commits, each with what it wrote; None for a removal.

    `existed` names the keys that were there before.
    """
    rows, there = [], set(existed.split())
    for commit, values in commits:
        for n, key in enumerate(sorted(values)):
            kind = "update_postimage" if key in there else "insert"
            kind = "delete" if values[key] is None else kind
            rows.append((key, values[key], kind, commit.revision, n, to_datetime(commit.ts)))
        there |= values.keys()
    return rows


def refused_by(code: str, call: Callable[[], Any]) -> str:
    """Assert that a call is refused for that reason; return the message."""
    with pytest.raises(SourceError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(f"[SNAPKV_{code}] "), message
    return message
