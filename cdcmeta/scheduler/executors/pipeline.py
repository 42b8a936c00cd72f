"""The pipeline of one table: commits wait in a queue between the reader and a writer.

It is *live* while the reader hands it each new commit, else *behind*: it has all commits up to
`received`, and the reader fetches what follows later. A queue that is full makes it behind, so a
slow sink costs its table a second read of the source, and other tables nothing.

    prepare      the queue fills; nothing is written
    replicate    the writer takes the table over, and what it has already is dropped
    remove       nothing more is written; the last write under way ends first
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cdcmeta.errors import LogTrimmedError, SinkError
from cdcmeta.scheduler.core.states import Progress, TableState, Token
from cdcmeta.scheduler.executors.contracts import TableSink, TableSource, TableWriter
from snapkv import Change, Changes, CompactedError
from snapkv.base.waiting import monotonic

QUEUE_COMMITS, QUEUE_BYTES = 2_000, 4 << 20
"""What waits in the queue of a table at most, but for one commit."""
ALL_QUEUES_BYTES = 256 << 20
"""The most bytes, about, that wait in the queues of all tables of a changefeed on one capture."""
WRITE_COMMITS, WRITE_BYTES = 256, 1 << 20
"""What is written at once, at most, but for one commit."""
RETRY_S_MIN, RETRY_S_MAX = 0.5, 30.0
TRIES = 6
"""The most attempts of a write before the table is returned to the owner."""
GONE = (CompactedError, LogTrimmedError)
"""The errors of commits that a source does not have any more."""


def size_of(change: Change[str]) -> int:
    """Return about how many bytes a change takes: of a document, all its leaves."""
    size = len(change.key) + len(change.value or b"")
    leaves: Sequence[bytes] = getattr(change, "leaves", ())
    return size + sum(map(len, leaves)) if leaves else size


class QueueBudget:
    """Counts the bytes that wait in the queues of all tables of an executor."""

    def __init__(self, bytes_max: int = ALL_QUEUES_BYTES) -> None:
        self._lock, self._max, self._used = threading.Lock(), bytes_max, 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more should wait, but for one commit of each table."""
        return self._used >= self._max

    def take(self, size: int) -> None:
        """Count bytes that wait; a negative size no longer."""
        with self._lock:
            self._used += size


class Problem(NamedTuple):
    """Why a table makes no progress."""

    error: str
    since: float
    """`monotonic()` of the first failure in a row."""
    tries: int


class _PendingState:
    """A state that a table gets: all of it, or what has changed since its checkpoint."""

    def __init__(self, at: int, *, is_whole: bool) -> None:
        self.at, self.is_whole = at, is_whole
        self.pages: Iterator[Changes[str]] | None = None
        """Its parts, once the first one is due."""
        self.page: Changes[str] | None = None
        """The part that is to be written next, once it was read."""


