"""The writer of an archive: changes collect in memory, become files, then part of the manifest."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from snapkv.archive.data_files import CommitLog, OpenFiles, missing, revision_key
from snapkv.archive.folder import Files
from snapkv.archive.manifest import (
    DATA,
    GRACE_S,
    KINDS,
    File,
    Gap,
    Manifest,
    check_vacant,
    newest,
    publish,
    published,
)
from snapkv.archive.rows import BASE, GROUP_ROWS_MAX, Encoding, Keys, table_of, with_meta
from snapkv.archive.state_rows import CHUNK_ROWS, by_key, chunks, joined, state
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import ALL_KEYS_END, KeyEvent, KeyValue
from snapkv.errors import ArchiveError, ArchiveTakenError, FileMissingError
from snapkv.layout import FIRST_KEY, Layout, SourceId, StampRecord, stamp_of
from snapkv.times import physical_ms

SPACE, REVISION = BASE.names.index("space"), BASE.names.index("revision")
BASE_FILE_ROWS = 500_000
BASE_FILE_BYTES = 32 << 20
"""The least rows and bytes, before compression, of a file of a base that is not its last."""
MERGED_FILES = 8
"""The number of consecutive small deltas that one merge joins."""
MERGED_ROWS_MAX = 500_000
MERGED_BYTES_MAX = 32 << 20
"""The most bytes of a merged delta, compressed: a watch holds one in memory."""
BASE_AFTER = 1.0
"""The rows of the deltas since the last base, as a share of its rows, at which a new base is
due."""
BASE_AFTER_ROWS_MIN = 10_000


class ArchivedChange(NamedTuple):
    """A change of an archived key, and the timestamp of the commit that made it."""

    event: KeyEvent
    timestamp: int


class ArchiveWriter:
    """Adds to an archive, from one thread; another writer makes it raise `ArchiveTakenError`."""

    def __init__(self, files: Files, source: SourceId) -> None:
        """Read the newest manifest; without one, check that an archive may begin in the place.

        Raises `ArchiveError` for the archive of another store, and for a place with other files.
        """
        self.files, self.source = files, source
        self.layout = Layout(source.name)
        self.keys = Keys(self.layout)
        self._files_open = OpenFiles(files, self.keys)
        self._began: float | None = None  # when the first file that is not published was written
        self._tried: Manifest | None = None  # whether it is published is not known
        self._published: dict[int, Manifest] = {}  # as `clean` saw them
        self.manifest = newest(files)
        if self.manifest is None:
            check_vacant(files)
        else:
            source.check_follows(self.manifest.source, files.url)

    def begin(self, mark: KeyValue, pages: Iterable[Sequence[KeyValue]]) -> None:
        """Begin an archive with the state at a mark, in pages; older versions have no times."""
        since, timestamp = mark.mod_revision, stamp_of(mark.value)
        stamps = {since: timestamp}
        states = (
            [(kv, stamps.get(kv.mod_revision)) for kv in page if self.keys.parted(kv.key)]
            for page in pages
        )
        parts = (
            (table_of("base", _columns(self.keys, rows)), [kv.key for kv, _ in rows])
            for rows in states
        )
        files = [*self._base_parts(since, parts), self._log_file(since, since, [mark])]
        self._publish(Manifest(1, self.source, since, timestamp, timestamp, tuple(files)))

    def append(
        self,
        high: int,
        changes: Iterable[ArchivedChange],
        marks: Sequence[KeyValue],
        gap: Gap | None = None,
    ) -> None:
        """Add what happened up to the revision of the last mark, durably.

        `changes` are of archived keys, each with the timestamp of its commit, sorted by key and
        revision; `marks` are the versions of the timestamp key; `gap` says which revisions are
        lost. The manifest names the source as it is now: it may observe other keys than before.
        """
        assert self.manifest is not None
        self._began = None  # what an append before this one left is not published
        low = self.manifest.high + 1
        delta = self._delta_file(low, high, changes)
        log = self._log_file(low, high, marks)
        resolved = stamp_of(marks[-1].value)
        before = replace(self.manifest, source=self.source)
        self._publish(before.following([delta, log], resolved=resolved, gap=gap))

    def last_mark(self) -> KeyValue:
        """Return the newest commit in the archive, as a version of the timestamp key."""
        assert self.manifest is not None
        with self._reading():
            found = CommitLog(self._files_open, self.layout.ts).at(
                self.manifest, self.manifest.high
            )
        if found is None:
            raise ArchiveError(f"the archive in {self.files.url} has no commits")
        return found

    def recover(self) -> None:
        """Find out what the last call did, if it failed; call it before the next one.

        For example, the network failed after a manifest was sent: it is published or not. No
        request unless the last call failed while it published. Raises `ArchiveTakenError` if
        another recorder has published meanwhile.
        """
        self._began = None
        if self._tried is None:
            return
        found = newest(self.files)
        if found not in (self.manifest, self._tried):
            raise ArchiveTakenError(f"another recorder writes to {self.files.url}")
        self.manifest, self._tried = found, None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise `ArchiveError` for a missing file, `ArchiveTakenError` after another recorder."""
        try:
            yield
        except FileMissingError as e:
            if newest(self.files) not in (self.manifest, self._tried):
                raise ArchiveTakenError(f"another recorder writes to {self.files.url}") from e
            raise missing(self.files.url, e) from e

    # --- upkeep ---

    def tidy(self) -> bool:
        """Merge small deltas, or make a new base, if one is due; return whether it did."""
        self.recover()
        with self._reading():
            return self._tidied()

    def _tidied(self) -> bool:
        assert self.manifest is not None
        deltas, bases = self.manifest.of_kind("delta"), self.manifest.of_kind("base")
        last = bases[-1].high
        base_rows = sum(base.rows for base in bases if base.high == last)
        since = sum(delta.rows for delta in deltas if delta.low > last)
        if since > max(BASE_AFTER_ROWS_MIN, BASE_AFTER * base_rows):
            self._publish(self.manifest.following(self._base_files(self.manifest.high)))
            return True
        small = _mergeable(deltas, {base.high for base in bases})
        if small:
            self._merge(small)
        return bool(small)

    def keep(self, before: int) -> bool:
        """Drop the history before a timestamp, if that is much; return whether it did.

        Of what is older, a tenth of the time until then stays, so that not each call writes a base.
        """
        self.recover()
        with self._reading():
            return self._kept(before)

    def _kept(self, before: int) -> bool:
        manifest = self.manifest
        assert manifest is not None
        marks = CommitLog(self._files_open, self.layout.ts)
        old = []
        for delta in manifest.of_kind("delta"):
            mark = marks.at(manifest, delta.high)
            if mark is None or stamp_of(mark.value) > before:
                break
            old.append((delta.high, mark))
        if not old:
            return False
        cut, mark = old[-1]
        timestamp = stamp_of(mark.value)
        if 10 * (timestamp - manifest.since_timestamp) < manifest.resolved - timestamp:
            return False
        bases = manifest.of_kind("base", cut, cut)
        add = [] if bases else self._base_files(cut)
        add.append(self._log_file(cut, cut, [mark]))
        gone = [file for file in manifest.files if file.high <= cut and file not in bases]
        self._publish(manifest.following(add, gone, since=(cut, timestamp)))
        return True

    def _base_files(self, high: int) -> list[File]:
        """Write the state at the end of a delta as a base; return its files."""
        assert self.manifest is not None
        found = state(
            self._files_open, self.manifest, FIRST_KEY, ALL_KEYS_END, high, columns=BASE.names
        )
        return self._base_parts(high, ((part.table, part.stored.to_pylist()) for part in found))

    def _base_parts(self, at: int, parts: Iterable[tuple[Any, list[bytes]]]) -> list[File]:
        """Write a base of one file or several."""
        files = list[File]()
        made = _encoding("base", at, at)
        for table, keys in parts:
            made.add(table, keys)
            if made.rows >= BASE_FILE_ROWS or made.nbytes >= BASE_FILE_BYTES:
                files.append(self._put(made, at, at))
                made = _encoding("base", at, at)
        if made.rows or not files:
            files.append(self._put(made, at, at))
        return files

    def _merge(self, small: Sequence[File]) -> None:
        assert self.manifest is not None
        low, high = small[0].low, small[-1].high
        made = _encoding("delta", low, high)
        for start, end, _ in chunks(
            self._files_open, list(small), FIRST_KEY, ALL_KEYS_END, CHUNK_ROWS
        ):
            parts = [rows for file in small for rows in self._files_open.within(file, start, end)]
            rows = by_key(joined(parts))
            made.add(rows.table, rows.stored.to_pylist())
        merged = self._put(made, low, high)
        logs = [log for log in self.manifest.of_kind("log") if low <= log.low and log.high <= high]
        tables = [
            with_meta(self._files_open.rows(log, group).table)
            for log in logs
            for group in self._files_open.groups(log)
        ]
        log = self._log_table(low, high, pa.concat_tables(tables))
        self._publish(self.manifest.following([merged, log], [*small, *logs]))

    def clean(self) -> int:
        """Delete the data files that no manifest names, if they are old; return how many.

        Such files were merged, or their recorder was killed. Old is what was written `GRACE_S`
        before the newest data file: until then another recorder may be about to publish it, and
        readers may have the manifest that named it. Files with other names are left alone. Four
        listings, and a read of each manifest that was published since the last call.
        """
        entries = [
            entry for kind in KINDS for entry in self.files.list(kind) if DATA.fullmatch(entry.name)
        ]
        self._published = published(self.files, self._published)
        named = {file.path for each in self._published.values() for file in each.files}
        newest_of_all = max((entry.written for entry in entries), default=0.0)
        gone = [
            entry.name
            for entry in entries
            if entry.name not in named and entry.written < newest_of_all - GRACE_S
        ]
        for name in gone:
            self.files.delete(name)
        return len(gone)

    # --- files ---

    def _delta_file(self, low: int, high: int, changes: Iterable[ArchivedChange]) -> File:
        made, counts = _encoding("delta", low, high), Counter[tuple[str, int]]()
        remaining = iter(changes)
        while rows := list(islice(remaining, GROUP_ROWS_MAX)):
            columns = _columns(self.keys, [(each.event.kv, each.timestamp) for each in rows])
            deleted, ordinals = [each.event.is_delete for each in rows], list[int]()
            for place in zip(columns[SPACE], columns[REVISION], strict=True):
                ordinals.append(counts[place])
                counts[place] += 1
            table = table_of("delta", [*columns, deleted, ordinals])
            made.add(table, [each.event.kv.key for each in rows])
        return self._put(made, low, high)

    def _log_file(self, low: int, high: int, marks: Sequence[KeyValue]) -> File:
        stamps = [StampRecord.decode(kv.value) for kv in marks]
        columns: list[list[Any]] = [
            [kv.mod_revision for kv in marks],
            [stamp.timestamp for stamp in stamps],
            [physical_ms(stamp.timestamp) * 1_000 for stamp in stamps],
            [kv.version for kv in marks],
            [stamp.writer for stamp in stamps],
            [stamp.note for stamp in stamps],
            [stamp.meta_json for stamp in stamps],
            [kv.value for kv in marks],
        ]
        return self._log_table(low, high, table_of("log", columns))

    def _log_table(self, low: int, high: int, table: Any) -> File:
        made = _encoding("log", low, high)
        made.add(table, [revision_key(revision) for revision in table["revision"].to_pylist()])
        return self._put(made, low, high)

    def _put(self, made: Encoding, low: int, high: int) -> File:
        """Write a file; return what the manifest says of it."""
        data, path = made.finish(), made.path
        if self._began is None:
            self._began = monotonic()
        if not self.files.put_new(path, data):
            raise ArchiveError(f"{path} exists: a name that was made at random")
        digest = hashlib.sha256(data).hexdigest()
        return File(made.kind, path, low, high, made.rows, len(data), digest, made.first, made.last)

    def _publish(self, manifest: Manifest) -> None:
        manifest.check()
        began, self._began = self._began, None
        if began is not None and monotonic() - began > GRACE_S / 2:
            raise ArchiveError(
                f"writing to {self.files.url} took over {GRACE_S / 2:.0f} s: what was written "
                "may be cleaned away meanwhile; record again"
            )
        self._tried = manifest
        if not publish(self.files, manifest):
            self._tried = None
            raise ArchiveTakenError(f"another recorder writes to {self.files.url}")
        self.manifest, self._tried = manifest, None


