"""The orders that timestamps of two members can have: which comes first, and which are equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fleet_plan import Step

FIRST = 1_002


class Order(NamedTuple):
    """Timestamps of the commits of two members; its text is as `a-ab-b`, `ab` being equal ones."""

    a: tuple[int, ...]
    b: tuple[int, ...]

    def __str__(self) -> str:
        stamps = sorted({*self.a, *self.b})
        return "-".join("a" * (t in self.a) + "b" * (t in self.b) for t in stamps)

    @property
    def steps(self) -> dict[str, tuple[Step, ...]]:
        """What is written to the members."""
        return {"a": tuple(map(Step, self.a)), "b": tuple(map(Step, self.b))}

    @property
    def times(self) -> tuple[int, ...]:
        """All times from just before the first one to just after the last one."""
        return tuple(range(FIRST - 1, max(*self.a, *self.b) + 2))

    def ticking(self, member: str, number: int) -> dict[str, tuple[Step, ...]]:
        """Return the same, where one of a member's commits is a tick."""
        steps = self.steps
        ticked = [step._replace(is_tick=i == number) for i, step in enumerate(steps[member])]
        return steps | {member: tuple(ticked)}


def orders(a: int, b: int, *, apart: int = 1) -> list[Order]:
    """Return all orders of so many commits; different timestamps are so far `apart`."""
    return [
        Order(tuple(FIRST + apart * at for at in x), tuple(FIRST + apart * at for at in y))
        for x, y in _ranks(a, b, 0)
    ]


def _ranks(a: int, b: int, rank: int) -> Iterator[tuple[list[int], list[int]]]:
    if not a and not b:
        yield [], []
    for of_a, of_b in ((1, 1), (1, 0), (0, 1)):
        if of_a <= a and of_b <= b:
            for x, y in _ranks(a - of_a, b - of_b, rank + 1):
                yield [rank] * of_a + x, [rank] * of_b + y
