"""One member of a fleet, opened when it is first needed, and opened again after it was away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeVar

from snapkv.clock import Clock, monotonic
from snapkv.dates import dated
from snapkv.engine.contract import GetResult, KeyValue
from snapkv.errors import (
    ArchiveError,
    CompactedError,
    EngineBusyError,
    EngineUnavailableError,
    NotObservedError,
    SnapKVError,
    StoreClosedError,
    StoreNotFoundError,
    StoreRecreatedError,
    StoreRestoredError,
)
from snapkv.fleet.agreement import RESTORED, Agreement
from snapkv.fleet.member import Member, named
from snapkv.fleet.source import MemberSource
from snapkv.layout import CREATION_ORDINAL, Mark
from snapkv.lifecycle import renew_in_children
from snapkv.observing.observe import Observed, observe
from snapkv.reading.deadline import within
from snapkv.reading.snapshot import Snapshot
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV
from snapkv.timeline.moment import Moment
from snapkv.timeline.tracker import Tracker
from snapkv.times import TIMESTAMP_MAX

if TYPE_CHECKING:
    from snapkv.archive.whole import WholeArchive

Reads = SnapshotKV | Observed[str]
Found = TypeVar("Found")
ReadSpan = Callable[[Reads, int | None, int], Iterator[Found]]
"""Reads the times in (since, until] of an open member."""

State = Literal["live", "archive", "behind", "missing", "absent"]
LATE = "behind", "missing"
"""States of a member that makes a moment not final."""

AWAY_S = 1.0
"""The default of `Connection.away_s`."""
SILENT = EngineUnavailableError, EngineBusyError
AWAY = *SILENT, StoreNotFoundError
"""Why nothing of a member may be known for now; a store that does not exist may be created yet."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a moment of the fleet shows of one member.

    `state`: "live" (its engine answered) or "archive" (its archive did), both final; "behind" (it
    has no final state at that time yet), "missing" (nothing of it is known at that time: `error`
    says why), "absent" (it did not belong to the fleet, or had no commit yet). `timestamp` and
    `revision` are those of the newest commit in the moment, and `newest` is the timestamp up to
    which the member is final, as far as it is known; 0 where there is none.
    """

    state: State
    timestamp: int = 0
    revision: int = 0
    newest: int = 0
    final: bool = False
    error: str | None = None


ABSENT = Seen("absent", final=True)


class Pin:
    """One member in a moment: what is seen of it, and where its keys are read, None for nowhere.

    A hot path: for a time whose `revision` is known, the `Moment` is made when it is needed. An
    archive that may be read as a whole (`whole`) is opened when one of its keys is needed, and
    then may turn out to be absent: see `settled`.
    """

    __slots__ = (
        "_moment",
        "_seen",
        "connection",
        "reads",
        "revision",
        "state",
        "timestamp",
        "whole",
    )

    def __init__(
        self,
        connection: Connection,
        state: State,
        reads: Reads | None = None,
        moment: Moment | None = None,
        seen: Seen | None = None,
        timestamp: int = 0,
        revision: int = 0,
        whole: WholeArchive | None = None,
    ) -> None:
        self.connection, self.state, self.reads = connection, state, reads
        self._moment, self._seen = moment, seen
        self.timestamp, self.revision, self.whole = timestamp, revision, whole

    def settled(self) -> Pin:
        """Return the same after finding out where its keys are read: of an archive, it opens it."""
        if self.whole is not None:
            found = self.connection.pin(self.timestamp, whole=False, of_token=True)
            self.state, self.reads = found.state, found.reads
            self._moment, self._seen, self.whole = found._moment, found._seen, None
        return self

    @property
    def moment(self) -> Moment | None:
        """The member's own moment, None if nothing of it is seen."""
        self.settled()
        if self._moment is None and self.revision:
            self._moment = self.connection.moment(self.timestamp)
        return self._moment

    def get(self, key: str) -> KeyValue | None:
        """Return the version of a key, within the time of a call; `reads` is not None.

        Errors name the member.
        """
        assert self.reads is not None
        stored, connection = self.reads.keyspace.encode(key), self.connection
        if not connection.waits:
            return self._get(stored)
        try:
            with within(connection.timeout):
                return self._get(stored)
        except SnapKVError as e:
            raise named(e, connection.name)  # noqa: B904

    def _get(self, stored: bytes) -> KeyValue | None:
        if self.revision:
            found = self.connection.point(stored, self.revision)
            if found is not None:
                return found.kv
        assert self.moment is not None
        try:
            (kv,) = self.moment.get((stored,))
        except SnapKVError as e:
            raise named(e, self.connection.name)  # noqa: B904
        return kv

    def snapshot(self) -> Snapshot[str] | None:
        """Return the member as a snapshot, None if nothing of it is seen."""
        if self.moment is None or self.reads is None:
            return None
        connection = self.connection
        source = MemberSource(connection.name, self.moment)
        return Snapshot(source, self.reads.keyspace, read_timeout=connection.timeout)

    @property
    def why(self) -> str:
        """Why the member has no final state at the moment."""
        seen = self.seen
        if seen.error is not None:
            return seen.error
        return "nothing of it is known" if not seen.newest else f"final up to {dated(seen.newest)}"

    def left_out(self) -> Pin:
        """Return the same without a place to read from."""
        return Pin(self.connection, self.state, seen=replace(self.seen, timestamp=0, revision=0))

    def stale(self) -> Pin:
        """Return the same as a state that is not final; if nothing is seen, that stays so."""
        if self.moment is None:
            return self
        return Pin(self.connection, "behind", self.reads, self.moment)

    @property
    def seen(self) -> Seen:
        """What the moment shows of the member."""
        self.settled()
        if self._seen is None:
            moment = self.moment
            assert moment is not None
            mark, final = moment.mark, self.state != "behind"
            newest = max(self.connection.known, mark.timestamp)
            self._seen = Seen(self.state, mark.timestamp, mark.revision, newest, final)
        return self._seen


