"""Tries everything that can happen to a small world, and tells how it came to what is wrong."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .small_moves import Moves
from .small_world import World, is_good, renumbered, wrong


class Explored(NamedTuple):
    """What an exploration saw."""

    states: int
    complaint: str | None
    trace: list[str]

    def __str__(self) -> str:
        return "\n".join([f"{self.states} states: {self.complaint}", *self.trace])


def explore(start: World, moves: Moves, *, states_max: int = 2_000_000) -> Explored:
    """Try everything; the shortest way to a wrong state, or to one that nothing leads out of.

    A state is hopeless if no sequence of things that are not faults leads from it to a table
    that is replicated.
    """
    with _no_collections():
        return _explore(start, moves, states_max)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the collector from a million tuples: it looks at each many times, and frees none."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _explore(start: World, moves: Moves, states_max: int) -> Explored:
    seen: dict[World, int] = {start: 0}  # also under other numbers of their tokens
    came: list[tuple[int, str]] = [(-1, "")]
    back: list[list[int]] = [[]]
    good: list[int] = []
    todo = [start]
    for at, world in enumerate(todo):  # grows while we go
        if complaint := wrong(world):
            return Explored(len(todo), complaint, trace(came, at))
        if is_good(world):
            good.append(at)
        for what, is_fault, unnumbered in moves.unnumbered(world):
            to = seen.get(unnumbered)
            if to is None:
                after = renumbered(unnumbered)
                to = seen.get(after)
                if to is None:
                    to = seen[after] = len(todo)
                    todo.append(after)
                    came.append((at, what))
                    back.append([])
                    assert to < states_max, f"more than {states_max} states"
                seen[unnumbered] = to
            if not is_fault:
                back[to].append(at)
    hopeful = bytearray(len(todo))
    for at in good:
        hopeful[at] = 1
    while good:
        for before in back[good.pop()]:
            if not hopeful[before]:
                hopeful[before] = 1
                good.append(before)
    lost = hopeful.find(0)
    if lost < 0:
        return Explored(len(todo), None, [])
    return Explored(len(todo), "nothing leads out of here", [*trace(came, lost), repr(todo[lost])])


def trace(came: list[tuple[int, str]], at: int) -> list[str]:
    """Return what happened up to a state."""
    steps = []
    while at:
        at, what = came[at]
        steps.append(what)
    return steps[::-1]
