"""Tables without news: a report has one entry for all of them.

A capture that is asked briefly lists the tables that have news: tables that are not replicated,
are behind, or were asked about. Of the rest it reports how many they are, a digest of their names
and tokens, and the progress that each has at least (`Rest`). The owner believes that only if it
expects exactly these tables there. For example, A replicates t1 to t3; t2 fails, and the report of
that is lost:

    A reports briefly       the owner expects           so
    rest: t1 t3, at 90      t1 t2 t3                    it takes nothing, and asks for all
    t1 t3, and t2 absent                                it places t2 elsewhere
    rest: t1 t3, at 95      t1 t3                       both are at 95

Had the owner believed the first report, t2 would count as replicated up to 90.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b

from cdcmeta.scheduler.core.replication_set import ReplicationSet
from cdcmeta.scheduler.core.states import NO_PROGRESS, Progress, Rest, SetState, Token


def mark(table: str, token: Token) -> int:
    """Return 63 bits of a hash of an assignment; a digest is the XOR of several.

    >>> mark("t", Token(9, 1)) == mark("t", Token(9, 1)) != mark("t", Token(9, 2))
    True
    """
    text = f"{token.owner}.{token.number}.{table}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


class Digest:
    """Assignments with their digest, kept as they come and go; O(1) each."""

    def __init__(self) -> None:
        self._marks: dict[str, int] = {}
        self._whole = 0

    def put(self, table: str, token: Token) -> None:
        """Add a table, or replace its token."""
        new = mark(table, token)
        self._whole ^= self._marks.get(table, 0) ^ new
        self._marks[table] = new

    def remove(self, table: str) -> None:
        """Remove a table; absent ones are ignored."""
        self._whole ^= self._marks.pop(table, 0)

    def marks(self) -> Iterable[tuple[str, int]]:
        """Return the tables with their hashes."""
        return self._marks.items()

    def __contains__(self, table: str) -> bool:
        return table in self._marks

    def __len__(self) -> int:
        return len(self._marks)

    def rest(self, listed: Collection[str], progress: Progress) -> Rest:
        """Return the report of all but some tables. O(listed)."""
        among = [self._marks[table] for table in listed if table in self._marks]
        digest = self._whole
        for each in among:
            digest ^= each
        return Rest(progress, len(self._marks) - len(among), digest)


class Coverage:
    """What an owner knows of tables without a report of their own, by capture.

    A table is *covered* once a capture's rest included it: it is at least at the capture's
    progress. The other tables of REPLICATING sets are *apart*: their sets have their progress.
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

    def check(self, sets: Mapping[str, ReplicationSet]) -> None:
        """Raise `AssertionError` if it differs from the sets. O(tables)."""
        found: dict[tuple[str, str], int] = {}
        for table, rset in sets.items():
            if rset.state is SetState.REPLICATING and rset.primary is not None:
                found[rset.primary.capture, table] = mark(table, rset.primary.token)
        known = {
            (capture, table): each
            for capture, digest in self._replicated.items()
            for table, each in digest.marks()
        }
        assert known == found, "the index of replicated tables"
        for capture, apart in self._apart.items():
            assert all((capture, table) in found for table in apart), (capture, apart)

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
        """Return the progress of all desired tables of REPLICATING sets; once for those covered.

        O(captures + tables that are apart).
        """
        found = []
        for capture, replicated in self._replicated.items():
            apart = self._apart[capture]
            if len(replicated) > len(apart):
                found.append(self._progress.get(capture, NO_PROGRESS))
            found += [sets[table].progress for table in apart if table in desired]
        return found
