"""Sources of a record: a store, or keys below prefixes that other programs write.

Both bring `SourceCommit`s: a commit's mark, as a version of a timestamp key, and the changes that
it stamps, with keys as a store has them. A prefix has no marks. It gets one for each revision, with
the time at which the recorder saw it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Protocol

from snapkv.base.text import shortened_text
from snapkv.base.waiting import check_in_time, monotonic
from snapkv.clock import HybridClock
from snapkv.copying.recorded_values import RecordedValues
from snapkv.engine.contract import Engine, KeyEvent, KeyValue, WatchBatch, Watcher
from snapkv.errors import ArchiveError, CompactedError, FutureRevisionError, StoreRestoredError
from snapkv.layout import (
    FIRST_KEY,
    NOTE_BYTES_MAX,
    OBSERVES,
    Layout,
    Selection,
    SourceId,
    StampRecord,
    prefix_end,
    stamp_of,
)
from snapkv.reading.reader import Reader
from snapkv.reading.snapshot import paired
from snapkv.timeline.continuity import ContinuousWatcher
from snapkv.timeline.search import mark_of
from snapkv.times import format_time

OTHER_KEYS = "not-utf-8"
"""The space of recorded keys that are not text."""


class SourceCommit(NamedTuple):
    """A commit of a source: its mark, and the changes since the mark before it.

    `gap` is the note of a commit that ends a gap.
    """

    mark: KeyValue
    events: tuple[KeyEvent, ...]
    gap: str | None = None


class RecordedState(Protocol):
    """What a target shows of what it has recorded, to be compared with the source."""

    def newest_change(self) -> KeyEvent | None:
        """Return the newest recorded change, with the source's stored key and revision.

        None if the record does not show one: nothing has changed since a state was recorded, or
        the change is too long ago.
        """

    def differs(
        self, mark: KeyValue, state: Pages, comparable: Callable[[bytes, bytes], bool]
    ) -> bool:
        """Return whether a state of the source is not the one recorded at the newest mark.

        Its values, and the recorded ones of their keys, may be different if not `comparable`.
        """

    def recorded(self) -> Pages:
        """Yield the newest recorded versions in pages, with the keys of the source."""


def restored(engine: Engine, what: str) -> StoreRestoredError:
    """Return the error for a source that has another history than what was recorded."""
    return StoreRestoredError(
        f"{engine.url} has another history than what was recorded ({what}): it was restored "
        "since; record into a new place"
    )


class SourceFollower(ABC):
    """The steps of a source from some mark on."""

    @abstractmethod
    def has(self, revision: int) -> bool:
        """Return whether no step up to a revision is still to come."""

    @abstractmethod
    def next(self, timeout: float) -> SourceCommit | None:
        """Return the next step; None if `timeout` seconds bring none.

        Raises `CompactedError` if compaction overtook it, `StoreRestoredError`, and what engines
        raise.
        """

    def tick(self, *, own_revision: bool) -> SourceCommit | None:
        """Return a step that only shows that time has passed; None if the source has its own.

        With `own_revision`, None too if the source's revision has not moved since the last step.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """End the watch."""


class EngineFollower(SourceFollower):
    """The steps that a watch of an engine brings; no revision up to `reached` is still to come."""

    def __init__(self, watcher: ContinuousWatcher | Watcher, reached: int) -> None:
        self._watcher, self.reached = watcher, reached

    def has(self, revision: int) -> bool:
        """Return whether no step up to a revision is still to come."""
        return self.reached >= revision

    def next(self, timeout: float) -> SourceCommit | None:
        """Return the next step; None if `timeout` seconds bring none."""
        deadline = monotonic() + timeout
        while (batch := self._batch(max(0.0, deadline - monotonic()))) is not None:
            check_in_time()
            step = self._step(batch)
            self.reached = max(self.reached, batch.revision)
            if step is not None:
                return step
            if monotonic() >= deadline:  # a backlog of other keys is long
                return None
        return None

    def _batch(self, timeout: float) -> WatchBatch | None:
        """Return the next batch of the watch, which is of the history that is recorded."""
        return self._watcher.next(timeout)

    @abstractmethod
    def _step(self, batch: WatchBatch) -> SourceCommit | None:
        """Return the step that a batch completes; None if it completes none."""

    def close(self) -> None:
        """End the watch."""
        self._watcher.close()


