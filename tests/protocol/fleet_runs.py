"""Exploring plans, and playing one schedule of them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from time import process_time
from typing import Any

import protocol_remote
import pytest
from fleet_exploration import Choices, Explored, explore
from fleet_plan import Plan
from fleet_servers import one_thread
from fleet_world import FleetWorld


def explored(plan: Plan, *, merge: bool = True) -> Explored:
    """Explore all schedules of a plan; print how many states it has."""
    began = process_time()
    with one_thread() as time:
        start_s, done = time.now_s, set[Hashable]()

        def make(choices: Choices) -> FleetWorld:
            protocol_remote._networks.clear()
            time.now_s = start_s
            return FleetWorld(plan, choices, time, done)

        found = explore(make, merge=merge)
    print(f"{found}, {process_time() - began:.1f} s of CPU")
    return found


Plans = Mapping[str, tuple[int, Plan]]
"""Plans by name, each with how many states it has at least."""


def cases(plans: Plans, larger: Plans) -> list[Any]:
    """Return plans as cases of a test; make soak runs the larger ones."""
    soak = pytest.mark.soak
    return [
        *(pytest.param(*case, id=name) for name, case in plans.items()),
        *(pytest.param(*case, id=name, marks=soak) for name, case in larger.items()),
    ]


def check_explored(states: int, plan: Plan) -> None:
    """Explore all schedules of a plan; a world that has become smaller has fewer states."""
    found = explored(plan)
    assert found.states >= states, f"{found.states} states, less than {states}"


def play(plan: Plan, *labels: str) -> FleetWorld:
    """Let operations of a plan happen in an order, by their names; return the world after them.

    The last of them are followed by what is checked before anything else may happen.
    """
    with one_thread() as time:
        world = FleetWorld(plan, Choices([]), time, set())
        for label in labels:
            operations = dict(world.operations())
            assert label in operations, f"{label!r} is not one of {list(operations)}"
            operations[label]()
        world.operations()
        return world
