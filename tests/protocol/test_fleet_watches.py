"""Every schedule of watches: all commits once, in order, however they are left and continued."""

from typing import Any

import pytest
from fleet_orders import Order, orders
from fleet_plan import Plan
from fleet_plans import left_twice, watched
from fleet_runs import cases, check_explored

pytestmark = pytest.mark.slow

ONE_EACH = Order((1_002,), (1_002,))
ONE_LATER = Order((1_002,), (1_003,))
TWO_AND_ONE = Order((1_002, 1_003), (1_002,))
TWO_EACH = Order((1_002, 1_003), (1_002, 1_003))
THREE_EACH = Order((1_002, 1_003, 1_005), (1_002, 1_004, 1_005))
LEFT_OUT: dict[str, Any] = {"leave_out": True, "waits": 1}
BEGUN = {"a": 1_001, "b": 1_001}
RESUMED: dict[str, Any] = {"leaves": 1, "resumes": True}
NEW: dict[str, Any] = {"created_late": ("b",), "joined": {"b": 1_003}}

PLANS = {
    **{f"left {order}": (190, watched(order, leaves=1)) for order in orders(2, 1)[::2]},
    "resumed": (800, watched(ONE_EACH, **RESUMED)),
    "from now on": (145, watched(ONE_LATER, since=None, before=BEGUN, leaves=1)),
    "with a tick": (190, watched(TWO_AND_ONE, steps=TWO_AND_ONE.ticking("a", 0), leaves=1)),
    "nothing is held": (190, watched(TWO_EACH, hold_bytes=1)),
    "a member is left out": (520, watched(ONE_LATER, **LEFT_OUT)),
    "a member joins": (95, watched(ONE_LATER, joined={"b": 1_003}, leaves=1)),
    "a member joins with a new store": (80, watched(ONE_LATER, **NEW)),
}
LARGER = {
    **{f"left, too, {order}": (190, watched(order, leaves=1)) for order in orders(2, 1)[1::2]},
    **{f"resumed {order}": (1_500, watched(order, **RESUMED)) for order in orders(2, 1)},
    **{f"left, two each {order}": (490, watched(order, leaves=1)) for order in orders(2, 2)},
    "from now on, resumed": (830, watched(ONE_LATER, since=None, before=BEGUN, **RESUMED)),
    "three each": (1_300, watched(THREE_EACH)),
    "three each, nothing is held": (1_200, watched(THREE_EACH, hold_bytes=1, leaves=1)),
    "two are left out": (1_500, watched(TWO_AND_ONE, **LEFT_OUT)),
    "left out, and left": (2_000, watched(ONE_EACH, **LEFT_OUT, **RESUMED)),
    "left out, and left twice": (8_200, left_twice()),
    "left out twice": (1_500, watched(ONE_LATER, leave_out=True, waits=2, leaves=1)),
    "a store is created late": (
        400,
        watched(Order((1_002, 1_004), (1_003,)), created_late=("b",)),
    ),
    "joins with a new store, resumed": (3_200, watched(ONE_LATER, **NEW, **RESUMED)),
    "others go first inside of a call": (
        160,
        watched(ONE_LATER, since=None, before=BEGUN, inside=1),
    ),
}


@pytest.mark.parametrize(("states", "plan"), cases(PLANS, LARGER))
def test_watches(states: int, plan: Plan) -> None:
    check_explored(states, plan)
