"""Open data files of an archive: their row groups in memory, and the commit log in them."""

from __future__ import annotations

import io
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from snapkv.archive.folder import Files
from snapkv.archive.manifest import File, Manifest
from snapkv.archive.rows import PATH, Keys, RowGroup, damaged, groups_of
from snapkv.base.lifecycle import renew_in_children
from snapkv.engine.contract import KeyValue
from snapkv.errors import ArchiveError, FileMissingError, SnapKVError

CACHE_BYTES = 64 << 20
FILES_OPEN_MAX = 256


class KeyedRows(NamedTuple):
    """Some rows of a file, and their stored keys, which are sorted."""

    stored: Any
    table: Any


class _OpenFile(NamedTuple):
    parquet: Any
    groups: list[RowGroup]
    lock: threading.Lock


class OpenFiles:
    """Reads row groups; keeps the newest `CACHE_BYTES` of them. Safe for threads and forks."""

    def __init__(self, files: Files, keys: Keys, *, cache_bytes: int = CACHE_BYTES) -> None:
        self.files, self.keys = files, keys
        self.groups_read = 0
        """Row groups that were not in memory, since the beginning."""
        self._cache_bytes = cache_bytes
        self.after_fork()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Have no open files: another thread of the parent may have been reading one."""
        self._cached_bytes = 0
        self._cache: OrderedDict[tuple[str, int], tuple[KeyedRows, int]] = OrderedDict()
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = threading.Lock()  # never held while a file is read

    def groups(self, file: File) -> list[RowGroup]:
        """Return the row groups of a file."""
        return self._open_file(file).groups

    def rows(self, file: File, group: RowGroup) -> KeyedRows:
        """Return a row group."""
        name = (file.path, group.number)
        with self._lock:
            if (found := self._cache.get(name)) is not None:
                self._cache.move_to_end(name)
                return found[0]
        opened = self._open_file(file)
        with checking(file), opened.lock:
            table = opened.parquet.read_row_group(group.number, use_threads=False).combine_chunks()
        self.groups_read += 1
        stored = pa.nulls(table.num_rows) if file.kind == "log" else self.keys.stored(table)
        rows = KeyedRows(stored, table)
        self._keep(name, rows, table.nbytes + stored.nbytes)
        return rows

    def column(self, file: File, name: str) -> Any:
        """Return one column of a file, which is not kept."""
        opened = self._open_file(file)
        with checking(file), opened.lock:
            return opened.parquet.read(columns=[name], use_threads=False)[name]

    def within(self, file: File, start: bytes, end: bytes) -> Iterator[KeyedRows]:
        r"""Yield the rows of a file with a stored key in [start, end); b"\\0" has no end."""
        if not file.rows or file.last_key < start or (end != b"\0" and file.first_key >= end):
            return
        for group in self.groups(file):
            if group.last < start or (end != b"\0" and group.first >= end):
                continue
            rows = self.rows(file, group)
            low = 0 if group.first >= start else _count_below(rows.stored, start)
            high = len(rows.stored)
            if end != b"\0" and group.last >= end:
                high = _count_below(rows.stored, end)
            if low < high:
                yield KeyedRows(
                    rows.stored.slice(low, high - low), rows.table.slice(low, high - low)
                )

    def _open_file(self, file: File) -> _OpenFile:
        with self._lock:
            found = self._open.get(file.path)
            if found is not None:
                self._open.move_to_end(file.path)
                return found
        source = _Reading(self.files, file)
        parquet = opened_parquet(source, file)
        opened = _OpenFile(parquet, groups_of(parquet, file), threading.Lock())
        with self._lock:
            self._open[file.path] = opened
            while len(self._open) > FILES_OPEN_MAX:
                self._open.popitem(last=False)
        return opened

    def _keep(self, name: tuple[str, int], rows: KeyedRows, size: int) -> None:
        with self._lock:
            if name in self._cache:
                return
            self._cache[name] = rows, size
            self._cached_bytes += size
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                self._cached_bytes -= self._cache.popitem(last=False)[1][1]


class _Reading(io.RawIOBase):
    """A file of the archive as pyarrow reads it: nothing stays open between two reads."""

    def __init__(self, files: Files, file: File) -> None:
        self._files, self._file, self._at = files, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}
        self._at = begin[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        wanted = self._file.size - self._at if size < 0 else size
        found = self._files.read_part(self._file.path, self._at, wanted)
        self._at += len(found)
        return found


@contextmanager
def checking(file: File) -> Iterator[None]:
    """Raise `ArchiveError` for a damaged file; errors of the place where it is stay as they are."""
    try:
        yield
    except SnapKVError:
        raise
    except (pa.ArrowException, OSError) as e:
        raise damaged(file, e) from e


def opened_parquet(source: Any, file: File) -> pq.ParquetFile:
    """Open a data file; raises `ArchiveError` unless it is what the manifest says."""
    with checking(file):
        opened = pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=True)
    if opened.metadata.num_rows != file.rows:
        raise damaged(file, f"{opened.metadata.num_rows} rows instead of {file.rows}")
    if (opened.metadata.metadata or {}).get(PATH) != file.path.encode():
        raise damaged(file, "it is another file")
    return opened


def missing(url: str, error: FileMissingError) -> ArchiveError:
    """Return the error for a file that the newest manifest names and that does not exist."""
    return ArchiveError(
        f"a file of the archive {url} is missing: {error}; run `snapkv archive verify`, which "
        "names all that are missing, and restore them from a copy"
    )


def _count_below(stored: Any, key: bytes) -> int:
    """Return how many of the sorted keys are below a key; O(log keys)."""
    return bisect_left(stored, key, key=lambda each: each.as_py())


def revision_key(revision: int) -> bytes:
    """Return a revision as row groups of a log are named: in 8 bytes, so that they sort."""
    return revision.to_bytes(8, "big")


class CommitLog:
    """The versions of the timestamp key in an archive."""

    def __init__(self, opened: OpenFiles, key: bytes) -> None:
        self._files_open, self._key = opened, key

    def at(self, manifest: Manifest, revision: int) -> KeyValue | None:
        """Return the version in force at a revision; reads one row group."""
        return next(self.back(manifest, revision), None)

    def back(self, manifest: Manifest, revision: int) -> Iterator[KeyValue]:
        """Yield the version in force at a revision, and the versions before it, newest first."""
        created = manifest.source.created
        for file, group in reversed(self._groups(manifest)):
            if int.from_bytes(group.first, "big") > revision:
                continue
            table = self._files_open.rows(file, group).table
            count = int(table["revision"].to_numpy().searchsorted(revision, side="right"))
            for at in reversed(range(count)):
                yield self._version(table, at, created)

    def between(self, manifest: Manifest, low: int, high: int) -> Iterator[KeyValue]:
        """Yield the versions of the revisions `low` to `high`, oldest first."""
        created = manifest.source.created
        for file, group in self._groups(manifest):
            if int.from_bytes(group.last, "big") < low or int.from_bytes(group.first, "big") > high:
                continue
            table = self._files_open.rows(file, group).table
            revisions = table["revision"].to_numpy()
            first = int(revisions.searchsorted(low))
            for at in range(first, int(revisions.searchsorted(high, side="right"))):
                yield self._version(table, at, created)

    def _groups(self, manifest: Manifest) -> list[tuple[File, RowGroup]]:
        logs = manifest.of_kind("log")
        return [(file, group) for file in logs for group in self._files_open.groups(file)]

    def _version(self, table: Any, at: int, created: int) -> KeyValue:
        stamp, revision, ordinal = (
            table[name][at].as_py() for name in ("stamp", "revision", "ordinal")
        )
        return KeyValue(self._key, stamp, created, revision, ordinal)
