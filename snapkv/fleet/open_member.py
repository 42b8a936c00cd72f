"""One member of a fleet, and what it answers: up to when it is final, moments, steps of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from snapkv.errors import (
    ArchiveError,
    CompactedError,
    HistoryGapError,
    NotObservedError,
    SnapKVError,
    StoreRestoredError,
)
from snapkv.fleet.agreement import RESTORED
from snapkv.fleet.member import named, naming
from snapkv.fleet.member_link import AWAY, SILENT, MemberLink
from snapkv.fleet.pin import ABSENT, Pin, Seen, State
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.reading.deadline import within
from snapkv.reading.reader import Reader
from snapkv.reading.watches import Watch
from snapkv.store.open import Keys
from snapkv.times import dated

if TYPE_CHECKING:
    from snapkv.archive.manifest import Manifest
    from snapkv.fleet.archive_reach import ArchiveReach

Found = TypeVar("Found")
ReadSpan = Callable[[Keys, int | None, int], Iterator[Found]]
"""Reads the times in (since, until] of an open member."""


class OpenMember(MemberLink):
    """A member that answers; costs are as for a store's own calls. Errors name the member."""

    def reached(self, newest: ArchiveReach | SnapKVError) -> int | SnapKVError:
        """Take the manifest and timestamp that a listing shows; return that, or why not.

        Without a listing, it is the timestamp that was seen last.
        """
        if isinstance(newest, SnapKVError):
            self.listing_silence.note(newest, self.away_s)
            return self.known or newest
        if not newest.timestamp:
            return named(ArchiveError(f"no archive in {self.member.url}"), self.name)
        self._reached, self._early = newest.number, newest.early
        self._known = max(self._known, newest.timestamp)
        return self.known

    def steps(
        self,
        read: ReadSpan[Found],
        since: int | None,
        until: int,
        ts_of: Callable[[Found], int],
        *,
        newest_first: bool = False,
    ) -> Iterator[Found]:
        """Yield what a function yields of (since, until]; of its archive what the engine has not.

        What the engine compacts between two steps comes from the archive, too. See `_steps`.
        """
        last, same, skipped = 0, 0, 0  # the newest time, and how many steps of it were yielded
        while True:
            moved = False
            try:
                for step in self._steps(read, since, until, newest_first=newest_first):
                    timestamp = ts_of(step)
                    if timestamp == last and skipped < same and not moved:
                        skipped += 1
                        continue
                    same = same + 1 if timestamp == last else 1
                    last, moved = timestamp, True
                    yield step
                return
            except CompactedError:
                if self.member.archive is None or not (last and moved):
                    raise
            skipped = 0
            since, until = (since, last) if newest_first else (last - 1, until)

    def _steps(
        self, read: ReadSpan[Found], since: int | None, until: int, *, newest_first: bool
    ) -> Iterator[Found]:
        """Yield the steps of the engine, or of the archive continued by it, in one history."""
        error: SnapKVError | None = None
        found: Iterator[Found] | None = None
        try:
            if since is not None or not self._lost_some():
                found = self._begun(read, since, until)
        except (*AWAY, CompactedError) as e:
            error = e
        if found is None:
            found = self._joined(read, since, until, newest_first, error)
        yield from self._in_time(found)
        if self._reads is not None and not isinstance(error, AWAY):
            self.ask(self._check_same)

    def _begun(self, read: ReadSpan[Found], since: int | None, until: int) -> Iterator[Found]:
        """Return what a function yields from the engine, after its first step."""

        def first(reads: Keys) -> Iterator[Found]:
            self._check_same(reads)
            return begun(read(reads, since, until))

        return self.ask(first)

    def _joined(
        self,
        read: ReadSpan[Found],
        since: int | None,
        until: int,
        newest_first: bool,
        error: SnapKVError | None,
    ) -> Iterator[Found]:
        """Return what archive and engine have, or raise what the engine alone has raised."""
        kept = self.archive() if error is None else self.archive_or_none()
        head = None if kept is None else _head(kept)
        reached = 0 if head is None else head.timestamp
        if kept is None or head is None or (reached < until and isinstance(error, AWAY)):
            assert error is not None
            raise error
        self._show(kept, reached, head)
        older = read(kept, since, min(reached, until))
        if reached >= until:
            return older
        try:
            newer = self._begun(read, reached, until)
        except CompactedError:
            if _head(kept).timestamp > reached:  # more was recorded, and compacted, meanwhile
                return self._joined(read, since, until, newest_first, error)
            if since is not None:
                raise
            return self._begun(read, None, until)  # what is left, as of a store that has an archive
        return chain(newer, older) if newest_first else chain(older, newer)

    def _lost_some(self) -> bool:
        """Return whether the engine has compacted commits that the archive has."""
        if self.member.archive is None:
            return False
        compacted = self.ask(lambda reads: reads.reader.engine.compacted_revision())
        if compacted <= self._created:
            return False
        try:
            kept = self.archive()
        except ArchiveError:  # nothing was recorded yet
            return False
        return kept is not None and kept.reader.engine.compacted_revision() < compacted

    def _in_time(self, steps: Iterator[Found]) -> Iterator[Found]:
        """Yield steps, each within the time of a call."""
        while True:
            with within(self.timeout):
                step = next(steps, None)
            if step is None:
                return
            yield step

    def finish(self, timestamp: int) -> None:
        """Make sure that no commit at or below a timestamp can come any more: tick above it."""
        self.ask(lambda reads: reads.reader.finish(timestamp))

    def resolved(self) -> int:
        """Return the timestamp up to which the member is final; one round trip.

        Of a member that is away: that of its archive, or the newest one that was seen. Raises
        `NotObservedError` if it has no commit yet, `EngineUnavailableError` if nothing is known.
        """
        try:
            newest = self.ask(self._newest)
        except AWAY:
            with suppress(*AWAY, ArchiveError), self.asking_archive():
                if (kept := self.archive()) is not None:
                    self._known = max(self._known, _head(kept).timestamp)
            if not self.known:
                raise
            return self.known
        if not newest:
            error = NotObservedError(0)
            error.args = (
                "it has no commit yet, so no moment of it is final: start `snapkv fleet tick`, or "
                "say since when it belongs to the fleet: joined=",
            )
            raise named(error, self.name)
        self._known = max(self._known, newest)
        return newest

    def _newest(self, reads: Keys) -> int:
        newest = _head(reads).timestamp
        self.check_history(reads)
        return newest

    def saw(self, mark: Mark) -> None:
        """Take a commit that a watch of the member has brought.

        From now on the next read notices if the engine has lost it. Raises `StoreRestoredError` if
        the engine was restored since the fleet opened it. No round trip, except to confirm what
        the archive beside the engine has shown.
        """
        reads = self.reads()
        reads.reader.timeline.tracker.see_followed(mark)
        self.check_history(reads)

    def check(self) -> None:
        """Raise `StoreRestoredError` if the engine was restored; a round trip after some time."""
        self.ask(self._check_same)

    def archived_watch(
        self, prefix: str | None, since: int, why: CompactedError
    ) -> tuple[Watch[str], int]:
        """Watch the archive beside the engine; return also the timestamp at which it ends.

        It ends where a gap begins. Raises `HistoryGapError` if `since` is in a gap, and `why` if
        the archive ends before it.
        """
        with naming(self.name):
            kept = self.archive_or_none()
            head = None if kept is None else _head(kept)
            if kept is None or head is None or head.timestamp <= since:
                raise why
            self._show(kept, head.timestamp, head)
            gaps = [gap for gap in _manifest(kept.reader).gaps if gap.before > since]
            gap = min(gaps, key=lambda gap: gap.after, default=None)
            if gap is not None and gap.after <= since:
                raise HistoryGapError(gap.after, gap.before)
            ends = head.timestamp if gap is None else min(head.timestamp, gap.after)
            return kept.watch(prefix, since), ends

    def check_gaps(self, since: int, until: int) -> None:
        """Raise `HistoryGapError` if an archive alone has a gap that ends in (since, until]."""
        if self.member.is_archive:
            for gap in _manifest(self.reads().reader).gaps:
                if since < gap.before <= until and gap.after < self.member.left:
                    raise named(HistoryGapError(gap.after, gap.before), self.name)

    def quick(self, timestamp: int) -> Pin | None:
        """Return the member at a time whose revision is known; None if `pin` has to find out."""
        tracker = self._tracker
        if tracker is None:
            return None
        newest, revision = tracker.newest, tracker.ring.revision_at(timestamp)
        if not revision and timestamp == newest.timestamp:
            revision = newest.revision
        if revision <= self._created or tracker.continuity.epoch != self._epoch:
            return None
        if self.silence.noted is not None:  # then its archive may answer
            return None
        return Pin(self, "live", self._reads, None, None, timestamp, revision)

    def _pin_small_archive(self, timestamp: int) -> Pin | None:
        """Return a closed archive at a time that it has, if it may be read as a whole."""
        small, number = self._small_archive, self._reached
        if small is None or small.manifest.number < number or small.manifest.resolved < timestamp:
            from snapkv.archive import manifest as manifests
            from snapkv.archive import open_files  # these need pyarrow
            from snapkv.archive.small_archives import SmallArchive
            from snapkv.fleet.archive_reach import reached_in

            files = open_files(self.member.url.removeprefix("archive:"), self.member.storage)
            if not number:
                self.listing_silence.check()
                number, _, self._early = reached_in(files)
            manifest = manifests.numbered(files, number) if number else manifests.newest(files)
            if manifest is None:
                return self.missing(f"no archive in {self.member.url}: nothing was recorded yet")
            self._identify(manifest.source.id)
            self._small_archive = small = SmallArchive(files, manifest)
        self._known = max(self._known, small.manifest.resolved)
        if timestamp > small.manifest.resolved or not small.is_small:
            return None
        if (why := small.manifest.missing(timestamp)) is not None:
            return self.missing(why)
        if timestamp < self._early and timestamp < small.began:
            return Pin(self, "absent", seen=ABSENT)
        return Pin(
            self,
            "archive",
            timestamp=timestamp,
            small_archive=small,
            open_pin=lambda: self.pin(timestamp, may_stay_closed=False, of_token=True),
        )

    def pin(self, timestamp: int, *, may_stay_closed: bool = True, of_token: bool = False) -> Pin:
        """Return the member at a moment; costs as `at` of a store. Errors name the member.

        What no engine and no archive answers is "missing"; what is compacted, too. A commit that a
        token names (`of_token`) may be older than the time at which the member joined.
        """
        if not of_token and not self.member.has(timestamp):
            return Pin(self, "absent", seen=ABSENT)
        try:
            if may_stay_closed and self.member.is_archive and self._reads is None:
                self.silence.check()
                with within(self.timeout):
                    if (found := self._pin_small_archive(timestamp)) is not None:
                        return found
            if self.silence.noted is None and (reads := self._reads) is not None:
                with within(self.timeout if self.waits else None):
                    return self._pinned(reads, timestamp)
            return self.ask(lambda reads: self._pinned(reads, timestamp))
        except (*AWAY, CompactedError) as e:
            if isinstance(e, SILENT):
                self.silence.note(e, self.away_s)
            return self._pinned_in_archive(timestamp, e)
        except NotObservedError as e:
            if e.first is None or e.first <= timestamp:  # the first tick came during this call
                return self.missing(str(e))
            return Pin(self, "absent", seen=ABSENT)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904

    def _pinned(self, reads: Keys, timestamp: int) -> Pin:
        core = reads.reader
        core.check_open()
        self._agreement.confirm(core)
        moment = core.policy.at(timestamp)
        mark = moment.mark
        if self.member.is_archive and timestamp > mark.timestamp:
            core.engine.refresh()  # type: ignore[attr-defined]
            moment = core.policy.at(timestamp)
            mark = moment.mark
        if moment.epoch != self._epoch:
            raise StoreRestoredError(RESTORED)
        if self.member.is_archive and (why := _manifest(core).missing(timestamp)) is not None:
            return self.missing(why)
        # not the newest mark: what was committed during this call is not in the moment
        if mark.ordinal <= CREATION_ORDINAL:
            if moment.final:
                return Pin(self, "absent", seen=ABSENT)
            return self.missing("it has no commit yet")
        state: State = "archive" if self.member.is_archive else "live"
        return Pin(self, state if moment.final else "behind", reads, moment)

    def _pinned_in_archive(self, timestamp: int, why: SnapKVError) -> Pin:
        """Return the member as its archive has it; else it is missing, for the reason given."""
        try:
            with self.asking_archive():
                kept = self.archive()
                if kept is None:
                    return self.missing(str(why))
                self._known = max(self._known, _head(kept).timestamp)
                moment = kept.reader.policy.at(timestamp)
            self._show(kept, timestamp, moment.mark)
            if (lost := _manifest(kept.reader).missing(timestamp)) is not None:
                return self.missing(_with_archive(why, f"its archive: {lost}"))
        except CompactedError as e:
            return self.missing(_with_archive(why, e.archive or str(e)))
        except (*AWAY, ArchiveError) as e:
            return self.missing(_with_archive(why, f"its archive: {e}"))
        if isinstance(why, CompactedError) and not moment.final:  # nothing has what came after it
            end = dated(moment.mark.timestamp)
            return self.missing(_with_archive(why, f"its archive ends before that, at {end}"))
        if moment.mark.ordinal <= CREATION_ORDINAL:
            return Pin(self, "absent", seen=ABSENT)
        return Pin(self, "archive" if moment.final else "behind", kept, moment)

    def missing(self, why: str) -> Pin:
        """Return the member as one of which nothing is known at a moment."""
        return Pin(self, "missing", seen=Seen("missing", newest=self.known, error=why))


def begun(steps: Iterator[Found]) -> Iterator[Found]:
    """Return an iterator after its first step: if that fails, nothing was returned."""
    for first in steps:
        return chain((first,), steps)
    return iter(())


def _with_archive(why: SnapKVError, archive: str) -> str:
    """Return why an engine does not answer, and why the archive beside it does not."""
    if isinstance(why, CompactedError):
        return str(CompactedError(why.requested, why.earliest, unit=why.unit, archive=archive))
    return f"{why}; {archive}"


def _manifest(archive: Reader) -> Manifest:
    manifest: Manifest = archive.engine.manifest  # type: ignore[attr-defined]
    return manifest


def _head(reads: Keys) -> Mark:
    """Return the newest commit or tick, of an archive as it is now."""
    core = reads.reader
    core.check_open()
    if hasattr(core.engine, "refresh"):
        core.engine.refresh()
    return core.timeline.head()
