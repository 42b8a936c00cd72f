"""Writing an archive: changes collect in memory, become files, and then part of the manifest."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from snapkv.archive.files import Files
from snapkv.archive.manifest import DATA, GRACE_S, KINDS, File, Gap, Manifest
from snapkv.archive.marks import Marks, revision_key
from snapkv.archive.opened import OpenFiles, Rows, missing
from snapkv.archive.publishing import check_vacant, newest, publish, published
from snapkv.archive.rows import BASE, Keys, encode, table_of, with_meta
from snapkv.archive.state import by_key, joined, state
from snapkv.clock import monotonic
from snapkv.engine.contract import ALL_KEYS_END, Event, KeyValue
from snapkv.errors import ArchiveError, ArchiveTakenError, FileMissingError
from snapkv.layout import FIRST_KEY, Layout, SourceId, StampRecord, stamp_of
from snapkv.times import physical_ms

SUFFIX = ".parquet"
SPACE, REVISION = BASE.names.index("space"), BASE.names.index("revision")
BASE_FILE_ROWS = 500_000
BASE_FILE_BYTES = 64 << 20
"""About the size of a file of a base, before compression."""
MERGED_FILES = 8
"""So many small deltas in a row become one."""
MERGED_ROWS_MAX = 500_000
MERGED_BYTES_MAX = 32 << 20
"""A merged delta has at most so much, compressed: a watch holds one in memory."""
BASE_AFTER = 1.0
"""A new base is due when the deltas since the last one have more than so many rows of it."""
BASE_AFTER_ROWS_MIN = 10_000


class Change(NamedTuple):
    """A change of an archived key, and the timestamp of the commit that made it."""

    event: Event
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
        self._opened = OpenFiles(files, self.keys)
        self._began: float | None = None  # when the first file that is not published was written
        self._tried: Manifest | None = None  # whether it is published is not known
        self._published: dict[int, Manifest] = {}  # as `clean` saw them
        self.manifest = newest(files)
        if self.manifest is None:
            check_vacant(files)
        elif self.manifest.source != source:
            found = self.manifest.source
            raise ArchiveError(
                f"{files.url} is the archive of another store: {found.name!r}, id {found.id.hex()}"
            )

    def begin(self, mark: KeyValue, pages: Iterable[Sequence[KeyValue]]) -> None:
        """Begin an archive with the state at a mark, in pages as of a scan.

        Of older versions the timestamps are not known.
        """
        since, files = mark.mod_revision, list[File]()
        stamps = {since: stamp_of(mark.value)}
        rows: list[tuple[KeyValue, int | None]] = []
        size = 0
        for page in pages:
            for kv in page:
                if self.keys.parted(kv.key) is not None:
                    rows.append((kv, stamps.get(kv.mod_revision)))
                    size += len(kv.key) + len(kv.value)
            if len(rows) >= BASE_FILE_ROWS or size >= BASE_FILE_BYTES:
                files.append(self._base_file(since, rows))
                rows, size = [], 0
        if rows or not files:
            files.append(self._base_file(since, rows))
        files.append(self._log_file(since, since, [mark]))
        timestamp = stamps[since]
        self._publish(Manifest(1, self.source, since, timestamp, timestamp, tuple(files)))

    def append(
        self,
        high: int,
        changes: Sequence[Change],
        marks: Sequence[KeyValue],
        gap: Gap | None = None,
    ) -> None:
        """Add what happened up to the revision of the last mark, durably.

        `changes` are of archived keys, each with the timestamp of its commit, in any order;
        `marks` are the versions of the timestamp key; `gap` says which revisions are lost.
        """
        assert self.manifest is not None
        self._began = None  # what an append before this one left is not published
        low = self.manifest.high + 1
        delta = self._delta_file(low, high, changes)
        log = self._log_file(low, high, marks)
        resolved = stamp_of(marks[-1].value)
        self._publish(self.manifest.following([delta, log], resolved=resolved, gap=gap))

    def last_mark(self) -> KeyValue:
        """Return the newest commit in the archive, as a version of the timestamp key."""
        assert self.manifest is not None
        with self._reading():
            found = Marks(self._opened, self.layout.ts).at(self.manifest, self.manifest.high)
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
            self._add_base()
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
        marks = Marks(self._opened, self.layout.ts)
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
        bases = [file for file in manifest.of_kind("base") if file.high == cut]
        add = [] if bases else self._base_files(cut)
        add.append(self._log_file(cut, cut, [mark]))
        gone = [file for file in manifest.files if file.high <= cut and file not in bases]
        self._publish(manifest.following(add, gone, since=(cut, timestamp)))
        return True

    def _add_base(self) -> None:
        assert self.manifest is not None
        self._publish(self.manifest.following(self._base_files(self.manifest.high)))

    def _base_files(self, high: int) -> list[File]:
        """Write the state at the end of a delta as a base; return its files."""
        manifest = self.manifest
        assert manifest is not None
        files: list[File] = []
        pending: list[Rows] = []
        for part in state(
            self._opened, manifest, FIRST_KEY, ALL_KEYS_END, high, columns=BASE.names
        ):
            pending.append(part)
            rows = sum(each.table.num_rows for each in pending)
            size = sum(each.table.nbytes for each in pending)
            if rows >= BASE_FILE_ROWS or size >= BASE_FILE_BYTES:
                files.append(self._rows_file("base", high, high, joined(pending)))
                pending = []
        if pending or not files:
            files.append(self._rows_file("base", high, high, joined(pending)))
        return files

    def _merge(self, small: Sequence[File]) -> None:
        assert self.manifest is not None
        parts = [
            rows for file in small for rows in self._opened.within(file, FIRST_KEY, ALL_KEYS_END)
        ]
        low, high = small[0].low, small[-1].high
        merged = self._rows_file("delta", low, high, by_key(joined(parts)))
        logs = [log for log in self.manifest.of_kind("log") if low <= log.low and log.high <= high]
        tables = [
            with_meta(self._opened.rows(log, group).table)
            for log in logs
            for group in self._opened.groups(log)
        ]
        table = pa.concat_tables(tables)
        log = self._table_file("log", low, high, table, _revision_keys(table))
        self._publish(self.manifest.following([merged, log], [*small, *logs]))

    def clean(self) -> int:
        """Delete the data files that no manifest names, if they are old; return how many.

        Such files were merged, or their recorder was killed. Old is what was written
        `GRACE_S` before the newest data file: until then another recorder may be about
        to publish it, and readers may have the manifest that named it. Files with other names
        are left alone. Four listings, and a read of each manifest that was published since the
        last call.
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

    def _base_file(self, at: int, rows: Sequence[tuple[KeyValue, int | None]]) -> File:
        columns = _columns(self.keys, rows)
        keys = [kv.key for kv, _ in rows]
        return self._table_file("base", at, at, table_of("base", columns), keys)

    def _delta_file(self, low: int, high: int, changes: Sequence[Change]) -> File:
        rows = sorted(changes, key=lambda each: (each.event.kv.key, each.event.kv.mod_revision))
        columns = _columns(self.keys, [(each.event.kv, each.timestamp) for each in rows])
        deleted = [each.event.is_delete for each in rows]
        ordinals, counts = [], Counter[tuple[str, int]]()
        for place in zip(columns[SPACE], columns[REVISION], strict=True):
            ordinals.append(counts[place])
            counts[place] += 1
        table = table_of("delta", [*columns, deleted, ordinals])
        return self._table_file("delta", low, high, table, [each.event.kv.key for each in rows])

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
        table = table_of("log", columns)
        return self._table_file("log", low, high, table, _revision_keys(table))

    def _rows_file(self, kind: str, low: int, high: int, rows: Rows) -> File:
        return self._table_file(kind, low, high, rows.table, rows.stored.to_pylist())

    def _table_file(
        self, kind: str, low: int, high: int, table: Any, keys: Sequence[bytes]
    ) -> File:
        path = f"{kind}/{low:020}-{high:020}-{os.urandom(4).hex()}{SUFFIX}"
        data = encode(kind, path, table, keys)
        if self._began is None:
            self._began = monotonic()
        if not self.files.put_new(path, data):
            raise ArchiveError(f"{path} exists: a name that was made at random")
        ends = (keys[0], keys[-1]) if keys else (b"", b"")
        digest = hashlib.sha256(data).hexdigest()
        return File(kind, path, low, high, table.num_rows, len(data), digest, *ends)

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


def _revision_keys(table: Any) -> list[bytes]:
    return [revision_key(revision) for revision in table["revision"].to_pylist()]
