"""Versions of keys as columns of Arrow, made of the pages of a scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from snapkv.base.extras import requires_extra
from snapkv.engine.contract import ChangeColumns, Columns, KeyEvent

with requires_extra("arrow", "tables"):
    import pyarrow as pa

BYTES_MAX = 1 << 30
"""The number of bytes that no value reaches, as the end of slices: Arrow has no open end."""
BATCH_ROWS = 10_000
BATCH_BYTES = 64 << 20
"""The bytes of the values of one batch, without the last one: an array of Arrow holds less than 2
GiB."""


def columns_in(pages: Iterable[Sequence[Any]]) -> Iterator[Columns]:
    """Yield the pages of a scan, none of them empty, as columns of at most one batch each.

    A page holds `KeyValue`s, or messages of etcd, which have the same fields.
    """
    for page in pages:
        whole = Columns(
            pa.array([row.key for row in page], pa.binary()),
            pa.array([row.value for row in page], pa.binary()),
            pa.array([row.create_revision for row in page], pa.int64()),
            pa.array([row.mod_revision for row in page], pa.int64()),
            pa.array([row.version for row in page], pa.int64()),
        )
        yield from batches_of(whole)


def changes_of(
    events: Sequence[KeyEvent], *, keys_only: bool, befores: Sequence[bytes | None] | None
) -> ChangeColumns:
    """Return events, sorted by revision and key, as columns."""
    values = [] if keys_only else [None if e.is_delete else e.kv.value for e in events]
    return ChangeColumns(
        pa.array([e.kv.key for e in events], pa.binary()),
        pa.nulls(len(events), pa.binary()) if keys_only else pa.array(values, pa.binary()),
        pa.array([e.kv.mod_revision for e in events], pa.int64()),
        pa.array([e.kv.version for e in events], pa.int64()),
        None if befores is None else pa.array(befores, pa.binary()),
    )


def blank(rows: int) -> pa.Array:
    """Return a column of empty values."""
    return pa.repeat(pa.scalar(b"", pa.binary()), rows)


def batches_of(some: Columns) -> Iterator[Columns]:
    """Yield columns cut into batches, without copying."""
    rows = len(some.keys)
    if rows > BATCH_ROWS or (rows > 1 and some.values.nbytes >= BATCH_BYTES):
        half = BATCH_ROWS if rows > BATCH_ROWS else rows // 2
        yield from batches_of(Columns(*(column.slice(0, half) for column in some)))
        yield from batches_of(Columns(*(column.slice(half) for column in some)))
    else:
        yield some
