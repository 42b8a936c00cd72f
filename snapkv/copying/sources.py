"""Sources of a record: a store, or keys below a prefix that other programs write.

Both bring `SourceCommit`s: a commit's mark, as a version of a timestamp key, and the changes that
it stamps, with keys as a store has them. A prefix has no marks. It gets one for each revision, with
the time at which the recorder saw it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from snapkv.base.waiting import check_in_time, monotonic
from snapkv.clock import HybridClock
from snapkv.engine.contract import Engine, KeyEvent, KeyValue, WatchBatch, Watcher
from snapkv.errors import ArchiveError, CompactedError, FutureRevisionError, StoreRestoredError
from snapkv.layout import FIRST_KEY, Layout, SourceId, StampRecord, prefix_end, stamp_of
from snapkv.reading.reader import Reader
from snapkv.reading.snapshot import paired
from snapkv.timeline.continuity import ContinuousWatcher
from snapkv.timeline.search import mark_of
from snapkv.times import format_time

OTHER_KEYS = "not-utf-8"
"""The space of recorded keys that are not text."""


class SourceCommit(NamedTuple):
    """A commit of a source: its mark, and the changes since the mark before it."""

    mark: KeyValue
    events: tuple[KeyEvent, ...]


class SourceFollower(ABC):
    """The steps of a source from some mark on; no revision up to `reached` is still to come."""

    def __init__(self, watcher: ContinuousWatcher | Watcher, reached: int) -> None:
        self._watcher, self.reached = watcher, reached

    def next(self, timeout: float) -> SourceCommit | None:
        """Return the next step; None if `timeout` seconds bring none.

        Raises `CompactedError` if compaction overtook it, `StoreRestoredError`, and what engines
        raise.
        """
        deadline = monotonic() + timeout
        while (batch := self._watcher.next(max(0.0, deadline - monotonic()))) is not None:
            check_in_time()
            self.reached = batch.revision
            if (step := self._step(batch)) is not None:
                return step
        return None

    @abstractmethod
    def _step(self, batch: WatchBatch) -> SourceCommit | None:
        """Return the step that a batch completes; None if it completes none."""

    def tick(self, *, own_revision: bool) -> SourceCommit | None:
        """Return a step that only shows that time has passed; None if the source has its own.

        With `own_revision`, None too if the source's revision has not moved since the last step.
        """
        return None

    def close(self) -> None:
        """End the watch."""
        self._watcher.close()


class StoreSource:
    """A store that is recorded, from the oldest commit that compaction has left."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.layout, self.engine = reader.layout, reader.engine
        created = reader.timeline.tracker.creation.revision
        self.identity = SourceId(reader.format.store_id, reader.layout.name, created)
        self.is_archive = reader.url.startswith("archive:")

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

    def check(self, last: KeyValue) -> None:
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
            raise StoreRestoredError(
                f"{self.engine.url} has another history than what was recorded: it was restored "
                "since; record into a new place"
            )

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


class StoreFollower(SourceFollower):
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


