"""The kinds of plans: moments and watches, with and without a member that is restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fleet_orders import Order
from fleet_plan import Plan, Step

AHEAD = {"a": 1_002, "b": 2_000}
"""What members have from the beginning where one is restored: no moment waits for the other."""
TIMES = (1_001, 1_002, 1_003, 1_004, 1_005)


def seen(order: Order, **bounds: Any) -> Plan:
    """Return a plan in which a fleet asks for moments of members with an order of commits."""
    return replace(Plan(steps=order.steps, times=order.times, looks=1), **bounds)


def watched(order: Order, **bounds: Any) -> Plan:
    """Return a plan in which a fleet watches members with an order of commits from a time on."""
    plan = Plan(steps=order.steps, times=order.times, watches=True, since=1_001, asks=False)
    return replace(plan, **bounds)


def left_twice() -> Plan:
    """Return a plan of a watch that is left and continued twice, and may leave one member out."""
    order = Order((1_003,), (1_003,))
    steps, before = {"a": order.steps["a"], "b": ()}, {"a": 1_002, "b": 1_002}
    bounds = {"leave_out": True, "waits": 1, "leaves": 2, "resumes": True}
    return watched(order, steps=steps, before=before, **bounds)


def restored(*timestamps: int, **bounds: Any) -> Plan:
    """Return a plan in which a member with these commits is restored, after one at 1,002."""
    steps = {"a": tuple(map(Step, timestamps)), "b": ()}
    return replace(Plan(steps=steps, times=TIMES, before=AHEAD, restored=("a",)), **bounds)


def restored_while_watched(*timestamps: int, **bounds: Any) -> Plan:
    """Return the same with a watch since the first commit."""
    plan = restored(*timestamps, watches=True, since=1_002, asks=False)
    return replace(plan, **bounds)
