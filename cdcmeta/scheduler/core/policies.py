"""Policies decide which capture gets which table: pure functions of `Facts`.

* `plan_basic` places tables without a capture, and removes tables that are not desired.
* `plan_drain` moves all tables away from a capture that leaves.
* `possible_moves` are the moves that operators requested.
* `plan_balance` balances the captures: a few tables at a time, or all at once on request.
* `SchedulerManager` asks them in this order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from sortedcontainers import SortedList

from cdcmeta.scheduler.core.limits import Limits
from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import (
    AbandonTable,
    AddTable,
    MoveTable,
    RemoveTable,
    SetState,
    Task,
)

TOLERANCE = 0.1
"""The largest difference between the heaviest and the lightest load, as a share of the mean, that
is left alone: weights are measurements, and a move has a cost."""


class Load(NamedTuple):
    """What a capture replicates and prepares; the smallest load gets the next table.

    Compared by weight, then by number of tables. A table that it is stopping does not count:
    another capture replicates it, or it is not desired, and the stop may hang for ever.
    """

    weight: float
    tables: int
    capture: str

    def plus(self, weight: float, tables: int = 1) -> Load:
        """Return the load with more or fewer tables."""
        return Load(self.weight + weight, self.tables + tables, self.capture)


class Facts(NamedTuple):
    """Everything that a decision depends on; policies do not change it."""

    desired: Mapping[str, float]
    """The tables to replicate, and what each weighs: 1 for all, or rows per second, ..."""
    sets: Mapping[str, ReplicationSet]
    primaries: Mapping[str, Collection[str]]
    """By capture, the tables that it replicates."""
    preparing: Mapping[str, Collection[str]]
    """By capture, the tables that it prepares."""
    absent: Collection[str]
    """Desired tables without a capture that may be placed now."""
    unwanted: Collection[str]
    """Tables with a set that are not desired, and that are not being removed."""
    is_quiet: bool
    """Whether every desired table is replicated, waits for a retry, or is stuck."""
    targets: Sequence[str]
    """Captures that can take tables, by name."""
    stopping: Collection[str]
    """Captures that are about to leave, without the owner's own."""
    avoid: Mapping[str, Sequence[str]] = {}
    """By table, the captures on which it failed, the latest last; other captures come first."""
    overdue: Sequence[AbandonTable] = ()
    """Preparations and starts that take too long."""
    stuck: Collection[str] = ()
    """Tables that have not been replicated for long."""
    resting: Collection[str] = ()
    """Tables that failed and are not retried yet."""
    failing_captures: Collection[str] = ()
    """Captures on which one table after the other failed: other captures get tables first."""
    weights: Mapping[str, float] | None = None
    """By capture, the weight of its load; computed if it is missing."""
    least: float = 0.0
    """The least weight of a table: many tables of weight 0 count, too."""
    is_complete: bool = True
    """Whether every capture has synced: reported its tables."""
    adds_in_flight: int = 0
    moves_in_flight: int = 0
    limits: Limits = Limits()

    def loads(self) -> list[Load]:
        """Return the load of each capture that can take tables.

        O(captures), and O(tables) without `weights`.
        """
        loads = []
        for capture in [
            each for each in self.targets if each not in self.failing_captures
        ] or self.targets:
            replicated, prepared = self.primaries.get(capture, ()), self.preparing.get(capture, ())
            known = self.weights.get(capture, 0.0) if self.weights is not None else None
            weight = sum(map(self.weight, chain(replicated, prepared))) if known is None else known
            loads.append(Load(weight, len(replicated) + len(prepared), capture))
        return loads

    def best(self, table: str, loads: Iterable[Load]) -> Load | None:
        """Return the first load on whose capture a table did not fail, else failed longest ago.

        O(captures).
        """
        avoid, last = self.avoid.get(table, ()), None
        for load in loads:
            if load.capture not in avoid:
                return load
            if last is None or avoid.index(load.capture) < avoid.index(last.capture):
                last = load
        return last

    def weight(self, table: str) -> float:
        """Return the weight of a table, at least `least`. O(1)."""
        return max(self.desired.get(table, 0.0), self.least)

    def movable(self, table: str, capture: str) -> bool:
        """Return whether a table can be moved to a capture now."""
        rset = self.sets.get(table)
        return rset is not None and rset.can_move_to(capture) and capture in self.targets


class PolicyPlan(NamedTuple):
    """What a policy decided."""

    tasks: tuple[Task, ...] = ()
    is_burst: bool = False
    """Whether all tasks begin at once, without the limit on moves."""
    why: str = "placed"
    """The reason for all its tasks, in a word or two."""


NOTHING = PolicyPlan()


def plan_basic(facts: Facts) -> PolicyPlan:
    """Return what to add and remove, all at once.

    O(tables absent + tables placed x log captures).

    At most `limits.add_batch` tables are placed, each on the capture with the least load, and none
    on a capture that prepares `limits.adds_per_capture`. Removals of unwanted tables and
    abandonments of overdue ones have no limit.
    """
    tasks: list[Task] = [RemoveTable(table) for table in facts.unwanted]
    tasks += facts.overdue
    limits = facts.limits
    room = min(limits.add_batch, limits.adds_in_flight - facts.adds_in_flight)
    if room > 0 and facts.absent and facts.targets:
        tasks += _placed(facts, room)
    return PolicyPlan(tuple(tasks), is_burst=True) if tasks else NOTHING


