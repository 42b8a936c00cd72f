"""Every schedule of watches of which a member is restored, and commits more than it lost."""

from typing import Any

import pytest
from fleet_plan import Plan, Step, Streams
from fleet_plans import restored_while_watched as restored
from fleet_runs import cases, check_explored

FROM_NOTHING = {"b": 2_000}
EMPTY = (Streams.EMPTY,)
FAST = (Streams.EMPTY, Streams.BUFFERED)
RESUMED: dict[str, Any] = {"leaves": 1, "resumes": True}
ONE_EACH = {"a": (Step(1_004),), "b": (Step(1_003),)}
BOTH: dict[str, Any] = {"before": {"a": 1_002, "b": 1_004}, "restored": ("a", "b")}

PLANS = {
    "from now on": (150, restored(since=None, leaves=1, streams=FAST)),
    "left": (1_100, restored(1_004, leaves=1, streams=FAST)),
    "asked beside": (170, restored(since=1_001, asks=True)),
}
LARGER = {
    "slow streams": (1_200, restored(1_004)),
    "slow streams, asked beside": (1_200, restored(1_004, asks=True)),
    "looked at beside": (9_600, restored(1_004, looks=1, times=(1_003,))),
    "from now on, looked at beside": (
        12_000,
        restored(1_004, since=None, looks=1, times=(1_003,)),
    ),
    "resumed": (12_000, restored(1_004, **RESUMED)),
    "from now on, left": (2_200, restored(1_004, since=None, leaves=1)),
    "from now on, resumed": (1, restored(1_004, since=None, **RESUMED)),
    "two commits": (1, restored(1_002, 1_004, before=FROM_NOTHING, since=1_001)),
    "two commits, left": (
        1,
        restored(1_002, 1_004, before=FROM_NOTHING, since=1_001, leaves=1),
    ),
    "the other member commits, too": (
        1,
        restored(steps=ONE_EACH, before={"a": 1_002}),
    ),
    "inside of a call": (1, restored(1_004, since=None, inside=1)),
    "later commits": (1, restored(1_004, later=True, leaves=1)),
    "both members": (1, restored(1_004, **BOTH)),
    "left out": (
        1,
        restored(1_004, before={"a": 1_002, "b": 1_003}, leave_out=True, waits=1),
    ),
}


@pytest.mark.parametrize(("states", "plan"), cases(PLANS, LARGER))
def test_watches_of_restored_members(states: int, plan: Plan) -> None:
    check_explored(states, plan)
