"""Reads of one state: points, ranges, pages.

A point is one seek. All ranges, pages and counts use one `Walk`.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice, takewhile
from operator import itemgetter
from threading import get_ident
from typing import TypeVar

from snapkv.engine.contract import (
    GetResult,
    Header,
    KeyValue,
    Page,
    Pairs,
    Range,
    RangePiece,
    RangeResult,
    ReadResult,
    Versions,
)
from snapkv.engine.lmdb import client, records
from snapkv.engine.lmdb.environment import Environment, Transaction
from snapkv.engine.lmdb.leases import Leases, is_due
from snapkv.engine.lmdb.records import (
    HEADER,
    HEADER_BYTES,
    KEY_BYTES_MAX,
    LEASE_BYTES,
    LEASED,
    REMOVED,
    REVISION_MAX,
    STEM_BYTES_MAX,
    STEM_END,
    SUFFIX_BYTES,
    StoredState,
    body_of,
    key_of,
    span_of,
)
from snapkv.engine.lmdb.walking import FoundRecords, Walk, key_after, seek, unescaped
from snapkv.engine.request_checks import check_piece_rows
from snapkv.errors import CompactedError, CorruptStoreError, FutureRevisionError

_BE64 = struct.Struct(">Q")
_UNPACK, _UNPACK_HEADER = _BE64.unpack_from, HEADER.unpack_from
_NOW = bytes(SUFFIX_BYTES)
_BEHIND_SUFFIXES = b"\xff" * (SUFFIX_BYTES + 1)
_flags_of = itemgetter(HEADER_BYTES - 1)
_new = tuple.__new__

Step = TypeVar("Step")


def get(env: Environment, key: bytes, revision: int) -> GetResult | None:
    """Answer one key by one seek in a transaction of its own, inside of one function.

    None in all other cases: another thread has exclusive access, the environment is stale, the
    revision cannot be read, a lease is due, the key is too long, LMDB raises an error. Then `read`
    answers or raises.
    """
    access, me = env.access, get_ident()
    access.active.add(me)
    txn = cursor = None  # to be freed before `access` is left: see `Transaction`
    try:
        raw, databases = env.raw, env.databases
        if access.claim or env.stale or raw is None or databases is None:
            return None
        txn = raw.begin()
        cached = env.cached
        if cached is None or cached.txn != txn.id():
            cached = env.read_state(txn)
        state = cached.state
        if revision == 0:
            if state.due and not env.readonly and is_due(state):
                return None
            suffix = _NOW
        elif state.compacted <= revision <= state.revision:
            suffix = _BE64.pack(REVISION_MAX - revision)
        else:
            return None
        stem = (key.replace(b"\0", b"\0\xff") if 0 in key else key) + STEM_END
        length = len(stem)
        if length > STEM_BYTES_MAX:
            return None
        cursor = txn.cursor(databases.records)
        if not cursor.set_range(stem + suffix):
            return cached.absent
        found, value = cursor.item()
        if not found.startswith(stem):
            return cached.absent
        created, version, flags = _UNPACK_HEADER(value)
        if flags:
            return cached.absent if flags & REMOVED else None
        modified = REVISION_MAX - _UNPACK(found, length)[0]
        kv = _new(KeyValue, (key, value[HEADER_BYTES:], created, modified, version, 0))
        return _new(GetResult, (cached.header, kv))
    except (client.Error, OSError, struct.error):
        return None
    finally:
        cursor = txn = None
        access.active.discard(me)


def read(env: Environment, ranges: Sequence[Range]) -> ReadResult | None:
    """Answer all ranges from one read transaction; None when a lease must end before."""
    with Transaction(env) as txn:
        state, cursor = txn.state, txn.txn.cursor(txn.databases.records)
        if state.due and not env.readonly and is_due(state):
            return None
        results, asked, revision = list[RangeResult](), 0, REVISION_MAX
        for wanted in ranges:
            if wanted.revision != asked:
                asked, revision = wanted.revision, revision_in(state, wanted)
            if wanted.range_end or wanted.keys_only or wanted.count_only:
                results.append(answer(cursor, state, wanted, revision))
            else:  # a hot path
                found = point(cursor, wanted.key, revision)
                results.append(RangeResult([], 0) if found is None else RangeResult([found], 1))
        return ReadResult(Header(state.revision, env.cluster), results)


def read_around(env: Environment, ranges: Sequence[Range]) -> ReadResult:
    """Answer all ranges, without the keys of leases that are due but cannot be ended now."""
    with Transaction(env) as txn:
        state, cursor, over = txn.state, txn.cursor(), Leases(txn).over()
        results = [
            answer(
                cursor, state, wanted, revision_in(state, wanted), () if wanted.revision else over
            )
            for wanted in ranges
        ]
        return ReadResult(Header(state.revision, env.cluster), results)


def versions(env: Environment, key: bytes, revision: int, limit: int) -> Versions:
    """Return versions of a key from a revision down to its creation, `limit` at most.

    Two walks in C: over the keys of the records, then over the values of the key's own records.
    """
    stem = records.checked_stem(key)
    with Transaction(env) as txn:
        newest = revision_in(txn.state, Range(key, b"", revision))
        cursor = txn.cursor()
        raws = list[bytes]()
        if cursor.set_range(stem + _BE64.pack(REVISION_MAX - newest)):
            raws = list(islice(cursor.iternext(keys=True, values=False), limit))
            del raws[bisect_left(raws, stem + _BEHIND_SUFFIXES) :]
        if not raws or not cursor.set_key(raws[0]):
            return Versions([], [])
        values = list(islice(cursor.iternext(keys=False, values=True), len(raws)))
    try:
        kept = values if not any(map(_flags_of, values)) else list(takewhile(_is_put, values))
        if not kept:
            return Versions([], [])
        created, version, _ = _UNPACK_HEADER(kept[0])
    except (IndexError, struct.error) as e:
        raise CorruptStoreError("a record is too short") from e
    at = len(stem)
    revisions = [REVISION_MAX - _UNPACK(raw, at)[0] for raw in raws[: len(kept)]]
    bodies = [value[HEADER_BYTES:] for value in values] if kept is values else map(body_of, kept)
    return Versions(revisions, list(bodies), version, created)


def _is_put(value: bytes) -> bool:
    return not value[HEADER_BYTES - 1] & REMOVED


def pages(
    env: Callable[[], Environment], wanted: Range, page_of: Callable[[FoundRecords, bool], Page]
) -> Iterator[Page]:
    """Yield a range in pages that `page_of` makes of the records found; see `each_step`."""
    walk = Walk(*span_of(*wanted[:2]), wanted.revision, keys_only=wanted.keys_only)
    for found in each_step(env, wanted, walk, walk.step):
        if found.names:
            yield page_of(found, wanted.keys_only)


def pairs_of(found: FoundRecords, keys_only: bool) -> Pairs:
    """Return the keys and values that records hold."""
    if keys_only:
        return Pairs(unescaped(found.names), [])
    if found.leased:
        return Pairs(unescaped(found.names), [records.body_of(value) for value in found.values])
    return Pairs(unescaped(found.names), [value[HEADER_BYTES:] for value in found.values])


def each_step(
    env: Callable[[], Environment],
    wanted: Range,
    walk: Walk,
    step: Callable[[client.Cursor, int], Step],
) -> Iterator[Step]:
    """Yield the steps of a walk, each from a read transaction that looks at compaction again.

    `env` returns the environment, or raises after the engine was closed.
    """
    while walk.target is not None:
        with Transaction(env()) as txn:
            revision_in(txn.state, wanted)
            found = step(txn.cursor(), txn.state.revision)
        yield found


def revision_in(state: StoredState, wanted: Range) -> int:
    """Return the revision at which a range is read; raises when the state does not hold it."""
    revision = wanted.revision
    if revision == 0:
        return REVISION_MAX
    if revision > state.revision:
        raise FutureRevisionError(revision, state.revision)
    if revision < state.compacted:
        raise CompactedError(revision, state.compacted, unit="revision")
    return revision


def point(cursor: client.Cursor, key: bytes, revision: int) -> KeyValue | None:
    """Return the version of a key at a revision (`REVISION_MAX`: the newest): one seek."""
    is_plain = 0 not in key and len(key) <= KEY_BYTES_MAX  # a hot path
    stem = key + STEM_END if is_plain else records.checked_stem(key)
    if not cursor.set_range(stem + _BE64.pack(REVISION_MAX - revision)):
        return None
    raw, value = cursor.item()
    if not raw.startswith(stem):
        return None
    try:
        created, version, flags = _UNPACK_HEADER(value)
    except struct.error as e:
        raise CorruptStoreError(f"the record of {key!r} is too short") from e
    if flags & REMOVED:
        return None
    modified = REVISION_MAX - _UNPACK(raw, len(stem))[0]
    if flags & LEASED:
        body = value[HEADER_BYTES + LEASE_BYTES :]
        return KeyValue(key, body, created, modified, version, records.lease_of(value))
    return _new(KeyValue, (key, value[HEADER_BYTES:], created, modified, version, 0))


def answer(
    cursor: client.Cursor,
    state: StoredState,
    wanted: Range,
    revision: int,
    over: Container[int] = (),
) -> RangeResult:
    """Answer one range at a revision that was checked, as if the leases `over` had no keys."""
    if not wanted.range_end:
        found = point(cursor, wanted.key, revision)
        if found is None or (over and found.lease in over):
            return RangeResult([], 0)
        if wanted.count_only:
            return RangeResult([], 1)
        return RangeResult([found._replace(value=b"") if wanted.keys_only else found], 1)
    first, beyond = span_of(wanted.key, wanted.range_end)
    if wanted.count_only:
        return RangeResult([], _count(cursor, Walk(first, beyond, revision, keys_only=True), over))
    limit, kvs = wanted.limit, list[KeyValue]()
    walk = Walk(first, beyond, revision, keys_only=wanted.keys_only)
    while walk.target is not None and not 0 < limit <= len(kvs):
        some = walk.step(cursor, REVISION_MAX, limit - len(kvs) if limit else 0)
        kvs += key_values(some, wanted.keys_only, over)
    rest = _count(cursor, walk, over) if walk.target is not None else 0
    return RangeResult(kvs, len(kvs) + rest, rest > 0)


def _count(cursor: client.Cursor, walk: Walk, over: Container[int]) -> int:
    """Return how many keys are left of a walk, without the keys of leases `over`."""
    count = 0
    walk.skip_values()
    while walk.target is not None:
        found = walk.step(cursor, REVISION_MAX)
        count += len(found.names)
        if over and found.leased:
            count -= sum(records.lease_of(value) in over for value in found.values)
    return count


def existing(
    cursor: client.Cursor, first: bytes, beyond: bytes, revision: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the record of each key that exists in a span at a revision, without its value."""
    walk = Walk(first, beyond, revision, keys_only=True)
    while walk.target is not None:
        found = walk.step(cursor, REVISION_MAX)
        yield from zip(found.raws, found.values, strict=True)


