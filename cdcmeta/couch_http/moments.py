"""A database at one moment, for many who ask at once: the same question is answered once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

import anyio

from cdcmeta.changes.feed import Change, Walk
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State

QUESTIONS_MAX = 8
"""Questions of one moment whose answers are kept; further ones are answered one by one."""


class Begun(NamedTuple):
    """A walk and the first changes it told; where they are all, `last_seq` and `pending`, too."""

    walk: Walk
    changes: list[Change]
    end: tuple[Sequence, int] | None


class Moment:
    """A state, and what was asked of it; used by the event loop only."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._locks: dict[Hashable, anyio.Lock] = {}
        self._begun: dict[Hashable, Begun | None] = {}

    def keep(self, question: Hashable, begun: Begun) -> None:
        """Keep an answer for who asks the same, unless its walk goes on."""
        self._locks.setdefault(question, anyio.Lock())
        self._begun[question] = begun if begun.walk.ended else None

    async def begun(self, question: Hashable, begin: Callable[[], Awaitable[Begun]]) -> Begun:
        """Return what `begin` does; a walk that it ended is shared by all who ask the same.

        A longer one is nobody else's, for it is read as fast as one client takes it.
        """
        if question not in self._locks and len(self._locks) == QUESTIONS_MAX:
            return await begin()
        async with self._locks.setdefault(question, anyio.Lock()):
            if question not in self._begun:
                begun = await begin()
                self.keep(question, begun)
                return begun
        return self._begun[question] or await begin()
