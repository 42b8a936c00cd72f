"""Agreement of a member's engine with the archive beside it: one history, or an error.

The archive answers while the engine is away. The engine may be restored to a backup meanwhile, or
it was before the fleet was opened, and then the archive has commits that the engine has lost. A
fleet must not show one of the two after it has shown the other one. For example, numbers are
timestamps of commits:

    archive     engine       a call of the fleet
    10 20 30    away         at(30) shows 30, from the archive
    10 20 30    10 44 50     at(30): the engine has no 30, which was shown: StoreRestoredError

    10 20 30    10 44 50     at(30) shows 10, from the engine
    10 20 30    away         at(30): the archive has 20 and 30 after 10: StoreRestoredError
    10 20 30    away         at(15) shows 10, as both have it
"""

from __future__ import annotations

from contextlib import suppress

from snapkv.errors import CompactedError, StoreRestoredError
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.reading.reader import Reader
from snapkv.timeline.tracker import Tracker

RESTORED = (
    "the engine was restored or replaced since the fleet was opened: what was final may have "
    "changed; open the fleet anew"
)
APART = (
    "the archive shows commits that the engine does not: it was restored since they were recorded; "
    "leave archive= out"
)


class Agreement:
    """What the archive of a member has shown that its engine has not confirmed yet."""

    def __init__(self) -> None:
        self._shown: Mark | None = None
        self._confirmed: Mark | None = None

    def show(self, archive: Reader, engine: Reader | None, timestamp: int, mark: Mark) -> None:
        """Take that the archive shows a commit as the newest one at a time; no round trip.

        Raises `StoreRestoredError` if the engine, None if it is not open, has shown another one.
        """
        if engine is not None:
            _compare(archive, engine.timeline.tracker, timestamp)
        if mark.ordinal > CREATION_ORDINAL and mark != self._confirmed:
            shown = self._shown
            if shown is None or mark.ordinal > shown.ordinal:
                self._shown = mark

    def confirm(self, engine: Reader) -> None:
        """Make sure that the engine has what the archive has shown; 1 or 2 round trips, if any.

        Raises `StoreRestoredError` if it has not, also at the next call.
        """
        shown = self._shown
        if shown is None:
            return
        try:
            engine.timeline.verify(shown)
        except StoreRestoredError as e:
            raise StoreRestoredError(RESTORED) from e
        engine.timeline.tracker.see(shown)  # a restore to what is older is noticed from now on
        self._confirmed = shown
        if self._shown is shown:
            self._shown = None


def _compare(archive: Reader, tracker: Tracker, timestamp: int) -> None:
    """Raise `StoreRestoredError` if an archive contradicts the engine; it may have less."""
    newest = tracker.newest
    for at in {min(timestamp, newest.timestamp), newest.timestamp}:
        known = newest if at == newest.timestamp else _known(tracker, at)
        if known is None or known.ordinal <= CREATION_ORDINAL:
            continue
        with suppress(CompactedError):
            found = archive.timeline.at(at).mark
            if found.ordinal >= known.ordinal and found != known:
                raise StoreRestoredError(APART)


def _known(tracker: Tracker, timestamp: int) -> Mark | None:
    """Return the newest commit at or below a time, if that needs no round trip."""
    return tracker.floor(timestamp)[0] or tracker.lookup.blocks.find(timestamp)
