"""The commits that wrote keys, as far as compaction has left them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from snapkv.errors import CompactedError
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.reading.reader import Reader

LOOKUPS_MAX = 1_024
"""Up to so many revisions are looked up one by one; for more, the log is read once."""


class Written(NamedTuple):
    """The commit that wrote a key."""

    timestamp: int
    revision: int


class CommitTimes:
    """The commits of many keys; holds 16 bytes for each commit once it has read the log.

    A key belongs to the first mark at or after its revision. In a store that is the commit that
    wrote it, unless another program wrote it.
    """

    def __init__(self, reader: Reader, until: Mark) -> None:
        self._reader, self._until = reader, until
        self._found: dict[int, Written | None] = {}
        self._log: _Log | None = None

    def of(self, revisions: Sequence[int]) -> list[int | None]:
        """Return the timestamps of commits, None if a commit was compacted.

        Two round trips for 128 new revisions, one for each 128 more. Beyond 1,024 revisions, and
        always for observed keys, one replay of the log.
        """
        return [found and found.timestamp for found in self.commits(revisions)]

    def commits(self, revisions: Sequence[int]) -> list[Written | None]:
        """Return the commits themselves; costs as `of`."""
        while True:
            try:
                if self._log is None and not self._look_up(set(revisions) - self._found.keys()):
                    self._log = _Log(self._reader, self._until)
                find = self._found.__getitem__ if self._log is None else self._log.first_at
                return [find(revision) for revision in revisions]
            except CompactedError:  # compaction went on; it only rises, and ends at the head
                continue

    def _look_up(self, revisions: set[int]) -> bool:
        """Find the commits at some revisions; return False if that needs the log."""
        if not revisions:
            return True
        timeline = self._reader.timeline
        few = len(revisions) + len(self._found) <= LOOKUPS_MAX
        if not few or not self._reader.policy.at_head:
            return False
        point = max(self._reader.engine.compacted_revision(), timeline.tracker.creation.revision)
        in_force = timeline.stamps(sorted({max(point, revision) for revision in revisions}))
        marks = [timeline.tracker.creation if found is None else found[0] for found in in_force]
        at = {mark.revision: Written(mark.timestamp, mark.revision) for mark in marks}
        for revision in revisions:
            if revision not in at and not (
                revision < point and revision < first_known(self._reader, marks[0])
            ):
                return False  # another program wrote it
        self._found |= {revision: at.get(revision) for revision in revisions}
        return True


class _Log:
    """The marks up to a mark, by their revisions."""

    def __init__(self, reader: Reader, until: Mark) -> None:
        oldest = reader.timeline.oldest()
        self._first_known = first_known(reader, oldest)
        self._revisions, self._timestamps = array("Q"), array("Q")
        if oldest.ordinal > CREATION_ORDINAL:
            self._add(oldest)
        last = oldest
        for last, _ in reader.timeline.replay(oldest, until):
            self._add(last)
        if last.revision < until.revision and (after := reader.timeline.following(last)):
            self._add(after)  # an observed moment may lie between two marks

    def _add(self, mark: Mark) -> None:
        self._revisions.append(mark.revision)
        self._timestamps.append(mark.timestamp)

    def first_at(self, revision: int) -> Written | None:
        """Return the first mark at or after a revision, None if that was compacted."""
        at = bisect_left(self._revisions, revision)
        if revision < self._first_known or at == len(self._revisions):
            return None
        return Written(self._timestamps[at], self._revisions[at])


def first_known(reader: Reader, oldest: Mark) -> int:
    """Return the first revision whose mark is known while `oldest` is the oldest one left.

    Older revisions may belong to marks before that one, unless there were none.
    """
    if oldest.ordinal > CREATION_ORDINAL + 1:
        return oldest.revision
    return reader.timeline.tracker.creation.revision + 1 if reader.policy.at_head else 0
