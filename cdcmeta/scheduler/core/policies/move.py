"""Moves the tables that somebody asked to be moved."""

from __future__ import annotations

from collections.abc import Mapping

from cdcmeta.scheduler.core.policies.facts import Facts, Plan
from cdcmeta.scheduler.core.tasks import MoveTable


def still_asked(facts: Facts, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the moves (table to capture) that still make sense: the others are forgotten.

    A table that is gone or busy, and a capture that is gone, leaves or has the table, make none.
    O(moves).
    """
    return {table: to for table, to in asked.items() if facts.movable(table, to)}


def plan(facts: Facts, asked: Mapping[str, str]) -> Plan:
    """Return all moves that make sense; as many as may be under way begin. O(moves)."""
    return Plan(tuple(MoveTable(table, to) for table, to in still_asked(facts, asked).items()))
