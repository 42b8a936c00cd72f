"""Reading a range as columns: records are taken from LMDB in bulk, and sorted out by Arrow.

For readers of very many keys. What a scan does key by key in Python is done here by a few calls a
chunk: which version of each key is the newest at a revision, and what its header says.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterator

from snapkv.arrow import BYTES_MAX, columns_of
from snapkv.engine.base import Columns, Range
from snapkv.engine.lmdb.env import Environment
from snapkv.engine.lmdb.mdb import Cursor
from snapkv.engine.lmdb.reading import behind_key, revision_in, seek, walk
from snapkv.engine.lmdb.records import (
    HEADER_BYTES,
    LEASED,
    REMOVED,
    STEM_END,
    SUFFIX_BYTES,
    span_of,
    suffix_of,
)
from snapkv.errors import CorruptStoreError
from snapkv.extras import extra

with extra("arrow", "tables"):
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.lib.stride_tricks import sliding_window_view
    from numpy.typing import NDArray

CHUNK_RECORDS_FIRST = 256
CHUNK_RECORDS_MAX = 10_000
CHUNK_BYTES = 8 << 20
"""What a chunk holds at most, but for its last record."""
PASSED_MAX = 8
"""With more records than this for each key found, a walk that seeks past old versions is faster."""

_TAIL = SUFFIX_BYTES + len(STEM_END)


def columns(
    env: Callable[[], Environment], key: bytes, range_end: bytes, revision: int, keys_only: bool
) -> Iterator[Columns]:
    """Yield a range in chunks, each from a read transaction of its own, as `scan` does pages."""
    first, beyond = span_of(key, range_end)
    target: bytes | None = first
    limit = CHUNK_RECORDS_FIRST
    while target is not None:
        with env().reading() as txn:
            revision_in(txn.state, Range(key, range_end, revision))
            raws, values, more = _records(txn.cursor(), target, beyond, limit, keys_only)
            if not raws:
                return
            column = pa.array(values, pa.binary())
            found, behind = _sorted_out(raws, column, revision)
            if found is None or len(found.keys) * PASSED_MAX < len(raws):
                page, behind = walk(txn.cursor(), target, beyond, revision, limit, keys_only)
                found, more = columns_of(page) if page else None, behind is not None
        if found is not None and len(found.keys):
            yield found
        target = behind if more else None
        # Keys are taken before values: about as many as there will be room for.
        limit = min(CHUNK_RECORDS_MAX, max(1, CHUNK_BYTES * len(raws) // column.nbytes))


def _records(
    cursor: Cursor, target: bytes, beyond: bytes, limit: int, keys_only: bool
) -> tuple[list[bytes], list[bytes], bool]:
    """Return keys and values of up to `limit` records of [target, beyond); whether more may come.

    Fewer, when their values take `CHUNK_BYTES`; of values that nobody wants only the headers. By
    two walks: bytes alone are half the work of pairs, which the garbage collector looks at.
    """
    if not seek(cursor, target):
        return [], [], False
    raws = list(itertools.islice(cursor.iternext(keys=True, values=False), limit))
    more = len(raws) == limit
    if raws[-1] >= beyond:
        del raws[bisect_left(raws, beyond) :]
        more = False
    if not raws:
        return [], [], False
    cursor.set_key(raws[0])
    found = itertools.islice(cursor.iternext(keys=False, values=True), len(raws))
    if keys_only:
        return raws, [value[:HEADER_BYTES] for value in found], more
    values: list[bytes] = []
    room = CHUNK_BYTES
    for value in found:
        values.append(value)
        room -= len(value)
        if room <= 0:
            break
    return raws[: len(values)], values, more or len(values) < len(raws)


def _sorted_out(
    raws: list[bytes], values: pa.Array, revision: int
) -> tuple[Columns | None, bytes | None]:
    """Return the keys of consecutive records as columns, and where to go on.

    The first record is the first of its key, or the newest of it at the revision. None instead of
    columns where there are leases, whose headers are longer.
    """
    column = pa.array(raws, pa.binary())
    starts, ends, data = _buffers(column)
    modified = ~_big_endian(data, ends - SUFFIX_BYTES)  # newest first, so it stands inverted
    stems = pc.binary_slice(column, 0, -_TAIL)
    current = modified <= revision
    keep = current.copy()  # the first that is not too new, of each key
    if len(raws) > 1:
        other = pc.not_equal(stems[1:], stems[:-1]).to_numpy(zero_copy_only=False)
        keep[1:] &= other | ~current[:-1]
    starts, ends, data = _buffers(values)
    if (ends - starts).min() < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    flags = data[starts + HEADER_BYTES - 1]
    last = raws[-1]
    behind = behind_key(last) if current[-1] else last[:-SUFFIX_BYTES] + suffix_of(revision)
    if (flags[keep] & LEASED).any():
        return None, behind
    keep &= (flags & REMOVED) == 0
    mask = None if keep.all() else pa.array(keep)
    found = (
        _unescaped(stems),
        pc.binary_slice(values, HEADER_BYTES, BYTES_MAX),
        pa.array(_big_endian(data, starts)),
        pa.array(modified),
        pa.array(_big_endian(data, starts + 8)),
    )
    return Columns(*(each if mask is None else each.filter(mask) for each in found)), behind


def _buffers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value of a column starts and ends, and the bytes of all."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(column) + 1].astype(np.int64)
    return edges[:-1], edges[1:], np.frombuffer(data, np.uint8)


def _big_endian(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the 8 bytes at each start as numbers."""
    return sliding_window_view(data, 8)[starts].view(">i8")[:, 0].astype(np.int64)


def _unescaped(stems: pa.Array) -> pa.Array:
    """Return keys from their stems, in which a zero byte is followed by 0xff."""
    if not pc.any(pc.match_substring(stems, pattern="\0")).as_py():
        return stems
    return pc.replace_substring(stems, pattern=b"\0\xff", replacement=b"\0")