class StoreSource:
    """A store that is recorded, from the oldest commit that compaction has left."""

    moved: str | None = None
    """What a commit has to say of other keys that are observed now; see `PrefixSource`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.layout, self.engine = reader.layout, reader.engine
        created = reader.timeline.tracker.creation.revision
        self.identity = SourceId(reader.format.store_id, reader.layout.name, created)
        self.is_archive = reader.url.startswith("archive:")

    def compacted_revision(self) -> int:
        """Return the revision before which changes are lost; one round trip."""
        return self.engine.compacted_revision()

    def newest(self, last: KeyValue) -> KeyValue:
        """Return the newest version of the timestamp key; one round trip."""
        return self._mark_at(0)

    def first(self) -> KeyValue:
        """Return the oldest readable version of the timestamp key; two round trips."""
        return self._mark_at(max(self.engine.compacted_revision(), self.identity.created))

    def after(self, last: KeyValue, compacted: int) -> KeyValue:
        """Return the version of the timestamp key at a revision; one round trip."""
        return self._mark_at(compacted)

    def _mark_at(self, revision: int) -> KeyValue:
        kv = self.engine.get(self.layout.ts, revision).kv
        if kv is None:
            raise ArchiveError(f"no store named {self.layout.name!r} in {self.engine.url}")
        StampRecord.decode(kv.value)
        return kv

    def check(self, last: KeyValue, record: RecordedState) -> None:
        """Compare a mark with the engine's at that revision; one round trip."""
        try:
            theirs = self.engine.get(self.layout.ts, last.mod_revision).kv
        except CompactedError:
            return
        except FutureRevisionError:
            theirs = None
        known = StampRecord.decode(last.value)
        found = None if theirs is None else StampRecord.decode(theirs.value)
        if found is None or (found.timestamp, found.nonce) != (known.timestamp, known.nonce):
            raise restored(self.engine, f"at revision {last.mod_revision}")

    def state(self, mark: KeyValue) -> Iterator[Sequence[KeyValue]]:
        """Yield the keys of the store in pages, none newer than the mark."""
        root, at = self.layout.root, mark.mod_revision
        reading = max(at, self.engine.compacted_revision())
        for page in self.engine.scan(root, prefix_end(root), revision=reading):
            kept = (kv for kv in page if self.is_recorded(kv.key))
            yield [kv if kv.mod_revision <= at else kv._replace(mod_revision=at) for kv in kept]

    def follow(self, last: KeyValue) -> StoreFollower:
        """Watch the whole store, so that changes and their mark arrive together.

        If compaction has passed the mark, the watch begins after the compacted revision. It is
        still complete if that mark is in force there. Two round trips more.
        """
        root, timeline = self.layout.root, self._reader.timeline
        start = max(last.mod_revision, self.engine.compacted_revision())
        if start > last.mod_revision and self._mark_at(start).version != last.version:
            raise CompactedError(last.mod_revision, start, unit="revision")
        mark = mark_of(last)
        watcher = timeline.watch(root, prefix_end(root), start + 1, lambda: timeline.verify(mark))
        return StoreFollower(self, watcher, last.mod_revision)

    def is_recorded(self, stored: bytes) -> bool:
        """Return whether a stored key is a user's."""
        return stored.startswith((self.layout.data.prefix, self.layout.spaces))


class StoreFollower(EngineFollower):
    """The commits of a store; changes by other programs belong to the next commit."""

    def __init__(self, source: StoreSource, watcher: ContinuousWatcher, reached: int) -> None:
        super().__init__(watcher, reached)
        self._source = source
        self._events: list[KeyEvent] = []

    def _step(self, batch: WatchBatch) -> SourceCommit | None:
        mark = None
        for event in batch.events:
            if event.kv.key == self._source.layout.ts:
                mark = event.kv
            elif self._source.is_recorded(event.kv.key):
                self._events.append(event)
        if mark is None:
            return None
        events, self._events = tuple(self._events), []
        return SourceCommit(mark, events)


