"""All replication sets of a changefeed, the tasks under way, and what captures are asked about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, takewhile
from typing import Any

from cdcmeta.scheduler.core import states
from cdcmeta.scheduler.core.failures import Deadlines, Failures, OverdueStop, PendingPrepares
from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import ReplicationSet, Step, continued, rebuilt, step
from cdcmeta.scheduler.core.states import Progress, Role, Send, SetState, TableStatus, Token
from cdcmeta.scheduler.core.watermarks import Coverage

_QUIET = (SetState.REPLICATING, SetState.ABSENT)
Floors = Callable[[str], Progress]


class ReplicationManager:
    """Keeps a set for each table, and the indexes that policies read.

    `revision` is the owner's and part of all tokens that it issues. The caller keeps `now`,
    `waited` and `is_settled` up to date.
    """

    def __init__(self, revision: int, limits: Limits | None = None) -> None:
        self._limits, self._now = limits or Limits(), 0
        self.waited = 0
        """The clock of all waits for captures, in microseconds; set by the caller."""
        self._revision, self.issued = revision, 0
        """`issued` counts tokens; the caller may continue the count of an earlier manager."""
        self.sets: dict[str, ReplicationSet] = {}
        self.running: dict[str, states.Task] = {}
        """The task under way, by table."""
        self.held: dict[str, dict[str, Token]] = {}
        """By capture, the tables that it holds or was asked to hold, with their tokens."""
        self.primaries: dict[str, dict[str, None]] = {}
        """By capture, the tables that it replicates or was asked to."""
        self.preparing: dict[str, dict[str, None]] = {}
        """By capture, the tables that it prepares."""
        self.absent: dict[str, None] = {}
        """Tables whose set is ABSENT: no capture is asked to replicate them."""
        self.unsettled: dict[str, int] = {}
        """Tables whose set is not REPLICATING, and since when; the oldest first."""
        self.failures = Failures(self._limits)
        """Tables that end by themselves: retried on other captures, with growing pauses."""
        self._deadlines = Deadlines()
        self._coverage = Coverage()
        self.weights: dict[str, float] = {}
        """By capture, the total weight of the tables that it replicates and prepares."""
        self._weight: Callable[[str], float] = lambda table: 1.0
        self._removed: list[str] = []
        self._new_primaries: dict[str, str | None] = {}
        self._asked: dict[str, tuple[tuple[str, Token], ...]] = {}
        self._pending_prepares = PendingPrepares(self._limits)
        self.is_settled = True
        """Whether no capture can hold a table unknown to the owner; until then none is promoted."""

    @property
    def now(self) -> int:
        """The owner's clock, in microseconds; set by the caller."""
        return self._now

    @now.setter
    def now(self, now: int) -> None:
        self._now = self.failures.now = now

    def set_weight(self, weight: Callable[[str], float]) -> None:
        """Replace the weights of tables. O(tables held)."""
        self._weight = weight
        self.weights = {capture: self._load_of(capture) for capture in self.held}

    def begin(
        self, tables: Iterable[str], floor_of: Floors, found: Mapping[str, Sequence[TableStatus]]
    ) -> None:
        """Make the sets of a new owner from the captures' reports; O(tables reported).

        A desired table that no capture reports gets an empty set. A reported table that is not
        desired gets a set, too; it is removed later.
        """
        by_table: dict[str, list[tuple[str, TableStatus]]] = {table: [] for table in tables}
        for capture, statuses in found.items():
            for status in statuses:
                by_table.setdefault(status.table, []).append((capture, status))
        for table, reports in by_table.items():
            rset = rebuilt(table, floor_of(table), reports)
            self._put(rset)
            if rset.state is SetState.PREPARE and rset.secondary is not None:
                capture = rset.secondary.capture  # its deadline begins again
                self._pending_prepares.sent(table, capture, self._now, self.waited)

    def create_set(self, table: str, floor: Progress) -> None:
        """Make the set of a table, if there is none, with the progress `floor`."""
        if table not in self.sets:
            self._put(ReplicationSet(table, progress=floor))

    def may_remove(self, table: str) -> bool:
        """Return whether the table has a set that is not being removed."""
        rset = self.sets.get(table)
        return rset is not None and rset.state is not SetState.REMOVING

    def asked(self, capture: str) -> tuple[tuple[str, Token], ...]:
        """Return the tables to ask a capture about, with their tokens.

        Without tables that it was asked to prepare a moment ago: see `preparing`. O(1) while the
        capture holds the same tables, else O(its tables).
        """
        asked = self._asked.get(capture)
        if asked is not None:
            return asked
        held = self.held.get(capture, {})
        early = self._pending_prepares.early(capture, self.preparing.get(capture, ()), self._now)
        asked = tuple(each for each in held.items() if each[0] not in early)
        if not early:
            self._asked[capture] = asked
        return asked

    def asked_briefly(self, capture: str) -> tuple[tuple[str, Token], ...]:
        """Return the tables of a capture that have news: unsettled tables, and failed tables.

        O(unsettled + failing), and without the tables asked about a moment ago, as `asked`.
        """
        held = self.held.get(capture, {})
        early = self._pending_prepares.early(capture, self.preparing.get(capture, ()), self._now)
        return tuple(
            (table, held[table])
            for table in {**self.unsettled, **self.failures.tables}
            if table in held and table not in early
        )

    def take_removed(self) -> list[str]:
        """Return the tables whose sets have ended since the last call."""
        removed, self._removed = self._removed, []
        return removed

    def take_new_primaries(self) -> dict[str, str | None]:
        """Return the tables whose primary has changed since the last call, and the new one."""
        changed, self._new_primaries = self._new_primaries, {}
        return changed

    # --- what happens ---

    def reported(self, capture: str, statuses: Iterable[TableStatus]) -> list[Send]:
        """Apply a capture's report; O(statuses)."""
        messages: list[Send] = []
        sets, failing = self.sets, self.failures.tables
        for status in statuses:
            rset = sets.get(status.table)
            if rset is None:
                # not desired, and without a set: a capture that still has it must end it
                rset = ReplicationSet(status.table)
                messages += step(rset, states.Report(capture, status), fresh=self._fresh()).messages
                continue
            after = continued(rset, capture, status)
            if after is not None:
                if after is not rset:
                    sets[status.table] = after  # no index depends on its progress
                if status.table in failing:
                    self.failures.judge(capture, rset, after)
                continue
            messages += self._step(rset, states.Report(capture, status))
            after = sets.get(status.table, rset)
            if after.places is not rset.places or status.table in failing:
                self.failures.judge(capture, rset, after)
        return messages

    def rest_reported(self, capture: str, listed: Sequence[TableStatus], rest: states.Rest) -> bool:
        """Take a capture's report of all tables that it did not list; False if they differ.

        Then it changes nothing: the capture is to list all its tables. O(listed).
        """
        tables = [status.table for status in listed]
        if not self._coverage.is_expected(capture, tables, rest):
            return False
        if self._coverage.is_older(capture, rest.progress):
            return True
        for table in self._coverage.covered(capture, tables):
            self._take_progress(table)
        self._coverage.cover(capture, tables, rest.progress)
        return True

    def known_progress(self, desired: Mapping[str, float]) -> list[Progress]:
        """Return the progress of all desired tables; once for the covered ones. O(their news)."""
        if not desired:
            return []
        known = self._coverage.known(desired, self.sets)
        return known + [self.sets[table].progress for table in self.unsettled if table in desired]

    def progress_of(self, table: str) -> Progress:
        """Return how far a table is. O(1)."""
        rset = self.sets[table]
        return rset.progress.fold(self._coverage.progress_of(rset))

    def _take_progress(self, table: str) -> ReplicationSet:
        """Give a covered table's set the progress that it has by now."""
        rset = self.sets[table]
        after = rset.with_progress(self._coverage.progress_of(rset))
        if after is not rset:
            self.sets[table] = after
        return after

    def found(self, capture: str, all: Iterable[TableStatus], floor_of: Floors) -> list[Send]:
        """Apply all that a capture holds that had not synced when the sets were made."""
        messages: list[Send] = []
        for status in all:
            rset = self.sets.get(t := status.table) or ReplicationSet(t, progress=floor_of(t))
            messages += self._step(rset, states.Found(capture, status))
        return messages

    def capture_lost(self, capture: str) -> list[Send]:
        """Remove an ended capture from all sets; O(its tables)."""
        messages: list[Send] = []
        for table in list(self.held.get(capture, ())):
            messages += self._step(self.sets[table], states.CaptureLost(capture))
        places: list[dict[str, Any]] = [self.held, self.primaries, self.preparing]
        for of_captures in [*places, self.weights, self._asked]:
            of_captures.pop(capture, None)
        self.failures.forget_capture(capture)
        self._coverage.forget_capture(capture)
        return messages

    def begin_task(self, task: states.Task) -> list[Send]:
        """Begin a task if its table has no other one and is in the right state."""
        rset = self.sets.get(task.table)
        if rset is None:
            return []
        if isinstance(task, states.AbandonTable):
            return list(self._step(rset, task))
        if isinstance(task, states.RemoveTable):
            # also during another task: the table is no longer desired
            self.running.pop(task.table, None)
            return list(self._step(rset, task))
        if task.table in self.running:
            return []
        messages = self._step(rset, task)
        if self.sets[task.table].state is SetState.PREPARE and messages:
            self.running[task.table] = task
        return list(messages)

    def overdue(self) -> list[states.AbandonTable]:
        """Return the preparations and starts that take too long; each counts as a failure.

        Also the preparations whose request was repeated too often. Each time the deadline of the
        table doubles, so that a slow table succeeds in the end. O(tables being placed or moved).
        """
        found, least = [], self._limits.prepare_us
        for table, capture, since in self._deadlines.starting():
            if self.waited - since >= self.failures.start_us(table):
                self.failures.timed_out(capture, self.sets[table])
                found.append(states.AbandonTable(table, capture))
        for table, each in self._pending_prepares:
            took, is_lost, rset = self.waited - each.since, each.is_lost, self.sets[table]
            if (took < least and not is_lost) or rset.state is not SetState.PREPARE:
                continue
            if is_lost:
                self.failures.failed(each.capture, rset)
            elif took >= self.failures.prepare_us(table):
                self.failures.timed_out(each.capture, rset)
            else:
                continue
            found.append(states.AbandonTable(table, each.capture))
        return found

    def unsettled_since(self, since: int) -> list[str]:
        """Return the tables whose set has not been REPLICATING since a time. O(these)."""
        return [
            table for table, _ in takewhile(lambda each: each[1] <= since, self.unsettled.items())
        ]

    def hanging(self) -> list[OverdueStop]:
        """Return the tables that captures should have stopped by now, the oldest first.

        O(tables being stopped).
        """
        return self._deadlines.overdue(self.waited - self._limits.stop_us)

    def in_flight(self, kind: type[states.Task], stuck_since: int = -1) -> int:
        """Return how many tasks of a kind are under way. O(tasks under way).

        Without tasks that wait since `stuck_since` for a primary to stop: it may never stop.
        """
        return sum(
            isinstance(task, kind)
            and (
                self.unsettled.get(table, stuck_since) > stuck_since
                or self.sets[table].state is not SetState.COMMIT
            )
            for table, task in self.running.items()
        )

    # --- inside ---

    def _step(self, rset: ReplicationSet, event: states.Event) -> tuple[Send, ...]:
        fresh = self._fresh()
        if self.sets.get(rset.table) is rset:
            rset = self._take_progress(rset.table)
        after: Step = step(rset, event, fresh=fresh, is_settled=self.is_settled)
        if after.set is not rset:
            self._put(after.set)
        for capture, request in after.messages:
            if request.token == fresh:
                self.issued += 1
                self._pending_prepares.sent(rset.table, capture, self._now, self.waited)
        return after.messages

    def _load_of(self, capture: str) -> float:
        """Return the weight of a capture's load; tables that it stops do not count."""
        tables = chain(self.primaries.get(capture, ()), self.preparing.get(capture, ()))
        return sum(map(self._weight, tables))

    def _fresh(self) -> Token:
        # faster than Token(...): each report makes one
        return tuple.__new__(Token, (self._revision, self.issued + 1))

    def _put(self, rset: ReplicationSet) -> None:
        table = rset.table
        before = self.sets.get(table)
        self.sets[table] = rset
        if before is not None and before.places is rset.places and before.state is rset.state:
            return
        self._deadlines.note(before, rset, self.waited)
        self._coverage.note(before, rset)
        old = before.primary if before is not None else None
        new = rset.primary
        if (old and old.capture) != (new and new.capture):
            self._new_primaries[table] = new.capture if new else None
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
            self._pending_prepares.forget(table)
        _mark(self.absent, table, rset.state is SetState.ABSENT)
        if rset.state is SetState.REPLICATING:
            self.unsettled.pop(table, None)
        else:
            self.unsettled.setdefault(table, self._now)
        if rset.is_removed:
            self._forget(table)

    def _forget(self, table: str) -> None:
        places: list[dict[str, Any]] = [self.sets, self.running, self.absent, self.unsettled]
        for held in places:
            held.pop(table, None)
        self._pending_prepares.forget(table)
        self.failures.forget_table(table)
        self._removed.append(table)


def _mark(tables: dict[str, None], table: str, is_in: bool) -> None:
    if is_in:
        tables[table] = None
    else:
        tables.pop(table, None)
