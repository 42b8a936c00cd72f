"""An archive as an engine: it answers reads at revisions and watches, and takes no writes.

The revisions, versions and stored keys are as in the engine that was archived. So time line,
snapshots, histories, differences and watches work on an archive as they do on a live engine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice, repeat
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

import pyarrow.compute as pc

from snapkv.archive import open_files
from snapkv.archive.data_files import CommitLog, KeyedRows, OpenFiles, missing
from snapkv.archive.folder import Files
from snapkv.archive.manifest import File, Manifest, existing, newest
from snapkv.archive.rows import Keys
from snapkv.archive.state_rows import (
    Changed,
    changes_in,
    changes_of,
    chunks,
    exact,
    files_of,
    joined,
    row_at,
    state,
)
from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import monotonic, pause
from snapkv.engine.bulk_reads import changes, versions_of
from snapkv.engine.contract import (
    ALL_KEYS_END,
    ChangeColumns,
    Columns,
    EngineLimits,
    GetResult,
    Header,
    KeyEvent,
    KeyValue,
    Pairs,
    Range,
    RangePiece,
    RangeResult,
    ReadResult,
    Replay,
    Versions,
    WatchBatch,
    in_range,
)
from snapkv.engine.request_checks import check_piece_rows
from snapkv.errors import (
    CompactedError,
    FileMissingError,
    FutureRevisionError,
    ReadOnlyError,
    StoreClosedError,
)
from snapkv.layout import FIRST_KEY, OBSERVES, FormatRecord, Layout

# --- the changes in an archive, revision by revision, as a watch of an engine would bring them ---


def batches(
    opened: OpenFiles,
    marks: CommitLog,
    ts: bytes,
    manifest: Manifest,
    key: bytes,
    end: bytes,
    low: int,
) -> Iterator[WatchBatch]:
    """Yield the events of a range from revision `low` on; one delta is in memory at a time.

    Of the first known revision only the keys are known that it set, as of an engine's compaction.
    """
    wanted = key, end or key + b"\0"
    files = manifest.of_kind("delta", low)
    if low == manifest.since:
        files = manifest.of_kind("base", low, low) + files
    for high, parts in groupby(files, key=lambda file: file.high):
        several = list(parts)
        first = max(low, several[0].low)
        changes = _changes(opened, several, *wanted, first)
        if in_range(ts, key, end):
            stamps = (KeyEvent(kv, False) for kv in marks.between(manifest, first, high))
            changes = merge(changes, stamps, key=attrgetter("kv.mod_revision", "kv.key"))
        for revision, events in groupby(changes, key=attrgetter("kv.mod_revision")):
            yield WatchBatch(revision, tuple(events))


def _changes(
    opened: OpenFiles, files: list[File], key: bytes, end: bytes, low: int
) -> Iterator[KeyEvent]:
    """Yield the events of a delta, or of the parts of a base, sorted by revision and key."""
    parts = [rows for file in files for rows in opened.within(file, key, end)]
    if not parts:
        return
    rows = joined(parts)
    table = rows.table.append_column("stored", rows.stored)
    table = table.filter(pc.greater_equal(table["revision"], low))
    order = pc.sort_indices(table, sort_keys=[("revision", "ascending"), ("stored", "ascending")])
    names = ("stored", "value", "created", "revision", "version")
    for batch in table.take(order).to_batches(max_chunksize=1_000):
        columns = [batch[name].to_pylist() for name in names]
        deleted = batch["deleted"].to_pylist() if "deleted" in table.column_names else repeat(False)
        for stored, value, created, revision, version, gone in zip(*columns, deleted, strict=False):
            if gone:
                yield KeyEvent(KeyValue(stored, b"", 0, revision, 0), True)
            else:
                yield KeyEvent(KeyValue(stored, value, created, revision, version), False)


def moved_since(opened: OpenFiles, manifest: Manifest, low: int = 0) -> list[int]:
    """Return the revisions from `low` on at which keys came that were not observed before."""
    found: list[int] = []
    for log in manifest.of_kind("log", low):
        if log.rows:
            revisions, notes = (opened.column(log, name) for name in ("revision", "note"))
            found += revisions.filter(pc.starts_with(notes, OBSERVES)).to_pylist()
    return [revision for revision in found if revision >= low]


# --- answers of an archive in the form of an engine's ---


def key_values(rows: KeyedRows, *, keys_only: bool = False) -> Iterator[KeyValue]:
    """Yield the rows of a state as an engine lists them."""
    values = repeat(b"") if keys_only else rows.table["value"].to_pylist()
    numbers = (rows.table[name].to_pylist() for name in ("created", "revision", "version"))
    return map(KeyValue, rows.stored.to_pylist(), values, *numbers)


def limited(wanted: Range, found: list[KeyValue], count: int) -> RangeResult:
    """Return sorted keys as the answer of a range: as many, and as much of them, as it wants."""
    if wanted.count_only:
        return RangeResult([], count)
    kvs = found[: wanted.limit] if wanted.limit else found
    if wanted.keys_only:
        kvs = [kv._replace(value=b"") for kv in kvs]
    return RangeResult(kvs, count, len(kvs) < count)


# --- engine ---

Found = TypeVar("Found")

LIMITS = EngineLimits(key_bytes=64 << 10, value_bytes=256 << 20, request_bytes=256 << 20)
LOOK_AFTER_S = 600.0
"""The age at which a manifest is looked up again, in seconds: files that it names may be deleted an
hour after another manifest has replaced them."""
LOOK_S = 1.0
"""The pause between two looks at the archive while a watch brings nothing, in seconds."""


class ArchiveEngine:
    """The history in an archive, read-only; safe for threads, and for forks as its files are."""

    remote = False
    limits = LIMITS

    def __init__(self, files: Files) -> None:
        self.url = files.url
        self._files, self._closed = files, False
        found = self.manifest = existing(files)
        self.layout = Layout(found.source.name)
        self._files_open = OpenFiles(files, Keys(self.layout))
        self._marks = CommitLog(self._files_open, self.layout.ts)
        self._cluster = int.from_bytes(self.manifest.source.id[:8], "big") >> 1
        self._looking = threading.Lock()
        self._looked = monotonic()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Make a new lock: another thread of the parent may have been looking."""
        self._looking = threading.Lock()

    def refresh(self) -> Manifest:
        """Look at what the archive holds now; one listing, and a read if there is more."""
        self._check_open()
        with self._looking:
            self._looked = monotonic()
            self.manifest = newest(self._files, self.manifest) or self.manifest
            return self.manifest

    @property
    def archived(self) -> str:
        """What the archive has, for the messages of errors."""
        return f"the archive {self.url} {self.manifest.extent}"

    def _before_record(self, revision: int, manifest: Manifest) -> CompactedError:
        """Return the error for a revision before the oldest one that the archive has."""
        return CompactedError(revision, manifest.since, unit="revision", archive=self.archived)

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision; reads a row group of each delta after the base at most."""

        def found(manifest: Manifest) -> GetResult:
            kv = self._row(manifest, key, revision or manifest.high)
            return GetResult(Header(manifest.high, self._cluster), kv)

        return self._read(revision, found)

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges."""

        def found(manifest: Manifest) -> ReadResult:
            results = [self._answer(manifest, wanted) for wanted in ranges]
            return ReadResult(Header(manifest.high, self._cluster), results)

        return self._read(max((r.revision for r in ranges), default=0), found)

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return versions of a key from a revision down: of the timestamp key, from the log."""

        def found(manifest: Manifest) -> list[KeyValue]:
            if key == self.layout.ts:
                return list(islice(self._marks.back(manifest, revision), limit))
            row = self._row(manifest, key, revision)
            return [] if row is None else [row]

        return versions_of(self._read(revision, found))

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield a range in pages."""
        for rows in self._state(key, range_end, revision):
            yield list(key_values(rows, keys_only=keys_only))

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield a range as keys and values."""
        for rows in self._state(key, range_end, revision):
            values = [] if keys_only else rows.table["value"].to_pylist()
            yield Pairs(rows.stored.to_pylist(), values)

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield a range as columns of Arrow."""
        from snapkv.engine.version_columns import batches_of, blank

        for rows in self._state(key, range_end, revision):
            value, created, revised, version = (
                rows.table[name].combine_chunks()
                for name in ("value", "created", "revision", "version")
            )
            values = blank(len(value)) if keys_only else value
            yield from batches_of(Columns(rows.stored, values, created, revised, version))

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        """Cut a range where row groups begin, by the rows of all versions; reads metadata only."""
        check_piece_rows(rows)

        def found(manifest: Manifest) -> list[RangePiece]:
            manifest.check_gap(revision)
            parts, deltas = files_of(manifest, revision)
            ranges = chunks(self._files_open, [*parts, *deltas], key, range_end, rows)
            return [RangePiece(*each) for each in ranges]

        return self._read(revision, found)

    def delta_changes(self, key: bytes, range_end: bytes, low: int, high: int) -> Iterator[Changed]:
        """Yield the changes of the revisions `low` to `high`, all known; one delta at a time."""
        while low <= high:
            manifest = self._manifest_for(high)
            if low < manifest.since:  # `keep` has dropped it meanwhile
                raise self._before_record(low, manifest)
            try:
                for file in manifest.of_kind("delta", low, high):
                    yield changes_in(self._files_open, manifest, file, low, high, key, range_end)
                    low = file.high + 1
                return
            except FileMissingError as e:
                self.look_again(manifest, e)

    def files_at(self, revision: int) -> tuple[list[File], list[File]]:
        """Return the files of a base and deltas that hold the state at a revision.

        Opens each. Raises `ArchiveError` for one that is damaged, or is another file.
        """

        def found(manifest: Manifest) -> tuple[list[File], list[File]]:
            manifest.check_gap(revision)
            parts, deltas = files_of(manifest, revision)
            for file in (*parts, *deltas):
                self._files_open.groups(file)
            return parts, deltas

        return self._read(revision, found)

    def deltas(self, low: int, high: int) -> list[File]:
        """Return the files with the changes in (low, high]; opens each, as `files_at`."""

        def found(manifest: Manifest) -> list[File]:
            files = manifest.of_kind("delta", low + 1, high)
            for file in files:
                self._files_open.groups(file)
            return files

        return self._read(high, found)

    def is_exact(self, low: int, high: int) -> bool:
        """Return whether each change of the revisions `low` to `high` has its commit's revision.

        False if another program wrote between two commits. Reads two columns.
        """
        return self._read(high, lambda manifest: exact(self._files_open, manifest, low, high))

    def _state(self, key: bytes, range_end: bytes, revision: int) -> Iterator[KeyedRows]:
        revision = revision or self._manifest_for(0).high
        while True:
            manifest = self._manifest_for(revision)
            manifest.check_gap(revision)
            try:
                for rows in state(self._files_open, manifest, key, range_end, revision):
                    yield rows
                    key = rows.stored[-1].as_py() + b"\0"
                return
            except FileMissingError as e:
                self.look_again(manifest, e)

    def _read(self, revision: int, read: Callable[[Manifest], Found]) -> Found:
        """Return what a function reads; it starts again if files of the manifest are gone."""
        while True:
            manifest = self._manifest_for(revision)
            try:
                return read(manifest)
            except FileMissingError as e:
                self.look_again(manifest, e)

    def look_again(self, manifest: Manifest, error: FileMissingError) -> None:
        """Look for a newer manifest, as a file that this one names is gone; raise if there is none.

        Files are merged into larger ones, and deleted later. Raises `ArchiveError`.
        """
        if self.refresh().number == manifest.number:
            raise missing(self.url, error) from error

    def _answer(self, manifest: Manifest, wanted: Range) -> RangeResult:
        revision = wanted.revision or manifest.high
        if revision < manifest.since:  # of several ranges, beside a later one
            raise self._before_record(revision, manifest)
        single = [wanted.key] if not wanted.range_end else [self.layout.format, self.layout.ts]
        found = [
            kv
            for key in single
            if in_range(key, wanted.key, wanted.range_end)
            and (kv := self._row(manifest, key, revision)) is not None
        ]
        count = len(found)
        if wanted.range_end:
            manifest.check_gap(revision)
            parts = state(self._files_open, manifest, wanted.key, wanted.range_end, revision)
            for rows in parts:
                count += len(rows.stored)
                if not wanted.count_only and (not wanted.limit or len(found) <= wanted.limit + 2):
                    found += key_values(rows)
            found.sort()
        return limited(wanted, found, count)

    def _row(self, manifest: Manifest, key: bytes, revision: int) -> KeyValue | None:
        if key == self.layout.ts:
            return self._marks.at(manifest, revision)
        if key == self.layout.format:
            source = manifest.source
            return KeyValue(
                key, FormatRecord(source.id).encode(), source.created, source.created, 1
            )
        manifest.check_gap(revision)
        return row_at(self._files_open, manifest, key, revision)

    def _manifest_for(self, revision: int) -> Manifest:
        self._check_open()
        manifest = self.manifest
        if revision > manifest.high or monotonic() - self._looked > LOOK_AFTER_S:
            manifest = self.refresh()
            if revision > manifest.high:
                raise FutureRevisionError(revision, manifest.high)
        if 0 < revision < manifest.since:
            raise self._before_record(revision, manifest)
        return manifest

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> ArchiveWatcher:
        """Return a watcher; it looks for new files each second."""
        self._check_open()
        return ArchiveWatcher(self, key, range_end, start_revision)

    def changes(self, wanted: Replay) -> Iterator[ChangeColumns]:
        """Yield the rows of deltas, one delta at a time; values before need a read of each."""
        # what happened at the first known revision is in no delta
        if wanted.before or wanted.key == self.layout.ts or wanted.first <= self.manifest.since:
            yield from changes(self, wanted)
            return
        for found in self.delta_changes(*wanted[:4]):
            if not found.exact:
                yield from changes(self, wanted._replace(first=found.low, last=found.high))
            elif found.rows.table.num_rows:
                yield changes_of(found.rows, keys_only=wanted.keys_only)

    def replay(self, key: bytes, range_end: bytes, low: int) -> tuple[Iterator[WatchBatch], int]:
        """Return the batches from revision `low` on, and the revision that they reach."""
        manifest = self._manifest_for(0)
        if low < manifest.since:
            raise self._before_record(low, manifest)
        found = batches(
            self._files_open, self._marks, self.layout.ts, manifest, key, range_end, low
        )
        return found, manifest.high

    def newest_change(self) -> KeyEvent | None:
        """Return a change of the newest revision that has one; None if no delta has one.

        None, too, for what closed a gap, and if other keys are observed since: when these changed
        is lost. Reads a delta, and two columns of the log after it.
        """

        def found(manifest: Manifest) -> KeyEvent | None:
            known = max((gap.high + 1 for gap in manifest.gaps), default=manifest.since)
            for delta in reversed(manifest.of_kind("delta")):
                if delta.rows:
                    newest = pc.max(self._files_open.column(delta, "revision")).as_py()
                    if newest <= known or moved_since(self._files_open, manifest, newest):
                        return None
                    return next(
                        _changes(self._files_open, [delta], FIRST_KEY, ALL_KEYS_END, newest)
                    )
            return None

        return self._read(0, found)

    # --- the rest of an engine ---

    def compacted_revision(self) -> int:
        """Return the first revision that is known."""
        return self.manifest.since

    def server_time_ms(self, *, fresh: bool = False) -> None:
        """Return None: the clock is the machine's."""

    def info(self) -> dict[str, int | str]:
        """Return facts about the archive."""
        manifest = self.manifest
        return {
            "engine": "archive",
            "revision": manifest.high,
            "since_revision": manifest.since,
            "files": len(manifest.files),
            "bytes": sum(file.size for file in manifest.files),
        }

    def check(self) -> list[str]:
        """Return no problems: each file is checked when it is read."""
        return []

    def close(self) -> None:
        """Close the archive."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError("the archive was closed")

    # --- writes, which an archive rejects ---

    def _reject(self, *args: object, **options: object) -> NoReturn:
        raise ReadOnlyError(f"{self.url} is an archive, which takes no writes")

    transact = transact_each = check_limits = compact = grant = keep_alive = revoke = _reject


def open_archived(url: str, storage: Mapping[str, Any] | None = None) -> ArchiveEngine:
    """Return the archive at a URL; `storage` are options of its object store.

    One listing, and one read. Raises `ArchiveError`, `FormatError`, and as `open_files`.
    """
    return ArchiveEngine(open_files(url, storage))


class ArchiveWatcher:
    """The changes of an archive from a revision on; then it waits for new files."""

    reopened = 0

    def __init__(self, engine: ArchiveEngine, key: bytes, range_end: bytes, start: int) -> None:
        self._engine, self._key, self._range_end = engine, key, range_end
        self._next, self._closed = start, False
        self._found: Iterator[WatchBatch] | None = None
        self._manifest = engine.manifest
        self._until = 0

    def next(self, timeout: float | None) -> WatchBatch | None:
        """Return the next batch; see `Watcher`."""
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            if self._closed:
                raise StoreClosedError("the watch was closed")
            if self._found is None and self._next <= self._engine.manifest.high:
                self._manifest = self._engine.manifest
                self._found, self._until = self._engine.replay(
                    self._key, self._range_end, self._next
                )
            if self._found is not None:
                try:
                    batch = next(self._found, None)
                except FileMissingError as e:
                    self._engine.look_again(self._manifest, e)
                    self._found = None
                    continue
                if batch is None:
                    self._found, self._next = None, self._until + 1
                    return WatchBatch(self._until, ())
                self._next = batch.revision + 1
                return batch
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - monotonic())
            if left <= 0:
                return None
            pause(left)
            self._engine.refresh()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
