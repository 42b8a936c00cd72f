"""Progress of a changefeed: the minimum over its tables, bounded by its barrier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress, Rest, SetState, Token
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


def assignment_hash(table: str, token: Token) -> int:
    """Return 63 bits of a hash of an assignment; a digest is the XOR of several.

    >>> assignment_hash("t", Token(9, 1)) == assignment_hash("t", Token(9, 2))
    False
    """
    text = f"{token.owner}.{token.number}.{table}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


class Digest:
    """Assignments with their digest, kept as they come and go; O(1) each."""

    def __init__(self) -> None:
        self._hashes: dict[str, int] = {}
        self._digest = 0

    def put(self, table: str, token: Token) -> None:
        """Add a table, or replace its token."""
        new = assignment_hash(table, token)
        self._digest ^= self._hashes.get(table, 0) ^ new
        self._hashes[table] = new

    def remove(self, table: str) -> None:
        """Remove a table; absent ones are ignored."""
        self._digest ^= self._hashes.pop(table, 0)

    def __contains__(self, table: str) -> bool:
        return table in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)

    def rest(self, listed: Collection[str], progress: Progress) -> Rest:
        """Return the report of all but some tables. O(listed)."""
        among = [self._hashes[table] for table in listed if table in self._hashes]
        digest = self._digest
        for each in among:
            digest ^= each
        return Rest(progress, len(self._hashes) - len(among), digest)


class Coverage:
    """What an owner knows of tables without a report of their own, by capture.

    A capture that is asked briefly lists the tables that have news: tables that are not replicated,
    are behind, or were asked about. Of the rest it reports how many they are, a digest of their
    names and tokens, and the progress that each has at least (`Rest`). The owner believes that only
    if it expects exactly these tables there.

    A table is *covered* once a capture's rest included it: it is at least at the capture's
    progress. The other tables of REPLICATING sets are *apart*.
    """

    def __init__(self) -> None:
        self._replicated: dict[str, Digest] = {}
        self._apart: dict[str, dict[str, None]] = {}
        self._progress: dict[str, Progress] = {}

    def note(self, before: ReplicationSet | None, after: ReplicationSet) -> None:
        """Follow a set that changed its state or its places. O(1)."""
        table = after.table
        if before is not None and before.state is SetState.REPLICATING and before.primary:
            self._replicated[before.primary.capture].remove(table)
            self._apart[before.primary.capture].pop(table, None)
        if after.state is SetState.REPLICATING and after.primary:
            capture = after.primary.capture
            self._replicated.setdefault(capture, Digest()).put(table, after.primary.token)
            self._apart.setdefault(capture, {})[table] = None

    def progress_of(self, rset: ReplicationSet) -> Progress:
        """Return how far a covered table is at least; nothing for one that is apart. O(1)."""
        primary = rset.primary
        if rset.state is not SetState.REPLICATING or primary is None:
            return NO_PROGRESS
        if rset.table in self._apart.get(primary.capture, ()):
            return NO_PROGRESS
        return self._progress.get(primary.capture, NO_PROGRESS)

    def is_expected(self, capture: str, listed: Collection[str], rest: Rest) -> bool:
        """Return whether a capture's rest is exactly what the owner expects. O(listed)."""
        known = self._replicated.get(capture) or Digest()
        return known.rest(listed, rest.progress) == rest

    def is_older(self, capture: str, progress: Progress) -> bool:
        """Return whether a rest is from before the last one: progress must not go back."""
        last = self._progress.get(capture, NO_PROGRESS)
        return progress.checkpoint < last.checkpoint or progress.resolved < last.resolved

    def cover(self, capture: str, listed: Collection[str], progress: Progress) -> None:
        """Take a capture's rest, which is expected and not older than the last. O(listed)."""
        known = self._replicated.get(capture)
        if known is not None:
            self._apart[capture] = {table: None for table in listed if table in known}
        synced = max(progress.synced, self._progress.get(capture, NO_PROGRESS).synced)
        self._progress[capture] = progress._replace(synced=synced)

    def covered(self, capture: str, tables: Collection[str]) -> list[str]:
        """Return which of some tables are covered at a capture. O(tables)."""
        known, apart = self._replicated.get(capture), self._apart.get(capture, {})
        if known is None or capture not in self._progress:
            return []
        return [table for table in tables if table in known and table not in apart]

    def forget_capture(self, capture: str) -> None:
        """Forget a capture that has ended, and whose tables have."""
        for known in (self._replicated, self._apart, self._progress):
            known.pop(capture, None)

    def known(
        self, desired: Mapping[str, float], sets: Mapping[str, ReplicationSet]
    ) -> list[Progress]:
        """Return the progress of all desired tables of REPLICATING sets; once for the covered ones.

        O(captures + tables that are apart).
        """
        found = []
        for capture, replicated in self._replicated.items():
            apart = self._apart[capture]
            if len(replicated) > len(apart):
                found.append(self._progress.get(capture, NO_PROGRESS))
            found += [sets[table].progress for table in apart if table in desired]
        return found
