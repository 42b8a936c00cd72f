"""Small archives, each read at once: their states at a time, and differences of two times.

An engine reads an archive piece by piece, for one key or a page. Here all files that a time needs
are read at once, because of a thousand archives it is the number of files that costs. Rows have the
timestamp of their commit, so no log is read, but for the times of bases after the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.data_files import checking, opened_parquet
from snapkv.archive.folder import Files
from snapkv.archive.manifest import File, Manifest
from snapkv.archive.rows import DELTA
from snapkv.times import TIMESTAMP_MAX

BYTES_MAX = 64 << 20
"""The most bytes that a time may need of an archive that is read whole; a larger one is read in
pieces."""
COLUMNS = ["key", "value", "created", "revision", "version"]
ROWS = pa.schema([each for each in DELTA if each.name not in ("time", "change_ordinal")])


class ArchiveRows(NamedTuple):
    """The rows of an archive that its states at two times need."""

    tables: list[Any]
    """Of a base, then of deltas in the order of their revisions, each with the columns `ROWS`."""
    low: int
    high: int

    @property
    def nbytes(self) -> int:
        """The bytes of memory that they take."""
        return sum(table.nbytes for table in self.tables)


class SmallArchive:
    """One archive whose files are read at once, without the keys of spaces."""

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
            opened = self._parquet_file(file)
            least, most = _bounds(opened)
            if least:
                return least
            if most:
                times = _columns(opened, file, ["timestamp"])["timestamp"]
                return int(pc.min(times.filter(pc.greater(times, 0))).as_py())
        return self.manifest.resolved + 1

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.manifest.files)

    @property
    def is_small(self) -> bool:
        """Whether it may be read as a whole."""
        return self.size <= BYTES_MAX

    def read(self, low: int, high: int) -> ArchiveRows:
        """Return what `states` and `differences` need for the times from `low` to `high`.

        Reads the newest base at or below `low`, and the deltas after it that begin at or before
        `high`: a request for each. Raises `ArchiveError` for damaged files, `FileMissingError` if
        they were merged meanwhile.
        """
        at = self._base(low)
        tables = [
            self._rows(self._parquet_file(file), file)
            for file in self.manifest.of_kind("base", at, at)
            if file.rows
        ]
        for file in self.manifest.of_kind("delta", at + 1):
            if file.rows:
                opened = self._parquet_file(file)
                if _bounds(opened)[0] > high:  # and so do the rest
                    break
                tables.append(self._rows(opened, file))
        return ArchiveRows(tables, low, high)

    def _base(self, timestamp: int) -> int:
        """Return the revision of the newest base at or below a time."""
        revisions = sorted({file.high for file in self.manifest.of_kind("base")}, reverse=True)
        for revision in revisions[:-1]:
            if self._time_of(revision) <= timestamp:
                return revision
        return revisions[-1]

    def _time_of(self, revision: int) -> int:
        """Return the timestamp of the newest commit at or below a revision, from the log."""
        for file in reversed(self.manifest.of_kind("log", 0, revision)):
            if file.rows:
                table = _columns(self._parquet_file(file), file, ["revision", "timestamp"])
                known = table.filter(pc.less_equal(table["revision"], revision))
                if known.num_rows:
                    return int(pc.max(known["timestamp"]).as_py())
        return self.manifest.since_timestamp

    def _rows(self, opened: Any, file: File) -> Any:
        """Return the rows of a file as `ROWS`; rows of a base count as older than any time."""
        missing = [] if file.kind == "delta" else [ROWS.field("timestamp"), ROWS.field("deleted")]
        table = _columns(opened, file, [each.name for each in ROWS if each not in missing])
        for each in missing:
            table = table.append_column(each, pa.repeat(pa.scalar(0).cast(each.type), file.rows))
        return table

    def _parquet_file(self, file: File) -> Any:
        source = pa.BufferReader(self._files.read(file.path))  # faster than by its path
        return opened_parquet(source, file)


def _columns(opened: Any, file: File, names: list[str]) -> Any:
    """Return columns of a file; raises `ArchiveError` if its pages are damaged."""
    with checking(file):
        return opened.read(names, use_threads=False)


def _bounds(opened: Any) -> tuple[int, int]:
    """Return the first and the last timestamp of a file by its statistics; 0 and all without."""
    metadata, at = opened.metadata, opened.schema.names.index("timestamp")
    least, most = TIMESTAMP_MAX, 0
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(at).statistics
        if statistics is None or not statistics.has_min_max:
            return 0, TIMESTAMP_MAX
        least, most = min(least, statistics.min), max(most, statistics.max)
    return least, most


class _Rows(NamedTuple):
    """The wanted rows of archives, in the order of archives, keys and revisions."""

    table: Any
    order: Any
    """Where they are in the table."""
    archive: Any
    """Their archives' places in the list."""
    ends: Any
    """Whether each is the last one of its key."""


