"""Every schedule of a small world, depth first; states that were seen before are not left again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol


class Choices:
    """Follows a script of choices, then takes the first of each; remembers how many there were."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self._counts: list[int] = []

    def pick(self, count: int) -> int:
        """Return one of `count` choices."""
        at = len(self.taken)
        choice = self._script[at] if at < len(self._script) else 0
        self.taken.append(choice)
        self._counts.append(count)
        return choice

    def instead(self, choice: int) -> None:
        """Replace the newest choice."""
        self.taken[-1] = choice

    @property
    def is_last(self) -> bool:
        """Whether the next choice is the last one of the script."""
        return len(self.taken) == len(self._script) - 1

    @property
    def is_new(self) -> bool:
        """Whether the script is over."""
        return len(self.taken) >= len(self._script)

    def following(self) -> list[int] | None:
        """Return the next script in depth-first order, None after the last."""
        for at in reversed(range(len(self.taken))):
            if self.taken[at] + 1 < self._counts[at]:
                return [*self.taken[:at], self.taken[at] + 1]
        return None


class World(Protocol):
    """One run of a world."""

    trace: list[str]
    over: bool

    def operations(self) -> list[tuple[str, Callable[[], None]]]:
        """Return what may happen next."""
        ...

    def key(self) -> Hashable:
        """Return all that later operations depend on, and all that was told to anybody."""
        ...


@dataclass
class Explored:
    """How much was explored."""

    states: int = 0
    runs: int = 0
    operations: int = 0

    def __str__(self) -> str:
        return f"{self.states:,} states, {self.runs:,} runs, {self.operations:,} operations"


def explore(make: Callable[[Choices], World], *, merge: bool = True) -> Explored:
    """Run all schedules of a world; an error has the schedule as its note.

    With `merge`, a run ends at a state that an earlier run has reached. Operations that change
    nothing are tried in each state, and never followed.
    """
    explored = Explored()
    seen: set[Hashable] | None = set() if merge else None
    script: list[int] | None = []
    while script is not None:
        choices = Choices(script)
        run = Run(make(choices), choices, seen, explored)
        try:
            run.go_on()
        except BaseException as e:
            e.add_note(f"script {choices.taken}\n  " + "\n  ".join(run.world.trace))
            raise
        explored.runs += 1
        script = choices.following()
    return explored


@dataclass
class Run:
    """One run of a world, which follows a script and then goes on until nothing is new."""

    world: World
    choices: Choices
    seen: set[Hashable] | None
    explored: Explored

    def go_on(self) -> None:
        """Follow the script, then take the first operation of each state that is new."""
        while not self.choices.is_new:
            is_last = self.choices.is_last
            if self._operate(self.world.key() if is_last else None):
                return
        while True:
            key = self.world.key()
            if self.seen is not None:
                if key in self.seen:
                    return
                self.seen.add(key)
            self.explored.states += 1
            if self._operate(key):
                return

    def _operate(self, key: Hashable) -> bool:
        """Let the next operation happen, and while they change nothing, the one after it.

        Returns whether nothing is left to happen in this state.
        """
        world, choices = self.world, self.choices
        operations = world.operations()
        if not operations:
            return True
        at = choices.pick(len(operations))
        while True:
            label, operation = operations[at]
            world.trace.append(label)
            self.explored.operations += 1
            picks = len(choices.taken)
            operation()
            if world.over:
                return True
            if key is None or len(choices.taken) > picks or world.key() != key:
                return False
            at += 1
            if at == len(operations):
                return True
            choices.instead(at)
