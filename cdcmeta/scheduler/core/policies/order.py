"""Asks the policies in order, and takes the first plan that has tasks."""

from __future__ import annotations

from cdcmeta.scheduler.core.policies import balance, basic, drain, move, rebalance
from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.tasks import MoveTable, Task


class SchedulerManager:
    """Keeps the requests of operators and the time of the last balance; policies have no state.

    Order: basic, drain, move, rebalance, balance. All but basic wait while the limit of moves is
    under way.
    """

    def __init__(self) -> None:
        self.draining: str | None = None
        """The capture whose drain was requested."""
        self.moves: dict[str, str] = {}
        """The requested moves, by table."""
        self.is_rebalance_asked = False
        self._looked_at: int | None = None
        self._is_forced = False

    def request_move(self, table: str, capture: str) -> bool:
        """Note a requested move; return False if another move of the table is pending."""
        if table in self.moves:
            return False
        self.moves[table] = capture
        return True

    def look_again(self) -> None:
        """Check the balance at the next chance, without a wait for the interval."""
        self._looked_at = None

    def plan(self, facts: Facts, now: int) -> Plan:
        """Return the tasks to begin; `now` in microseconds."""
        plan = basic.plan(facts)
        if plan.tasks or facts.moves_in_flight >= facts.limits.moves_in_flight:
            return plan
        target = drain.target_of(facts, self.draining)
        if self.draining is not None and drain.is_over(facts, self.draining):
            self.draining = None
        plan = drain.plan(facts, target)
        if plan.tasks:
            return plan._replace(why=f"{target} is drained")
        if facts.is_quiet and facts.is_complete:
            self.moves = move.still_possible(facts, self.moves)
        plan = move.plan(facts, self.moves)
        if plan.tasks:
            return plan._replace(why="a move was asked for")
        return self._even(facts, now)

    def accepted(self, task: Task) -> None:
        """Note that a task has begun."""
        if isinstance(task, MoveTable) and self.moves.get(task.table) == task.capture:
            del self.moves[task.table]

    def _even(self, facts: Facts, now: int) -> Plan:
        if self.is_rebalance_asked:
            plan = rebalance.plan(facts)
            if plan.tasks or (facts.is_quiet and facts.is_complete):
                self.is_rebalance_asked = False
            if rebalance.is_over(facts):
                self.is_rebalance_asked = False
            if plan.tasks:
                return plan._replace(why="a rebalance was asked for")
        if not balance.is_due(facts, self._looked_at, now, is_forced=self._is_forced):
            return NOTHING
        plan = balance.plan(facts)
        if facts.is_quiet:
            self._looked_at, self._is_forced = now, bool(plan.tasks)
        return plan._replace(why="balance") if plan.tasks else NOTHING