def key_values(found: FoundRecords, keys_only: bool, over: Container[int] = ()) -> list[KeyValue]:
    """Return the versions that records hold, without versions of leases `over`; a hot path."""
    kvs: list[KeyValue] = []
    append, new, unpack, unpack_number = kvs.append, _new, _UNPACK_HEADER, _UNPACK
    try:
        keys = unescaped(found.names)
        for key, raw, value in zip(keys, found.raws, found.values, strict=True):
            created, version, flags = unpack(value)
            lease, start = 0, HEADER_BYTES
            if flags:
                lease, start = unpack_number(value, start)[0], start + LEASE_BYTES
                if lease in over:
                    continue
            modified = REVISION_MAX - unpack_number(raw, len(raw) - SUFFIX_BYTES)[0]
            body = b"" if keys_only else value[start:]
            append(new(KeyValue, (key, body, created, modified, version, lease)))
    except struct.error as e:
        raise CorruptStoreError("a record is too short") from e
    return kvs


# --- pieces of a range: a walk over the keys of its records, without their values ---
# The size of a piece counts records, also of old versions and removals: a scan reads all of them.
# Measured: 0.1 us a record, where reading it takes 1.6.

STRIDE_RECORDS = 10_000
"""The records that one read transaction walks over: about a millisecond."""


