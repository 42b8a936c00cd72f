"""An executor without real tables: each step takes a configured time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler.agent.executor import ExecutorStatus
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress, TableState, Token
from cdcmeta.scheduler.protocol.messages import NO_BARRIER, Barrier


class Durations(NamedTuple):
    """How long the steps take, in microseconds of `SimulatedExecutor.now`."""

    prepare_us: int = 0
    start_us: int = 0
    stop_us: int = 0


class _Pipeline:
    """One table: its state, the next one, and when it reaches that."""

    def __init__(self, start_ts: int, due: int) -> None:
        self.state, self.goal = TableState.PREPARING, TableState.PREPARED
        self.due, self.checkpoint = due, start_ts
        self.has_written = False


class SimulatedExecutor:
    """Implements `TableExecutor` for tests, simulations and benchmarks.

    Its time is `now` (microseconds), which the caller advances. While a table replicates, its
    checkpoint follows `source(table)`; `durations(table)` is how long its steps take. No table is
    replicated beyond `barrier()`: pass `barrier=lambda: agent.barrier`.

    >>> from cdcmeta.scheduler import SimulatedExecutor, Token
    >>> executor = SimulatedExecutor()
    >>> executor.add_table("t", 5, Token(1, 1), is_prepare=True)
    True
    >>> executor.status("t").state.name
    'PREPARED'
    """

    def __init__(
        self,
        *,
        source: Callable[[str], int] = lambda table: 0,
        durations: Callable[[str], Durations] = lambda table: Durations(),
        barrier: Callable[[], Barrier] = lambda: NO_BARRIER,
    ) -> None:
        self._source, self._durations, self._barrier = source, durations, barrier
        self._bounded = NO_BARRIER
        self._bounds: dict[str, int] = {}
        """The barriers of tables in `_bounded`."""
        self._pipelines: dict[str, _Pipeline] = {}
        self._failed: set[str] = set()
        self.now = 0

    def add_table(self, table: str, start_ts: int, token: Token, *, is_prepare: bool) -> bool:
        """Begin to prepare or replicate. Raises `InvalidArgumentError` for an invalid start."""
        if start_ts < 0:
            raise InvalidArgumentError(f"{table!r} cannot start at {start_ts}")
        pipeline = self._moved(table)
        if pipeline is None:
            due = self.now + self._durations(table).prepare_us
            self._pipelines[table] = _Pipeline(start_ts, due)
        elif not is_prepare and pipeline.state is TableState.PREPARED:
            pipeline.goal, pipeline.checkpoint = TableState.REPLICATING, start_ts
            pipeline.due = self.now + self._durations(table).start_us
        return True

    def is_add_finished(self, table: str, *, is_prepare: bool) -> bool:
        """Return whether the table is prepared, or replicates, depending on `is_prepare`."""
        done = TableState.PREPARED if is_prepare else TableState.REPLICATING
        return self.status(table).state is done

    def remove_table(self, table: str) -> bool:
        """Begin to stop a table."""
        pipeline = self._moved(table)
        if pipeline is not None and pipeline.goal is not TableState.STOPPED:
            pipeline.state, pipeline.goal = TableState.STOPPING, TableState.STOPPED
            pipeline.due = self.now + self._durations(table).stop_us
        return True

    def is_remove_finished(self, table: str) -> int | None:
        """Return the last checkpoint once the table has stopped, and forget the table."""
        pipeline = self._moved(table)
        if pipeline is None:
            return 0
        if pipeline.state is not TableState.STOPPED:
            return None
        del self._pipelines[table]
        return pipeline.checkpoint

    def all_tables(self) -> Collection[str]:
        """Return the tables that it has."""
        return self._pipelines.keys()

    def checkpoint(self) -> Progress:
        """Return the progress common to all its tables."""
        each = [self.status(table).progress.checkpoint for table in self._pipelines]
        return Progress(min(each), min(each)) if each else NO_PROGRESS

    def status(self, table: str) -> ExecutorStatus:
        """Return the status of a table."""
        pipeline = self._moved(table)
        if pipeline is None:
            return ExecutorStatus(TableState.ABSENT, NO_PROGRESS)
        checkpoint = pipeline.checkpoint
        return ExecutorStatus(pipeline.state, Progress(checkpoint, checkpoint))

    def laggards(self) -> tuple[Progress, Collection[str]]:
        """Return where most tables are, and the tables that are not."""
        each = {table: self.status(table) for table in self._pipelines}
        done = TableState.REPLICATING
        most = max((p for state, p in each.values() if state is done), default=NO_PROGRESS)
        behind = {table for table, status in each.items() if status != (done, most)}
        failed, self._failed = self._failed, set()
        return most, behind | failed

    def writing(self) -> set[str]:
        """Return the tables that have written downstream and have not stopped."""
        return {
            table
            for table, pipeline in self._pipelines.items()
            if self._moved(table) is not None
            and pipeline.has_written
            and pipeline.state is not TableState.STOPPED
        }

    def fail(self, table: str) -> None:
        """Let a table end by itself, as if its connection broke."""
        self._pipelines.pop(table, None)
        self._failed.add(table)

    def written(self, table: str, checkpoint: int) -> None:
        """Do nothing; called when a table's checkpoint advances, for subclasses to override."""

    def _moved(self, table: str) -> _Pipeline | None:
        pipeline = self._pipelines.get(table)
        if pipeline is None:
            return None
        if pipeline.state is not pipeline.goal and self.now >= pipeline.due:
            pipeline.state = pipeline.goal
        if pipeline.state is TableState.REPLICATING:
            pipeline.has_written = True
            farther = self._allowed(table, self._source(table))
            if farther > pipeline.checkpoint:
                pipeline.checkpoint = farther
                self.written(table, farther)
        return pipeline

    def _allowed(self, table: str, until: int) -> int:
        """Return how far a table may go now."""
        barrier = self._barrier()
        if barrier is NO_BARRIER:
            return until
        if barrier is not self._bounded:
            self._bounded, self._bounds = barrier, dict(barrier.tables)
        bounds = (barrier.everywhere, self._bounds.get(table, 0))
        return min(until, *filter(None, bounds)) if any(bounds) else until