def states(archives: Sequence[ArchiveRows], prefix: bytes = b"") -> Any:
    """Return the rows in force at `high` of some archives as one Arrow table, sorted by key.

    It has `archive`, the place in the list, and `COLUMNS`. One sort for all of them: Arrow's and
    numpy's calls cost more than the few rows of a small archive.
    """
    rows = _sorted(archives, prefix)
    living = rows.ends & ~_numpy(rows.table["deleted"])[rows.order]
    found = rows.table.select(COLUMNS).take(rows.order[living])
    return found.add_column(0, "archive", pa.array(rows.archive[living]))


def differences(archives: Sequence[ArchiveRows], prefix: bytes = b"") -> Any:
    """Return the keys that differ between `low` and `high` as an Arrow table, sorted.

    It has `archive`, the place in the list, `key`, and `before` and `after`, null where absent.
    """
    rows = _sorted(archives, prefix)
    low = np.array([each.low for each in archives], np.int64)
    late = _numpy(rows.table["timestamp"])[rows.order] > low[rows.archive]
    newest = np.flatnonzero(rows.ends & late)
    older = np.flatnonzero(~late[:-1] & late[1:] & ~rows.ends[:-1])
    before = np.full(len(newest), -1)
    before[np.searchsorted(newest, older)] = rows.order[older]  # the next end is that of its key
    after = rows.order[newest]
    old, new = _values(rows.table, before), _values(rows.table, after)
    differs = pc.and_(
        pc.fill_null(pc.not_equal(old, new), True), pc.or_(*map(pc.is_valid, (old, new)))
    )
    columns = [pa.array(rows.archive[newest]), rows.table["key"].take(after), old, new]
    return pa.table(columns, ["archive", "key", "before", "after"]).filter(differs)


def _sorted(archives: Sequence[ArchiveRows], prefix: bytes) -> _Rows:
    """Sort the rows up to `high` of keys with a prefix, without a space."""
    tables = [table for each in archives for table in each.tables]
    table = pa.concat_tables([ROWS.empty_table(), *tables]).combine_chunks()
    counts = [sum(table.num_rows for table in each.tables) for each in archives]
    archive: Any = np.repeat(np.arange(len(archives)), counts)
    high = np.array([each.high for each in archives], np.int64)
    wanted = _numpy(pc.equal(table["space"], "")) & (_numpy(table["timestamp"]) <= high[archive])
    if prefix:
        wanted &= _numpy(pc.starts_with(table["key"], prefix))
    order = np.flatnonzero(wanted)
    keys = table["key"].combine_chunks().filter(pa.array(wanted)).dictionary_encode()
    rank = _numpy(pc.rank(keys.dictionary)).astype(np.int64)
    number = archive[order] * (len(rank) + 1) + rank[_numpy(keys.indices)]
    # stable: the files of an archive follow each other, and the versions of a key in a file
    by = np.argsort(number, kind="stable")
    order, number = order[by], number[by]
    ends: Any = np.ones(len(order), np.bool_)
    ends[:-1] = number[1:] != number[:-1]
    return _Rows(table, order, archive[order], ends)


def _values(table: Any, at: Any) -> Any:
    """Return the values of rows, null for -1 and for a removal."""
    absent = (at < 0) | _numpy(table["deleted"])[at]
    return table["value"].take(pa.array(at, mask=absent))


def _numpy(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)
