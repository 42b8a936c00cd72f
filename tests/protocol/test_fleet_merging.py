"""Ending runs at states that were seen before loses nothing: without that, the same is found."""

import pytest
from fleet_mutants import Edit
from fleet_orders import Order
from fleet_plan import Plan, Streams
from fleet_plans import restored, seen, watched
from fleet_runs import explored

from snapkv.fleet.fleet_watch import FleetWatch
from snapkv.fleet.open_member import OpenMember
from snapkv.timeline.continuity import Continuity

pytestmark = pytest.mark.slow

ONE_EACH = Order((1_002,), (1_002,))
PLANS = {
    "seen": seen(ONE_EACH, delayed=1),
    "restored": restored(1_004, looks=1, streams=(Streams.EMPTY,)),
    "watched": watched(ONE_EACH),
}
MUTANTS = {
    "seen": Edit(OpenMember, "_pinned", "state if moment.final", "state if timestamp <= 1_003"),
    "restored": Edit(
        Continuity, "_read_with_witness", "kv is None or mark_of(kv) != seen[0]", "False"
    ),
    "watched": Edit(FleetWatch, "_take", "frontier = min(", "frontier = max("),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_without_merging_nothing_else_is_found(plan: Plan) -> None:
    merged, every = explored(plan), explored(plan, merge=False)
    assert every.runs > merged.runs


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught_either_way(
    name: str, merge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[name].apply(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        explored(PLANS[name], merge=merge)
    print(caught.value)
