"""One member of a fleet, opened when it is first needed; tried again later if it was away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from snapkv import errors
from snapkv.base.clocks import Clock
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import GetResult
from snapkv.fleet.agreement import RESTORED, Agreement
from snapkv.fleet.member import Member, archive_of, location_of, naming
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.reading.deadline import within
from snapkv.store.open import Keys, open_to_read
from snapkv.store.store import SnapshotKV
from snapkv.timeline.moment import Moment
from snapkv.timeline.tracker import Tracker
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.archive.engine import ArchiveEngine
    from snapkv.archive.small_archives import SmallArchive

Found = TypeVar("Found")

CLOSED = "the fleet was closed"
AWAY_S = 1.0
"""The default of `MemberLink.away_s`."""
SILENT = errors.EngineUnavailableError, errors.EngineBusyError
AWAY = *SILENT, errors.StoreNotFoundError
"""The errors for which nothing of a member may be known for now; a store that does not exist may be
created later."""


class Silence:
    """Why something is not asked for a while: it did not answer."""

    def __init__(self) -> None:
        self._note: tuple[float, errors.SnapKVError] | None = None

    @property
    def noted(self) -> errors.SnapKVError | None:
        """Why it did not answer the last time; None if it did, or is asked again now."""
        return None if self._note is None else self._note[1]

    @property
    def error(self) -> errors.SnapKVError | None:
        """Why it is not asked now; None if it is."""
        note = self._note
        return note[1] if note is not None and monotonic() < note[0] else None

    def note(self, error: errors.SnapKVError, seconds: float) -> None:
        """Let it not be asked for some seconds, unless that is so already."""
        if self.error is None:
            self._note = monotonic() + seconds, error

    def check(self) -> None:
        """Raise why it is not asked now, if so."""
        note = self._note
        if (error := self.error) is not None:
            raise errors.another(error)
        if self._note is note:  # not one that another thread has just made
            self._note = None

    @contextmanager
    def asking(self, seconds: float) -> Iterator[None]:
        """Check, then run a block that asks it; note if it does not answer."""
        self.check()
        try:
            yield
        except SILENT as e:
            self.note(e, seconds)
            raise


class MemberLink:
    """A member and its open store, observed keys or archive; safe for threads.

    `clock` is the clock of the ticks of `finish`. A member that did not answer counts as away for
    `away_s` seconds: calls then do not wait for it.
    """

    def __init__(
        self,
        member: Member,
        timeout: float,
        clock: Clock,
        on_identified: Callable[[MemberLink], None],
    ) -> None:
        self.member, self.timeout, self.on_identified = member, timeout, on_identified
        self._clock, self._known = clock, 0
        self.away_s = AWAY_S
        self.waits = True  # for a network or a disk: then members are asked in parallel
        self.store_id: bytes | None = None
        self._epoch = self._created = 0  # of the history that the open store had at first
        self._reads: Keys | None = member.opened
        self._tracker: Tracker | None = None  # of a store whose times are plain: a hot path
        self._small_archive: SmallArchive | None = None  # of an archive alone that is not opened
        self._reached = 0  # the number of its newest manifest
        self._early = TIMESTAMP_MAX  # a time at which it had a commit
        self._kept: SnapshotKV | None = None  # the archive alone, of a member that has both
        self._agreement = Agreement()
        self.silence = Silence()  # of the member itself
        self.archive_silence = Silence()  # of the archive beside the engine
        self.listing_silence = Silence()  # of an archive alone, when its bucket is listed
        self._closed = False
        self._opening = threading.Lock()
        renew_in_children(self)
        if member.opened is not None:
            self.store_id = member.opened.reader.format.store_id
            self._follow(member.opened)
            on_identified(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._opening = threading.Lock()

    @property
    def name(self) -> str:
        """The member's name."""
        return self.member.name

    def reads(self) -> Keys:
        """Return the open member; raises what opening raises, for `away_s` without trying again."""
        if self._reads is not None:
            return self._reads
        with self._opening:
            if self._closed:
                raise errors.StoreClosedError(CLOSED)
            if self._reads is None:
                with self.silence.asking(self.away_s):
                    found = location_of(self.member, archive=False)
                    opened = open_to_read(found, clock=self._clock, read_timeout=self.timeout)
                    self._identified(opened)
                    self._follow(opened)
                    self._reads = opened
            return self._reads

    def _follow(self, reads: Keys) -> None:
        """Take the history that an open member has now as that of the fleet."""
        core, member = reads.reader, self.member
        tracker = core.timeline.tracker
        self.waits = core.engine.remote or member.is_archive
        self._epoch, self._created = tracker.continuity.epoch, tracker.creation.revision
        always = not member.joined and member.left == TIMESTAMP_MAX
        if core.policy.at_head and always and not member.is_archive:
            self._tracker = tracker

    def archive(self) -> SnapshotKV | None:
        """Return the archive of a member that has one beside its engine; None without.

        After it could not be reached to open it, calls fail at once for `away_s`.
        """
        member = self.member
        if member.archive is None or self._kept is not None:
            return self._kept
        with self._opening:
            if self._kept is None and not self._closed:
                with self.archive_silence.asking(self.away_s):
                    opened = open_to_read(archive_of(member), read_timeout=self.timeout)
                assert isinstance(opened, SnapshotKV)
                self._identified(opened)
                self._kept = opened
            return self._kept

    @contextmanager
    def asking_archive(self) -> Iterator[None]:
        """Bound a block that asks the archive beside the engine by the time of a call.

        After one that did not answer, such blocks fail at once for `away_s`.
        """
        with self.archive_silence.asking(self.away_s), within(self.timeout):
            yield

    def in_archive(
        self,
        reads: Keys | None,
        timestamp: int,
        revision: int,
        mark: Mark | None,
        why: errors.CompactedError,
    ) -> tuple[SnapshotKV, Moment]:
        """Return the archive beside the engine, and its moment of a time that the engine has shown.

        The engine, open as `reads`, has compacted it since. It showed a commit of that revision:
        `mark`, None if no more of it is known. Raises `why` without an archive, `CompactedError` if
        that has another commit at the time, or none, and what opening it raises.
        """
        if reads is not self._reads or self.member.archive is None:
            raise why
        with self.asking_archive():
            kept = self.archive()
            if kept is None:
                raise errors.StoreClosedError(CLOSED)
            engine: ArchiveEngine = kept.reader.engine  # type: ignore[assignment]
            if engine.manifest.high < revision:
                engine.refresh()
            with suppress(errors.CompactedError):
                found = kept.reader.policy.at(timestamp if mark is None else mark.timestamp)
                if found.mark == mark or (mark is None and found.revision == revision):
                    if mark is None:
                        self._show(kept, timestamp, found.mark)
                    return kept, found
        earliest = why.earliest if why.unit == "timestamp" else None
        raise errors.CompactedError(timestamp, earliest, archive=engine.archived)

    def _identified(self, reads: Keys) -> None:
        """Close a store that was opened, unless it is the one that the fleet knows by that name."""
        try:
            self._identify(reads.reader.format.store_id)
        except errors.SnapKVError:
            reads.close()
            raise

    def _identify(self, found: bytes) -> None:
        """Raise `StoreRecreatedError` unless a store is the one that the fleet knows."""
        if self.store_id is None:
            self.store_id = found
            try:
                self.on_identified(self)
            except errors.SnapKVError:
                self.store_id = None  # the next call has to find out, too
                raise
        elif found != self.store_id:
            raise errors.StoreRecreatedError(
                f"{self.member.url} holds another store now: {found.hex()} instead of "
                f"{self.store_id.hex()}"
            )

    @property
    def known(self) -> int:
        """The newest timestamp up to which the member was seen to be final; 0 if none is known."""
        if self._reads is not None:
            tracker = self._reads.reader.timeline.tracker
            if tracker.continuity.epoch == self._epoch:
                self._known = max(self._known, tracker.newest.timestamp)
        return self._known

    @property
    def newest(self) -> Mark | None:
        """The newest commit that engine or archive have shown in the fleet's history; or None."""
        found = []
        if (reads := self._reads) is not None:
            tracker = reads.reader.timeline.tracker
            newest = tracker.newest  # first: the epoch grows before the mark changes
            found = [newest] if tracker.continuity.epoch == self._epoch else []
        if (kept := self._kept) is not None:
            found.append(kept.reader.timeline.tracker.newest)
        return max(found, key=lambda mark: mark.ordinal, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether it is open, and was without a commit when it was last asked."""
        reads = self._reads
        newest = None if reads is None else reads.reader.timeline.tracker.newest
        return newest is not None and newest.ordinal <= CREATION_ORDINAL

    def ask(self, read: Callable[[Keys], Found]) -> Found:
        """Return what a function reads from the open member, within the time of a call.

        Raises what it raises; errors name the member. After one that did not answer, calls fail
        at once for `away_s`.
        """
        with naming(self.name), self.silence.asking(self.away_s), within(self.timeout):
            return read(self.reads())

    def check_history(self, reads: Keys) -> None:
        """Raise `StoreRestoredError` if the engine was restored since the fleet opened it.

        No round trip, but after the archive beside it has answered.
        """
        if reads is self._kept:
            return
        with naming(self.name):
            self._agreement.confirm(reads.reader)
            if reads.reader.timeline.tracker.continuity.epoch != self._epoch:
                raise errors.StoreRestoredError(RESTORED)

    def _show(self, kept: SnapshotKV, timestamp: int, mark: Mark) -> None:
        """Let the archive answer, unless the engine has shown another history; errors name it."""
        reads, engine = self._reads, None
        if reads is not None and reads.reader.timeline.tracker.continuity.epoch == self._epoch:
            engine = reads.reader
        with naming(self.name):
            self._agreement.show(kept.reader, engine, timestamp, mark)

    def _check_same(self, reads: Keys) -> None:
        """Raise `StoreRestoredError` if the engine turns out to be restored; 0 or 1 round trip."""
        reads.reader.timeline.tracker.continuity.assure()
        self.check_history(reads)

    def point(self, stored: bytes, revision: int) -> GetResult | None:
        """Return the answer of a point read in the fleet's history; None if a `Moment` has to."""
        assert self._tracker is not None
        return self._tracker.point(stored, revision, self._epoch)

    def moment(self, timestamp: int) -> Moment:
        """Return the moment of a time that is known to be final. Errors name the member."""
        assert self._reads is not None
        with naming(self.name):
            moment = self._reads.reader.policy.at(timestamp)
            if moment.epoch != self._epoch:
                raise errors.StoreRestoredError(RESTORED)
        return moment

    def archive_or_none(self) -> SnapshotKV | None:
        """Return the archive beside the engine; None without one, or if it cannot be read."""
        try:
            return self.archive()
        except (*AWAY, errors.ArchiveError):
            return None

    def close(self) -> None:
        """Close what the fleet has opened; may be repeated."""
        with self._opening:
            self._closed = True
        for reads in (self._kept, self._reads):
            if reads is not None and reads is not self.member.opened:
                reads.close()
