"""Walks over the keys of a range that exist at a revision; all range reads use them.

Where keys have few versions, two passes in C read a chunk of records (first their keys, then their
values), and a few calls per chunk select the versions. Where keys have many versions, each
key costs two seeks: to its version, and to the next key. A walk chooses by the keys it read last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, compress, islice
from operator import itemgetter, ne
from typing import NamedTuple

from snapkv.engine.lmdb import client
from snapkv.engine.lmdb.records import (
    HEADER_BYTES,
    LEASE_BYTES,
    REMOVED,
    STEM_END,
    SUFFIX_BYTES,
    suffix_of,
)
from snapkv.errors import CorruptStoreError

CHUNK_RECORDS_FIRST, CHUNK_RECORDS_PROBED = 16, 64
"""In the first chunk, and in one that probes how many versions the next keys have."""
CHUNK_RECORDS = 1_024
"""The most records of a chunk: more would not stay in a processor's cache."""
GROWTH = 8
CHUNK_BYTES, VALUES_AT_ONCE = 8 << 20, 48
"""The most bytes of values in a step, without its last `VALUES_AT_ONCE` values."""
VERSIONS_MAX, VERSIONS_MAX_NOW = 3, 2
"""With more versions a key, seeks are faster: two a key, or one where no version is too new."""
SOUGHT_MIN, SOUGHT_MAX = 64, 2_048
"""Keys found by seeks before a chunk is read again, in case the next keys have few versions."""
SOUGHT_FIRST = 16
"""A walk begins with seeks, because most ranges are short."""

TAIL_BYTES = SUFFIX_BYTES + len(STEM_END)
_BEHIND_STEM = b"\0\x02"
_HEAD_BYTES = HEADER_BYTES + LEASE_BYTES
_flags_of = itemgetter(HEADER_BYTES - 1)


class Records(NamedTuple):
    """Successive records; `single`: one of each key, none of a removal.

    `current` says that none is newer than the revision. With `keys_only` values are cut off.
    """

    raws: list[bytes]
    values: list[bytes]
    current: bool = True
    single: bool = True


class FoundRecords(NamedTuple):
    """Records of existing keys, one of each; names are escaped keys.

    `leased` says that some have a lease.
    """

    raws: list[bytes]
    names: list[bytes]
    values: list[bytes]
    leased: bool


