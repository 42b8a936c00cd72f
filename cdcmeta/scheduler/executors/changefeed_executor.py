"""The executor of a changefeed on one capture: a reader, workers, and a pipeline for each table."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import count
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError, SinkError
from cdcmeta.scheduler.agent import ExecutorStatus
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress, TableState, Token
from cdcmeta.scheduler.executors.contracts import TableSink, TableSource
from cdcmeta.scheduler.executors.feed_reader import FeedReader
from cdcmeta.scheduler.executors.pipeline import Pipeline, Problem, QueueBudget
from snapkv.base.waiting import monotonic

log = logging.getLogger("cdcmeta.scheduler")

THREADS = 4
THREADS_MAX = 64
HUNG_S = 2.0
"""The longest call that counts as one of `THREADS`, in seconds; another thread takes the place of a
longer one."""
RETRY_S = 2.0
"""The pause before a store or a sink that could not be opened is opened again."""
MAY_NOT_WRITE_S = 0.1
"""The pause before the capture's session is asked again."""


class Workers:
    """Calls `Pipeline.work`, for each pipeline in one thread at a time.

    `may_write()` is asked before each call that writes: it is false once the capture's session may
    end before the call does. Threads start when they are needed.
    """

    def __init__(self, may_write: Callable[[], bool], threads: int = THREADS) -> None:
        self._may_write, self._threads_max = may_write, threads
        self._condition = threading.Condition()
        self._ready: deque[Pipeline] = deque()
        self._delayed: list[tuple[float, int, Pipeline]] = []
        self._order = count()
        self._threads: list[threading.Thread] = []
        self._began: dict[threading.Thread, float] = {}
        """Since when each thread is in a call."""
        self._idle = 0
        self._closed = False

    def submit(self, pipeline: Pipeline) -> None:
        """Let a thread call `work` if the pipeline has work; may be called at any time."""
        with self._condition:
            if self._closed or pipeline.is_queued or not pipeline.has_work:
                return
            stops = pipeline.state is TableState.STOPPING
            if pipeline.not_before > monotonic() and not stops:
                return  # it is among the delayed
            self._put(pipeline)

    def look(self) -> None:
        """Replace threads that hang, while pipelines wait. O(1), O(threads) if some wait."""
        if self._ready:
            with self._condition:
                self._grow()

    def close(self, timeout: float) -> bool:
        """End the threads; False if one is still in a call after `timeout` seconds."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        deadline = monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _put(self, pipeline: Pipeline) -> None:
        pipeline.is_queued = True
        self._ready.append(pipeline)
        if len(self._ready) <= self._idle:  # each needs a thread of its own: a call may hang
            self._condition.notify()
        else:
            self._grow()

    def _grow(self) -> None:
        """Start a thread if pipelines wait and too few threads are free or in a short call."""
        if len(self._ready) <= self._idle or len(self._threads) >= THREADS_MAX:
            return
        before = monotonic() - HUNG_S
        hung = sum(began < before for began in self._began.values())
        if len(self._threads) - hung < self._threads_max:
            thread = threading.Thread(target=self._run, name="cdcmeta-writer", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while (pipeline := self._take(me)) is not None:
            again_s: float | None = MAY_NOT_WRITE_S
            if pipeline.is_stopping or self._may_write():
                again_s = pipeline.work()
            with self._condition:
                del self._began[me]
                pipeline.is_queued = False
                if again_s is not None and again_s > 0 and not pipeline.is_stopping:
                    pipeline.not_before = monotonic() + again_s
                    entry = (pipeline.not_before, next(self._order), pipeline)
                    heapq.heappush(self._delayed, entry)
                    self._condition.notify()
                elif pipeline.has_work and (pipeline.is_stopping or not self._closed):
                    self._put(pipeline)

    def _take(self, me: threading.Thread) -> Pipeline | None:
        """Return the next pipeline to call; None at the end, and for a thread too many."""
        with self._condition:
            while True:
                now = monotonic()
                while self._delayed and self._delayed[0][0] <= now:
                    pipeline = heapq.heappop(self._delayed)[2]
                    if pipeline.not_before > now and not pipeline.is_stopping:
                        continue  # it has failed again since, and is there a second time
                    if not pipeline.is_queued and pipeline.has_work:
                        self._put(pipeline)
                if self._ready:
                    self._began[me] = now
                    return self._ready.popleft()
                if self._closed:
                    return None
                if self._idle >= self._threads_max:
                    self._threads.remove(me)
                    return None
                self._idle += 1
                self._condition.wait(self._delayed[0][0] - now if self._delayed else None)
                self._idle -= 1


PROBLEMS_MAX = 1_000
PREPARED, WRITTEN = "prepared", "written"
"""What a table that is late waits for: to be prepared, or its commits to be written."""


class WriteTotals(NamedTuple):
    """What a table has written since it is here."""

    rows: int
    bytes: int


class Delay(NamedTuple):
    """For how many seconds a table is late, and what it waits for: to be prepared, or written."""

    seconds: float
    what: str


class StoreExecutor:
    """Replicates tables of a source into a sink; implements `TableExecutor`.

    It opens both (`open_both`) when it gets a table, and meanwhile takes none. If that fails, the
    table fails, so that the owner tries another capture; the next one that it gets after `RETRY_S`
    opens again.

    `tables` are the names of the tables. If a table's checkpoint is before `state_at`, its state
    as of that timestamp comes first; `states` has another one for some tables, 0 for none.
    `may_write()` says whether a call to the sink may begin.

    The timestamps of progress are timestamps of the source's commits.
    """

    def __init__(
        self,
        open_both: Callable[[], tuple[TableSource, TableSink]],
        tables: Collection[str],
        *,
        state_at: int = 0,
        states: Mapping[str, int] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        threads: int = THREADS,
    ) -> None:
        self._open_both, self._tables = open_both, frozenset(tables)
        self._source: TableSource
        self._sink: TableSink
        self._state_at, self._states = state_at, states or {}
        self._workers = Workers(may_write, threads)
        self._reader: FeedReader | None = None
        """Reads the source, once that and the sink are open."""
        self._opening: threading.Thread | None = None
        self._open_error: Exception | None = None
        self._again_at = 0.0
        self._pipelines: dict[str, Pipeline] = {}
        self._laggards: set[str] = set()
        self._room = QueueBudget()
        self._last_problems: dict[str, Problem] = {}
        self._is_stopping = False

    # --- the agent's side ---

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        """Begin to prepare a table, or to replicate one that is prepared; not after `stop()`.

        Nor while source and sink are opened. Raises `SinkError` if that failed a moment ago.
        """
        reader = self._reader
        if reader is None and not self._is_stopping:
            self._begin_to_open()
        if reader is None or self._is_stopping:
            return False
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            pipeline = self._pipelines[table] = self._new_pipeline(table, start_ts, token)
            reader.join(pipeline)
        elif not is_prepare and pipeline.token == token:
            pipeline.replicate(start_ts)
            self._workers.submit(pipeline)
        return True

    def is_add_finished(self, table: str, *, is_prepare: bool) -> bool:
        """Return whether the table is prepared, or replicates, depending on `is_prepare`."""
        pipeline = self._pipelines[table]
        if is_prepare:
            return pipeline.state in (TableState.PREPARED, TableState.REPLICATING)
        return pipeline.state is TableState.REPLICATING and pipeline.has_begun

    def remove_table(self, table: str) -> bool:
        """Begin to stop a table."""
        pipeline = self._pipelines.get(table)
        if pipeline is not None and self._reader is not None:
            pipeline.stop()
            self._reader.leave(table)
            self._workers.submit(pipeline)
        return True

    def is_remove_finished(self, table: str) -> int | None:
        """Return the last checkpoint once nothing can write the table any more."""
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            return 0
        if pipeline.state is not TableState.STOPPED:
            return None
        if pipeline.problem is not None:
            self._note(table, pipeline.problem)
        del self._pipelines[table]
        self._laggards.discard(table)
        return pipeline.checkpoint

    def all_tables(self) -> Collection[str]:
        """Return the tables that it has."""
        return list(self._pipelines)

    def status(self, table: str) -> ExecutorStatus:
        """Return the status of a table. O(1)."""
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            return ExecutorStatus(TableState.ABSENT, NO_PROGRESS)
        return ExecutorStatus(pipeline.state, pipeline.progress(self._position))

    def laggards(self) -> tuple[Progress, Collection[str]]:
        """Return the reader's position, and the tables that have not written all up to it.

        O(these tables).
        """
        self._workers.look()
        position = max(0, self._position)  # read first: tables may fall behind it
        return Progress(position, position), list(self._laggards)

    # --- the capture's side ---

    def open(self) -> None:
        """Open source and sink. Raises what that raises."""
        self._source, self._sink = self._open_both()
        if not self._is_stopping:
            self._reader = FeedReader(self._source, self._workers.submit)

    @property
    def error(self) -> Exception | None:
        """Why source and sink cannot be opened, or the source cannot be read at the moment."""
        return self._open_error or (self._reader.error if self._reader is not None else None)

    def problems(self) -> dict[str, Problem]:
        """Return why tables make no progress, or why they ended here and are not back."""
        found = dict(self._last_problems)
        for table, pipeline in self._all():
            if pipeline.problem is not None:
                found[table] = pipeline.problem
            elif pipeline.has_begun:
                found.pop(table, None)
        return found

    def written(self) -> dict[str, WriteTotals]:
        """Return what each table has written since it is here. O(tables)."""
        return {t: WriteTotals(each.rows, each.bytes) for t, each in self._all()}

    def delays(self, least_s: float) -> dict[str, Delay]:
        """Return the tables that are late by `least_s` seconds or more. O(tables that are late)."""
        now, found = monotonic(), dict[str, Delay]()
        for table in list(self._laggards):
            pipeline = self._pipelines.get(table)
            since = pipeline.late_since if pipeline is not None else None
            if pipeline is not None and since is not None and now - since >= least_s:
                writes = pipeline.state is TableState.REPLICATING
                found[table] = Delay(now - since, WRITTEN if writes else PREPARED)
        return found

    def busy_since(self) -> float | None:
        """Return `monotonic()` of the oldest call to the sink that is under way."""
        since = [each.busy_since for _, each in self._all()]
        return min((each for each in since if each is not None), default=None)

    def stop(self) -> None:
        """Begin to stop all tables."""
        self._is_stopping = True
        for table, _ in self._all():
            self.remove_table(table)

    @property
    def is_stopped(self) -> bool:
        """Whether nothing can be written any more."""
        return all(each.state is TableState.STOPPED for _, each in self._all())

    def close(self, timeout: float) -> bool:
        """Stop all tables, and end the threads; False if a write did not end in `timeout` s."""
        self.stop()
        if self._reader is not None:
            self._reader.close()
        return self._workers.close(timeout)

    def _begin_to_open(self) -> None:
        if self._opening is not None and self._opening.is_alive():
            return
        if self._reader is not None:  # since the caller looked
            return
        if self._open_error is not None and monotonic() < self._again_at:
            raise SinkError(f"store or sink cannot be opened: {self._open_error}")
        self._opening = threading.Thread(target=self._open, name="cdcmeta-open", daemon=True)
        self._opening.start()

    def _open(self) -> None:
        try:
            self.open()
            self._open_error = None
        except Exception as e:
            self._open_error, self._again_at = e, monotonic() + RETRY_S

    @property
    def _position(self) -> int:
        return self._reader.position if self._reader is not None else 0

    def _all(self) -> list[tuple[str, Pipeline]]:
        """Return a copy: the agent's thread may change the tables meanwhile."""
        return list(self._pipelines.items())

    def _new_pipeline(self, table: str, start: int, token: Token) -> Pipeline:
        if table not in self._tables:
            raise InvalidArgumentError(f"table {table!r} is not in this changefeed")
        state_at = self._states.get(table, self._state_at)
        return Pipeline(
            table,
            start,
            token,
            self._sink,
            self._source,
            state_at if start < state_at else 0,
            laggards=self._laggards,
            room=self._room,
        )

    def _note(self, table: str, problem: Problem) -> None:
        self._last_problems.pop(table, None)
        self._last_problems[table] = problem
        if len(self._last_problems) > PROBLEMS_MAX:
            del self._last_problems[next(iter(self._last_problems))]
