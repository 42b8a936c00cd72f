"""A small archive read as a whole: the state at a time, and what differs between two times.

An engine reads an archive piece by piece, for one key or a page. Here all files that a time needs
are read at once, because of a thousand archives it is the number of files that costs. Rows have the
timestamp of their commit, so no log is read, but for the times of bases after the first one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapkv.archive.files import Files
from snapkv.archive.manifest import File, Manifest
from snapkv.archive.opened import Rows, damaged
from snapkv.archive.rows import PATH
from snapkv.archive.state import latest, merged
from snapkv.times import TIMESTAMP_MAX

BYTES_MAX = 64 << 20
"""An archive of which a time needs more bytes than this is read piece by piece instead."""
COLUMNS = ["key", "value", "created", "revision", "version"]


class Differing(NamedTuple):
    """A key that differs between two times; None means absent."""

    key: bytes
    before: bytes | None
    after: bytes | None


class WholeArchive:
    """The keys without a space in one archive, as its manifest names them."""

    def __init__(self, files: Files, manifest: Manifest) -> None:
        self._files, self.manifest = files, manifest

    @cached_property
    def began(self) -> int:
        """The timestamp of the first commit that is known; reads one log, mostly."""
        if self.manifest.since_timestamp:
            return self.manifest.since_timestamp
        for file in self.manifest.of_kind("log"):  # the creation has the timestamp 0
            if not file.rows:
                continue
            opened = self._opened(file)
            least, most = _bounds(opened)
            if least:
                return least
            if most:
                times = opened.read(["timestamp"], use_threads=False)["timestamp"]
                return int(pc.min(times.filter(pc.greater(times, 0))).as_py())
        return self.manifest.resolved + 1

    @property
    def is_small(self) -> bool:
        """Whether it may be read as a whole."""
        return sum(file.size for file in self.manifest.files) <= BYTES_MAX

    def state(self, timestamp: int, prefix: bytes = b"") -> Any:
        """Return the rows in force at a time as an Arrow table of `COLUMNS`, sorted by key.

        Reads the newest base at or below the time, and the deltas after it: a request for each.
        Raises `ArchiveError` for damaged files, `FileMissingError` if they were merged meanwhile.
        """
        base, changes = self._read(timestamp, timestamp, prefix)
        return merged(base, _until(changes, timestamp)).table.select(COLUMNS)

    def differences(self, a: int, b: int, prefix: bytes = b"") -> Iterator[Differing]:
        """Yield the keys that differ between two times, in order; reads what one state needs."""
        low, high = min(a, b), max(a, b)
        base, changes = self._read(low, high, prefix)
        newer = latest(_between(changes, low, high))
        if not len(newer.stored):
            return
        before = merged(base, _until(changes, low))
        at = pc.index_in(newer.stored, value_set=before.stored)
        old = before.table["value"].take(at).to_pylist()
        deleted = newer.table["deleted"].to_pylist()
        new = newer.table["value"].to_pylist()
        for key, was, is_, gone in zip(newer.stored.to_pylist(), old, new, deleted, strict=True):
            left, right = was, None if gone else is_
            if left != right:
                yield Differing(key, left, right) if a <= b else Differing(key, right, left)

    def _read(self, low: int, high: int, prefix: bytes) -> tuple[list[Rows], list[Rows]]:
        """Return the rows of the base for one time, and of the deltas up to another time."""
        manifest = self.manifest
        at = self._base(low)
        bases = [file for file in manifest.of_kind("base") if file.high == at]
        deltas = [file for file in manifest.of_kind("delta") if file.high > at]
        base = [self._rows(file, [*COLUMNS, "space"], prefix) for file in bases if file.rows]
        changes = []
        for file in deltas:
            if not file.rows:
                continue
            found = self._rows(file, [*COLUMNS, "space", "timestamp", "deleted"], prefix, high)
            if found is None:  # it begins after that time, and so do the rest
                break
            changes.append(found)
        return [rows for rows in base if rows is not None], changes

    def _base(self, timestamp: int) -> int:
        """Return the revision of the newest base at or below a time."""
        revisions = sorted({file.high for file in self.manifest.of_kind("base")}, reverse=True)
        for revision in revisions[:-1]:
            if self._time_of(revision) <= timestamp:
                return revision
        return revisions[-1]

    def _time_of(self, revision: int) -> int:
        """Return the timestamp of the newest commit at or below a revision, from the log."""
        for file in reversed(self.manifest.of_kind("log")):
            if file.low <= revision and file.rows:
                table = self._opened(file).read(["revision", "timestamp"], use_threads=False)
                known = table.filter(pc.less_equal(table["revision"], revision))
                if known.num_rows:
                    return int(pc.max(known["timestamp"]).as_py())
        return self.manifest.since_timestamp

    def _rows(
        self, file: File, columns: list[str], prefix: bytes, until: int | None = None
    ) -> Rows | None:
        """Return a file's rows of keys with a prefix; None if all of them are after a time."""
        opened = self._opened(file)
        if until is not None and _bounds(opened)[0] > until:
            return None
        try:
            table = opened.read(columns, use_threads=False).combine_chunks()
        except (pa.ArrowException, OSError) as e:
            raise damaged(file, e) from e
        own = pc.equal(table["space"], "")
        if prefix:
            own = pc.and_(own, pc.starts_with(table["key"], prefix))
        if not pc.all(own, min_count=0).as_py():
            table = table.filter(own).combine_chunks()
        table = table.drop_columns("space")
        return Rows(_array(table["key"]), table)

    def _opened(self, file: File) -> Any:
        source = pa.BufferReader(self._files.read(file.path))  # faster than by its path
        try:
            opened = pq.ParquetFile(source, page_checksum_verification=True)
        except (pa.ArrowException, OSError) as e:
            raise damaged(file, e) from e
        metadata = opened.metadata
        if metadata.num_rows != file.rows:
            raise damaged(file, f"{metadata.num_rows} rows instead of {file.rows}")
        if (metadata.metadata or {}).get(PATH) != file.path.encode():
            raise damaged(file, "it is another file")
        return opened


def _bounds(opened: Any) -> tuple[int, int]:
    """Return the first and the last timestamp of a file by its statistics; 0 and all without."""
    metadata, at = opened.metadata, opened.schema_arrow.get_field_index("timestamp")
    least, most = TIMESTAMP_MAX, 0
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(at).statistics
        if statistics is None or not statistics.has_min_max:
            return 0, TIMESTAMP_MAX
        least, most = min(least, statistics.min), max(most, statistics.max)
    return least, most


def _until(changes: list[Rows], timestamp: int) -> list[Rows]:
    return [_kept(rows, pc.less_equal(rows.table["timestamp"], timestamp)) for rows in changes]


def _between(changes: list[Rows], low: int, high: int) -> list[Rows]:
    def inside(times: Any) -> Any:
        return pc.and_(pc.greater(times, low), pc.less_equal(times, high))

    return [_kept(rows, inside(rows.table["timestamp"])) for rows in changes]


def _kept(rows: Rows, wanted: Any) -> Rows:
    """Return the wanted rows, without their times, which a base's rows do not have here."""
    table = rows.table.drop_columns("timestamp")
    if pc.all(wanted, min_count=0).as_py():
        return Rows(rows.stored, table)
    table = table.filter(wanted)
    return Rows(_array(table["key"]), table)


def _array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