class Walk:
    """A walk over the keys of [first, beyond) at a revision, in steps, with any cursors.

    `target` is where the next step begins, None at the end.
    """

    def __init__(
        self,
        first: bytes,
        beyond: bytes,
        revision: int,
        *,
        keys_only: bool = False,
        chunk: int = CHUNK_RECORDS,
        begin: int = 0,
    ) -> None:
        """Bound chunks to `chunk` records; the first one has `begin`, instead of some seeks."""
        self.target: bytes | None = first
        self._beyond, self._revision, self._suffix = beyond, revision, suffix_of(revision)
        self._kept_bytes: int | None = _HEAD_BYTES if keys_only else None
        self._chunk, self._chunk_max = begin or CHUNK_RECORDS_FIRST, chunk
        self._many, self._sought = not begin, SOUGHT_FIRST  # whether to seek, and how many keys

    def skip_values(self) -> None:
        """Cut values off from now on, as for `keys_only`."""
        self._kept_bytes = _HEAD_BYTES

    def step(self, cursor: client.Cursor, newest: int, limit: int = 0) -> FoundRecords:
        """Return the records of the next keys, up to `limit` (0: as many as are good to take).

        They may be none before the end of the walk. `newest` is the revision of the cursor's state.
        """
        found = self.selected(self.take(cursor, newest, limit))
        if limit and len(found.names) > limit:
            raws, names, values, leased = found
            found = FoundRecords(raws[:limit], names[:limit], values[:limit], leased)
            self.target = found.names[-1] + _BEHIND_STEM
        return found

    def take(self, cursor: client.Cursor, newest: int, limit: int = 0) -> Records:
        """Return the next records; the caller selects versions from them and calls `adapt`.

        The first is the newest of its key, or the version at the revision.
        """
        assert self.target is not None
        if not seek(cursor, self.target):
            self.target = None
            return Records([], [])
        if self._many:
            try:
                return self._seek_each(cursor, limit)
            except IndexError:
                raise CorruptStoreError("a record is too short") from None
        wanted = min(self._chunk, 4 * limit) if limit else self._chunk
        raws = list(islice(cursor.iternext(keys=True, values=False), wanted))
        self._chunk = min(self._chunk_max, GROWTH * self._chunk)
        more = len(raws) == wanted
        if raws[-1] >= self._beyond:
            del raws[bisect_left(raws, self._beyond) :]
            more = False
        if not raws:
            self.target = None
            return Records([], [])
        cursor.set_key(raws[0])
        values = self._values(cursor.iternext(keys=False, values=True), len(raws))
        if len(values) < len(raws):
            self._chunk = len(values)
            del raws[len(values) :]
            more = True
        self.target = self._next_target(raws[-1]) if more else None
        return Records(raws, values, self._revision >= newest, False)

    def _next_target(self, raw: bytes) -> bytes:
        """Return where to continue after a record: at the key's version, or at the next key."""
        if raw[-SUFFIX_BYTES:] < self._suffix:
            return raw[:-SUFFIX_BYTES] + self._suffix
        return key_after(raw)

    def _values(self, walked: Iterator[bytes], wanted: int) -> list[bytes]:
        """Return the values of up to `wanted` records: fewer where they take `CHUNK_BYTES`."""
        if self._kept_bytes is not None:
            return [value[: self._kept_bytes] for value in islice(walked, wanted)]
        values: list[bytes] = []
        room, at_once = CHUNK_BYTES, min(VALUES_AT_ONCE, 1 + wanted // 16)
        while len(values) < wanted and room > 0:
            some = list(islice(walked, min(at_once, wanted - len(values))))
            room -= sum(map(len, some))
            values += some
        return values

    def selected(self, records: Records) -> FoundRecords:
        """Return the version of each key at the revision, without removals.

        Records of a key are newest first: its version is the first that is not too new.
        """
        raws, values, is_current, is_single = records
        names = [raw[:-TAIL_BYTES] for raw in raws]
        if is_single:
            return FoundRecords(raws, names, values, any(map(_flags_of, values)))
        fresh = list(map(ne, names, chain((None,), names)))
        self.adapt(len(raws), fresh.count(True), is_current)
        if not is_current:
            suffix = self._suffix
            current = [raw[-SUFFIX_BYTES:] >= suffix for raw in raws]
            if not all(current):
                raws, names, values = _kept(current, raws, names, values)
                fresh = list(map(ne, names, chain((None,), names)))
        if not all(fresh):
            raws, names, values = _kept(fresh, raws, names, values)
        if (of_puts := _puts_among(values)) is None:
            return FoundRecords(raws, names, values, False)
        raws, names, values = _kept(of_puts, raws, names, values)
        return FoundRecords(raws, names, values, any(map(_flags_of, values)))

    def adapt(self, records: int, keys: int, is_current: bool) -> None:
        """Choose between seeks and chunks, by the numbers of records and keys read last."""
        self._many = records > keys * (VERSIONS_MAX_NOW if is_current else VERSIONS_MAX)
        if self._many:
            self._sought = max(SOUGHT_MIN, min(SOUGHT_MAX, 2 * self._sought))
        else:
            self._sought = 0

    def _seek_each(self, cursor: client.Cursor, limit: int) -> Records:
        """Find the next keys by seeks; the cursor is at the first record of one."""
        raws: list[bytes] = []
        values: list[bytes] = []
        set_range, key_of, value_of = cursor.set_range, cursor.key, cursor.value
        suffix, beyond, kept_bytes = self._suffix, self._beyond, self._kept_bytes
        room, target = CHUNK_BYTES, self.target
        for _ in range(min(self._sought, limit) if limit else self._sought):
            raw = key_of()
            if raw >= beyond:
                target = None
                break
            target = raw[:-TAIL_BYTES] + _BEHIND_STEM
            if raw[-SUFFIX_BYTES:] < suffix:
                stem = raw[:-SUFFIX_BYTES]
                if not set_range(stem + suffix):
                    target = None
                    break
                raw = key_of()
                if raw[:-SUFFIX_BYTES] != stem:  # the key was created later; this is the next key
                    target = raw
                    continue
            value = value_of()
            if not value[HEADER_BYTES - 1] & REMOVED:
                raws.append(raw)
                values.append(value[:kept_bytes])
                room -= len(value)
            if room <= 0:
                break
            if not set_range(target):
                target = None
                break
        self.target = target
        if self._sought >= SOUGHT_MIN:
            self._chunk = CHUNK_RECORDS_PROBED
        self._many = False
        return Records(raws, values)


def _puts_among(values: list[bytes]) -> list[bool] | None:
    """Return for each record whether it is of a put; None where all are, none under a lease."""
    try:
        if not any(map(_flags_of, values)):
            return None
        return [not flags & REMOVED for flags in map(_flags_of, values)]
    except IndexError:
        raise CorruptStoreError("a record is too short") from None


def _kept(which: list[bool], *columns: list[bytes]) -> Iterator[list[bytes]]:
    return (list(compress(column, which)) for column in columns)


def unescaped(names: list[bytes]) -> list[bytes]:
    """Return keys from their names, in which a zero byte is followed by 0xff."""
    if b"\0" not in b"".join(names):
        return names
    return [name.replace(b"\0\xff", b"\0") for name in names]


def key_after(raw: bytes) -> bytes:
    """Return the lower bound of the keys after the key of the record `raw`."""
    return raw[:-TAIL_BYTES] + _BEHIND_STEM


def seek(cursor: client.Cursor, target: bytes) -> bool:
    """Go to the first record at or above `target`, which may be longer than LMDB's keys."""
    if len(target) <= client.MAX_KEY_BYTES:
        return cursor.set_range(target)
    found = cursor.set_range(target[: client.MAX_KEY_BYTES])
    while found and cursor.key() < target:
        found = cursor.next()
    return found
