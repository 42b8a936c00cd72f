"""Reading changes by a scan: all records of a range in key order, then sorted by revision.

Where a replay wants a good part of a store's history, that is several times as fast as a seek for
each record: py-lmdb walks in C, and numpy filters and sorts. It holds all changes in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from snapkv.base.extras import extra
from snapkv.base.waiting import check_in_time
from snapkv.engine.contract import Changes, Replay
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.range_columns import big_endian, buffers, unescaped
from snapkv.engine.lmdb.records import (
    HEADER_BYTES,
    LEASED,
    REMOVED,
    REVISION_MAX,
    SUFFIX_BYTES,
    body_of,
    span_of,
)
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.engine.lmdb.walking import TAIL_BYTES, Records, Walk
from snapkv.engine.replay import CHANGES_BYTES, CHANGES_ROWS
from snapkv.engine.version_columns import BYTES_MAX
from snapkv.errors import CorruptStoreError

with extra("arrow", "tables"):
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray

SHARE_MIN = 0.3
"""With a smaller share of all revisions, seeks are faster."""
BYTES_MAX_HELD = 256 << 20
"""The most bytes of changes that a scan may hold, as estimated from the share."""
CHUNK_RECORDS_FIRST, CHUNK_RECORDS = 256, 4_096


def scanned(env: Callable[[], Environment], wanted: Replay) -> Iterator[Changes] | None:
    """Return changes in chunks that end with a revision; None where seeks should find them."""
    with env().reading() as txn:
        if not _is_worth_it(txn, wanted):
            return None
    walk = _WholeWalk(
        *span_of(wanted.key, wanted.range_end),
        REVISION_MAX,
        keys_only=wanted.keys_only,
        chunk=CHUNK_RECORDS,
        begin=CHUNK_RECORDS_FIRST,
    )
    parts: list[_Part] = []
    while walk.target is not None:
        check_in_time()
        with env().reading() as txn:
            if txn.state.compacted >= wanted.first:
                return None
            records = walk.take(txn.cursor(), txn.state.revision)
            if records.raws:
                parts.append(_part(txn, records, wanted))
    return _sorted(parts) if parts else iter(())


class _WholeWalk(Walk):
    """A walk over all records, not one of each key."""

    def _behind(self, raw: bytes) -> bytes:
        return raw + b"\0"


class _Part(NamedTuple):
    """Changes in the order of their keys."""

    keys: pa.Array
    values: pa.Array
    revisions: NDArray[np.int64]
    versions: NDArray[np.int64]
    befores: pa.Array | None


def _is_worth_it(txn: Transaction, wanted: Replay) -> bool:
    state = txn.state
    if wanted.first <= state.compacted:  # removals at that revision have no record any more
        return False
    share = (min(wanted.last, state.revision) - wanted.first + 1) / state.revision
    stat = txn.txn.stat(txn.databases.records)
    held = (stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"] * share
    return share >= SHARE_MIN and held <= BYTES_MAX_HELD


def _part(txn: Transaction, records: Records, wanted: Replay) -> _Part:
    raws, values = pa.array(records.raws, pa.binary()), pa.array(records.values, pa.binary())
    _, ends, data = buffers(raws)
    revisions = ~big_endian(data, ends - SUFFIX_BYTES)
    starts, ends, data = buffers(values)
    if (ends - starts).min() < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    flags = data[starts + (HEADER_BYTES - 1)]
    removed = (flags & REMOVED) != 0
    versions = np.where(removed, 0, big_endian(data, starts + 8))
    if (flags & LEASED).any():  # longer headers
        bodies = pa.array([body_of(each) for each in records.values], pa.binary())
    else:
        bodies = pc.binary_slice(values, HEADER_BYTES, BYTES_MAX)
    shown = pa.array((revisions >= wanted.first) & (revisions <= wanted.last))
    nothing = pa.scalar(None, pa.binary())
    befores = None
    if wanted.before:  # the next record is the version before, unless the key was created
        older = pa.concat_arrays([bodies.slice(1), pa.array([_before_last(txn, records)])])
        befores = pc.if_else(pa.array(versions == 1), nothing, older).filter(shown)
    if wanted.keys_only:
        bodies = pa.nulls(len(bodies), pa.binary())
    elif removed.any():
        bodies = pc.if_else(pa.array(removed), nothing, bodies)
    return _Part(
        unescaped(pc.binary_slice(raws.filter(shown), 0, -TAIL_BYTES)),
        bodies.filter(shown),
        revisions[shown],
        versions[shown],
        befores,
    )


def _before_last(txn: Transaction, records: Records) -> bytes:
    """Return the value of the record behind the last one of a chunk."""
    cursor = txn.cursor()
    cursor.set_key(records.raws[-1])
    return body_of(cursor.value()) if cursor.next() else b""


def _sorted(parts: list[_Part]) -> Iterator[Changes]:
    """Yield changes by revision, and of each revision in the order of their keys."""
    revisions = np.concatenate([part.revisions for part in parts])
    order = pa.array(np.argsort(revisions, kind="stable"))
    whole = Changes(
        pa.concat_arrays([part.keys for part in parts]).take(order),
        pa.concat_arrays([part.values for part in parts]).take(order),
        pa.array(revisions).take(order),
        pa.array(np.concatenate([part.versions for part in parts])).take(order),
        None
        if parts[0].befores is None
        else pa.concat_arrays([part.befores for part in parts]).take(order),
    )
    ascending, at = whole.revisions.to_numpy(), 0
    ends = np.cumsum(pc.fill_null(pc.binary_length(whole.values), 0).to_numpy())
    while at < len(ascending):
        room = ends.searchsorted(ends[at] + CHANGES_BYTES, side="right")
        last = ascending[min(at + CHANGES_ROWS, int(room), len(ascending)) - 1]
        end = int(ascending.searchsorted(last, side="right"))
        yield Changes(*(None if each is None else each.slice(at, end - at) for each in whole))
        at = end
