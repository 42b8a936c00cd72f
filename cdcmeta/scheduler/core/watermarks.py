"""Watermarks of a changefeed: the minimum over its tables, bounded by its barrier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress
from cdcmeta.scheduler.protocol.messages import Barrier

TABLE_BARRIERS_MAX = 256


class Watermarks(NamedTuple):
    """The progress common to all tables; timestamps in microseconds."""

    checkpoint: int
    """Every change before it, of any table, is downstream."""
    resolved: int
    """Every change before it has been captured, of any table except new ones."""
    synced: int
    """When the last change of any table went downstream."""


CANNOT_PROCEED = Watermarks(0, 0, 0)
"""The progress of a table is unknown: the stored one stays."""


def barrier_of(everywhere: int, tables: Mapping[str, int]) -> Barrier:
    """Return a barrier with the 256 earliest of `tables`; the next one bounds all tables.

    O(tables log tables).
    """
    earliest = sorted(tables.items(), key=lambda each: (each[1], each[0]))
    kept, rest = earliest[:TABLE_BARRIERS_MAX], earliest[TABLE_BARRIERS_MAX:]
    if rest:
        everywhere = min(everywhere, rest[0][1]) if everywhere else rest[0][1]
    return Barrier(everywhere, tuple(sorted(kept)))


def advance(
    desired: Iterable[str], sets: Mapping[str, ReplicationSet], barrier: Barrier
) -> Watermarks:
    """Return the progress of all desired tables, or `CANNOT_PROCEED` if one has no set.

    A set counts with its last known progress in every state: a table that no capture replicates
    holds the changefeed back, so no change is lost. Without tables the barrier counts. O(tables).
    """
    try:
        known = [sets[table].progress for table in desired]
    except KeyError:
        return CANNOT_PROCEED
    return least_of(known, barrier)


def least_of(known: Sequence[Progress], barrier: Barrier) -> Watermarks:
    """Return the progress common to all, bounded by the barrier. O(known)."""
    bounds = (barrier.everywhere, *(ts for _, ts in barrier.tables))
    least = min((ts for ts in bounds if ts), default=0)
    if not known:
        return Watermarks(least, barrier.everywhere or least, 0)
    checkpoints, resolved, synced = zip(*known, strict=True)
    checkpoint = min(checkpoints)
    return Watermarks(min(checkpoint, least) if least else checkpoint, min(resolved), max(synced))


class ReportedProgress:
    """How far an owner reported that a changefeed is, and how much of that is stored.

    The reported progress never goes back, and the caller may store it at any later time. So a new
    table begins only when all of it is stored: otherwise the stored checkpoint could pass the
    table's start.
    """

    def __init__(self) -> None:
        self.stored = NO_PROGRESS
        """The stored progress, which later owners read."""
        self.reported = CANNOT_PROCEED
        """The farthest progress that was reported."""
        self.current = CANNOT_PROCEED
        """What to report now."""
        self.behind = 0
        """The least progress of all tables while some are behind the stored one, else 0."""
        self._floors: Mapping[str, int] = {}

    def update_stored(self, checkpoint: int, floors: Mapping[str, int]) -> None:
        """Note the stored checkpoint, and the checkpoints of tables that begin before it."""
        farthest = max(checkpoint, self.stored.checkpoint)
        self.stored, self._floors = Progress(farthest, farthest), floors

    def floor_of(self, table: str) -> Progress:
        """Return where a table begins."""
        own = self._floors.get(table)
        return self.stored if own is None else Progress(own, own)

    @property
    def is_stored(self) -> bool:
        """Whether everything that was reported is stored."""
        return self.stored.checkpoint >= self.reported.checkpoint

    def repeat(self) -> None:
        """Report the same again, until it is stored."""
        self.current = self.reported

    def advance(self, known: Sequence[Progress], barrier: Barrier) -> None:
        """Compute what to report from the progress of all desired tables. O(known)."""
        found, reported = least_of(known, barrier), self.reported
        if found == CANNOT_PROCEED:
            self.current = found
            return
        # a barrier may be behind changes that are downstream already; the reported progress stays.
        # So does a reported checkpoint, where new tables begin; their resolved may have to catch up
        least = self.stored.checkpoint
        self.behind = found.checkpoint if found.checkpoint < least else 0
        self.current = self.reported = Watermarks(
            max(found.checkpoint, reported.checkpoint, least),
            max(found.resolved, reported.resolved, least),
            max(found.synced, reported.synced),
        )
