"""Moves the tables whose moves were requested."""

from __future__ import annotations

from collections.abc import Mapping

from cdcmeta.scheduler.core.policies.facts import Facts, Plan
from cdcmeta.scheduler.core.tasks import MoveTable


def still_possible(facts: Facts, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the requested moves (table to capture) that are still possible. O(moves).

    Not possible: the table is gone or busy; the capture is gone, leaves, or has the table.
    """
    return {table: to for table, to in asked.items() if facts.movable(table, to)}


def plan(facts: Facts, asked: Mapping[str, str]) -> Plan:
    """Return all possible moves; the caller begins as many as may be under way. O(moves)."""
    return Plan(tuple(MoveTable(table, to) for table, to in still_possible(facts, asked).items()))