class ForeignSource:
    """What other programs write: nothing there has a time, so each step gets that of now."""

    def __init__(self, identity: SourceId, clock: HybridClock) -> None:
        self.identity, self.layout, self._clock = identity, Layout(identity.name), clock
        self._first_nonce = int.from_bytes(os.urandom(8), "big")
        self.moved: str | None = None

    def mark(
        self,
        revision: int,
        last: KeyValue | None,
        *,
        lost: int = 0,
        room: int = 0,
        note: str | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> KeyValue:
        """Return a mark of now, the one after `last` and after `lost` marks that are lost.

        `room` timestamps stay free before it, for the parts that a target may write it in.
        """
        if last is not None:
            self._clock.merge(stamp_of(last.value) + lost + room)
        ordinal = 2 if last is None else last.version + lost + 1
        number = (self._first_nonce + ordinal) % (1 << 64)  # in an archive, numbers take least
        nonce = number.to_bytes(8, "big")
        stamp = StampRecord(self._clock.issue(), nonce, note=note, positions=positions)
        return KeyValue(self.layout.ts, stamp.encode(), self.identity.created, revision, ordinal)


class PrefixSource(ForeignSource):
    """Keys of other programs below prefixes; nothing is written to their engine.

    `moved` is a note if the record that is `known` has observed other keys.
    """

    def __init__(
        self,
        engine: Engine,
        observed: Selection,
        name: str,
        clock: HybridClock,
        known: SourceId | None,
    ) -> None:
        self.engine = engine
        self.echo_ends: tuple[bytes, ...] = ()
        self.is_echo: Callable[[bytes], bool] = lambda value: False
        self.values = RecordedValues()
        self._range = observed.hull or FIRST_KEY, prefix_end(observed.hull)
        self._newest: KeyEvent | None = None  # change that is known, as it is recorded
        self._unchanged = 0  # the revision since which nothing has changed, up to the newest mark
        answer = engine.get(FIRST_KEY)
        cluster = answer.header.cluster if engine.remote else 0
        if known is None:
            created = max(1, answer.header.revision - 1)
            known = SourceId(os.urandom(16), name, created, observed, cluster)
        super().__init__(known._replace(observed=observed, cluster=cluster), clock)
        if known.observed != observed:
            self.moved = shortened_text(f"{OBSERVES}{observed} from now on", NOTE_BYTES_MAX // 4)

    def compacted_revision(self) -> int:
        """Return the revision before which changes are lost; one round trip."""
        return self.engine.compacted_revision()

    def newest(self, last: KeyValue) -> KeyValue:
        """Return a mark of now at the engine's newest revision; one round trip."""
        revision = self.engine.get(FIRST_KEY).header.revision
        return last if revision <= last.mod_revision else self.mark(revision, last)

    def first(self) -> KeyValue:
        """Return a mark of now at the engine's newest revision: what was before has no times.

        The history of a snapshot file is known to be before its time: there, at its oldest one.
        """
        if self.engine.url.startswith("etcd-snapshot:"):
            return self.mark(max(1, self.engine.compacted_revision()), None)
        return self.mark(self.engine.get(FIRST_KEY).header.revision, None)

    def after(self, last: KeyValue, compacted: int) -> KeyValue:
        """Return a mark of now at a compacted revision; one is lost if a revision is between."""
        lost = max(0, min(1, compacted - last.mod_revision - 1))
        mark = self.mark(compacted, last, lost=lost)
        return mark._replace(
            value=replace(StampRecord.decode(mark.value), note=self.moved).encode()
        )

    def check(self, last: KeyValue, record: RecordedState) -> None:
        """Compare the newest recorded change with the engine, or else the states at a mark.

        A round trip or two; a scan of both states if the record does not show a change, unless it
        is of other keys.
        """
        self._newest = record.newest_change()
        if self._newest is not None:
            self._unchanged = self._newest.kv.mod_revision
            self.verify(last.mod_revision)
            return
        try:
            self.engine.get(FIRST_KEY, last.mod_revision)
            differs = self.moved is None and record.differs(
                last, self.state(last), self.values.are_comparable
            )
        except CompactedError:
            return
        except FutureRevisionError as e:
            raise restored(self.engine, str(e)) from e
        if differs:
            raise restored(self.engine, f"at revision {last.mod_revision}")

    def verify(self, at: int) -> None:
        """Raise `StoreRestoredError` unless the newest known change is in force at a revision.

        Nothing is known of a revision that the engine has compacted: then a gap shows it. One round
        trip; two if the change is a removal.
        """
        key, revision = FIRST_KEY, 0
        if self._newest is not None:
            stored, revision = self._newest.kv.key, self._newest.kv.mod_revision
            space, data = self.layout.space(OTHER_KEYS).prefix, self.layout.data.prefix
            key = stored.removeprefix(space if stored.startswith(space) else data)
        try:
            found = self.engine.get(key, at).kv
            if self._newest is None:
                return
            if self._newest.is_delete:
                # servers without an id (kine) also report removals of keys that never were
                is_same = found is None
                if is_same and self.identity.cluster:
                    is_same = self.engine.get(key, revision - 1).kv is not None
            else:
                is_same = found is not None and self._is_recorded(found)
        except CompactedError:
            return
        except FutureRevisionError as e:
            raise restored(self.engine, str(e)) from e
        if not is_same:
            raise restored(self.engine, f"{key!r} was changed at revision {revision}")

    def _is_recorded(self, found: KeyValue) -> bool:
        assert self._newest is not None
        known, found = self._newest.kv, self.as_stored(found)
        if found.mod_revision != known.mod_revision:
            return False
        return found.value == known.value or not self.values.are_comparable(
            found.value, known.value
        )

    def state(self, mark: KeyValue) -> Iterator[Sequence[KeyValue]]:
        """Yield the keys below the prefix in pages: first text, then what is in a space.

        A second scan if there is any of the latter.
        """
        spaces, found = self.layout.spaces, False
        self._newest, self._unchanged = None, mark.mod_revision
        for page in self._pages(mark):
            yield [kv for kv in page if not kv.key.startswith(spaces)]
            found = found or page[-1].key.startswith(spaces)  # sorted: spaces come last
        for page in self._pages(mark) if found else ():
            yield [kv for kv in page if kv.key.startswith(spaces)]

    def _pages(self, mark: KeyValue) -> Iterator[list[KeyValue]]:
        for page in self.engine.scan(*self._range, revision=mark.mod_revision):
            kvs = sorted(self.as_stored(kv) for kv in page)
            self._note([KeyEvent(kv, False) for kv in kvs])
            yield kvs

    def _note(self, events: Iterable[KeyEvent]) -> None:
        """Note which of some changes is the newest one; of a revision, rather not a removal."""
        found = [*events] if self._newest is None else [self._newest, *events]
        self._newest = max(found, key=lambda each: (each.kv.mod_revision, not each.is_delete))

    def follow(self, last: KeyValue) -> PrefixFollower:
        """Watch the prefix."""
        return PrefixFollower(self, last)

    def watch(self, reached: int) -> Watcher:
        """Watch the prefix; up to the revision `reached`, the watch must bring nothing.

        It begins after the newest known change, so that a change that was not recorded shows.
        Two round trips at most.
        """
        start = min(reached, max(self._unchanged, self.engine.compacted_revision()))
        return self.engine.watch(*self._range, start_revision=start + 1)

    def recorded(self, batch: WatchBatch, reached: int) -> tuple[KeyEvent, ...]:
        """Return the changes of a batch as they are recorded, and note them.

        Raises `StoreRestoredError` if it is not after the revision `reached`, and `ArchiveError`
        for a commit of this record.
        """
        if batch.revision <= reached:
            if self.identity.cluster or not all(event.is_delete for event in batch.events):
                raise restored(self.engine, f"revision {batch.revision} was not recorded")
            return ()  # of kine: see `verify`
        self.check_echoes(batch.events)
        events = [KeyEvent(self.as_stored(e.kv), e.is_delete) for e in batch.events]
        self._note(events)
        self._unchanged = batch.revision
        return tuple(sorted(events))

    def check_echoes(self, events: Iterable[KeyEvent]) -> None:
        """Raise `ArchiveError` if a commit of this record comes back: it would never end.

        So it is when another recorder copies this record to where this one looks.
        """
        for kv in (event.kv for event in events):
            if kv.key.endswith(self.echo_ends) and self.is_echo(kv.value):
                raise ArchiveError(
                    f"{kv.key!r} is a commit of this record: another recorder copies the record to "
                    "where this one observes, so neither would end; let one of them observe "
                    "another prefix"
                )

    def as_stored(self, kv: KeyValue) -> KeyValue:
        """Return a version of a foreign key as a store would have it: text, or in a space.

        Its value may be redacted.
        """
        keys, value = self.layout.data, self.values.of(kv.key, kv.value)
        try:
            kv.key.decode()
        except UnicodeDecodeError:
            keys = self.layout.space(OTHER_KEYS)
        return kv._replace(key=keys.prefix + kv.key, value=value, lease=0)


# For example, the last recorded change of a prefix is that of key "a", at revision 40, and the
# engine was at revision 50 when it answered last. The server is restored to revision 45, and "b"
# is written at 46. The stream is opened again at 51, so it never brings that. So "a" is compared
# at revision 50, and the prefix is watched anew, from 41 on: what comes up to 50 is of another
# history.
class PrefixFollower(EngineFollower):
    """The revisions that changed a prefix, each with the time at which it was seen.

    The server may be restored while it is followed. So the newest change is compared whenever the
    watch was opened again, and before the first batch of each watch is returned.
    """

    _watcher: Watcher

    def __init__(self, source: PrefixSource, last: KeyValue) -> None:
        super().__init__(source.watch(last.mod_revision), last.mod_revision)
        self._source, self._last, self._is_verified = source, last, False

    def tick(self, *, own_revision: bool) -> SourceCommit | None:
        """Return a step without changes."""
        if own_revision and self.reached <= self._last.mod_revision:
            return None
        self._last = self._source.mark(self.reached, self._last)
        return SourceCommit(self._last, ())

    def _batch(self, timeout: float) -> WatchBatch | None:
        batch = self._watcher.next(timeout)
        if self._watcher.reopened:
            self._source.verify(self.reached)
            self._watcher.close()
            self._watcher, self._is_verified = self._source.watch(self.reached), False
            return None
        if batch is not None and not self._is_verified:
            self._source.verify(self.reached)
            self._is_verified = True
        return batch

    def _step(self, batch: WatchBatch) -> SourceCommit | None:
        if not batch.events or not (events := self._source.recorded(batch, self.reached)):
            return None
        self._last = self._source.mark(batch.revision, self._last, room=len(events) - 1)
        return SourceCommit(self._last, events)


# --- what targets record of a source: states that differ, and gaps, whose commits are lost ---

Pages = Iterable[Sequence[KeyValue]]


def lost_marks(last: KeyValue, mark: KeyValue) -> list[KeyValue]:
    """Return marks in place of the lost ones between two marks.

    As many commits as their ordinals say had revisions and timestamps between the two. So there is
    a place for each.

    >>> def mark(timestamp, revision, ordinal):
    ...     value = StampRecord(timestamp).encode()
    ...     return KeyValue(b"sys/ts", value, 2, revision, ordinal)
    >>> [m.mod_revision for m in lost_marks(mark(100, 7, 5), mark(900, 40, 8))]
    [8, 9]
    """
    count, after = mark.version - last.version - 1, stamp_of(last.value)
    note = gap_note(last, mark)
    return [
        last._replace(
            value=StampRecord(after + n, note=note if n == 1 else "lost").encode(),
            mod_revision=last.mod_revision + n,
            version=last.version + n,
        )
        for n in range(1, count + 1)
    ]


def gap_note(last: KeyValue, mark: KeyValue) -> str:
    """Return the note of a gap for the commit log."""
    after, before = (format_time(stamp_of(kv.value)) for kv in (last, mark))
    return (
        f"gap: revisions {last.mod_revision + 1} to {mark.mod_revision - 1} were compacted before "
        f"they were recorded; their changes fell between {after} and {before}"
    )


def differences(before: Pages, after: Pages, mark: KeyValue, since: int = 0) -> Iterator[KeyEvent]:
    """Yield the changes that make one state of the other, both sorted by key.

    A key has changed if its value has, or if it is newer than the revision `since`, which the old
    state is of (0: revisions are not comparable). What is not newer, but was not so before, gets
    the revision of the mark, as a removal does: a key that was not observed before, or that a
    backup has brought back.
    """
    for old, new in paired(chain.from_iterable(before), chain.from_iterable(after)):
        if new is not None:
            is_newer = new.mod_revision > since
            if old is None or (since and is_newer) or old.value != new.value:
                revision = new.mod_revision if is_newer else mark.mod_revision
                yield KeyEvent(new._replace(mod_revision=revision), False)
        elif old is not None:
            yield KeyEvent(KeyValue(old.key, b"", 0, mark.mod_revision, 0), True)
