"""The executor of a changefeed on one capture: a reader, workers, and a pipeline for each table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.agent.executor import ExecutorStatus
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress, TableState, Token
from cdcmeta.scheduler.executors.pipeline import Pipeline, Problem, Room
from cdcmeta.scheduler.executors.rates import Delay, Written
from cdcmeta.scheduler.executors.reading import FeedReader
from cdcmeta.scheduler.executors.sinks.contract import Sink
from cdcmeta.scheduler.executors.sources.contract import TableSource
from cdcmeta.scheduler.executors.workers import THREADS, Workers
from snapkv.base.waiting import monotonic

PROBLEMS_MAX = 1_000
PREPARED, WRITTEN = "prepared", "written"
"""What a table that is late waits for: to be prepared, or its commits to be written."""


class StoreExecutor:
    """Replicates tables of a source into a sink; implements `TableExecutor`.

    `tables` are the names of the tables. If a table's checkpoint is before `state_at`, its state
    as of that timestamp comes first; `states` has another one for some tables, 0 for none.
    `may_write()` says whether a call to the sink may begin.

    The timestamps of progress are timestamps of the source's commits.
    """

    def __init__(
        self,
        source: TableSource,
        sink: Sink,
        tables: Collection[str],
        *,
        state_at: int = 0,
        states: Mapping[str, int] | None = None,
        may_write: Callable[[], bool] = lambda: True,
        threads: int = THREADS,
    ) -> None:
        self._source, self._sink, self._tables = source, sink, frozenset(tables)
        self._state_at, self._states = state_at, states or {}
        self._workers = Workers(may_write, threads)
        self._reader = FeedReader(source, self._workers.submit)
        self._pipelines: dict[str, Pipeline] = {}
        self._laggards: set[str] = set()
        self._room = Room()
        self._last_problems: dict[str, Problem] = {}
        self._is_stopping = False

    # --- the agent's side ---

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        """Begin to prepare a table, or to replicate one that is prepared; not after `stop()`."""
        if self._is_stopping:
            return False
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            pipeline = self._pipelines[table] = self._new_pipeline(table, start_ts, token)
            self._reader.join(pipeline)
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
        if pipeline is not None:
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

    def checkpoint(self) -> Progress:
        """Return the progress common to all its tables."""
        each = [self.status(table).progress.checkpoint for table in list(self._pipelines)]
        return Progress(min(each), min(each)) if each else NO_PROGRESS

    def status(self, table: str) -> ExecutorStatus:
        """Return the status of a table. O(1)."""
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            return ExecutorStatus(TableState.ABSENT, NO_PROGRESS)
        position = self._reader.position
        return ExecutorStatus(pipeline.state, pipeline.progress(position))

    def laggards(self) -> tuple[Progress, Collection[str]]:
        """Return the reader's position, and the tables that have not written all up to it.

        O(these tables).
        """
        self._workers.look()
        position = max(0, self._reader.position)  # read first: tables may fall behind it
        return Progress(position, position), list(self._laggards)

    # --- the capture's side ---

    @property
    def source_error(self) -> Exception | None:
        """Why the source cannot be read at the moment."""
        return self._reader.error

    def problems(self) -> dict[str, Problem]:
        """Return why tables make no progress, or why they ended here and are not back."""
        found = dict(self._last_problems)
        for table, pipeline in self._all():
            if pipeline.problem is not None:
                found[table] = pipeline.problem
            elif pipeline.has_begun:
                found.pop(table, None)
        return found

    def written(self) -> dict[str, Written]:
        """Return what each table has written since it is here. O(tables)."""
        return {t: Written(each.rows, each.bytes) for t, each in self._all()}

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
        self._reader.close()
        ended = self._workers.close(timeout)
        if ended:
            self._sink.close()
        return ended

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
