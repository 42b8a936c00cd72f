"""Every schedule of moments of which a member is restored, and commits more than it lost."""

from typing import Any

import pytest
from fleet_plan import Plan, Step, Streams
from fleet_plans import TIMES, restored
from fleet_runs import cases, check_explored

pytestmark = pytest.mark.slow

A = {"a": 1_002}
NOTHING: dict[str, Any] = {"before": {"b": 2_000}, "looks": 1}
EMPTY = (Streams.EMPTY,)
ONE_EACH = {"a": (Step(1_004),), "b": (Step(1_002),)}
BOTH: dict[str, Any] = {"before": {"a": 1_002, "b": 1_004}, "restored": ("a", "b")}

PLANS = {
    "looked at": (250, restored(1_004, looks=1)),
    "two commits are looked at": (380, restored(1_002, 1_004, **NOTHING)),
    "held": (320, restored(1_004, holds=True)),
    "the other member commits, too": (480, restored(steps=ONE_EACH, before=A, looks=1)),
    "inside of a call": (95, restored(looks=1, inside=1, streams=EMPTY)),
}
LARGER = {
    "held, commits are later": (310, restored(1_004, holds=True, later=True)),
    "held, the other member commits": (780, restored(steps=ONE_EACH, before=A, holds=True)),
    "looked at twice": (1_800, restored(1_004, looks=2)),
    "two commits are looked at twice": (
        3_000,
        restored(1_002, 1_004, **NOTHING | {"looks": 2}),
    ),
    "looked at and held": (4_400, restored(1_004, looks=1, holds=True)),
    "two commits are held": (
        1_000,
        restored(1_004, 1_006, times=(*TIMES, 1_006, 1_007), holds=True),
    ),
    "looked at, and others inside of a call": (530, restored(1_004, looks=1, inside=1)),
    "held, and others inside of a call": (770, restored(1_004, holds=True, inside=1)),
    "two others inside of a call": (790, restored(1_004, looks=1, inside=2)),
    "a commit is on its way": (1_300, restored(1_004, looks=1, delayed=1)),
    "a commit is on its way, held": (1_800, restored(1_004, holds=True, delayed=1)),
    "a store is created late": (540, restored(1_002, 1_004, **NOTHING, created_late=("a",))),
    "the member joins": (280, restored(1_002, 1_004, **NOTHING, joined={"a": 1_003})),
    "both members": (2_700, restored(1_004, looks=1, **BOTH)),
    "both members, held": (3_100, restored(holds=True, **BOTH)),
}


@pytest.mark.parametrize(("states", "plan"), cases(PLANS, LARGER))
def test_moments_of_restored_members(states: int, plan: Plan) -> None:
    check_explored(states, plan)
