r"""The bytes of the lmdb engine: the contents of its three named databases.

    database  key                              value
    meta      b"format"                        be32(engine format) + 8 bytes cluster id
    meta      b"state"                         be64(revision) + be64(compacted) + be64(freed),
                                               format 2: + be64(earliest due) + be64(boot)
    meta      01 be64(lease)                   be64(time to live) + be64(due)
    meta      02 be64(due) be64(lease)         nothing: the order in which leases end
    meta      03 be64(lease) key               nothing: a key of a lease
    records   escape(key) 00 01 be64(~rev)     be64(create revision) + be64(version) + flags + value
    log       be64(revision)                   for each changed key, ascending:
                                               flags + be16(length of key) + key

`escape` writes 00 as 00 FF. So "a" sorts before "ab", all records of a key are together, the
newest first, and a range of keys is a range of records. Flags: bit 0 = the key was removed;
bit 1 = the id of its lease, 8 bytes, follows the header.

Times are nanoseconds of `clocks.uptime_ns`; the earliest due time is 0 without leases. They are
valid within one boot, which `boot` identifies: `clocks.boot_tag`, never 0.

Format 1 has no leases. The first grant changes it to format 2 for ever, because a program that does
not know bit 1 would take the id for a part of the value. Such a program that has the store open
stops at the longer state record. A store that never had a lease stays readable by both.

Vectors: key b"a\0" at revision 2, created then, value b"v", without and with lease 7:
`61 00ff 0001 fffffffffffffffd -> 0000000000000002 0000000000000001 00 76`,
`61 00ff 0001 fffffffffffffffd -> 0000000000000002 0000000000000001 02 0000000000000007 76`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from snapkv.engine.contract import ALL_KEYS_END
from snapkv.engine.lmdb.client import MAX_KEY_BYTES
from snapkv.engine.request_checks import shown_key
from snapkv.errors import CorruptStoreError, InvalidKeyError

FORMAT, LEASED_FORMAT = 1, 2
META, RECORDS, LOG = b"meta", b"records", b"log"
FORMAT_KEY, STATE_KEY = b"format", b"state"
LEASE, DUE, HELD = b"\x01", b"\x02", b"\x03"
"""First bytes of the keys of lease records."""

REVISION_MAX = (1 << 64) - 1
REMOVED, LEASED = 1, 2

STEM_END = b"\0\x01"
SUFFIX_BYTES = 8
STEM_BYTES_MAX = MAX_KEY_BYTES - SUFFIX_BYTES
KEY_BYTES_MAX = MAX_KEY_BYTES - len(STEM_END) - SUFFIX_BYTES
BEYOND_ALL = b"\xff" * (MAX_KEY_BYTES + 1)
"""The bound above every record: a record has 00 01 within its first 503 bytes."""

HEADER = struct.Struct(">QQB")
HEADER_BYTES, LEASE_BYTES = HEADER.size, 8
_FORMAT = struct.Struct(">IQ")
_STATE, _LEASED_STATE = struct.Struct(">QQQ"), struct.Struct(">QQQQQ")
_LEASE, _DUE_KEY = struct.Struct(">QQ"), struct.Struct(">cQQ")
_CHANGE = struct.Struct(">BH")
_BE64 = struct.Struct(">Q")


class StoredState(NamedTuple):
    """The state record: `freed` is below `compacted` while compaction still frees space.

    `due` is when the next lease ends, 0 without leases; `boot` is 0 before the first lease.
    """

    revision: int
    compacted: int
    freed: int
    due: int = 0
    boot: int = 0

    def encode(self) -> bytes:
        """Return the state record: 24 bytes before the first lease, then 40."""
        return _LEASED_STATE.pack(*self) if self.boot else _STATE.pack(*self[:3])


_NO_LEASES = bytes(_LEASED_STATE.size - _STATE.size)


@lru_cache(maxsize=16)
def decode_state(value: bytes | None) -> StoredState:
    """Read the state record; raises `CorruptStoreError`.

    Every transaction reads it; mostly it is unchanged, and the cache costs less.
    """
    if value is not None:
        if len(value) == _STATE.size:
            return tuple.__new__(StoredState, _LEASED_STATE.unpack(value + _NO_LEASES))
        if len(value) == _LEASED_STATE.size:
            return tuple.__new__(StoredState, _LEASED_STATE.unpack(value))
    raise CorruptStoreError("the state record is missing or has the wrong size")


class LeaseRecord(NamedTuple):
    """A lease that is alive: its time to live, and when it ends."""

    ttl: int
    due: int

    def encode(self) -> bytes:
        """Return the 16 bytes of the record."""
        return _LEASE.pack(*self)


def decode_lease(value: bytes) -> LeaseRecord:
    """Read the record of a lease; raises `CorruptStoreError`."""
    if len(value) != _LEASE.size:
        raise CorruptStoreError("the record of a lease has the wrong size")
    return LeaseRecord(*_LEASE.unpack(value))


def due_key(due: int, lease: int) -> bytes:
    """Return the key that puts leases in the order of their ends."""
    return _DUE_KEY.pack(DUE, due, lease)


def decode_due(key: bytes) -> tuple[int, int]:
    """Return (due, lease) of such a key."""
    if len(key) != _DUE_KEY.size:
        raise CorruptStoreError("the due time of a lease has the wrong size")
    _, due, lease = _DUE_KEY.unpack(key)
    return due, lease


def encode_format(cluster: int, number: int = FORMAT) -> bytes:
    """Return the format record."""
    return _FORMAT.pack(number, cluster)


def decode_format(value: bytes | None) -> tuple[int, int]:
    """Return (engine format, cluster id)."""
    if value is None or len(value) < _FORMAT.size:
        raise CorruptStoreError("the format record is missing or too short")
    found, cluster = _FORMAT.unpack_from(value)
    return found, cluster


def stem_of(key: bytes) -> bytes:
    """Return what all records of `key` begin with."""
    return (key.replace(b"\0", b"\0\xff") if 0 in key else key) + STEM_END


def checked_stem(key: bytes) -> bytes:
    """Return the stem of a key; `InvalidKeyError` when its records would be too long for LMDB."""
    stem = (key.replace(b"\0", b"\0\xff") if 0 in key else key) + STEM_END
    if len(stem) > STEM_BYTES_MAX:
        raise InvalidKeyError(
            f"key {shown_key(key)} takes {len(stem) - len(STEM_END)} bytes (each zero byte counts "
            f"twice), and the engine accepts at most {KEY_BYTES_MAX}",
            key,
        )
    return stem


def key_of(stem: bytes) -> bytes:
    """Return the key of a stem."""
    key = stem[:-2]
    return key.replace(b"\0\xff", b"\0") if b"\0" in key else key


def suffix_of(revision: int) -> bytes:
    """Return the end of a record's key: newer revisions sort first."""
    return _BE64.pack(REVISION_MAX - revision)


