"""Ranges and changes as columns, with numpy and Arrow.

For very many keys. Of a range, a few calls per chunk find the version of each key at a revision,
and decode its header; a scan does that in Python for each key.

Of changes, a watch makes several objects for each one. Here a change takes one turn of a loop and
one seek. Where a replay wants a good part of a store's history, a scan of all records of the range,
in key order, which numpy then sorts by revision, is several times as fast: py-lmdb walks in C. It
holds all changes in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from snapkv.base.extras import requires_extra
from snapkv.base.waiting import check_in_time
from snapkv.engine.bulk_reads import CHANGES_BYTES, CHANGES_ROWS
from snapkv.engine.contract import ALL_KEYS_END, ChangeColumns, Columns, Range, Replay
from snapkv.engine.lmdb import client
from snapkv.engine.lmdb.environment import Environment, Transaction
from snapkv.engine.lmdb.reading import each_step, key_values
from snapkv.engine.lmdb.records import (
    HEADER,
    HEADER_BYTES,
    LEASED,
    REMOVED,
    REVISION_MAX,
    STEM_END,
    SUFFIX_BYTES,
    be64,
    body_of,
    checked_stem,
    is_removal,
    span_of,
    stem_of,
    suffix_of,
)
from snapkv.engine.lmdb.walking import TAIL_BYTES, Records, Walk
from snapkv.engine.version_columns import BYTES_MAX, columns_in
from snapkv.errors import CompactedError, CorruptStoreError

with requires_extra("arrow", "tables"):
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    from numpy.typing import NDArray

CHUNK_RECORDS_FIRST, CHUNK_RECORDS = 256, 4_096
"""More than a scan takes at once, because each call of Arrow costs time."""


def columns(env: Callable[[], Environment], wanted: Range) -> Iterator[Columns]:
    """Yield a range in chunks, each from a read transaction of its own, as `scan` does pages."""
    revision, keys_only = wanted.revision, wanted.keys_only
    sizes = {"chunk": CHUNK_RECORDS, "begin": CHUNK_RECORDS_FIRST}
    first, beyond = span_of(*wanted[:2])
    walk = Walk(first, beyond, revision, keys_only=keys_only, **sizes)

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
    _, ends, data = _buffers(column)
    modified = ~_big_endian(data, ends - SUFFIX_BYTES)  # stored inverted: the newest first
    stems = pc.binary_slice(column, 0, -TAIL_BYTES)
    starts, data, flags = _headers(values)
    keep: NDArray[np.bool_] = np.ones(len(stems), bool)
    if not records.single:
        current = modified <= revision
        fresh = pc.not_equal(stems[1:], stems[:-1]).to_numpy(zero_copy_only=False)
        walk.adapt(len(stems), 1 + int(fresh.sum()), records.current)
        keep = current.copy()  # the first that is not too new, of each key
        keep[1:] &= fresh | ~current[:-1]
    if flags.any():
        keep &= (flags & REMOVED) == 0
        if (flags[keep] & LEASED).any():
            return None
    found = (
        _unescaped(stems),
        pc.binary_slice(values, HEADER_BYTES, HEADER_BYTES if keys_only else BYTES_MAX),
        pa.array(_big_endian(data, starts)),
        pa.array(modified),
        pa.array(_big_endian(data, starts + 8)),
    )
    if keep.all():
        return Columns(*found)
    mask = pa.array(keep)
    return Columns(*(each.filter(mask) for each in found))


def _buffers(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value of a column starts and ends, and the bytes of all."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32)[: len(column) + 1].astype(np.int64)
    return edges[:-1], edges[1:], np.frombuffer(data, np.uint8)


def _headers(records: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return where each record starts, the bytes of all, and the flags of each."""
    starts, ends, data = _buffers(records)
    if (ends - starts).min() < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    return starts, data, data[starts + (HEADER_BYTES - 1)]


def _bodies(records: pa.Array, listed: list[bytes], flags: NDArray[np.uint8]) -> pa.Array:
    """Return the values that records hold; a lease makes the header of its record longer."""
    if (flags & LEASED).any():
        return pa.array([body_of(each) for each in listed], pa.binary())
    return pc.binary_slice(records, HEADER_BYTES, BYTES_MAX)


