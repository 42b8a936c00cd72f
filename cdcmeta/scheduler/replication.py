"""All replication sets of a changefeed, what is under way, and what captures are asked about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from cdcmeta.scheduler.limits import Limits
from cdcmeta.scheduler.replication_set import ReplicationSet, Step, rebuilt, step
from cdcmeta.scheduler.states import Progress, Role, SetState, TableStatus, Token
from cdcmeta.scheduler.tasks import (
    CaptureLost,
    Event,
    Found,
    RemoveTable,
    Report,
    Send,
    Task,
)

_UNDER_WAY = (SetState.PREPARE, SetState.COMMIT, SetState.REPLICATING)
_QUIET = (SetState.REPLICATING, SetState.ABSENT)


class Failure(NamedTuple):
    """A table that ended without being told to, and when it is tried again."""

    times: int
    """How often in a row, without its progress going on."""
    capture: str
    """Where it ended last."""
    checkpoint: int
    """How far it was then."""
    again_at: int
    """Microseconds of the owner's clock."""


class ReplicationManager:
    """Holds a set for each table, and keeps count of what policies ask for.

    `revision` is the owner's; it is in all tokens that are issued here. `now` and `is_settled` are
    to be kept up to date.
    """

    def __init__(self, revision: int, limits: Limits | None = None) -> None:
        self._limits, self.now = limits or Limits(), 0
        self._revision, self._issued = revision, 0
        self.sets: dict[str, ReplicationSet] = {}
        self.running: dict[str, Task] = {}
        """The task that each table is busy with."""
        self.held: dict[str, dict[str, Token]] = {}
        """By capture, the tables that it holds or was asked to, with their tokens."""
        self.primaries: dict[str, dict[str, None]] = {}
        """By capture, the tables that it replicates or is about to."""
        self.preparing: dict[str, dict[str, None]] = {}
        """By capture, the tables that it prepares."""
        self.absent: dict[str, None] = {}
        """Tables with a set that nobody is asked to replicate."""
        self.unsettled: dict[str, None] = {}
        """Tables whose set is not replicating."""
        self.failing: dict[str, Failure] = {}
        """Tables that end again and again: they are tried ever more rarely."""
        self._removed: list[str] = []
        self._asked: dict[str, tuple[tuple[str, Token], ...]] = {}
        self.is_settled = True
        """Whether nobody can hold a table unknown to us; else nobody is promoted anew."""

    def begin(
        self,
        tables: Iterable[str],
        floor: Progress,
        found: Mapping[str, Sequence[TableStatus]],
    ) -> None:
        """Make the sets from what captures tell a new owner; O(tables told of).

        Wanted tables that nobody tells of get an empty set, those told of and not wanted one
        that is to be removed.
        """
        by_table: dict[str, list[tuple[str, TableStatus]]] = {table: [] for table in tables}
        for capture, statuses in found.items():
            for status in statuses:
                by_table.setdefault(status.table, []).append((capture, status))
        for table, told in by_table.items():
            self._put(rebuilt(table, floor, told))

    def want(self, table: str, floor: Progress) -> None:
        """Begin with a table, if there is none yet, at the progress given."""
        if table not in self.sets:
            self._put(ReplicationSet(table, progress=floor))

    def may_remove(self, table: str) -> bool:
        """Return whether there is a set that is not being removed yet."""
        rset = self.sets.get(table)
        return rset is not None and rset.state is not SetState.REMOVING

    def asked(self, capture: str) -> tuple[tuple[str, Token], ...]:
        """Return the tables to ask a capture about, with their tokens.

        O(1) while it holds the same ones, else O(its tables).
        """
        asked = self._asked.get(capture)
        if asked is None:
            asked = self._asked[capture] = tuple(self.held.get(capture, {}).items())
        return asked

    def take_removed(self) -> list[str]:
        """Return the tables whose sets have ended since the last call."""
        removed, self._removed = self._removed, []
        return removed

    # --- what happens ---

    def reported(self, capture: str, statuses: Iterable[TableStatus]) -> list[Send]:
        """Take in what a capture tells of tables; O(statuses)."""
        messages: list[Send] = []
        sets = self.sets
        for status in statuses:
            rset = sets.get(status.table)
            if rset is None:
                # nobody wants it, and no set is left: whoever still has it shall end it
                rset = ReplicationSet(status.table)
                messages += step(rset, Report(capture, status), fresh=self._fresh()).messages
                continue
            messages += self._step(rset, Report(capture, status))
            after = sets.get(status.table, rset)
            if after.state is not rset.state or status.table in self.failing:
                self._judge(capture, rset, after)
        return messages

    def waiting(self) -> set[str]:
        """Return the tables that failed and are not yet to be tried again. O(failing)."""
        return {table for table, each in self.failing.items() if each.again_at > self.now}

    def found(self, capture: str, statuses: Iterable[TableStatus], floor: Progress) -> list[Send]:
        """Take in all that a capture holds that could not be asked before."""
        messages: list[Send] = []
        for status in statuses:
            rset = self.sets.get(status.table) or ReplicationSet(status.table, progress=floor)
            messages += self._step(rset, Found(capture, status))
        return messages

    def capture_lost(self, capture: str) -> list[Send]:
        """Free all that a capture held; O(its tables)."""
        messages: list[Send] = []
        for table in list(self.held.get(capture, ())):
            messages += self._step(self.sets[table], CaptureLost(capture))
        for of_captures in (self.held, self.primaries, self.preparing, self._asked):
            of_captures.pop(capture, None)
        return messages

    def begin_task(self, task: Task) -> list[Send]:
        """Begin a task, if its table is not busy with another and is in the state for it."""
        rset = self.sets.get(task.table)
        if rset is None:
            return []
        if isinstance(task, RemoveTable):  # whatever is under way: nobody wants it any more
            self.running.pop(task.table, None)
            return list(self._step(rset, task))
        if task.table in self.running:
            return []
        messages = self._step(rset, task)
        if self.sets[task.table].state is SetState.PREPARE and messages:
            self.running[task.table] = task
        return list(messages)

    def in_flight(self, kind: type[Task]) -> int:
        """Return how many tasks of a kind are under way. O(tasks under way)."""
        return sum(isinstance(task, kind) for task in self.running.values())

    # --- inside ---

    def _judge(self, capture: str, before: ReplicationSet, after: ReplicationSet) -> None:
        """Note a table that ended by itself, or that goes on again."""
        failed, table = self.failing.get(after.table), after.table
        checkpoint = after.progress.checkpoint
        if after.state is SetState.ABSENT and before.state in _UNDER_WAY:
            times = failed.times + 1 if failed is not None else 1
            # the first time at once: whatever it was may be over
            wait = self._limits.retry_first_us << min(times - 2, 40) if times > 1 else 0
            again_at = self.now + min(wait, self._limits.retry_max_us)
            self.failing[table] = Failure(times, capture, checkpoint, again_at)
        elif failed is not None and checkpoint > failed.checkpoint:
            del self.failing[table]

    def _step(self, rset: ReplicationSet, event: Event) -> tuple[Send, ...]:
        fresh = self._fresh()
        after: Step = step(rset, event, fresh=fresh, is_settled=self.is_settled)
        if after.set is not rset:
            self._put(after.set)
        for _, request in after.messages:
            if request.token == fresh:
                self._issued += 1
        return after.messages

    def _fresh(self) -> Token:
        return Token(self._revision, self._issued + 1)

    def _put(self, rset: ReplicationSet) -> None:
        table = rset.table
        before = self.sets.get(table)
        self.sets[table] = rset
        if before is not None and before.places is rset.places and before.state is rset.state:
            return
        if before is not None:
            for place in before.places:
                self._asked.pop(place.capture, None)
                self.held[place.capture].pop(table, None)
                self.primaries[place.capture].pop(table, None)
                self.preparing[place.capture].pop(table, None)
        for place in rset.places:
            mine = place.capture
            self._asked.pop(mine, None)
            self.held.setdefault(mine, {})[table] = place.token
            _mark(self.primaries.setdefault(mine, {}), table, place.role is Role.PRIMARY)
            _mark(self.preparing.setdefault(mine, {}), table, place.role is Role.SECONDARY)
        if rset.state in _QUIET:
            self.running.pop(table, None)
        _mark(self.absent, table, rset.state is SetState.ABSENT)
        _mark(self.unsettled, table, rset.state is not SetState.REPLICATING)
        if rset.is_removed:
            self._forget(table)

    def _forget(self, table: str) -> None:
        places: tuple[dict[str, Any], ...] = (
            *(self.sets, self.running, self.absent, self.unsettled, self.failing),
        )
        for held in places:
            held.pop(table, None)
        self._removed.append(table)


def _mark(tables: dict[str, None], table: str, is_in: bool) -> None:
    if is_in:
        tables[table] = None
    else:
        tables.pop(table, None)
