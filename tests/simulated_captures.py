"""Captures without real tables or a network, for tests and benchmarks of the scheduler's core."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import NamedTuple

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Barrier, Envelope, ExecutorStatus, Progress, TableState, Token

NO_BARRIER, NO_PROGRESS = Barrier(), Progress()


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

    >>> from cdcmeta.scheduler import Token
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

    def add_table(
        self, table: str, start_ts: int, token: Token | None = None, *, is_prepare: bool
    ) -> bool:
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
        if barrier == NO_BARRIER:
            return until
        if barrier is not self._bounded:
            self._bounded, self._bounds = barrier, dict(barrier.tables)
        bounds = (barrier.everywhere, self._bounds.get(table, 0))
        return min(until, *filter(None, bounds)) if any(bounds) else until


class InProcessTransport:
    """A transport in memory, with time as an argument (microseconds).

    `delay_us(rng)` returns how long a message takes: with different delays messages overtake each
    other. `loss` and `doubling` are probabilities; `is_cut(sender, to)` returns whether a sender
    cannot reach a receiver. At most `waiting_max` messages wait for each receiver, more are lost.

    >>> InProcessTransport().receive("c1", now=0)
    []
    """

    def __init__(
        self,
        *,
        rng: random.Random | None = None,
        delay_us: Callable[[random.Random], int] = lambda rng: 0,
        loss: float = 0.0,
        doubling: float = 0.0,
        waiting_max: int = 1_000_000,
    ) -> None:
        for chance in (loss, doubling):
            if not 0 <= chance <= 1:
                raise InvalidArgumentError(
                    f"loss and doubling are probabilities from 0 to 1, not {chance!r}"
                )
        self._rng = rng or random.Random()
        self._delay_us, self.loss, self.doubling = delay_us, loss, doubling
        self._waiting_max = waiting_max
        self.is_cut: Callable[[str, str], bool] = lambda sender, to: False
        self._waiting: dict[str, list[tuple[int, int, Envelope]]] = {}
        self._order = count()
        self.lost = 0
        """How many messages did not arrive."""

    def send(self, envelopes: Iterable[Envelope], now: int) -> None:
        """Send envelopes; O(log waiting) each."""
        for envelope in envelopes:
            header = envelope.header
            if self.is_cut(header.sender, header.to) or self._happens(self.loss):
                self.lost += 1
                continue
            self._put(envelope, now)
            if self._happens(self.doubling):
                self._put(envelope, now)

    def receive(self, name: str, now: int) -> list[Envelope]:
        """Return the messages that have arrived, in order; O(messages x log waiting)."""
        waiting = self._waiting.get(name, [])
        arrived = []
        while waiting and waiting[0][0] <= now:
            arrived.append(heapq.heappop(waiting)[2])
        return arrived

    def forget(self, name: str) -> None:
        """Drop the messages for a receiver whose process has ended."""
        self._waiting.pop(name, None)

    def waiting(self) -> int:
        """Return how many messages are under way."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def _put(self, envelope: Envelope, now: int) -> None:
        waiting = self._waiting.setdefault(envelope.header.to, [])
        if len(waiting) >= self._waiting_max:
            self.lost += 1
            return
        at = now + self._delay_us(self._rng)
        heapq.heappush(waiting, (at, next(self._order), envelope))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance
