"""Every schedule of watches of which a member is restored, and commits more than it lost."""

from typing import Any

import pytest
from fleet_plan import Plan, Step, Streams
from fleet_plans import restored_while_watched as restored
from fleet_runs import cases, check_explored

pytestmark = pytest.mark.slow

FROM_NOTHING = {"b": 2_000}
EMPTY = (Streams.EMPTY,)
FAST = (Streams.EMPTY, Streams.BUFFERED)
TWO_AND_ONE = {"a": (Step(1_004), Step(1_006)), "b": (Step(1_003),)}
JOINING: dict[str, Any] = {"before": FROM_NOTHING, "since": 1_001, "joined": {"a": 1_003}}
RESUMED: dict[str, Any] = {"leaves": 1, "resumes": True}
ONE_EACH = {"a": (Step(1_004),), "b": (Step(1_003),)}
AHEAD_OF_B = {"a": (Step(1_006),), "b": (Step(1_004),)}
BOTH: dict[str, Any] = {"before": {"a": 1_002, "b": 1_004}, "restored": ("a", "b")}

PLANS = {
    "from now on": (160, restored(since=None, leaves=1, streams=FAST)),
    "left": (1_200, restored(1_004, leaves=1, streams=FAST)),
    "asked beside": (170, restored(since=1_001, asks=True)),
    "left where another member is ahead": (
        210,
        restored(before={"a": 1_004, "b": 1_002}, times=(999,), since=None, leaves=1),
    ),
}
LARGER = {
    "left with commits that wait": (
        3_300,
        restored(
            steps=AHEAD_OF_B,
            before={"a": 1_002, "b": 1_002},
            times=(1_001,),
            leaves=1,
            streams=EMPTY,
        ),
    ),
    "inside of a call, and left": (450, restored(since=None, inside=1, leaves=1)),
    "slow streams": (1_200, restored(1_004)),
    "slow streams, asked beside": (1_200, restored(1_004, asks=True)),
    "looked at beside": (9_600, restored(1_004, looks=1, times=(1_003,))),
    "from now on, looked at beside": (
        12_000,
        restored(1_004, since=None, looks=1, times=(1_003,)),
    ),
    "resumed": (22_000, restored(1_004, **RESUMED)),
    "from now on, left": (2_200, restored(1_004, since=None, leaves=1)),
    "from now on, resumed": (28_000, restored(1_004, since=None, **RESUMED)),
    "two commits": (2_800, restored(1_002, 1_004, before=FROM_NOTHING, since=1_001)),
    "two commits, left": (
        4_300,
        restored(1_002, 1_004, before=FROM_NOTHING, since=1_001, leaves=1),
    ),
    "the other member commits, too": (
        3_700,
        restored(steps=ONE_EACH, before={"a": 1_002}),
    ),
    "inside of a call": (4_100, restored(1_004, since=None, inside=1)),
    "later commits": (1_600, restored(1_004, later=True, leaves=1)),
    "a commit is on its way": (6_800, restored(1_004, delayed=1)),
    "nothing is held": (5_100, restored(steps=TWO_AND_ONE, before={"a": 1_002}, hold_bytes=1)),
    "the member joins": (4_000, restored(1_002, 1_004, **JOINING, leaves=1)),
    "asked beside, left": (1_100, restored(1_004, asks=True, leaves=1, streams=FAST)),
    "both members": (23_000, restored(1_004, **BOTH)),
    "left out": (
        11_000,
        restored(1_004, before={"a": 1_002, "b": 1_003}, leave_out=True, waits=1),
    ),
}


@pytest.mark.parametrize(("states", "plan"), cases(PLANS, LARGER))
def test_watches_of_restored_members(states: int, plan: Plan) -> None:
    check_explored(states, plan)
