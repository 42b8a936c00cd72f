"""The stream of changes: no row is lost or repeated, and no limit splits a commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from snapkv.engine.contract import SCAN
from snapkv.errors import CompactedError
from snapkv.layout import Mark
from snapkv.reading.arrow import KeyRange, chunks
from snapkv.reading.change_replay import (
    PRIOR_READS_MAX,
    Touched,
    changed,
    first_after,
    values_before,
)
from snapkv.reading.reader import Reader
from snapkv.spark import micro_batches
from snapkv.spark.errors import SourceError
from snapkv.spark.micro_batches import ChangesOffset, Limit, MicroBatches, Size, moment
from snapkv.spark.pinned_commits import PinnedCommits, Present, low_of, present_in
from snapkv.spark.process_readers import own_reader, verified_reader
from snapkv.spark.read_options import LATEST, ReadOptions, span_of
from snapkv.spark.read_tasks import InitialTask, Task, changes_tasks, cut_keys
from snapkv.spark.schema import FrameSchema
from snapkv.spark.timing import start_of, timestamp_of

DATA_LOSS = (
    "the stream had not read all of it: start it with a new checkpoint, which begins with a "
    "snapshot, or with failOnDataLoss=false, which continues with what is left"
)
FOR_BATCHES = ("endingTimestamp", "endingVersion")


class ChangesReader(MicroBatches[ChangesOffset]):
    """The stream of changes, which may begin with a snapshot."""

    advice = DATA_LOSS
    _options: ReadOptions

    def __init__(self, options: ReadOptions, schema: FrameSchema) -> None:
        super().__init__(options, schema, FOR_BATCHES)
        self._span = span_of(options)
        self._preimages = options.flag("preimages")
        self._deletes = not options.flag("ignoreDeletes")

    def _position(self, checkpoint: Mapping[str, Any]) -> ChangesOffset:
        return ChangesOffset.from_json(checkpoint)

    # --- where it is ---

    def _start(self) -> ChangesOffset:
        reader = own_reader(self._location)
        present = present_in(reader)
        if self._options.has_start:
            mark = self._start_mark(reader, present)
            return ChangesOffset(present.store, mark, pinned=self._is_fixed(present))
        newest = reader.policy.now().mark
        return ChangesOffset(present.store, newest, b"", pinned=False)

    def _start_mark(self, reader: Reader, present: Present) -> Mark:
        """Return the last commit before the start that options name."""
        if (self._options.text("startingVersion") or "").lower() == LATEST:
            return reader.policy.now().mark
        if (text := self._options.text("startingTimestamp")) is not None:
            start_of(text, self._options.zone, present.now_ms, present.head.timestamp)
        try:
            low = low_of(reader, self._options, present)
            assert low is not None
            return self._left(reader, low)
        except SourceError as e:
            if self._fails or not isinstance(e.__cause__, CompactedError):
                raise
            return self._lost(reader, reader.timeline.tracker.creation, e.__cause__)

    def _is_fixed(self, present: Present) -> bool:
        """Return whether each later call finds the same start, so that no batch has to log it."""
        if self._options.location.prefix is not None:
            return False
        text = self._options.text("startingTimestamp")
        if text is None:
            return (self._options.text("startingVersion") or "").lower() != LATEST
        start, later = (
            timestamp_of(text, self._options.zone, now_ms, start=True)
            for now_ms in (present.now_ms, present.now_ms + 1_000)
        )
        return start == later and start <= present.head.timestamp

    def _newest(self) -> ChangesOffset:
        reader = own_reader(self._location)
        return ChangesOffset(reader.format.store_id, reader.timeline.head())

    # --- how far it may go ---

    def _next(self, at: ChangesOffset, limit: Limit) -> ChangesOffset:
        reader = verified_reader(self._location, at.store, at.mark)
        if at.after is not None and limit.bounded:
            return self._next_keys(reader, at, limit)
        head = self._head(reader, at.mark)
        if at.after is None and head.ordinal == at.mark.ordinal:
            return at
        last = limit.last(self.sizes(reader, at.mark, head, limit)) if limit.bounded else None
        return at.at(last or head)

    def _next_keys(self, reader: Reader, at: ChangesOffset, limit: Limit) -> ChangesOffset:
        state = self._moment_at(reader, at.mark)
        span = self._rest(at)
        source = reader.policy.moment(state.high)
        pages = source.pages(SCAN, span.start, span.end, keys_only=not limit.sized)
        keys = ((kv.key, 1, len(kv.key) + len(kv.value)) for page in pages for kv in page)
        return at.at(state.high, limit.last(keys))

    def sizes(self, reader: Reader, low: Mark, head: Mark, limit: Limit) -> Iterator[Size]:
        """Yield the commits in (low, head] with what they take of a batch."""
        low = self._left(reader, low)
        commits = changed(reader, self._span.start, self._span.end, low, head)
        before = partial(_values_before, reader, low) if self._preimages else None
        return micro_batches.sizes(commits, before, sized=limit.sized, deletes=self._deletes)

    def _rest(self, at: ChangesOffset) -> KeyRange:
        """Return the keys of the snapshot that were not delivered yet."""
        if not at.after:
            return self._span
        return self._span._replace(start=max(self._span.start, at.after + b"\0"))

    # --- what compaction left ---

    def _left(self, reader: Reader, low: Mark) -> Mark:
        """Return `low`; if changes after it are gone, the oldest commit left or an error."""
        try:
            first_after(reader, low)
            if self._preimages:
                moment(reader, low)
            return low
        except CompactedError as e:
            return self._lost(reader, low, e)

    # --- rows ---

    def _tasks(self, reader: Reader, first: ChangesOffset, last: ChangesOffset) -> Sequence[Task]:
        low = first.mark
        tasks: list[Task] = []
        if first.after is not None and last.after != first.after:
            low, tasks = self._snapshot_tasks(reader, first, last)
        if last.after is None and low.ordinal < last.mark.ordinal:
            tasks += self._changes_tasks(reader, low, last.mark)
        return tasks

    def _snapshot_tasks(
        self, reader: Reader, first: ChangesOffset, last: ChangesOffset
    ) -> tuple[Mark, list[Task]]:
        """Return the commit whose state is read, and the tasks for its keys."""
        # in PySpark before 4.2 batch 0 may end before its start, which Spark asks for later
        mark = last.mark
        if last.after is None and first.mark.ordinal < mark.ordinal:
            mark = first.mark
        span = self._rest(first)
        if last.after:
            span = span._replace(end=last.after + b"\0")
        state = self._moment_at(reader, mark)
        groups = cut_keys(reader, span, state.reading, self._options.partitions)
        return state.high, [
            InitialTask(state, span, tuple((piece.key, piece.range_end) for piece in group))
            for group in groups
        ]

    def _changes_tasks(self, reader: Reader, low: Mark, high: Mark) -> list[Task]:
        low = self._left(reader, low)
        commits = PinnedCommits(reader.format.store_id, low, high, high.revision)
        return changes_tasks(reader, self._options, self._span, commits)


def _values_before(reader: Reader, low: Mark, touched: Sequence[Touched]) -> Iterator[bytes | None]:
    """Yield the values of some keys before; a round trip for 128 keys."""
    for some in chunks(touched, PRIOR_READS_MAX):
        yield from values_before(reader, some, low)
