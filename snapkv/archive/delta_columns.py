"""The changes in a delta as columns: sorted as commits made them, without a step for each row."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from snapkv.archive.manifest import File, Manifest
from snapkv.archive.opened import OpenFiles, Rows
from snapkv.archive.state import joined
from snapkv.engine.contract import ChangeColumns

SHOWN = ("value", "revision", "version", "time", "deleted")
"""The columns of the changes, beside their stored keys."""


class Changed(NamedTuple):
    """Changes of the revisions `low` to `high`, sorted by revision and stored key.

    With `exact`, each row's revision is that of the commit that made it. Otherwise another program
    wrote some of them, or they fell into a gap, and they belong to the next commit.
    """

    low: int
    high: int
    rows: Rows
    exact: bool


def changes_in(
    opened: OpenFiles, manifest: Manifest, file: File, low: int, high: int, start: bytes, end: bytes
) -> Changed:
    """Return the changes that a delta has in the revisions `low` to `high`, of a range of keys."""
    low, high = max(low, file.low), min(high, file.high)
    whole = (low, high) == (file.low, file.high)
    parts = [
        Rows(rows.stored, rows.table.select(SHOWN)) for rows in opened.within(file, start, end)
    ]
    rows = joined(parts if whole else [_within(rows, low, high) for rows in parts])
    revisions = rows.table["revision"].combine_chunks()
    order = pc.sort_indices(revisions)  # stable, and the rows of a delta are sorted by key
    exact = pc.all(pc.is_in(revisions, value_set=_marks(opened, manifest, low, high)))
    in_gap = any(gap.low <= high and low <= gap.high for gap in manifest.gaps)
    found = Rows(rows.stored.take(order), rows.table.take(order))
    return Changed(low, high, found, exact.as_py() is not False and not in_gap)


def _within(rows: Rows, low: int, high: int) -> Rows:
    revisions = rows.table["revision"].combine_chunks()
    wanted = pc.and_(pc.greater_equal(revisions, low), pc.less_equal(revisions, high))
    return Rows(rows.stored.filter(wanted), rows.table.filter(wanted))


def _marks(opened: OpenFiles, manifest: Manifest, low: int, high: int) -> Any:
    """Return the revisions of the commits from `low` to `high`."""
    found = [
        opened.rows(log, group).table["revision"].combine_chunks()
        for log in manifest.of_kind("log")
        if log.high >= low and log.low <= high
        for group in opened.groups(log)
    ]
    return pa.concat_arrays(found) if found else pa.array([], pa.int64())


def exact(opened: OpenFiles, manifest: Manifest, low: int, high: int) -> bool:
    """Return whether all changes of the revisions `low` to `high` have that of their commit."""
    marks = _marks(opened, manifest, low, high)
    for file in manifest.of_kind("delta"):
        if file.high < low or file.low > high:
            continue
        revisions = pc.unique(opened.column(file, "revision"))
        wanted = pc.and_(pc.greater_equal(revisions, low), pc.less_equal(revisions, high))
        if pc.any(pc.invert(pc.is_in(revisions.filter(wanted), value_set=marks))).as_py():
            return False
    return True


def changes_of(rows: Rows, *, keys_only: bool) -> ChangeColumns:
    """Return rows of changes as an engine gives them."""
    value, revisions, version, deleted = (
        rows.table[name].combine_chunks() for name in ("value", "revision", "version", "deleted")
    )
    nothing = pa.scalar(None, pa.binary())
    values = pa.nulls(len(value), pa.binary()) if keys_only else pc.if_else(deleted, nothing, value)
    return ChangeColumns(rows.stored, values, revisions, pc.if_else(deleted, 0, version))