def _encoding(kind: str, low: int, high: int) -> Encoding:
    """Begin a file that is about to be written, with a path as `DATA` describes it."""
    return Encoding(kind, f"{kind}/{low:020}-{high:020}-{os.urandom(4).hex()}.parquet")


def _mergeable(deltas: Sequence[File], bases: set[int]) -> list[File]:
    """Return the oldest run of small deltas to merge; a base's revision ends a run."""
    run: list[File] = []
    for delta in deltas:
        small = delta.rows * MERGED_FILES <= MERGED_ROWS_MAX
        if not small or delta.size * MERGED_FILES > MERGED_BYTES_MAX:
            run = []
            continue
        run.append(delta)
        if len(run) == MERGED_FILES:
            return run
        if delta.high in bases:
            run = []
    return []


def _columns(keys: Keys, rows: Sequence[tuple[KeyValue, int | None]]) -> list[list[Any]]:
    """Return the columns of versions, in the order of the schema."""
    parted = [keys.parted(kv.key) for kv, _ in rows]
    assert None not in parted, "only archived keys come here"
    return [
        [each[0] for each in parted if each],
        [each[1] for each in parted if each],
        [kv.value for kv, _ in rows],
        [kv.mod_revision for kv, _ in rows],
        [kv.create_revision for kv, _ in rows],
        [kv.version for kv, _ in rows],
        [timestamp for _, timestamp in rows],
        [None if timestamp is None else physical_ms(timestamp) * 1_000 for _, timestamp in rows],
    ]
