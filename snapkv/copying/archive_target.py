"""The files of an archive as a target: steps collect in memory until they are flushed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

from snapkv.archive import open_files as open_files
from snapkv.archive.engine import ArchiveEngine as ArchiveEngine
from snapkv.archive.folder import Files
from snapkv.archive.manifest import Gap, newest
from snapkv.archive.manifest import publish as publish
from snapkv.archive.writer import ArchivedChange, ArchiveWriter
from snapkv.base.waiting import monotonic
from snapkv.copying.sources import Pages, SourceCommit, differences, lost_marks
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.layout import SourceId, prefix_end, stamp_of
from snapkv.reading.snapshot import paired
from snapkv.times import end_of_ms

FLUSH_ROWS = 100_000
CLEAN_AFTER_S = 3_600.0


class ArchiveTarget:
    """An archive that is written: steps collect in memory until they are flushed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._writer: ArchiveWriter | None = None
        self._changes: list[ArchivedChange] = []
        self._marks: list[KeyValue] = []
        self._cleaned: float | None = None
        self.pending = 0

    def known(self) -> SourceId | None:
        """Return the source that is recorded there; one listing, and one read."""
        found = newest(self._files)
        return None if found is None else found.source

    def open(self, identity: SourceId) -> None:
        """Read what is recorded of a source; raises `ArchiveError` if it is another one."""
        self._writer = ArchiveWriter(self._files, identity)

    @property
    def writer(self) -> ArchiveWriter:
        """The writer, once the source is known."""
        assert self._writer is not None, "open() comes first"
        return self._writer

    def last(self) -> KeyValue | None:
        """Return the newest mark in the archive."""
        return None if self.writer.manifest is None else self.writer.last_mark()

    def newest_change(self) -> KeyEvent | None:
        """Return the newest recorded change; None if states alone show it. Reads one delta."""
        return ArchiveEngine(self._files).newest_change()

    def differs(
        self, mark: KeyValue, state: Pages, comparable: Callable[[bytes, bytes], bool]
    ) -> bool:
        """Return whether a state is not the one recorded at the newest mark."""
        pairs = paired(chain.from_iterable(self._state(mark)), chain.from_iterable(state))
        return any(
            old is None
            or new is None
            or (old.value != new.value and comparable(new.value, old.value))
            or old.mod_revision < new.mod_revision  # keys that came in later have a later one
            for old, new in pairs
        )

    def _state(self, mark: KeyValue) -> Pages:
        root = self.writer.layout.root
        return ArchiveEngine(self._files).scan(root, prefix_end(root), revision=mark.mod_revision)

    def recorded(self) -> Pages:
        """Yield the newest recorded versions in pages."""
        return self._state(self.writer.last_mark())

    def begin(self, mark: KeyValue, state: Pages) -> None:
        """Write a state as a base."""
        self.writer.begin(mark, state)

    def close_gap(self, last: KeyValue, mark: KeyValue, state: Pages) -> None:
        """Write the differences between the newest archived state and the state of a mark."""
        lost, timestamp = lost_marks(last, mark), stamp_of(mark.value)
        found = differences(self._state(last), state, mark, last.mod_revision)
        changes = (ArchivedChange(event, timestamp) for event in found)
        gap = None
        if lost:
            gap = Gap(last.mod_revision + 1, mark.mod_revision - 1, stamp_of(last.value), timestamp)
        self.writer.append(mark.mod_revision, changes, [*lost, mark], gap)

    def add(self, step: SourceCommit) -> None:
        """Keep a step in memory."""
        timestamp = stamp_of(step.mark.value)
        self._marks.append(step.mark)
        for event in step.events:
            self._changes.append(ArchivedChange(event, timestamp))
            self.pending += len(event.kv.key) + len(event.kv.value)
        self.pending += len(step.mark.value)

    def settle_in(self) -> float:
        """Return after how many seconds `settle` is due: never, as steps wait for a flush."""
        return math.inf

    def settle(self) -> None:
        """Do nothing: see `settle_in`."""

    @property
    def is_full(self) -> bool:
        """Whether a file has enough rows."""
        return len(self._changes) >= FLUSH_ROWS

    def flush(self) -> None:
        """Write the steps as a delta and a log, and publish them.

        After an error, such as of the network, call it again: steps of a flush that failed may be
        published, and are not written twice.
        """
        if not self._marks:
            return
        self.writer.recover()
        manifest = self.writer.manifest
        reached = 0 if manifest is None else manifest.high
        changes = [each for each in self._changes if each.event.kv.mod_revision > reached]
        changes.sort(key=lambda each: (each.event.kv.key, each.event.kv.mod_revision))
        marks = [mark for mark in self._marks if mark.mod_revision > reached]
        if marks:
            self.writer.append(marks[-1].mod_revision, changes, marks)
        self._changes, self._marks, self.pending = [], [], 0

    def tend(self, keep_before_ms: int | None) -> None:
        """Merge files, delete what no manifest names, drop history that is too old."""
        while self.writer.tidy():
            pass
        if self._cleaned is not None and monotonic() - self._cleaned < CLEAN_AFTER_S:
            return
        self._cleaned = monotonic()
        if keep_before_ms is not None:
            self.writer.keep(end_of_ms(keep_before_ms))
        self.writer.clean()
