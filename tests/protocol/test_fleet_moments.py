"""Every schedule of moments: what a fleet shows while its members commit, tick, join and begin."""

from typing import Any

import pytest
from fleet_orders import Order, orders
from fleet_plan import Plan
from fleet_plans import seen
from fleet_runs import cases, check_explored

pytestmark = pytest.mark.slow

EQUAL = Order((1_002, 1_003), (1_002,))
APART = Order((1_002, 1_004), (1_003,))
LATER = Order((1_002,), (1_003, 1_004))
ONE_EACH = Order((1_002,), (1_002,))
TICKS = [("a", 0), ("a", 1), ("b", 0)]
NEW_STORE: dict[str, Any] = {"looks": 0, "holds": True, "created_late": ("b",)}

PLANS = {
    **{f"three commits {order}": (38, seen(order)) for order in orders(2, 1)},
    "three commits each": (270, seen(Order((1_002, 1_003, 1_004), (1_002, 1_003, 1_004)))),
    "a moment is held": (320, seen(EQUAL, holds=True)),
    "a commit is on its way": (180, seen(EQUAL, delayed=1)),
    "others go first inside of a call": (73, seen(EQUAL, inside=1)),
    **{f"tick {n} of {name}": (48, seen(APART, steps=APART.ticking(name, n))) for name, n in TICKS},
    "moments are made final": (130, seen(APART, finishes=True)),
    "a member joins": (69, seen(LATER, joined={"b": 1_003}, holds=True, looks=0)),
    "a store is created late": (250, seen(LATER, **NEW_STORE)),
    "a member joins with a new store": (170, seen(LATER, joined={"b": 1_003}, **NEW_STORE)),
}
LARGER = {
    **{f"held {order}": (310, seen(order, holds=True)) for order in orders(2, 1)},
    **{f"on its way {order}": (180, seen(order, delayed=1)) for order in orders(2, 1)},
    **{f"three each {order}": (260, seen(order)) for order in orders(3, 3)},
    "held while others go first": (670, seen(EQUAL, holds=True, inside=1)),
    "on its way while others go first": (340, seen(EQUAL, delayed=1, inside=1)),
    "two go first, one is on its way": (120, seen(ONE_EACH, delayed=1, inside=2)),
    "made final twice": (1_000, seen(APART, finishes=True, looks=2)),
    "made final while others go first": (250, seen(APART, finishes=True, inside=1)),
    "a member joins, its moments are looked at": (
        310,
        seen(LATER, joined={"b": 1_003}, holds=True),
    ),
    "a store is created inside of a call": (280, seen(LATER, created_late=("b",), inside=1)),
}


@pytest.mark.parametrize(("states", "plan"), cases(PLANS, LARGER))
def test_moments(states: int, plan: Plan) -> None:
    check_explored(states, plan)