def revision_of(suffix: bytes) -> int:
    """Return the revision of a record's suffix."""
    return REVISION_MAX - int.from_bytes(suffix, "big")


def encode_value(created: int, version: int, value: bytes, lease: int = 0) -> bytes:
    """Return the record of a put."""
    if lease:
        return HEADER.pack(created, version, LEASED) + _BE64.pack(lease) + value
    return HEADER.pack(created, version, 0) + value


def lease_of(value: bytes) -> int:
    """Return the lease of a record, 0 for none; `CorruptStoreError` when it is too short."""
    if len(value) >= HEADER_BYTES:
        if not value[HEADER_BYTES - 1] & LEASED:
            return 0
        if len(value) >= HEADER_BYTES + LEASE_BYTES:
            return int.from_bytes(value[HEADER_BYTES : HEADER_BYTES + LEASE_BYTES], "big")
    raise CorruptStoreError("a record is too short")


def body_of(value: bytes) -> bytes:
    """Return the value that the record of a put holds; raises as `lease_of`."""
    return value[HEADER_BYTES + LEASE_BYTES if lease_of(value) else HEADER_BYTES :]


def is_removal(value: bytes) -> bool:
    """Return whether a record is of a removal; `CorruptStoreError` when it is too short."""
    if len(value) < HEADER_BYTES:
        raise CorruptStoreError("a record is too short")
    return bool(value[HEADER_BYTES - 1] & REMOVED)


be64 = _BE64.pack
"""Returns the key of a log entry from its revision."""


def from_be64(raw: bytes) -> int:
    """Return the revision of a log entry."""
    return int.from_bytes(raw, "big")


def span_of(key: bytes, range_end: bytes) -> tuple[bytes, bytes]:
    """Return (first, beyond): the records of [key, range_end) are those in [first, beyond)."""
    if not range_end:
        stem = checked_stem(key)
        return stem, stem + b"\xff" * (SUFFIX_BYTES + 1)
    beyond = BEYOND_ALL if range_end == ALL_KEYS_END else stem_of(range_end)
    return stem_of(key), beyond


def encode_changes(changed: dict[bytes, bool]) -> bytes:
    """Return the log entry of {key: was it removed}."""
    parts = []
    for key in sorted(changed):
        parts.append(_CHANGE.pack(REMOVED if changed[key] else 0, len(key)))
        parts.append(key)
    return b"".join(parts)


def decode_changes(entry: bytes) -> list[tuple[bytes, bool]]:
    """Return (key, was it removed) of a log entry; `CorruptStoreError` when it is cut short."""
    at, changes = 0, list[tuple[bytes, bool]]()
    while at < len(entry):
        try:
            flags, length = _CHANGE.unpack_from(entry, at)
        except struct.error as e:
            raise CorruptStoreError("a log entry is cut short") from e
        at += _CHANGE.size + length
        if at > len(entry):
            raise CorruptStoreError("a log entry is cut short")
        changes.append((entry[at - length : at], bool(flags & REMOVED)))
    return changes
