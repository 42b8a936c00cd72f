"""How far a changefeed is: the least of its tables, and what holds it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress
from cdcmeta.scheduler.protocol.messages import Barrier

TABLE_BARRIERS_MAX = 256


class Watermarks(NamedTuple):
    """How far all tables are together; timestamps in microseconds."""

    checkpoint: int
    """Every change before it, of any table, is downstream."""
    resolved: int
    """Every change before it has been captured, of any table but those that are new."""
    synced: int
    """When the last change of any table went downstream."""


CANNOT_PROCEED = Watermarks(0, 0, 0)
"""Something is not known: what was known before stays."""


def barrier_of(everywhere: int, tables: Mapping[str, int]) -> Barrier:
    """Return a barrier with the 256 earliest of `tables`; the next one then holds all back.

    O(tables log tables).
    """
    earliest = sorted(tables.items(), key=lambda each: (each[1], each[0]))
    kept, rest = earliest[:TABLE_BARRIERS_MAX], earliest[TABLE_BARRIERS_MAX:]
    if rest:
        everywhere = min(everywhere, rest[0][1]) if everywhere else rest[0][1]
    return Barrier(everywhere, tuple(sorted(kept)))


def advance(
    wanted: Iterable[str], sets: Mapping[str, ReplicationSet], barrier: Barrier
) -> Watermarks:
    """Return how far all wanted tables are, or `CANNOT_PROCEED` when one is not known.

    Whatever state a set is in, it holds the others at what it last knew: a table that nobody
    replicates is not lost. Without tables it is the barrier that counts. O(tables).
    """
    bounds = (barrier.everywhere, *(ts for _, ts in barrier.tables))
    least = min((ts for ts in bounds if ts), default=0)
    try:
        known = [sets[table].progress for table in wanted]
    except KeyError:
        return CANNOT_PROCEED
    if not known:
        return Watermarks(least, barrier.everywhere or least, 0)
    checkpoints, resolved, synced = zip(*known, strict=True)
    checkpoint = min(checkpoints)
    return Watermarks(min(checkpoint, least) if least else checkpoint, min(resolved), max(synced))


class ToldProgress:
    """How far an owner told that a changefeed is, and how much of that is stored.

    What was told never goes back, and may be stored at any time after. So a table that is new
    begins only once all of it is: else the store could come to be beyond where the table began.
    """

    def __init__(self) -> None:
        self.stored = NO_PROGRESS
        """What the store has, and a later owner will know."""
        self.told = CANNOT_PROCEED
        """The farthest that was told."""
        self.current = CANNOT_PROCEED
        """What to tell now."""

    def take_in(self, checkpoint: int) -> None:
        """Note what the store has."""
        farthest = max(checkpoint, self.stored.checkpoint)
        self.stored = Progress(farthest, farthest)

    @property
    def is_stored(self) -> bool:
        """Whether the store has all that was told."""
        return self.stored.checkpoint >= self.told.checkpoint

    def repeat(self) -> None:
        """Tell what was told, until it is stored."""
        self.current = self.told

    def advance(
        self, wanted: Iterable[str], sets: Mapping[str, ReplicationSet], barrier: Barrier
    ) -> None:
        """Look how far all tables are. O(tables)."""
        found, told = advance(wanted, sets, barrier), self.told
        if found == CANNOT_PROCEED:
            self.current = found
            return
        # a barrier may be behind what is downstream already: that stays true. So does what was told
        # of a checkpoint, for what is new begins there; its resolved may have to catch up
        least = self.stored.checkpoint
        self.current = self.told = Watermarks(
            max(found.checkpoint, told.checkpoint, least),
            max(found.resolved, told.resolved, least),
            max(found.synced, told.synced),
        )
