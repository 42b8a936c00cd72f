"""All that can happen to small clusters: never two writers, nothing lost, always a way on.

Each bound is tried out completely, with the scheduler's own functions. `mutants` shows that what
it looks for can be found.
"""

import pytest
from sampling import SOAK

from .bounds import DEEPER, EXPLORED
from .explorer import explore
from .mutants import MUTANTS, NOT_NEEDED

pytestmark = pytest.mark.slow

BOUNDS = {**EXPLORED, **(DEEPER if SOAK else {})}


LARGE = {
    "two moves, a restart under the same name, data",
    "another owner, a move",
    "another owner, a doubled message",
    "a move, a preparation given up, data",
    "a preparation given up, a doubled message",
}
"""Left to `make soak`: what happens in these happens in smaller worlds, too."""
RATHER_LARGE = {
    "another owner, a lost message",
    "a table that fails and is forgotten",
    "a move, a crash, three captures",
    "what hangs, a move",
    "a move, a table removed and wanted again, data",
    "a move, two messages on each way",
    "a table that fails, two messages on each way",
    "what hangs",
    "a move, a table that fails, data",
}
"""Left to `make test-all`; what happens in these happens in smaller worlds, one at a time."""
assert BOUNDS.keys() > LARGE | RATHER_LARGE
DEEP = {
    "a commit without looking at the token",
    "a commit of what is not there begins it",
    "what stops is no place of a new set",
    "a stopping primary in Prepare has stopped (B2)",
    "a start that is given up is free at once",
    "what does not stop is waited for without an end",
    "a start that hangs is never given up",
    "a commit of an earlier owner is no commit (B3)",
    "earlier owners are obeyed",
}
"""Mutants that fail only in larger worlds: left to `make test-all`."""
assert {mutant.name for mutant in MUTANTS} > DEEP


def marks_of(name):
    if name in LARGE:
        return [pytest.mark.soak]
    return [pytest.mark.long] if name in RATHER_LARGE else []


@pytest.mark.parametrize(
    "bound",
    [pytest.param(bound, id=name, marks=marks_of(name)) for name, bound in BOUNDS.items()],
)
def test_nothing_goes_wrong(bound):
    explored = explore(bound.start(), bound.moves())
    assert explored.complaint is None, str(explored)
    assert explored.states > 40, "a world in which nothing happens"


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.long] if each.name in DEEP else [])
        for each in MUTANTS
    ],
)
def test_each_rule_is_needed(mutant, monkeypatch):
    mutant.apply(monkeypatch)
    explored = explore(mutant.bound.start(), mutant.bound.moves())
    assert explored.complaint is not None, f"{explored.states} states, and nothing was wrong"


@pytest.mark.long
@pytest.mark.parametrize("mutant", NOT_NEEDED, ids=lambda mutant: mutant.name)
def test_rules_that_others_stand_in_for(mutant, monkeypatch):
    """They are kept, since they end things early; `NOT_NEEDED` says what holds instead."""
    mutant.apply(monkeypatch)
    explored = explore(mutant.bound.start(), mutant.bound.moves())
    assert explored.complaint is None, str(explored)