def _big_endian(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the 8 bytes at each start as numbers."""
    anywhere = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    return anywhere[starts].astype(np.int64)


def _unescaped(stems: pa.Array) -> pa.Array:
    """Return keys from their stems, in which a zero byte is followed by 0xff."""
    if not pc.any(pc.match_substring(stems, pattern="\0")).as_py():
        return stems
    return pc.replace_substring(stems, pattern=b"\0\xff", replacement=b"\0")


# --- changes by a scan ---

SHARE_MIN = 0.3
"""The least share of all revisions for which a walk is used; for a smaller one, seeks are
faster."""
BYTES_MAX_HELD = 256 << 20
"""The most bytes of changes that a scan may hold, as estimated from the share."""


def _scanned(env: Callable[[], Environment], wanted: Replay) -> Iterator[ChangeColumns] | None:
    """Return changes in chunks that end with a revision; None where seeks should find them."""
    with Transaction(env()) as txn:
        if not _is_worth_it(txn, wanted):
            return None
    sizes = {"chunk": CHUNK_RECORDS, "begin": CHUNK_RECORDS_FIRST}
    first, beyond = span_of(*wanted[:2])
    walk = _RecordWalk(first, beyond, REVISION_MAX, keys_only=wanted.keys_only, **sizes)
    parts: list[ChangeColumns] = []
    while walk.target is not None:
        check_in_time()
        with Transaction(env()) as txn:
            if txn.state.compacted >= wanted.first:
                return None
            records = walk.take(txn.cursor(), txn.state.revision)
            if records.raws:
                parts.append(_part(txn, records, wanted))
    return _sorted(parts) if parts else iter(())


class _RecordWalk(Walk):
    """A walk over all records, not one of each key."""

    def _next_target(self, raw: bytes) -> bytes:
        return raw + b"\0"


def _is_worth_it(txn: Transaction, wanted: Replay) -> bool:
    state = txn.state
    if wanted.first <= state.compacted:  # removals at that revision have no record any more
        return False
    share = (min(wanted.last, state.revision) - wanted.first + 1) / state.revision
    stat = txn.txn.stat(txn.databases.records)
    held = (stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"] * share
    return share >= SHARE_MIN and held <= BYTES_MAX_HELD


def _part(txn: Transaction, records: Records, wanted: Replay) -> ChangeColumns:
    """Return the changes of some records, in the order of their keys."""
    raws, values = pa.array(records.raws, pa.binary()), pa.array(records.values, pa.binary())
    _, ends, data = _buffers(raws)
    revisions = ~_big_endian(data, ends - SUFFIX_BYTES)
    starts, data, flags = _headers(values)
    removed = (flags & REMOVED) != 0
    versions = np.where(removed, 0, _big_endian(data, starts + 8))
    bodies = _bodies(values, records.values, flags)
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
    return ChangeColumns(
        _unescaped(pc.binary_slice(raws.filter(shown), 0, -TAIL_BYTES)),
        bodies.filter(shown),
        pa.array(revisions).filter(shown),
        pa.array(versions).filter(shown),
        befores,
    )


def _before_last(txn: Transaction, records: Records) -> bytes:
    """Return the value of the record behind the last one of a chunk."""
    cursor = txn.cursor()
    cursor.set_key(records.raws[-1])
    return body_of(cursor.value()) if cursor.next() else b""


def _sorted(parts: list[ChangeColumns]) -> Iterator[ChangeColumns]:
    """Yield changes by revision, and of each revision in the order of their keys."""
    revisions = np.concatenate([part.revisions for part in parts])
    order = pa.array(np.argsort(revisions, kind="stable"))
    found = ChangeColumns(
        *(
            None if each[0] is None else pa.concat_arrays(each).take(order)
            for each in zip(*parts, strict=True)
        )
    )
    ascending, at = found.revisions.to_numpy(), 0
    ends = np.cumsum(pc.fill_null(pc.binary_length(found.values), 0).to_numpy())
    while at < len(ascending):
        room = ends.searchsorted(ends[at] + CHANGES_BYTES, side="right")
        last = ascending[min(at + CHANGES_ROWS, int(room), len(ascending)) - 1]
        end = int(ascending.searchsorted(last, side="right"))
        yield ChangeColumns(*(None if each is None else each.slice(at, end - at) for each in found))
        at = end


# --- changes by a walk over the log, and a seek for each record ---

LOG_BYTES = 1 << 20
"""The bytes of log entries after which the keys of one transaction end."""
_ABSENT = HEADER.pack(0, 0, 0)
_CHANGE = struct.Struct(">BH")
_CHANGE_BYTES = _CHANGE.size
_BE64 = struct.Struct(">Q")
_PACK, _UNPACK = _BE64.pack, _BE64.unpack_from
_VERSION_AT = 8


def changes(env: Callable[[], Environment], wanted: Replay) -> Iterator[ChangeColumns]:
    """Yield changes as columns, each from a read transaction that looks at compaction again."""
    if not wanted.range_end:
        checked_stem(wanted.key)
    elif (scanned := _scanned(env, wanted)) is not None:
        yield from scanned
        return
    walk = _Walk(wanted)
    while walk.next <= wanted.last:
        check_in_time()
        with Transaction(env()) as txn:
            compacted = txn.state.compacted
            if walk.next < compacted:
                raise CompactedError(walk.next, compacted, unit="revision")
            found = walk.step(txn, compacted)
            befores = _befores(txn, found, compacted) if wanted.before else None
        if found.keys:
            yield _columns(found, wanted.keys_only, befores)


class _Found(NamedTuple):
    """Changes of some whole revisions, as lists; the record of a removal is `_ABSENT`."""

    keys: list[bytes]
    revisions: list[int]
    values: list[bytes]  # their records


class _Walk:
    """A walk over changes: `next` is the first revision that was not read."""

    def __init__(self, wanted: Replay) -> None:
        self.next, self._last = wanted.first, wanted.last
        self._start, self._end = wanted.key, wanted.range_end or wanted.key + b"\0"
        self._single = not wanted.range_end

    def step(self, txn: Transaction, compacted: int) -> _Found:
        """Read a chunk, which ends with a revision."""
        # compaction frees the record of a removal at its own revision, but not the log entry
        read = self._versions if self._single and self.next > compacted else self._logged
        found = _Found([], [], [])
        self.next = read(txn, found) or self._last + 1
        return found

    def _versions(self, txn: Transaction, found: _Found) -> int | None:
        """Read the versions of one key, the oldest first; return where to go on, None at the end.

        A log has other keys, too.
        """
        stem, size = stem_of(self._start), 0
        cursor = txn.cursor()
        first = stem + suffix_of(self.next)
        if cursor.set_range(first):
            if cursor.key() != first and not cursor.prev():  # to the next newer one
                return None
        elif not cursor.last():
            return None
        at, keys, revisions, values = len(stem), *found
        for raw, value in cursor.iterprev():
            if not raw.startswith(stem):
                return None
            revision: int = REVISION_MAX - _UNPACK(raw, at)[0]
            if revision > self._last:
                return None
            if len(keys) == CHANGES_ROWS or size >= CHANGES_BYTES:
                return revision
            keys.append(self._start)
            revisions.append(revision)
            values.append(_ABSENT if is_removal(value) else value)
            size += len(value)
        return None

    def _logged(self, txn: Transaction, found: _Found) -> int | None:
        """Read log entries, and the records they name; return where to go on, None at the end.

        A hot path, therefore inside of one function.
        """
        start, end, last, get = self._start, self._end, self._last, txn.cursor().get
        endless, unpack = end == ALL_KEYS_END, _CHANGE.unpack_from
        keys, add_key = found.keys, found.keys.append
        add_revision, add_value = found.revisions.append, found.values.append
        seen = bytes_ = 0
        log = txn.txn.cursor(txn.databases.log)
        if not log.set_range(be64(self.next)):
            return None
        try:
            for raw, entry in log.iternext():
                revision: int = _UNPACK(raw)[0]
                if revision > last:
                    return None
                if len(keys) >= CHANGES_ROWS or bytes_ >= CHANGES_BYTES or seen >= LOG_BYTES:
                    return revision
                tail, at, size = STEM_END + _PACK(REVISION_MAX - revision), 0, len(entry)
                seen += size
                while at < size:
                    flags, length = unpack(entry, at)
                    at += _CHANGE_BYTES + length
                    key = entry[at - length : at]
                    if key < start:
                        continue
                    if key >= end and not endless:
                        break
                    value: Any = _ABSENT
                    if not flags & REMOVED:
                        stem = key.replace(b"\0", b"\0\xff") if 0 in key else key
                        value = get(stem + tail)
                        bytes_ += len(value)
                    add_key(key)
                    add_revision(revision)
                    add_value(value)
                if at > size:
                    raise CorruptStoreError("a log entry is cut short")
        except struct.error as e:
            raise CorruptStoreError("a log entry is cut short") from e
        except TypeError as e:
            raise CorruptStoreError(
                f"the log has {key!r} at {revision}, but no record exists"
            ) from e
        return None


def _befores(txn: Transaction, found: _Found, compacted: int) -> list[bytes | None]:
    """Return the value before each change: its record is behind that of the change."""
    cursor = txn.cursor()
    befores: list[bytes | None] = []
    for key, revision, value in zip(found.keys, found.revisions, found.values, strict=True):
        if value is not _ABSENT and _UNPACK(value, _VERSION_AT)[0] == 1:
            befores.append(None)
            continue
        if revision <= compacted:
            raise CompactedError(revision - 1, compacted, unit="revision")
        stem = stem_of(key)
        if not cursor.set_range(stem + suffix_of(revision - 1)) or not cursor.key().startswith(
            stem
        ):
            raise CorruptStoreError(f"{key!r} has no version before {revision}")
        befores.append(body_of(cursor.value()))
    return befores


def _columns(found: _Found, keys_only: bool, befores: list[bytes | None] | None) -> ChangeColumns:
    column = pa.array(found.values, pa.binary())
    starts, data, flags = _headers(column)
    versions = pa.array(_big_endian(data, starts + 8))
    if keys_only:
        values = pa.nulls(len(column), pa.binary())
    else:
        values = _bodies(column, found.values, flags)
        removed = pc.equal(versions, 0)
        if pc.any(removed).as_py():
            values = pc.if_else(removed, pa.scalar(None, pa.binary()), values)
    return ChangeColumns(
        pa.array(found.keys, pa.binary()),
        values,
        pa.array(found.revisions, pa.int64()),
        versions,
        None if befores is None else pa.array(befores, pa.binary()),
    )
