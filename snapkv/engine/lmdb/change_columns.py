"""Reading changes as columns: a walk over the log, and a seek for each record.

A watch makes several objects for each change. Here a change takes one turn of a loop and one seek,
and numpy decodes the headers of the records.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from snapkv.base.extras import extra
from snapkv.base.waiting import check_in_time
from snapkv.engine.contract import ALL_KEYS_END, Changes, Replay
from snapkv.engine.lmdb import change_scan
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.range_columns import big_endian, buffers
from snapkv.engine.lmdb.records import (
    HEADER,
    HEADER_BYTES,
    LEASED,
    REMOVED,
    REVISION_MAX,
    STEM_END,
    be64,
    body_of,
    checked_stem,
    is_removal,
    stem_of,
    suffix_of,
)
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.engine.replay import CHANGES_BYTES, CHANGES_ROWS
from snapkv.engine.version_columns import BYTES_MAX
from snapkv.errors import CompactedError, CorruptStoreError

with extra("arrow", "tables"):
    import pyarrow as pa
    import pyarrow.compute as pc

LOG_BYTES = 1 << 20
"""Bytes of log entries after which the keys of one transaction end."""
_ABSENT = HEADER.pack(0, 0, 0)
_CHANGE = struct.Struct(">BH")
_CHANGE_BYTES = _CHANGE.size
_BE64 = struct.Struct(">Q")
_PACK, _UNPACK = _BE64.pack, _BE64.unpack_from
_VERSION_AT = 8


def changes(env: Callable[[], Environment], wanted: Replay) -> Iterator[Changes]:
    """Yield changes as columns, each from a read transaction that looks at compaction again."""
    if not wanted.range_end:
        checked_stem(wanted.key)
    elif (scanned := change_scan.scanned(env, wanted)) is not None:
        yield from scanned
        return
    walk = _Walk(wanted)
    while walk.next <= wanted.last:
        check_in_time()
        with env().reading() as txn:
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


def _columns(found: _Found, keys_only: bool, befores: list[bytes | None] | None) -> Changes:
    column = pa.array(found.values, pa.binary())
    starts, ends, data = buffers(column)
    if (ends - starts).min() < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    versions = pa.array(big_endian(data, starts + 8))
    if keys_only:
        values = pa.nulls(len(column), pa.binary())
    elif (data[starts + (HEADER_BYTES - 1)] & LEASED).any():  # longer headers
        bodies = [None if each is _ABSENT else body_of(each) for each in found.values]
        values = pa.array(bodies, pa.binary())
    else:
        values = pc.binary_slice(column, HEADER_BYTES, BYTES_MAX)
        removed = pc.equal(versions, 0)
        if pc.any(removed).as_py():
            values = pc.if_else(removed, pa.scalar(None, pa.binary()), values)
    return Changes(
        pa.array(found.keys, pa.binary()),
        values,
        pa.array(found.revisions, pa.int64()),
        versions,
        None if befores is None else pa.array(befores, pa.binary()),
    )