def _placed(facts: Facts, room: int) -> list[Task]:
    tasks: list[Task] = []
    per_capture = facts.limits.adds_per_capture
    left = {name: per_capture - len(facts.preparing.get(name, ())) for name in facts.targets}
    loads = SortedList(load for load in facts.loads() if left[load.capture] > 0)
    for table in facts.absent:
        if len(tasks) == room or not loads:
            break
        rset = facts.sets.get(table)
        # it cannot begin on a capture that still stops it
        free = (each for each in loads if rset is None or rset.place(each.capture) is None)
        least = facts.best(table, free)
        if least is None:
            continue
        tasks.append(AddTable(table, least.capture))
        loads.remove(least)
        left[least.capture] -= 1
        if left[least.capture] > 0:
            loads.add(least.plus(facts.weight(table)))
    return tasks


def drain_target(facts: Facts, asked: str | None) -> str | None:
    """Return the capture to drain: `asked`, else the first stopping one with tables.

    None if no other capture can take the tables, or no table can be moved now.
    """
    asked_first = [asked] if asked is not None else []
    for target in [*asked_first, *sorted(facts.stopping)]:
        if _has_movable(facts, target) and any(each != target for each in facts.targets):
            return target
    return None


def _has_movable(facts: Facts, target: str) -> bool:
    """Return whether a table can be taken away now; tables that hang there cannot."""
    return bool(_abandonable(facts, target)) or any(
        facts.sets[table].state is SetState.REPLICATING and table not in facts.resting
        for table in facts.primaries.get(target, ())
    )


def _abandonable(facts: Facts, target: str) -> list[str]:
    """Return the tables to abandon here, for another capture; starting tables only if stuck."""
    sets, stuck, prepared = facts.sets, facts.stuck, facts.preparing.get(target, ())
    delayed = [each for each in facts.primaries.get(target, ()) if each in stuck]
    waiting = [each for each in prepared if sets[each].state is SetState.PREPARE or each in stuck]
    return waiting + [each for each in delayed if sets[each].starting is not None]


def is_drain_over(facts: Facts, asked: str) -> bool:
    """Return whether a drain is over: the capture is stopping and no table can be moved now.

    Also if no other capture can take tables. A capture that is empty but not stopping is still
    drained: otherwise it would get tables again.
    """
    if not any(each != asked for each in facts.targets):
        return True
    return asked in facts.stopping and drain_target(facts, asked) != asked


