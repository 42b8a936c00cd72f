"""Limits of one micro-batch; PySpark has them since 4.2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, NamedTuple

from snapkv.engine.contract import KeyValue
from snapkv.layout import Mark
from snapkv.reading.changes import CommitChanges, Touched
from snapkv.spark.source_options import SourceOptions

try:
    from pyspark.sql.streaming import datasource as _spark
except ImportError:  # before 4.2
    _spark = None

LIMITS_KNOWN = _spark is not None
AvailableNow: Any = _spark.SupportsTriggerAvailableNow if LIMITS_KNOWN else object
"""The base class of streams that support Trigger.AvailableNow."""
ValuesBefore = Callable[[Sequence[Touched]], Iterable[bytes | None]]
"""Returns the values of some keys just before they were touched."""


class Limit:
    """The rows and bytes that a batch may still take; a commit is never split."""

    def __init__(self, rows: int | None, size: int | None) -> None:
        self._rows, self._size = rows, size
        self._taken_rows = self._taken_size = 0

    @property
    def bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self._rows is not None or self.sized

    @property
    def sized(self) -> bool:
        """Whether bytes are bounded."""
        return self._size is not None

    def take(self, size: int, *, rows: int = 1) -> bool:
        """Return whether some rows still fit, counting them; the first rows always fit."""
        first = self._taken_rows == 0
        self._taken_rows += rows
        self._taken_size += size
        if first:
            return True
        within_rows = self._rows is None or self._taken_rows <= self._rows
        return within_rows and (self._size is None or self._taken_size <= self._size)


def limit_of(options: SourceOptions, read_limit: Any = None) -> Limit:
    """Return the limit of a batch: that of the options, unless Spark asks for everything."""
    if LIMITS_KNOWN and isinstance(read_limit, _spark.ReadAllAvailable):
        return Limit(None, None)
    return Limit(options.count("maxRowsPerTrigger"), options.count("maxBytesPerTrigger"))


def default_limit(options: SourceOptions) -> Any:
    """Return the limit of the options as Spark's class, which has one; a batch keeps both."""
    if (rows := options.count("maxRowsPerTrigger")) is not None:
        return _spark.ReadMaxRows(rows)
    if (size := options.count("maxBytesPerTrigger")) is not None:
        return _spark.ReadMaxBytes(size)
    return _spark.ReadAllAvailable()


# --- how far a batch goes ---


def last_key(pages: Iterable[list[KeyValue]], limit: Limit) -> bytes | None:
    """Return the last key that a batch of a snapshot may contain, None if it may contain all."""
    last = b""
    for page in pages:
        for kv in page:
            if not limit.take(len(kv.key) + len(kv.value)):
                return last
            last = kv.key
    return None


class Size(NamedTuple):
    """How much of a batch a commit takes."""

    mark: Mark
    rows: int
    size: int


def sizes(
    commits: Iterable[CommitChanges], before: ValuesBefore | None, *, sized: bool, deletes: bool
) -> Iterator[Size]:
    """Yield commits with their rows; with their bytes, too, if `sized`.

    The writes that one observed tick stamps count as one commit. `before` reads the values before
    the changes, None if rows do not show them; they are read only if bytes are wanted.
    """
    rows = size = 0
    for mark, stamp, touched in commits:
        shown = [each for each in touched if each.exists or deletes]
        with_before = [each for each in shown if each.existed] if before else []
        size += sum(len(each.last.kv.key) + len(each.last.kv.value) for each in shown)
        rows += len(shown)
        for each in with_before:
            if each.exists:  # the one row of a removal shows the value before
                rows += 1
                size += len(each.last.kv.key)
        if before and sized:
            size += sum(len(value or b"") for value in before(with_before))
        if stamp is None:  # an observed write belongs to the mark that stamps it
            continue
        yield Size(mark, rows, size)
        rows = size = 0


def last_commit(commits: Iterable[Size], limit: Limit) -> Mark | None:
    """Return the last commit that a batch may contain, None if it may contain all.

    The first commit with rows always fits. A commit is not split.
    """
    last: Mark | None = None
    for mark, rows, size in commits:
        if not limit.take(size, rows=rows):
            return last
        last = mark
    return None


def last_time(members: Iterable[Iterable[Size]], limit: Limit) -> int | None:
    """Return the last timestamp that a batch of several members may contain, None for all.

    What several members committed at one timestamp is not split.
    """
    last: int | None = None
    merged = merge(*members, key=_time_of)
    for timestamp, commits in groupby(merged, key=_time_of):
        parts = list(commits)
        if not limit.take(sum(p.size for p in parts), rows=sum(p.rows for p in parts)):
            return last
        last = timestamp
    return None


def _time_of(commit: Size) -> int:
    return commit.mark.timestamp
