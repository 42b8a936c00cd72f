"""The state at a revision, made of a base and the changes since.

A change supersedes the row of the base with the same key, also where it removes the key: a removal
that were looked for among living rows only would let the base's row come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.manifest import File, Manifest
from snapkv.archive.opened import OpenFiles, Rows
from snapkv.archive.rows import BASE
from snapkv.engine.contract import ALL_KEYS_END, KeyValue

COLUMNS = ["value", "created", "revision", "version"]
"""What a key has at a revision."""
CHUNK_ROWS = 40_000
"""About so many rows are merged at once."""
CHUNK_GROUPS = 32
"""The most row groups, of about `GROUP_BYTES` each, that begin in what is merged at once."""


def files_of(manifest: Manifest, revision: int) -> tuple[list[File], list[File]]:
    """Return the base for the state at a revision, in parts, and the deltas after it."""
    bases = [file for file in manifest.of_kind("base") if file.high <= revision]
    at = bases[-1].high
    parts = sorted((file for file in bases if file.high == at), key=lambda file: file.first_key)
    deltas = manifest.of_kind("delta")
    return parts, [file for file in deltas if file.high > at and file.low <= revision]


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
) -> Iterator[Rows]:
    """Yield the rows in force at a revision in [start, end), ascending, `CHUNK_ROWS` at a time.

    They have `columns` alone: to copy all of them takes a third more time.
    """
    parts, deltas = files_of(manifest, revision)
    for low, high, _ in chunks(opened, [*parts, *deltas], start, end, CHUNK_ROWS):
        base = [_only(columns, rows) for file in parts for rows in opened.within(file, low, high)]
        changes = [
            _until(_only([*columns, "deleted"], rows), revision if file.high > revision else None)
            for file in deltas
            for rows in opened.within(file, low, high)
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


def _only(columns: list[str], rows: Rows) -> Rows:
    return Rows(rows.stored, rows.table.select(columns))


def _until(rows: Rows, revision: int | None) -> Rows:
    if revision is None:
        return rows
    seen = pc.less_equal(rows.table["revision"], revision).combine_chunks()
    return Rows(rows.stored.filter(seen), rows.table.filter(seen))


def merged(base: list[Rows], changes: list[Rows]) -> Rows:
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
    return Rows(stored.take(order), table.take(order))


def latest(changes: list[Rows]) -> Rows:
    """Return the last change of each key, sorted by key, from deltas in the order of revisions."""
    rows = joined(changes)
    order = _by_key(rows)
    stored = rows.stored.take(order)
    if len(stored) > 1:
        last = pc.not_equal(stored.slice(0, len(stored) - 1), stored.slice(1))
        last = pa.concat_arrays([last, pa.array([True])])
        order, stored = order.filter(last), stored.filter(last)
    return Rows(stored, rows.table.take(order))


def by_key(rows: Rows) -> Rows:
    """Return rows sorted by stored key, then by revision."""
    order = _by_key(rows)
    return Rows(rows.stored.take(order), rows.table.take(order))


def _by_key(rows: Rows) -> Any:
    table = pa.table({"stored": rows.stored, "revision": rows.table["revision"]})
    return pc.sort_indices(table, sort_keys=[("stored", "ascending"), ("revision", "ascending")])


def joined(parts: list[Rows]) -> Rows:
    """Return rows one after the other."""
    if not parts:
        return Rows(pa.array([], pa.binary()), BASE.empty_table())
    return Rows(
        pa.concat_arrays([part.stored for part in parts]),
        pa.concat_tables([part.table for part in parts]).combine_chunks(),
    )