def pieces(
    env: Callable[[], Environment], key: bytes, range_end: bytes, revision: int, rows: int
) -> list[RangePiece]:
    """Return pieces of `rows` records each; every stride checks for compaction again.

    A piece ends after a key, so that the versions of a key stay together: a seek skips versions
    that a stride did not reach, as in a scan.
    """
    check_piece_rows(rows)
    found: list[RangePiece] = []
    target, beyond = span_of(key, range_end)
    held, more = 0, True
    while more:
        with Transaction(env()) as txn:
            revision_in(txn.state, Range(key, range_end, revision))
            wanted = min(STRIDE_RECORDS, rows - held)
            stride = _stride(txn.cursor(), target, beyond, wanted)
        held, more = held + len(stride), len(stride) == wanted
        if held == rows:
            end = key_of(stride[-1][:-SUFFIX_BYTES]) + b"\0"
            found.append(RangePiece(key, end, held))
            key, held, target = end, 0, key_after(stride[-1])
        elif more:
            target = stride[-1] + b"\0"
    if held:
        return [*found, RangePiece(key, range_end, held)]
    if found:
        found[-1] = found[-1]._replace(range_end=range_end)
    return found


def _stride(cursor: client.Cursor, target: bytes, beyond: bytes, limit: int) -> list[bytes]:
    """Return the keys of up to `limit` records of [target, beyond)."""
    if not seek(cursor, target):
        return []
    raws = list(itertools.islice(cursor.iternext(keys=True, values=False), limit))
    if raws[-1] >= beyond:
        del raws[bisect_left(raws, beyond) :]
    return raws