class Connection:
    """A member and its store, observed keys or archive; safe for threads.

    `clock` is that of the ticks of `finish`. A member that did not answer counts as away for
    `away_s` seconds: calls then do not wait for it.
    """

    def __init__(
        self,
        member: Member,
        timeout: float,
        clock: Clock,
        on_identified: Callable[[Connection], None],
    ) -> None:
        self.member, self.timeout, self.on_identified = member, timeout, on_identified
        self._clock, self._known = clock, 0
        self.away_s = AWAY_S
        self.store_id: bytes | None = None
        self._epoch = self._created = 0  # of the history that the open store had at first
        self._reads: Reads | None = member.opened
        self._tracker: Tracker | None = None  # of a store whose times are plain: a hot path
        self._whole: WholeArchive | None = None  # of an archive alone that is not opened
        self._reached = 0, 0  # the number of its newest manifest, and up to when it is final
        self._kept: SnapshotKV | None = None  # the archive alone, of a member that has both
        self._agreement = Agreement()
        self._away: tuple[float, SnapKVError] | None = None
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

    @property
    def waits(self) -> bool:
        """Whether a call may wait for a network or a disk: then members are asked in parallel."""
        reads = self._reads
        return reads is None or reads.reader.engine.remote or self.member.is_archive

    @property
    def known(self) -> int:
        """The newest timestamp up to which the member was seen to be final; 0 if none is known."""
        if self._reads is not None:
            tracker = self._reads.reader.timeline.tracker
            if tracker.continuity.epoch == self._epoch:
                self._know(tracker.newest.timestamp)
        return self._known

    def _know(self, timestamp: int) -> None:
        if timestamp > self._known:
            self._known = timestamp

    @property
    def is_empty(self) -> bool:
        """Whether it is open, and was without a commit when it was last asked."""
        reads = self._reads
        return (
            reads is not None and reads.reader.timeline.tracker.newest.ordinal <= CREATION_ORDINAL
        )

    def reached(self, newest: tuple[int, int] | SnapKVError) -> int | SnapKVError:
        """Take the manifest and timestamp that a listing shows; return that, or why not.

        If there was no listing, it is the timestamp that was seen last.
        """
        if isinstance(newest, SnapKVError):
            return self.known or newest
        if not newest[1]:
            return named(ArchiveError(f"no archive in {self.member.url}"), self.name)
        self._reached = newest
        self._know(newest[1])
        return self.known

    # --- opening ---

    def reads(self) -> Reads:
        """Return the open member; raises what opening raises, for `away_s` without trying again."""
        if self._reads is not None:
            return self._reads
        with self._opening:
            if self._closed:
                raise StoreClosedError("the fleet was closed")
            if self._reads is None:
                self._check_away()
                try:
                    opened = self._identified(self._open())
                    self._follow(opened)
                    self._reads = opened
                except SILENT as e:
                    self._note_away(e)
                    raise
            return self._reads

    def _open(self) -> Reads:
        member = self.member
        if member.prefix is not None:
            return observe(
                member.url,
                prefix=member.prefix,
                name=member.store_name,
                clock=self._clock,
                read_timeout=self.timeout,
                **member.options,
            )
        storage = member.storage if member.is_archive else None
        opened: SnapshotKV = open_store(
            member.url,
            name=member.store_name,
            create=False,
            clock=self._clock,
            read_timeout=self.timeout,
            storage=storage,
            **member.options,
        )
        return opened

    def _follow(self, reads: Reads) -> None:
        """Take the history that an open member has now as that of the fleet."""
        core, member = reads.reader, self.member
        tracker = core.timeline.tracker
        self._epoch, self._created = tracker.continuity.epoch, tracker.creation.revision
        always = not member.joined and member.left == TIMESTAMP_MAX
        if core.policy.at_head and always and not member.is_archive:
            self._tracker = tracker

    def archive(self) -> SnapshotKV | None:
        """Return the archive of a member that has one beside its engine; None without."""
        member = self.member
        if member.archive is None or self._kept is not None:
            return self._kept
        with self._opening:
            if self._kept is None and not self._closed:
                url = f"archive:{member.archive.removeprefix('archive:')}"
                opened = open_store(
                    url, storage=member.storage, create=False, read_timeout=self.timeout
                )
                self._identified(opened)
                self._kept = opened
            return self._kept

    def _identified(self, reads: Reads) -> Reads:
        """Return a store that was opened, if it is the one that the fleet knows by that name."""
        try:
            self._identify(reads.reader.format.store_id)
        except SnapKVError:
            reads.close()
            raise
        return reads

    def _identify(self, found: bytes) -> None:
        """Raise `StoreRecreatedError` unless a store is the one that the fleet knows."""
        if self.store_id is None:
            self.store_id = found
            try:
                self.on_identified(self)
            except SnapKVError:
                self.store_id = None  # the next call has to find out, too
                raise
        elif found != self.store_id:
            raise StoreRecreatedError(
                f"{self.member.url} holds another store now: {found.hex()} instead of "
                f"{self.store_id.hex()}"
            )

    @property
    def away(self) -> SnapKVError | None:
        """Why the member did not answer the last call; None if it did."""
        return None if self._away is None else self._away[1]

    def _check_away(self) -> None:
        away = self._away
        if away is not None:
            until, error = away
            if monotonic() < until:
                raise error
            self._away = None

    def _note_away(self, error: SnapKVError) -> None:
        """Let calls fail at once for a while if it did not answer, unless they do already."""
        if self._away is None and isinstance(error, SILENT):
            self._away = monotonic() + self.away_s, error

    # --- asking ---

    def ask(self, read: Callable[[Reads], Found]) -> Found:
        """Return what a function reads from the open member, within the time of a call.

        Raises what it raises; errors name the member. After one that did not answer, calls fail
        at once for `away_s`.
        """
        try:
            self._check_away()
            with within(self.timeout):
                return read(self.reads())
        except SILENT as e:
            self._note_away(e)
            raise named(e, self.name)  # noqa: B904  (the same error)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904

    def steps(
        self,
        read: ReadSpan[Found],
        since: int | None,
        until: int,
        *,
        newest_first: bool = False,
    ) -> Iterator[Found]:
        """Yield what a function yields of (since, until]; of its archive what the engine has not.

        An archive that ends before `until` is continued by the engine; if that is away, its error
        is raised before the first step. An engine that goes away later ends it with an error. That
        it is still the history of the fleet is checked before its first step and after its last.
        """
        error: SnapKVError | None = None
        try:
            if since is None and self._lost_some():
                found: Iterator[Found] | None = None
            else:
                found = self._begun(read, since, until)
        except (*AWAY, CompactedError) as e:
            error, found = e, None
        if found is None:
            found = self._joined(read, since, until, newest_first, error)
        yield from self._in_time(found)
        if self._reads is not None and not isinstance(error, AWAY):
            self.ask(self._check_same)

    def _begun(self, read: ReadSpan[Found], since: int | None, until: int) -> Iterator[Found]:
        """Return what a function yields from the engine, after its first step."""

        def first(reads: Reads) -> Iterator[Found]:
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
        """Return what the archive has, joined with what the engine has after it.

        `error` is what the engine alone raised; it is raised if the archive does not help.
        """
        kept = self.archive_or_none()
        head = None if kept is None else _head_mark(kept)
        reached = 0 if head is None else head.timestamp
        if kept is None or head is None or (reached < until and isinstance(error, AWAY)):
            assert error is not None
            raise error
        self._show(kept, reached, head)
        older = read(kept, since, min(reached, until))
        if reached >= until:
            return older
        newer = self._begun(read, reached, until)
        return chain(newer, older) if newest_first else chain(older, newer)

    def _lost_some(self) -> bool:
        """Return whether the engine has compacted commits that the archive has."""
        kept = None if self.member.archive is None else self.archive_or_none()
        if kept is None:
            return False
        compacted = self.ask(lambda reads: reads.reader.engine.compacted_revision())
        return kept.reader.engine.compacted_revision() < compacted > self._created

    def _in_time(self, steps: Iterator[Found]) -> Iterator[Found]:
        """Yield steps, each within the time of a call."""
        while True:
            with within(self.timeout):
                try:
                    step = next(steps)
                except StopIteration:
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
            with suppress(*AWAY, ArchiveError):
                if (kept := self.archive()) is not None:
                    self._know(_head(kept))
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
        self._know(newest)
        return newest

    def _newest(self, reads: Reads) -> int:
        newest = _head(reads)
        self.check_history(reads)
        return newest

    def check_history(self, reads: Reads) -> None:
        """Raise `StoreRestoredError` if the engine was restored since the fleet opened it.

        No round trip, but after the archive beside it has answered.
        """
        if reads is self._kept:
            return
        try:
            self._agreement.confirm(reads.reader)
            if reads.reader.timeline.tracker.continuity.epoch != self._epoch:
                raise StoreRestoredError(RESTORED)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904

    def _show(self, kept: SnapshotKV, timestamp: int, mark: Mark) -> None:
        """Let the archive answer, unless the engine has shown another history; errors name it."""
        reads, engine = self._reads, None
        if reads is not None and reads.reader.timeline.tracker.continuity.epoch == self._epoch:
            engine = reads.reader
        try:
            self._agreement.show(kept.reader, engine, timestamp, mark)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904

    def _check_same(self, reads: Reads) -> None:
        """Raise `StoreRestoredError` if the engine turns out to be restored; 0 or 1 round trip."""
        reads.reader.timeline.tracker.continuity.assure()
        self.check_history(reads)

    def archive_or_none(self) -> SnapshotKV | None:
        """Return the archive beside the engine; None without one, or if it cannot be read."""
        try:
            return self.archive()
        except (*AWAY, ArchiveError):
            return None

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
        if self._away is not None:  # then its archive may answer
            return None
        return Pin(self, "live", self._reads, None, None, timestamp, revision)

    def point(self, stored: bytes, revision: int) -> GetResult | None:
        """Return the answer of a point read in the fleet's history; None if a `Moment` has to."""
        assert self._tracker is not None
        return self._tracker.point(stored, revision, self._epoch)

    def moment(self, timestamp: int) -> Moment:
        """Return the moment of a time that is known to be final. Errors name the member."""
        assert self._reads is not None
        try:
            moment = self._reads.reader.policy.at(timestamp)
            if moment.epoch != self._epoch:
                raise StoreRestoredError(RESTORED)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904
        return moment

    def _pin_whole(self, timestamp: int) -> Pin | None:
        """Return a closed archive at a time that it has, if it may be read as a whole."""
        whole, number = self._whole, self._reached[0]
        if whole is None or whole.manifest.number < number or whole.manifest.resolved < timestamp:
            from snapkv.archive.places import open_files  # these need pyarrow
            from snapkv.archive.publishing import newest as newest_of
            from snapkv.archive.publishing import numbered

            files = open_files(self.member.url.removeprefix("archive:"), self.member.storage)
            manifest = numbered(files, number) if number else newest_of(files)
            if manifest is None:
                return self.missing(f"no archive in {self.member.url}: nothing was recorded yet")
            self._identify(manifest.source.id)
            from snapkv.archive.whole import WholeArchive  # it needs pyarrow

            self._whole = whole = WholeArchive(files, manifest)
        self._know(whole.manifest.resolved)
        if timestamp > whole.manifest.resolved or not whole.is_small:
            return None
        if (why := whole.missing(timestamp)) is not None:
            return self.missing(why)
        if timestamp < whole.began:
            return Pin(self, "absent", seen=ABSENT)
        return Pin(self, "archive", timestamp=timestamp, whole=whole)

    def pin(self, timestamp: int, *, whole: bool = True, of_token: bool = False) -> Pin:
        """Return the member at a moment; costs as `at` of a store. Errors name the member.

        What no engine and no archive answers is "missing"; what is compacted, too. A commit that a
        token names (`of_token`) may be older than the time at which the member joined.
        """
        if not of_token and not self.member.has(timestamp):
            return Pin(self, "absent", seen=ABSENT)
        try:
            if whole and self.member.is_archive and self._reads is None:
                self._check_away()
                with within(self.timeout):
                    if (found := self._pin_whole(timestamp)) is not None:
                        return found
            if self._away is None and (reads := self._reads) is not None:
                with within(self.timeout if self.waits else None):
                    return self._pinned(reads, timestamp)
            return self.ask(lambda reads: self._pinned(reads, timestamp))
        except (*AWAY, CompactedError) as e:
            self._note_away(e)
            return self._pinned_in_archive(timestamp, e)
        except NotObservedError as e:
            if e.first is None or e.first <= timestamp:  # the first tick came during this call
                return self.missing(str(e))
            return Pin(self, "absent", seen=ABSENT)
        except SnapKVError as e:
            raise named(e, self.name)  # noqa: B904

    def _pinned(self, reads: Reads, timestamp: int) -> Pin:
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
            kept = self.archive()
            if kept is None:
                return self.missing(str(why))
            self._know(_head(kept))
            moment = kept.reader.policy.at(timestamp)
            self._show(kept, timestamp, moment.mark)
        except (*AWAY, ArchiveError, CompactedError) as e:
            return self.missing(f"{why}; its archive: {e}")
        if moment.mark.ordinal <= CREATION_ORDINAL:
            return Pin(self, "absent", seen=ABSENT)
        return Pin(self, "archive" if moment.final else "behind", kept, moment)

    def missing(self, why: str) -> Pin:
        """Return the member as one of which nothing is known at a moment."""
        seen = Seen("missing", newest=self.known, error=why)
        return Pin(self, "missing", seen=seen)

    # --- life ---

    def close(self) -> None:
        """Close what the fleet has opened; may be repeated."""
        with self._opening:
            self._closed = True
            opened = [self._kept, None if self.member.opened is not None else self._reads]
        for reads in opened:
            if reads is not None:
                reads.close()


def begun(steps: Iterator[Found]) -> Iterator[Found]:
    """Return an iterator after its first step: if that fails, nothing was returned."""
    for first in steps:
        return chain((first,), steps)
    return iter(())


def _head(reads: Reads) -> int:
    """Return the timestamp of the newest commit or tick, of an archive as it is now."""
    return _head_mark(reads).timestamp


def _head_mark(reads: Reads) -> Mark:
    core = reads.reader
    core.check_open()
    if hasattr(core.engine, "refresh"):
        core.engine.refresh()
    return core.timeline.head()
