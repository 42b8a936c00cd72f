"""All replication sets of a changefeed, what is under way, and what captures are asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise, takewhile
from math import isclose
from typing import Any, NamedTuple

from cdcmeta.scheduler.core.deadlines import Deadlines, Hanging
from cdcmeta.scheduler.core.failures import Failures
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import ReplicationSet, Step, going_on, rebuilt, step
from cdcmeta.scheduler.core.states import Progress, Role, SetState, TableStatus, Token
from cdcmeta.scheduler.core.tasks import (
    CaptureLost,
    Event,
    Found,
    GiveUp,
    RemoveTable,
    Report,
    Send,
    Task,
)

LOST_MAX = 8
"""So often a preparation is repeated on a capture that says it knows nothing of it."""
_QUIET = (SetState.REPLICATING, SetState.ABSENT)


class _Unasked(NamedTuple):
    """A preparation that is on its way: asking too early about it would end it."""

    capture: str
    until: int
    wait_us: int
    since: int
    """When it was sent first."""
    times: int
    """How often it was sent."""


class ReplicationManager:
    """Holds a set for each table, and keeps count of what policies ask for.

    `revision` is the owner's; it is in all tokens that are issued here. `now` and `is_settled` are
    to be kept up to date.
    """

    def __init__(self, revision: int, limits: Limits | None = None) -> None:
        self._limits, self._now = limits or Limits(), 0
        self.waited = 0
        """Microseconds that count where somebody is waited for; to be kept up to date."""
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
        self.unsettled: dict[str, int] = {}
        """Tables whose set is not replicating, and since when; the longest first."""
        self.failures = Failures(self._limits)
        """Tables that end by themselves: they are tried elsewhere, and ever more rarely."""
        self._deadlines = Deadlines()
        self.weights: dict[str, float] = {}
        """By capture, what the tables that it replicates and prepares weigh together."""
        self._weight: Callable[[str], float] = lambda table: 1.0
        self._removed: list[str] = []
        self._asked: dict[str, tuple[tuple[str, Token], ...]] = {}
        self._unasked: dict[str, _Unasked] = {}
        self.is_settled = True
        """Whether nobody can hold a table unknown to us; else nobody is promoted anew."""

    @property
    def now(self) -> int:
        """The owner's clock, in microseconds; to be kept up to date."""
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = self.failures.now = now

    def weigh(self, weight: Callable[[str], float]) -> None:
        """Let tables weigh something else from now on. O(tables held)."""
        self._weight = weight
        self.weights = {capture: self._weighs(capture) for capture in self.held}

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
            rset = rebuilt(table, floor, told)
            self._put(rset)
            if rset.state is SetState.PREPARE and rset.secondary is not None:
                self._on_its_way(table, rset.secondary.capture)  # its time begins anew

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

        Not about what it was told to prepare a moment ago: a question that overtakes the request
        is answered with a promise never to start it. O(1) while it holds the same tables, else
        O(its tables).
        """
        asked = self._asked.get(capture)
        if asked is not None:
            return asked
        held = self.held.get(capture, {})
        early = {
            table
            for table in self.preparing.get(capture, ())
            if (each := self._unasked.get(table)) is not None
            and each.capture == capture
            and each.until > self._now
        }
        asked = tuple(each for each in held.items() if each[0] not in early)
        if not early:
            self._asked[capture] = asked
        return asked

    def take_removed(self) -> list[str]:
        """Return the tables whose sets have ended since the last call."""
        removed, self._removed = self._removed, []
        return removed

    # --- what happens ---

    def reported(self, capture: str, statuses: Iterable[TableStatus]) -> list[Send]:
        """Take in what a capture tells of tables; O(statuses)."""
        messages: list[Send] = []
        sets, failing = self.sets, self.failures.tables
        for status in statuses:
            rset = sets.get(status.table)
            if rset is None:
                # nobody wants it, and no set is left: whoever still has it shall end it
                rset = ReplicationSet(status.table)
                messages += step(rset, Report(capture, status), fresh=self._fresh()).messages
                continue
            after = going_on(rset, capture, status)
            if after is not None:
                if after is not rset:
                    sets[status.table] = after  # no index depends on its progress
                if status.table in failing:
                    self.failures.judge(capture, rset, after)
                continue
            messages += self._step(rset, Report(capture, status))
            after = sets.get(status.table, rset)
            if after.places is not rset.places or status.table in failing:
                self.failures.judge(capture, rset, after)
        return messages

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
        places: tuple[dict[str, Any], ...] = (
            *(self.held, self.primaries, self.preparing, self.weights, self._asked),
        )
        for of_captures in places:
            of_captures.pop(capture, None)
        self.failures.forget_capture(capture)
        return messages

    def begin_task(self, task: Task) -> list[Send]:
        """Begin a task, if its table is not busy with another and is in the state for it."""
        rset = self.sets.get(task.table)
        if rset is None:
            return []
        if isinstance(task, GiveUp):
            return list(self._step(rset, task))
        if isinstance(task, RemoveTable):  # whatever is under way: nobody wants it any more
            self.running.pop(task.table, None)
            return list(self._step(rset, task))
        if task.table in self.running:
            return []
        messages = self._step(rset, task)
        if self.sets[task.table].state is SetState.PREPARE and messages:
            self.running[task.table] = task
        return list(messages)

    def overdue(self) -> list[GiveUp]:
        """Return the preparations and starts that take too long; these have failed.

        And the preparations that were lost too often. Each time a table has longer, so that one
        that needs long comes to its end. O(tables being placed or moved).
        """
        found, least = [], self._limits.prepare_us
        for table, capture, since in self._deadlines.starting():
            if self.waited - since >= self.failures.start_us(table):
                self.failures.gave_up(capture, self.sets[table])
                found.append(GiveUp(table, capture))
        for table, each in self._unasked.items():
            took, is_lost, rset = self.waited - each.since, each.times > LOST_MAX, self.sets[table]
            if (took < least and not is_lost) or rset.state is not SetState.PREPARE:
                continue
            if is_lost:
                self.failures.failed(each.capture, rset)
            elif took >= self.failures.prepare_us(table):
                self.failures.gave_up(each.capture, rset)
            else:
                continue
            found.append(GiveUp(table, each.capture))
        return found

    def unsettled_since(self, since: int) -> list[str]:
        """Return the tables whose set is not replicating since a time or longer. O(these)."""
        return [
            table for table, _ in takewhile(lambda each: each[1] <= since, self.unsettled.items())
        ]

    def hanging(self) -> list[Hanging]:
        """Return the tables that captures should have stopped by now, the longest first.

        O(tables being stopped).
        """
        return self._deadlines.overdue(self.waited - self._limits.stop_us)

    def in_flight(self, kind: type[Task], stuck_since: int = -1) -> int:
        """Return how many tasks of a kind are under way. O(tasks under way).

        Not those that wait for a primary to stop that has had its time: it may never.
        """
        return sum(
            isinstance(task, kind)
            and (
                self.unsettled.get(table, stuck_since) > stuck_since
                or self.sets[table].state is not SetState.COMMIT
            )
            for table, task in self.running.items()
        )

    def check(self) -> None:
        """Raise `AssertionError` when an index is not what the sets say. O(tables)."""
        sets, roles = self.sets, {role: set[tuple[str, str]]() for role in Role}
        tokens, states = {}, {state: set[str]() for state in SetState}
        for table, rset in sets.items():
            rset.check()
            assert rset.table == table and not rset.is_removed, rset  # noqa: PT018
            states[rset.state].add(table)
            for place in rset.places:
                tokens[place.capture, table] = place.token
                roles[place.role].add((place.capture, table))
        for index, role in ((self.primaries, Role.PRIMARY), (self.preparing, Role.SECONDARY)):
            assert {(c, table) for c, tables in index.items() for table in tables} == roles[role]
        held = {(c, table): g for c, tables in self.held.items() for table, g in tables.items()}
        assert held == tokens, "who holds what, and under which token"
        assert set(self.absent) == states[SetState.ABSENT]
        assert set(self.unsettled) == set(sets) - states[SetState.REPLICATING]
        assert all(before <= since for before, since in pairwise(self.unsettled.values()))
        # a task ends with the state that it leads to, however that came
        assert set(self.running) <= states[SetState.PREPARE] | states[SetState.COMMIT]
        # what was sent a moment ago is on its way to who prepares it
        assert set(self._unasked) <= set(sets) - states[SetState.REPLICATING]
        self._deadlines.check(sets)
        for capture, asked in self._asked.items():
            assert dict(asked) == self.held.get(capture, {}), capture
        for capture in self.held.keys() | self.weights.keys():
            weight, weighs = self.weights.get(capture, 0.0), self._weighs(capture)
            assert isclose(weight, weighs, rel_tol=1e-6, abs_tol=1e-6), (capture, weight, weighs)

    # --- inside ---

    def _step(self, rset: ReplicationSet, event: Event) -> tuple[Send, ...]:
        fresh = self._fresh()
        after: Step = step(rset, event, fresh=fresh, is_settled=self.is_settled)
        if after.set is not rset:
            self._put(after.set)
        for capture, request in after.messages:
            if request.token == fresh:
                self._issued += 1
                self._on_its_way(rset.table, capture)
        return after.messages

    def _on_its_way(self, table: str, capture: str) -> None:
        """Note that a capture is told to prepare; each time in a row it is given longer."""
        before, wait_us = self._unasked.get(table), self._limits.heartbeat_every_us
        since, times = self.waited, 1
        if before is not None and before.capture == capture:
            since, times = before.since, before.times + 1
            wait_us = min(2 * before.wait_us, max(self._limits.mute_us // 2, wait_us))
        self._unasked[table] = _Unasked(capture, self._now + wait_us, wait_us, since, times)

    def _weighs(self, capture: str) -> float:
        """Return what a capture's load weighs, added up: what it only stops is none."""
        tables = chain(self.primaries.get(capture, ()), self.preparing.get(capture, ()))
        return sum(map(self._weight, tables))

    def _fresh(self) -> Token:
        # past the Python code of named tuples: each report has one
        return tuple.__new__(Token, (self._revision, self._issued + 1))

    def _put(self, rset: ReplicationSet) -> None:
        table = rset.table
        before = self.sets.get(table)
        self.sets[table] = rset
        if before is not None and before.places is rset.places and before.state is rset.state:
            return
        self._deadlines.note(before, rset, self.waited)
        if before is not None:
            weight = self._weight(table)
            for place in before.places:
                self._asked.pop(place.capture, None)
                if place.role is not Role.UNDETERMINED:
                    self.weights[place.capture] -= weight
                self.held[place.capture].pop(table, None)
                self.primaries[place.capture].pop(table, None)
                self.preparing[place.capture].pop(table, None)
        for place in rset.places:
            mine = place.capture
            self._asked.pop(mine, None)
            if place.role is not Role.UNDETERMINED:
                self.weights[mine] = self.weights.get(mine, 0.0) + self._weight(table)
            self.held.setdefault(mine, {})[table] = place.token
            _mark(self.primaries.setdefault(mine, {}), table, place.role is Role.PRIMARY)
            _mark(self.preparing.setdefault(mine, {}), table, place.role is Role.SECONDARY)
        if rset.state in _QUIET:
            self.running.pop(table, None)
            self._unasked.pop(table, None)
        _mark(self.absent, table, rset.state is SetState.ABSENT)
        if rset.state is SetState.REPLICATING:
            self.unsettled.pop(table, None)
        else:
            self.unsettled.setdefault(table, self._now)
        if rset.is_removed:
            self._forget(table)

    def _forget(self, table: str) -> None:
        places: tuple[dict[str, Any], ...] = (
            *(self.sets, self.running, self.absent, self.unsettled, self._unasked),
        )
        for held in places:
            held.pop(table, None)
        self.failures.forget_table(table)
        self._removed.append(table)


def _mark(tables: dict[str, None], table: str, is_in: bool) -> None:
    if is_in:
        tables[table] = None
    else:
        tables.pop(table, None)