class PrefixSource:
    """Keys of other programs below a prefix; nothing is written to their engine."""

    def __init__(
        self, engine: Engine, prefix: bytes, name: str, clock: HybridClock, known: SourceId | None
    ) -> None:
        self.engine, self.layout, self._clock = engine, Layout(name), clock
        self.echo_ends: tuple[bytes, ...] = ()
        self.is_echo: Callable[[bytes], bool] = lambda value: False
        self._range = prefix or FIRST_KEY, prefix_end(prefix)
        answer = engine.get(FIRST_KEY)
        cluster = answer.header.cluster if engine.remote else 0
        if known is None:
            created = max(1, answer.header.revision - 1)
            known = SourceId(os.urandom(16), name, created, prefix, cluster)
        self.identity = known._replace(prefix=prefix, cluster=cluster)

    def newest(self, last: KeyValue) -> KeyValue:
        """Return a mark of now at the engine's newest revision; one round trip."""
        revision = self.engine.get(FIRST_KEY).header.revision
        return last if revision <= last.mod_revision else self.mark(revision, last)

    def first(self) -> KeyValue:
        """Return a mark of now at the engine's newest revision: what was before has no times."""
        return self.mark(self.engine.get(FIRST_KEY).header.revision, None)

    def after(self, last: KeyValue, compacted: int) -> KeyValue:
        """Return a mark of now at a compacted revision; one is lost if a revision is between."""
        return self.mark(compacted, last, lost=min(1, compacted - last.mod_revision - 1))

    def mark(
        self, revision: int, last: KeyValue | None, *, lost: int = 0, room: int = 0
    ) -> KeyValue:
        """Return a mark of now, the one after `last` and after `lost` marks that are lost.

        `room` timestamps stay free before it, for the parts that a target may write it in.
        """
        if last is not None:
            self._clock.merge(stamp_of(last.value) + lost + room)
        stamp = StampRecord(self._clock.issue(), os.urandom(8))
        ordinal = 2 if last is None else last.version + lost + 1
        return KeyValue(self.layout.ts, stamp.encode(), self.identity.created, revision, ordinal)

    def check(self, last: KeyValue) -> None:
        """Make sure that the engine has the revision of a mark; one round trip."""
        header = self.engine.get(FIRST_KEY).header
        if header.revision < last.mod_revision:
            raise StoreRestoredError(
                f"{self.engine.url} is at revision {header.revision}, and {last.mod_revision} was "
                "recorded: it was restored since; record into a new place"
            )

    def state(self, mark: KeyValue) -> Iterator[Sequence[KeyValue]]:
        """Yield the keys below the prefix in pages: first text, then what is in a space.

        A second scan if there is any of the latter.
        """
        spaces, found = self.layout.spaces, False
        for page in self._pages(mark):
            yield [kv for kv in page if not kv.key.startswith(spaces)]
            found = found or page[-1].key.startswith(spaces)  # sorted: spaces come last
        for page in self._pages(mark) if found else ():
            yield [kv for kv in page if kv.key.startswith(spaces)]

    def _pages(self, mark: KeyValue) -> Iterator[list[KeyValue]]:
        for page in self.engine.scan(*self._range, revision=mark.mod_revision):
            yield sorted(self.as_stored(kv) for kv in page)

    def follow(self, last: KeyValue) -> PrefixFollower:
        """Watch the prefix."""
        watcher = self.engine.watch(*self._range, start_revision=last.mod_revision + 1)
        return PrefixFollower(self, watcher, last)

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
        """Return a version of a foreign key as a store would have it: text, or in a space."""
        try:
            kv.key.decode()
        except UnicodeDecodeError:
            return kv._replace(key=self.layout.space(OTHER_KEYS).prefix + kv.key, lease=0)
        return kv._replace(key=self.layout.data.prefix + kv.key, lease=0)


class PrefixFollower(SourceFollower):
    """The revisions that changed a prefix, each with the time at which it was seen."""

    _watcher: Watcher

    def __init__(self, source: PrefixSource, watcher: Watcher, last: KeyValue) -> None:
        super().__init__(watcher, last.mod_revision)
        self._source, self._last, self._reopened = source, last, watcher.reopened

    def tick(self, *, own_revision: bool) -> SourceCommit | None:
        """Return a step without changes."""
        if own_revision and self.reached <= self._last.mod_revision:
            return None
        self._last = self._source.mark(self.reached, self._last)
        return SourceCommit(self._last, ())

    def _step(self, batch: WatchBatch) -> SourceCommit | None:
        if self._watcher.reopened != self._reopened:
            self._reopened = self._watcher.reopened
            self._source.check(self._last)
        if not batch.events:
            return None
        self._last = self._source.mark(batch.revision, self._last, room=len(batch.events) - 1)
        self._source.check_echoes(batch.events)
        events = [KeyEvent(self._source.as_stored(e.kv), e.is_delete) for e in batch.events]
        return SourceCommit(self._last, tuple(sorted(events)))


Recorded = StoreSource | PrefixSource
"""A source of steps."""


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


def differences(before: Pages, after: Pages, mark: KeyValue) -> Iterator[KeyEvent]:
    """Yield the changes that make one state of the other, both sorted by key.

    Keys are the same if their revisions are, or their values where revisions are not comparable
    (0). A removal gets the revision of the mark: when it happened is lost.
    """
    for old, new in paired(chain.from_iterable(before), chain.from_iterable(after)):
        if old and new:
            if old.mod_revision != new.mod_revision if old.mod_revision else old.value != new.value:
                yield KeyEvent(new, False)
        elif new:
            yield KeyEvent(new, False)
        elif old:
            yield KeyEvent(KeyValue(old.key, b"", 0, mark.mod_revision, 0), True)
