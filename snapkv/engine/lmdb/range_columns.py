"""Reading a range as columns, with numpy and Arrow.

For very many keys. A few calls per chunk find the version of each key at a revision, and decode its
header; a scan does that in Python for each key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from snapkv.base.extras import extra
from snapkv.engine.contract import Columns, Range
from snapkv.engine.lmdb import client
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.reading import each_step, key_values
from snapkv.engine.lmdb.records import HEADER_BYTES, LEASED, REMOVED, SUFFIX_BYTES, span_of
from snapkv.engine.lmdb.walking import TAIL_BYTES, Records, Walk
from snapkv.engine.version_columns import BYTES_MAX, columns_in
from snapkv.errors import CorruptStoreError

with extra("arrow", "tables"):
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray

CHUNK_RECORDS_FIRST, CHUNK_RECORDS = 256, 4_096
"""More than a scan takes at once, because each call of Arrow costs time."""


def columns(
    env: Callable[[], Environment], key: bytes, range_end: bytes, revision: int, keys_only: bool
) -> Iterator[Columns]:
    """Yield a range in chunks, each from a read transaction of its own, as `scan` does pages."""
    wanted = Range(key, range_end, revision, keys_only=keys_only)
    walk = Walk(
        *span_of(key, range_end),
        revision,
        keys_only=keys_only,
        chunk=CHUNK_RECORDS,
        begin=CHUNK_RECORDS_FIRST,
    )

    def step(cursor: client.Cursor, newest: int) -> list[Columns]:
        records = walk.take(cursor, newest)
        if not records.raws:
            return []
        found = _selected(walk, records, revision, keys_only)
        if found is None:
            return list(columns_in([key_values(walk.selected(records), keys_only)]))
        return [found] if len(found.keys) else []

    for some in each_step(env, wanted, walk, step):
        yield from some


def _selected(walk: Walk, records: Records, revision: int, keys_only: bool) -> Columns | None:
    """Return the versions at the revision as columns, without removals.

    None if records have leases, whose headers are longer, or more bytes than one array takes.
    """
    column, values = pa.array(records.raws, pa.binary()), pa.array(records.values, pa.binary())
    if isinstance(values, pa.ChunkedArray):
        return None
    _, ends, data = buffers(column)
    modified = ~big_endian(data, ends - SUFFIX_BYTES)  # stored inverted: the newest first
    stems = pc.binary_slice(column, 0, -TAIL_BYTES)
    starts, ends, data = buffers(values)
    if (ends - starts).min() < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    keep: NDArray[np.bool_] = np.ones(len(stems), bool)
    if not records.single:
        current = modified <= revision
        fresh = pc.not_equal(stems[1:], stems[:-1]).to_numpy(zero_copy_only=False)
        walk.adapt(len(stems), 1 + int(fresh.sum()), records.current)
        keep = current.copy()  # the first that is not too new, of each key
        keep[1:] &= fresh | ~current[:-1]
    flags = data[starts + (HEADER_BYTES - 1)]
    if flags.any():
        keep &= (flags & REMOVED) == 0
        if (flags[keep] & LEASED).any():
            return None
    found = (
        unescaped(stems),
        pc.binary_slice(values, HEADER_BYTES, HEADER_BYTES if keys_only else BYTES_MAX),
        pa.array(big_endian(data, starts)),
        pa.array(modified),
        pa.array(big_endian(data, starts + 8)),
    )
    if keep.all():
        return Columns(*found)
    mask = pa.array(keep)
    return Columns(*(each.filter(mask) for each in found))


def buffers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value of a column starts and ends, and the bytes of all."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(column) + 1].astype(np.int64)
    return edges[:-1], edges[1:], np.frombuffer(data, np.uint8)


def big_endian(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the 8 bytes at each start as numbers."""
    anywhere = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    return anywhere[starts].astype(np.int64)


def unescaped(stems: pa.Array) -> pa.Array:
    """Return keys from their stems, in which a zero byte is followed by 0xff."""
    if not pc.any(pc.match_substring(stems, pattern="\0")).as_py():
        return stems
    return pc.replace_substring(stems, pattern=b"\0\xff", replacement=b"\0")
