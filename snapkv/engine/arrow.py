"""Versions of keys as columns of Arrow, made of the pages of a scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from snapkv.engine.columns import Columns
from snapkv.extras import extra

with extra("arrow", "tables"):
    import pyarrow as pa

BYTES_MAX = 1 << 30
"""Beyond any value: where slices end, for Arrow takes no open end."""
BATCH_ROWS = 10_000
BATCH_BYTES = 64 << 20
"""Values of one batch, give or take the last one: a column of 2 GiB would be no array any more."""


def columns_in(pages: Iterable[Sequence[Any]]) -> Iterator[Columns]:
    """Yield the pages of a scan, none of them empty, as columns of what one batch takes.

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
        yield from _batches(whole)


def _batches(some: Columns) -> Iterator[Columns]:
    """Yield columns in parts of what one batch takes; cutting copies nothing."""
    rows = len(some.keys)
    if rows > BATCH_ROWS or (rows > 1 and some.values.nbytes >= BATCH_BYTES):
        half = BATCH_ROWS if rows > BATCH_ROWS else rows // 2
        yield from _batches(Columns(*(column.slice(0, half) for column in some)))
        yield from _batches(Columns(*(column.slice(half) for column in some)))
    else:
        yield some
