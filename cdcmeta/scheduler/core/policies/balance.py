"""Balances the captures from time to time, a few tables at a time."""

from __future__ import annotations

from cdcmeta.scheduler.core.policies.facts import NOTHING, Facts, Plan
from cdcmeta.scheduler.core.policies.rebalance import balancing_moves


def is_due(facts: Facts, looked_at: int | None, now: int, *, is_forced: bool) -> bool:
    """Return whether to check: after each interval, and at once if the last check found work."""
    if is_forced or looked_at is None:
        return True
    return now - looked_at >= facts.limits.balance_every_us


def plan(facts: Facts) -> Plan:
    """Return as many moves as may be under way. O(tables log tables).

    Nothing while a capture leaves, or a table is not replicated.
    """
    room = facts.limits.moves_in_flight - facts.moves_in_flight
    if facts.stopping or not facts.is_quiet or room <= 0:
        return NOTHING
    return Plan(tuple(balancing_moves(facts, room)))