class Pipeline:
    """One table under one assignment. The reader offers commits, workers call `work`.

    `start` is the checkpoint; with a `state_at`, the state of `source` as of then comes first. The
    table is in `laggards` unless its checkpoint is wherever the reader is.
    """

    def __init__(
        self,
        table: str,
        start: int,
        token: Token,
        sink: TableSink,
        source: TableSource | None = None,
        state_at: int = 0,
        laggards: set[str] | None = None,
        room: QueueBudget | None = None,
    ) -> None:
        self.table, self.token = table, token
        self.state = TableState.PREPARING
        self.checkpoint, self.synced = start, 0
        self.received = max(start, state_at)
        self.is_live = False
        """Whether the reader hands it each commit."""
        self._laggards = set[str]() if laggards is None else laggards
        self._laggards.add(table)
        self.is_queued = False
        """Whether a worker will call, or is calling, `work`; kept by the workers."""
        self.not_before = 0.0
        """`monotonic()` before which `work` is not called, unless the table stops."""
        self.problem: Problem | None = None
        self.busy_since: float | None = None
        """`monotonic()` since when the sink is called."""
        self._behind_since = monotonic()
        """Since when it is not live, or has a state to write."""
        self.rows = self.bytes = 0
        """What was written, in changes and in bytes of values."""
        self._source = source
        self._pending = _PendingState(state_at, is_whole=True) if state_at else None
        self._sink = sink
        self._writer: TableWriter | None = None
        self._lock = threading.Lock()
        self._queue: deque[tuple[Changes[str], int, float]] = deque()
        """Commits, the size of each, and since when it waits."""
        self._queued_bytes = 0
        self._refused = 0
        """The size of the commit that found no room last."""
        self._room = room or QueueBudget()

    # --- the reader's side ---

    def offer(self, changes: Changes[str]) -> bool:
        """Take the next commit; False if the queue is full, or the table stops."""
        size = sum(map(size_of, changes.changes))
        with self._lock:
            if changes.commit.ts <= self.received:
                return True
            full = (
                len(self._queue) >= QUEUE_COMMITS
                or self._queued_bytes + size > QUEUE_BYTES
                or self._room.is_full
            )
            if (full and self._queue) or self.is_stopping:
                self._refused = size
                return False
            self._refused = 0
            self._queue.append((changes, size, monotonic()))
            self._count(size)
            self.received = changes.commit.ts
            self._laggards.add(self.table)
        return True

    def caught_up(self, position: int, *, is_live: bool) -> None:
        """Note that all commits up to a position were offered."""
        with self._lock:
            if self.is_stopping:
                return
            self.received = max(self.received, position)
            if self.is_live and not is_live:
                self._behind_since = monotonic()
            self.is_live = is_live
            self._note_idle()

    def set_prepared(self) -> None:
        """Note that a start would find the next commits here."""
        with self._lock:
            if self.state is TableState.PREPARING:
                self.state = TableState.PREPARED

    def fail(self, error: Exception) -> None:
        """End the table because its source cannot be read."""
        with self._lock:
            if not self.is_stopping:
                self._note(error)
                self._begin_stop()

    def restart(self, at: int) -> None:
        """Write the state as of `at`, or what has changed until then, then the commits after it."""
        assert self._source is not None, "a table without a source has no state"
        with self._lock:
            if not self.is_stopping:
                is_pending = self._pending is not None and self._pending.is_whole
                is_whole = is_pending or not self._source.has_removals
                self._queue.clear()
                self._count(-self._queued_bytes)
                self._pending = _PendingState(at, is_whole=is_whole)
                self.received = max(self.received, at)
                self._laggards.add(self.table)
                self._behind_since = monotonic()

    # --- the agent's side ---

    @property
    def is_stopping(self) -> bool:
        """Whether nothing more may be written."""
        return self.state in (TableState.STOPPING, TableState.STOPPED)

    @property
    def late_since(self) -> float | None:
        """Return since when its oldest commit waits to be written, or it waits to be prepared."""
        with self._lock:
            if self.is_stopping or self.state is TableState.PREPARED:
                return None
            if self._queue and self._pending is None and self.state is TableState.REPLICATING:
                return self._queue[0][2]
            is_late = self._pending is not None or not self.is_live
            return self._behind_since if is_late else None

    @property
    def has_room(self) -> bool:
        """Whether the queue is at most half full, and takes what it refused last."""
        if not self._queue:
            return True  # one commit always fits
        return (
            len(self._queue) <= QUEUE_COMMITS // 2
            and self._queued_bytes <= QUEUE_BYTES // 2
            and self._queued_bytes + self._refused <= QUEUE_BYTES
            and not self._room.is_full
        )

    @property
    def has_work(self) -> bool:
        """Whether a worker has something to do."""
        if self.state is not TableState.REPLICATING:
            return self.state is TableState.STOPPING
        return self._writer is None or bool(self._queue) or self._pending is not None

    def replicate(self, start: int) -> None:
        """Let a worker take the table over and write; everything up to `start` is in the sink."""
        with self._lock:
            if self.state is TableState.PREPARED:
                self.checkpoint = max(self.checkpoint, start)
                self.state = TableState.REPLICATING
                self._drop_pending(start)

    @property
    def has_begun(self) -> bool:
        """Whether the writer has taken the table over."""
        return self._writer is not None

    def stop(self) -> None:
        """Write nothing more, but for a call that is under way."""
        with self._lock:
            if not self.is_stopping:
                self._begin_stop()

    def progress(self, position: int) -> Progress:
        """Return how far it is; `position` is the reader's, read before this call."""
        with self._lock:
            received = max(self.received, position) if self.is_live else self.received
            writes = self.state is TableState.REPLICATING and self._writer is not None
            is_idle = writes and self._pending is None and not self._queue
            checkpoint = max(self.checkpoint, received) if is_idle else self.checkpoint
            return Progress(checkpoint, max(received, checkpoint), self.synced)

    # --- a worker's side ---

    def work(self) -> float | None:
        """Write what is next; return after how many seconds to call again, None if at an event."""
        self.busy_since = monotonic()
        try:
            if self.state is TableState.STOPPING:
                self._end()
                return None
            self._write()
        except BaseException as e:  # also of a function that calls sys.exit()
            return self._failed(e)
        finally:
            self.busy_since = None
        with self._lock:
            if not self.is_stopping:  # else the problem is why it ends
                self.problem = None
        return 0.0 if self.has_work else None

    def _write(self) -> None:
        writer = self._writer
        if writer is None:
            writer = self._sink(self.table, self.token)
            reached = writer.begin(self.checkpoint)
            with self._lock:
                self._writer = writer
                self.checkpoint = max(self.checkpoint, reached)
                self.received = max(self.received, reached)
                self._drop_pending(reached)
                self._drop_written()
                self._note_idle()
            return
        state = self._pending  # it may begin anew meanwhile
        if state is not None:
            self._write_page(writer, state)
            return
        batch, size = self._next()
        if batch:
            writer.write(batch, batch[-1].commit.ts)
            self._note_written(batch, size)
            with self._lock:
                self.checkpoint = self.synced = batch[-1].commit.ts
                self._drop_written()
                self._note_idle()

    def _write_page(self, writer: TableWriter, state: _PendingState) -> None:
        if state.page is None and not self._read_page(writer, state):
            return
        page = state.page
        if page is None:
            writer.write([], state.at)
            with self._lock:
                self._pending = None if self._pending is state else self._pending
                self.checkpoint = max(self.checkpoint, state.at)
                self._drop_written()
                self._note_idle()
        else:
            writer.write([page], 0)
            state.page = None
            self._note_written([page], sum(map(size_of, page.changes)))

    def _read_page(self, writer: TableWriter, state: _PendingState) -> bool:
        """Read the next part of the state; False if that cannot go on."""
        source = self._source
        assert source is not None, "a table without a source has no state"
        if state.pages is None:
            kept = writer.replace() if state.is_whole else ()
            since = 0 if state.is_whole else self.checkpoint
            state.pages = source.state(self.table, since, state.at, kept)
        try:
            state.page = next(state.pages, None)
        except GONE as e:
            state.pages = None
            if source.restarts:
                self.restart(source.now())
            else:
                self.fail(e)
            return False
        except Exception as e:
            self.fail(e)  # it is read again from its beginning, under another assignment
            return False
        return True

    def _drop_pending(self, reached: int) -> None:
        if self._pending is not None and reached >= self._pending.at:
            self._pending = None

    def _next(self) -> tuple[list[Changes[str]], int]:
        batch, total = list[Changes[str]](), 0
        with self._lock:
            for changes, size, _ in self._queue:
                if batch and (len(batch) >= WRITE_COMMITS or total + size > WRITE_BYTES):
                    break
                batch.append(changes)
                total += size
        return batch, total

    def _drop_written(self) -> None:
        while self._queue and self._queue[0][0].commit.ts <= self.checkpoint:
            self._count(-self._queue.popleft()[1])

    def _count(self, size: int) -> None:
        """Count bytes that are queued, or no longer."""
        self._queued_bytes += size
        self._room.take(size)

    def _note_written(self, batch: list[Changes[str]], size: int) -> None:
        self.rows += sum(len(each.changes) for each in batch)
        self.bytes += size

    def _begin_stop(self) -> None:
        self.state, self.is_live = TableState.STOPPING, False
        self._laggards.add(self.table)

    def _failed(self, error: BaseException) -> float | None:
        """Return when to try again; a table that cannot go on stops instead."""
        with self._lock:
            if self.is_stopping and self.problem is not None:
                return 0.0  # the problem is why it ends
            problem = self._note(error)
            fenced = isinstance(error, SinkError) and error.reason == "fenced"
            if fenced or problem.tries >= TRIES:
                self._begin_stop()
            if self.is_stopping:
                return 0.0
        return min(RETRY_S_MIN * 2.0 ** (problem.tries - 1), RETRY_S_MAX)

    def _note_idle(self) -> None:
        """Note whether its checkpoint is wherever the reader is."""
        has_begun = self.state is TableState.REPLICATING and self._writer is not None
        if has_begun and self.is_live and self._pending is None and not self._queue:
            self._laggards.discard(self.table)
        else:
            self._laggards.add(self.table)

    def _note(self, error: BaseException) -> Problem:
        text = f"{type(error).__name__}: {error}"
        before = self.problem or Problem(text, monotonic(), 0)
        self.problem = problem = Problem(text, before.since, before.tries + 1)
        return problem

    def _end(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except Exception as e:
                self._note(e)
        with self._lock:
            self._queue.clear()
            self._count(-self._queued_bytes)
            self._pending = None
            self.state = TableState.STOPPED
