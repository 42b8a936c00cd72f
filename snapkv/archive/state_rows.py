"""The state at a revision, made of a base and the changes since; and changes as columns.

A change supersedes the row of the base with the same key, also where it removes the key: a removal
that were looked for among living rows only would let the base's row come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.data_files import KeyedRows, OpenFiles
from snapkv.archive.manifest import File, Manifest
from snapkv.archive.rows import BASE
from snapkv.engine.contract import ALL_KEYS_END, ChangeColumns, KeyValue

COLUMNS = ["value", "created", "revision", "version"]
"""The columns of a key at a revision."""
CHUNK_ROWS = 40_000
"""The number of rows, about, that are merged at once."""
CHUNK_GROUPS = 32
"""The most row groups, of about `GROUP_BYTES` each, that begin in what is merged at once."""


def files_of(manifest: Manifest, revision: int) -> tuple[list[File], list[File]]:
    """Return the base for the state at a revision, in parts, and the deltas after it."""
    at = manifest.of_kind("base", 0, revision)[-1].high
    return base_parts(manifest, at), manifest.of_kind("delta", at + 1, revision)


def base_parts(manifest: Manifest, revision: int) -> list[File]:
    """Return the files of the base at a revision, in the order of keys."""
    return sorted(manifest.of_kind("base", revision, revision), key=lambda file: file.first_key)


def row_at(opened: OpenFiles, manifest: Manifest, key: bytes, revision: int) -> KeyValue | None:
    """Return the version of a key at a revision; reads a row group of each delta at most."""
    parts, deltas = files_of(manifest, revision)
    for file in reversed(deltas):
        for rows in reversed(list(opened.within(file, key, key + b"\0"))):
            revisions = rows.table["revision"].to_numpy()
            count = int(revisions.searchsorted(revision, side="right"))
            if count:
                return _version(key, rows.table, count - 1)
    for file in parts:
        for rows in opened.within(file, key, key + b"\0"):
            return _version(key, rows.table, 0)
    return None


def _version(key: bytes, table: Any, at: int) -> KeyValue | None:
    if "deleted" in table.column_names and table["deleted"][at].as_py():
        return None
    value, created, revision, version = (
        table[name][at].as_py() for name in ("value", "created", "revision", "version")
    )
    return KeyValue(key, value, created, revision, version)


def state(
    opened: OpenFiles,
    manifest: Manifest,
    start: bytes,
    end: bytes,
    revision: int,
    *,
    columns: list[str] = COLUMNS,
) -> Iterator[KeyedRows]:
    """Yield the rows in force at a revision in [start, end), ascending, `CHUNK_ROWS` at a time.

    They have `columns` alone: to copy all of them takes a third more time.
    """
    parts, deltas = files_of(manifest, revision)
    for low, high, _ in chunks(opened, [*parts, *deltas], start, end, CHUNK_ROWS):
        base = [_only(columns, rows) for file in parts for rows in opened.within(file, low, high)]
        changes = [
            _within(each, 0, revision) if file.high > revision else each
            for file in deltas
            for rows in opened.within(file, low, high)
            for each in [_only([*columns, "deleted"], rows)]
        ]
        found = merged(base, changes)
        if len(found.stored):
            yield found


def chunks(
    opened: OpenFiles, files: list[File], start: bytes, end: bytes, size: int
) -> Iterator[tuple[bytes, bytes, int]]:
    """Cut a range where row groups begin; yield each piece, and how many rows begin in it.

    A piece has about `size` rows, and not more than about `CHUNK_GROUPS` groups.
    """
    groups = [
        group
        for file in files
        if file.rows and file.last_key >= start and (end == ALL_KEYS_END or file.first_key < end)
        for group in opened.groups(file)
        if group.last >= start and (end == ALL_KEYS_END or group.first < end)
    ]
    low, rows, count = start, 0, 0
    for group in sorted(groups, key=lambda group: group.first):
        if (rows >= size or count >= CHUNK_GROUPS) and group.first > low:
            yield low, group.first, rows
            low, rows, count = group.first, 0, 0
        rows, count = rows + group.rows, count + 1
    yield low, end, rows


def _only(columns: list[str], rows: KeyedRows) -> KeyedRows:
    return KeyedRows(rows.stored, rows.table.select(columns))


def merged(base: list[KeyedRows], changes: list[KeyedRows]) -> KeyedRows:
    """Return a state, sorted by key, after changes in the order of revisions."""
    newest = latest(changes)
    if not len(newest.stored):
        return joined(base)
    under = joined(base)
    left = pc.invert(pc.is_in(under.stored, value_set=newest.stored))
    living = pc.invert(newest.table["deleted"]).combine_chunks()
    stored = pa.concat_arrays([under.stored, newest.stored])
    names = [name for name in newest.table.column_names if name in BASE.names]
    table = pa.concat_tables([rows.table.select(names) for rows in (under, newest)])
    order = pc.sort_indices(stored)
    order = order.filter(pa.concat_arrays([left, living]).take(order))
    return KeyedRows(stored.take(order), table.take(order))


def latest(changes: list[KeyedRows]) -> KeyedRows:
    """Return the last change of each key, sorted by key, from deltas in the order of revisions."""
    rows = joined(changes)
    order = key_order(rows)
    stored = rows.stored.take(order)
    if len(stored) > 1:
        last = pc.not_equal(stored.slice(0, len(stored) - 1), stored.slice(1))
        last = pa.concat_arrays([last, pa.array([True])])
        order, stored = order.filter(last), stored.filter(last)
    return KeyedRows(stored, rows.table.take(order))


def by_key(rows: KeyedRows) -> KeyedRows:
    """Return rows sorted by stored key, then by revision."""
    order = key_order(rows)
    return KeyedRows(rows.stored.take(order), rows.table.take(order))


def key_order(rows: KeyedRows) -> Any:
    """Return where rows are in the order of stored keys, then of revisions."""
    table = pa.table({"stored": rows.stored, "revision": rows.table["revision"]})
    return pc.sort_indices(table, sort_keys=[("stored", "ascending"), ("revision", "ascending")])


def joined(parts: list[KeyedRows]) -> KeyedRows:
    """Return rows one after the other."""
    if not parts:
        return KeyedRows(pa.array([], pa.binary()), BASE.empty_table())
    return KeyedRows(
        pa.concat_arrays([part.stored for part in parts]),
        pa.concat_tables([part.table for part in parts]).combine_chunks(),
    )


SHOWN = ("value", "revision", "version", "time", "deleted")
"""The columns of the changes, beside their stored keys."""


class Changed(NamedTuple):
    """Changes of the revisions `low` to `high`, sorted by revision and stored key.

    With `exact`, each row's revision is that of the commit that made it. Otherwise another program
    wrote some of them, or they fell into a gap, and they belong to the next commit.
    """

    low: int
    high: int
    rows: KeyedRows
    exact: bool


def changes_in(
    opened: OpenFiles, manifest: Manifest, file: File, low: int, high: int, start: bytes, end: bytes
) -> Changed:
    """Return the changes that a delta has in the revisions `low` to `high`, of a range of keys."""
    low, high = max(low, file.low), min(high, file.high)
    whole = (low, high) == (file.low, file.high)
    parts = [
        KeyedRows(rows.stored, rows.table.select(SHOWN)) for rows in opened.within(file, start, end)
    ]
    rows = joined(parts if whole else [_within(rows, low, high) for rows in parts])
    revisions = rows.table["revision"].combine_chunks()
    order = pc.sort_indices(revisions)  # stable, and the rows of a delta are sorted by key
    exact = pc.all(pc.is_in(revisions, value_set=_marks(opened, manifest, low, high)))
    in_gap = any(gap.low <= high and low <= gap.high for gap in manifest.gaps)
    found = KeyedRows(rows.stored.take(order), rows.table.take(order))
    return Changed(low, high, found, exact.as_py() is not False and not in_gap)


def _within(rows: KeyedRows, low: int, high: int) -> KeyedRows:
    revisions = rows.table["revision"].combine_chunks()
    wanted = pc.and_(pc.greater_equal(revisions, low), pc.less_equal(revisions, high))
    return KeyedRows(rows.stored.filter(wanted), rows.table.filter(wanted))


def _marks(opened: OpenFiles, manifest: Manifest, low: int, high: int) -> Any:
    """Return the revisions of the commits from `low` to `high`."""
    found = [
        opened.rows(log, group).table["revision"].combine_chunks()
        for log in manifest.of_kind("log", low, high)
        for group in opened.groups(log)
    ]
    return pa.concat_arrays(found) if found else pa.array([], pa.int64())


def exact(opened: OpenFiles, manifest: Manifest, low: int, high: int) -> bool:
    """Return whether all changes of the revisions `low` to `high` have that of their commit."""
    marks = _marks(opened, manifest, low, high)
    for file in manifest.of_kind("delta", low, high):
        revisions = pc.unique(opened.column(file, "revision"))
        wanted = pc.and_(pc.greater_equal(revisions, low), pc.less_equal(revisions, high))
        if pc.any(pc.invert(pc.is_in(revisions.filter(wanted), value_set=marks))).as_py():
            return False
    return True


def changes_of(rows: KeyedRows, *, keys_only: bool) -> ChangeColumns:
    """Return rows of changes as an engine gives them."""
    value, revisions, version, deleted = (
        rows.table[name].combine_chunks() for name in ("value", "revision", "version", "deleted")
    )
    nothing = pa.scalar(None, pa.binary())
    values = pa.nulls(len(value), pa.binary()) if keys_only else pc.if_else(deleted, nothing, value)
    return ChangeColumns(rows.stored, values, revisions, pc.if_else(deleted, 0, version))
