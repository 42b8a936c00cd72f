"""Recording a store: what its engine holds goes into an archive, each revision once, in order."""

from __future__ import annotations

from collections.abc import Iterator

from snapkv.archive.files import Files
from snapkv.archive.manifest import Source
from snapkv.archive.writer import ArchiveWriter, Change
from snapkv.clock import check_in_time
from snapkv.engine.contract import Engine, Event, KeyValue, Range
from snapkv.errors import ArchiveError, CompactedError, StoreRestoredError
from snapkv.layout import FormatRecord, Layout, StampRecord, prefix_end, stamp_of
from snapkv.timeline.feed import replayed

BEGIN_TRIES = 8
"""So often the first state is read anew, if compaction overtakes the scan."""
FLUSH_ROWS = 100_000
FLUSH_BYTES = 64 << 20
"""A delta holds about so much at most; the changes of one revision stay together."""


class StoreRecorder:
    """Copies a store's commits from its engine into an archive; use it from one thread.

    For example, with commits at revisions 5, 7 and 9, the first run records the state at 9 (the
    archive knows of history since then). After commits at 12 and 14 it adds revisions 10 to 14:
    the changes as a delta, the two commits as a log.
    """

    def __init__(self, engine: Engine, layout: Layout, record: FormatRecord, files: Files) -> None:
        self._engine, self._layout = engine, layout
        self._root = layout.root, prefix_end(layout.root)
        head = self._head()
        self.writer = ArchiveWriter(
            files, Source(record.store_id, layout.name, head.create_revision)
        )

    @property
    def reached(self) -> int:
        """The last revision that the archive holds; 0 before the first record."""
        manifest = self.writer.manifest
        return 0 if manifest is None else manifest.high

    def catch_up(self) -> int:
        """Record all commits so far; return the last revision recorded.

        Raises `CompactedError` if commits after the last recorded one were compacted,
        `StoreRestoredError` if the engine holds another history, and `ArchiveTakenError`.
        """
        head = self._head()
        if self.writer.manifest is None:
            self._begin(head)
        else:
            self._check_history()
        for high, changes, marks in self._parts(self.reached + 1, head.mod_revision):
            self.writer.append(high, changes, marks)
        return self.reached

    def _begin(self, head: KeyValue) -> None:
        """Record the state of the newest commit; its rows have the times that are left."""
        for left in reversed(range(BEGIN_TRIES)):
            reading = max(head.mod_revision, self._engine.compacted_revision())
            pages = self._engine.scan(*self._root, revision=reading)
            try:
                self.writer.begin(head.mod_revision, pages, head, self._stamps(head))
            except CompactedError:
                if not left:
                    raise
            else:
                return

    def _stamps(self, head: KeyValue) -> dict[int, int]:
        """Return the timestamps of the commits that compaction left, by revision."""
        first = max(head.create_revision, self._engine.compacted_revision(), 1)
        found = {head.mod_revision: stamp_of(head.value)}
        for batch in replayed(self._engine, self._layout.ts, b"", first, head.mod_revision):
            for event in batch.events:
                found[batch.revision] = stamp_of(event.kv.value)
        return found

    def _check_history(self) -> None:
        """Raise `StoreRestoredError` unless the last recorded commit is the engine's, too."""
        ours = self.writer.last_mark()
        try:
            answer = self._engine.read([Range(self._layout.ts, revision=ours.mod_revision)])
        except CompactedError:
            return
        theirs = answer.results[0].kvs
        if not theirs or theirs[0] != ours:
            raise StoreRestoredError("the engine was restored since the archive was written")

    def _parts(self, low: int, high: int) -> Iterator[tuple[int, list[Change], list[KeyValue]]]:
        """Yield what happened in (low, high], in parts that end with a commit."""
        changes: list[Change] = []
        marks: list[KeyValue] = []
        unstamped: list[Event] = []  # by other programs: they belong to the next commit
        size = 0
        for batch in replayed(self._engine, *self._root, low, high):
            check_in_time()
            mark = None
            for event in batch.events:
                if event.kv.key == self._layout.ts:
                    mark = event.kv
                elif self.writer.keys.parted(event.kv.key) is not None:
                    unstamped.append(event)
                    size += len(event.kv.key) + len(event.kv.value)
            if mark is None:
                continue
            marks.append(mark)
            timestamp = stamp_of(mark.value)
            changes += [Change(event, timestamp) for event in unstamped]
            unstamped = []
            if len(changes) >= FLUSH_ROWS or size >= FLUSH_BYTES:
                yield mark.mod_revision, changes, marks
                changes, marks, size = [], [], 0
        if marks:
            yield marks[-1].mod_revision, changes, marks

    def _head(self) -> KeyValue:
        kv = self._engine.get(self._layout.ts).kv
        if kv is None:
            raise ArchiveError(f"no store named {self._layout.name!r} in {self._engine.url}")
        StampRecord.decode(kv.value)
        return kv
