"""Named checks, one after the other, and the outcome of each."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TextIO

PASSED, FAILED, TO_DO, LEFT_OUT = "ok", "FAILED", "to do", "left out"


class CheckFailed(Exception):
    """A check found a mistake; the message says what is wrong."""


class LeftOut(Exception):
    """A check cannot run on this machine; the message says why."""


class ToDo(Exception):
    """Something is left to do before a release; the message says what."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a check ended, why, and how long it took."""

    check: str
    state: str
    why: str
    seconds: float


class Checklist:
    """Runs checks, prints each outcome at once, and keeps all of them.

    >>> checklist = Checklist(sys.stdout, clock=lambda: 0.0)
    >>> with checklist.check("one and one"):
    ...     if 1 + 1 != 2:
    ...         raise CheckFailed("they are not two")
    ok        one and one (0.0 s)
    >>> checklist.exit_code(final=True)
    0
    """

    def __init__(
        self, out: TextIO = sys.stdout, *, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._out, self._clock = out, clock

    @contextmanager
    def check(self, name: str) -> Iterator[None]:
        """Run the block as a check; it goes on after one that failed."""
        started, state, why = self._clock(), PASSED, ""
        try:
            yield
        except CheckFailed as e:
            state, why = FAILED, str(e)
        except ToDo as e:
            state, why = TO_DO, str(e)
        except LeftOut as e:
            state, why = LEFT_OUT, str(e)
        outcome = Outcome(name, state, why, self._clock() - started)
        self.outcomes.append(outcome)
        reason = "".join(f"\n          {line}" for line in why.splitlines())
        self._out.write(f"{state:<9} {name} ({outcome.seconds:.1f} s){reason}\n")
        self._out.flush()

    def exit_code(self, *, final: bool) -> int:
        """Return 1 if a check failed, or if a final run has something to do or left out."""
        counts = Counter(each.state for each in self.outcomes)
        return int(bool(counts[FAILED] or (final and (counts[TO_DO] or counts[LEFT_OUT]))))

    def summary(self) -> str:
        """Return how many checks ended in each state."""
        counts = Counter(each.state for each in self.outcomes)
        states = (PASSED, FAILED, TO_DO, LEFT_OUT)
        return ", ".join(f"{counts[state]} {state}" for state in states if counts[state])