def plan_drain(facts: Facts, target: str | None) -> PolicyPlan:
    """Return moves of tables from `target` to the captures with the least load.

    Tables that it only prepares are abandoned: another capture begins with them. The states of
    other tables do not matter: a leaving capture does not wait for them. At most
    `limits.moves_in_flight` are under way at a time. O(tables of the target x log tables).
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if target is None or room <= 0:
        return NOTHING
    tasks: list[Task] = [AbandonTable(table, target) for table in _abandonable(facts, target)]
    loads = SortedList(load for load in facts.loads() if load.capture != target)
    # failed tables last: they may take long, and few moves are under way at a time
    healthy_first = sorted((each in facts.avoid, each) for each in facts.primaries.get(target, ()))
    for _, table in healthy_first:
        if room == 0:
            break
        if table in facts.resting:
            continue
        # it cannot go to a capture that still stops it
        least = facts.best(table, (each for each in loads if facts.movable(table, each.capture)))
        if least is not None:
            room -= 1
            tasks.append(MoveTable(table, least.capture))
            loads.remove(least)
            loads.add(least.plus(facts.weight(table)))
    return PolicyPlan(tuple(tasks))


def possible_moves(facts: Facts, requested: Mapping[str, str]) -> dict[str, str]:
    """Return the requested moves (table to capture) that are still possible. O(moves).

    Not possible: the table is gone or busy; the capture is gone, leaves, or has the table.
    """
    return {table: to for table, to in requested.items() if facts.movable(table, to)}


def plan_balance(facts: Facts, *, is_burst: bool = False) -> PolicyPlan:
    """Return moves that balance the loads: as many as may be under way, or all at once.

    Nothing while a capture leaves, or a table is not replicated. O(tables log tables).
    """
    under_way, limit = facts.moves_in_flight, facts.limits.moves_in_flight
    moves_max = len(facts.desired) if is_burst else limit - under_way
    if facts.stopping or not facts.is_quiet or moves_max <= 0:
        return NOTHING
    tasks = balancing_moves(facts, moves_max)
    return PolicyPlan(tuple(tasks), is_burst) if tasks else NOTHING


def balancing_moves(facts: Facts, moves_max: int) -> list[Task]:
    """Return moves from the heaviest to the lightest load, until they differ by less than a table.

    With equal weights the loads then differ by at most one table. With unequal weights each move
    takes the table that makes the two loads most equal; it must reduce their difference by at
    least `TOLERANCE` of the mean, and no move is made while they differ by less than that. Tables
    that another capture still stops, and tables that failed lately, are not moved.
    """
    facts = facts._replace(weights=None)  # running sums have rounding errors; compute new ones
    is_counted = len(set(facts.desired.values())) <= 1
    if is_counted:  # whole numbers have no rounding errors, which would move tables to and fro
        facts = facts._replace(desired=dict.fromkeys(facts.desired, 1.0), least=0.0)
    # failing captures get nothing, and give as other captures do
    takers = SortedList(facts.loads())
    loads = SortedList(facts._replace(failing_captures=()).loads())
    if len(loads) < 2:
        return []
    tables = {load.capture: _movable(facts, load.capture) for load in loads}
    mean = sum(load.weight for load in loads) / len(loads)
    spread = 1.0 if is_counted else TOLERANCE * mean
    tasks: list[Task] = []
    while len(tasks) < moves_max and len(loads) > 1 and takers:
        least, most = takers[0], loads[-1]
        if most.weight - least.weight <= spread:
            break
        apart = most.weight - least.weight
        moved = _best(tables[most.capture], apart, apart - spread / 2)
        loads.remove(most)
        takers.discard(most)
        if moved is None:  # its tables are too heavy to move; continue without it
            continue
        weight, table = moved
        tables[most.capture].remove(moved)  # a table moves once
        loads.remove(least)
        takers.remove(least)
        given, taken = most.plus(-weight, -1), least.plus(weight)
        loads.update((given, taken))
        takers.add(taken)
        if most.capture not in facts.failing_captures:
            takers.add(given)
        tasks.append(MoveTable(table, least.capture))
    return tasks


def _movable(facts: Facts, capture: str) -> SortedList[tuple[float, str]]:
    return SortedList(
        (facts.weight(table), table)
        for table in facts.primaries.get(capture, ())
        if len(facts.sets[table].places) == 1 and table not in facts.avoid
    )


def _best(
    tables: SortedList[tuple[float, str]], apart: float, weight_max: float
) -> tuple[float, str] | None:
    """Return the table that makes two loads most equal, of at most `weight_max`.

    A table of about `apart` would only exchange the two loads, and at the next check again.
    """
    at = tables.bisect_right((apart / 2, "\U0010ffff"))
    near: list[tuple[float, str]] = [*tables[max(at - 1, 0) : at], *tables[at : at + 1]]
    return next((each for each in near if 0 < each[0] <= weight_max), None)


class SchedulerManager:
    """Keeps the requests of operators and the time of the last balance; policies have no state.

    Order: basic, drain, moves, balance on request, balance. All but basic wait while the limit of
    moves is under way.
    """

    def __init__(self) -> None:
        self.draining: str | None = None
        """The capture whose drain was requested."""
        self.moves: dict[str, str] = {}
        """The requested moves, by table."""
        self.is_rebalance_requested = False
        self._checked_at: int | None = None
        """The time of the last check of the balance; None to check at once."""

    def request_move(self, table: str, capture: str) -> bool:
        """Note a requested move; return False if another move of the table is pending."""
        if table in self.moves:
            return False
        self.moves[table] = capture
        return True

    def check_balance_soon(self) -> None:
        """Check the balance at the next chance, without a wait for the interval."""
        self._checked_at = None

    def plan(self, facts: Facts, now: int) -> PolicyPlan:
        """Return the tasks to begin; `now` in microseconds."""
        plan = plan_basic(facts)
        if plan.tasks or facts.moves_in_flight >= facts.limits.moves_in_flight:
            return plan
        target = drain_target(facts, self.draining)
        if self.draining is not None and is_drain_over(facts, self.draining):
            self.draining = None
        plan = plan_drain(facts, target)
        if plan.tasks:
            return plan._replace(why=f"{target} is drained")
        moves = possible_moves(facts, self.moves)
        if facts.is_quiet and facts.is_complete:
            self.moves = moves
        if moves:
            tasks = tuple(MoveTable(table, to) for table, to in moves.items())
            return PolicyPlan(tasks, why="a move was asked for")
        return self._plan_balance(facts, now)

    def accepted(self, task: Task) -> None:
        """Note that a task has begun."""
        if isinstance(task, MoveTable) and self.moves.get(task.table) == task.capture:
            del self.moves[task.table]

    def _plan_balance(self, facts: Facts, now: int) -> PolicyPlan:
        if self.is_rebalance_requested:
            plan = plan_balance(facts, is_burst=True)
            if facts.stopping or plan.tasks or (facts.is_quiet and facts.is_complete):
                self.is_rebalance_requested = False
            if plan.tasks:
                return plan._replace(why="a rebalance was asked for")
        checked_at = self._checked_at
        if checked_at is not None and now - checked_at < facts.limits.balance_every_us:
            return NOTHING
        plan = plan_balance(facts)
        if facts.is_quiet:  # after a plan with tasks at once again: more may follow
            self._checked_at = None if plan.tasks else now
        return plan._replace(why="balance") if plan.tasks else NOTHING
