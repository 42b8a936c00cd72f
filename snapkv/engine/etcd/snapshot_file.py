"""Snapshot files of etcd as an engine that only reads: `etcd-snapshot:FILE`.

`etcdctl snapshot save` writes etcd's database, a file of bbolt, and its SHA-256. An element of a
page of bbolt is, in a branch, the number of a page, in a leaf a key with a value or a bucket: the
number of a page, or 0 and a page. Bucket `key` has versions under revision and number, `t` after
that of a removal.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NoReturn

from google.protobuf.message import DecodeError

from snapkv.base.files import readable
from snapkv.engine.contract import KeyEvent, KeyValue
from snapkv.engine.etcd import etcd_pb2 as pb
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import CorruptStoreError, NotAStoreError, ReadOnlyError

MAGIC, SHA256_BYTES, SECTOR_BYTES = (0xED0CDAED, 2), 32, 512
META, PAGE, BRANCH, LEAF = map(struct.Struct, ("<16xIIIIQ", "<8xHH4x", "<8xQ", "<IIII"))
IS_BRANCH, IS_LEAF, IS_BUCKET = 1, 2, 1
DAMAGE = ValueError, OverflowError, struct.error, DecodeError, RecursionError


class SnapshotEngine(MemoryEngine):
    """All versions of keys in a snapshot file, in memory."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        with readable(url.partition(":")[2]) as file:
            data = file.read()
        try:
            self._load(_Buckets(data))
        except DAMAGE as e:
            raise CorruptStoreError(f"{url} is damaged, or not a snapshot: {e}") from e

    def _load(self, file: _Buckets) -> None:
        known = {key: int.from_bytes(value[:8]) for key, value in file.bucket(b"meta")}
        compacted = max(known.get(b"finishedCompactRev", 0), known.get(b"scheduledCompactRev", 0))
        first = self._revision = self._log_start = max(compacted, 1)
        changes: list[dict[bytes, KeyEvent]] = [{}]
        for key, value in file.bucket(b"key"):
            kv, at, gone = pb.KeyValue.FromString(value), int.from_bytes(key[:8]), key[17:] == b"t"
            fields = (b"", 0, at, 0) if gone else (kv.value, kv.create_revision, at, kv.version)
            if at == self._revision + 1:
                self._revision = at
                changes.append({})
            if at != self._revision and max(at, self._revision) > first:
                raise ValueError(f"revision {at} follows {self._revision}")
            self._versions.setdefault(kv.key, []).append(KeyValue(kv.key, *fields))
            if at >= first:
                changes[-1][kv.key] = KeyEvent(self._versions[kv.key][-1], gone)
        self._log = [tuple(sorted(each.values())) for each in changes]
        super().compact(compacted)

    def _reject(self, *args: object, **options: object) -> NoReturn:
        raise ReadOnlyError(f"{self.url} is a snapshot, which takes no writes: import it")

    transact = compact = grant = _reject


class _Buckets:
    """The buckets of a snapshot file. Its checksum is verified."""

    def __init__(self, data: bytes) -> None:
        self._data, self._size = data, len(data) - SHA256_BYTES
        *magic, self._page_bytes, _, self._root = META.unpack_from(data.ljust(META.size))
        if tuple(magic) != MAGIC or self._size % SECTOR_BYTES:
            raise NotAStoreError("this is not a file of etcdctl snapshot save, nor a whole one")
        if hashlib.sha256(memoryview(data)[: self._size]).digest() != data[self._size :]:
            raise ValueError("its contents do not match its checksum")

    def bucket(self, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a bucket, in order; none if it does not exist."""
        self._seen, self._left = set[int](), self._size
        for kind, key, start, _ in self._elements(self._root * self._page_bytes):
            if kind == IS_BUCKET and key == name:
                root = int.from_bytes(self._data[start : start + 8], "little")
                at = root * self._page_bytes or start + 16
                yield from ((key, self._data[low:up]) for _, key, low, up in self._elements(at))

    def _elements(self, at: int) -> Iterator[tuple[int, bytes, int, int]]:
        """Yield of each element below a page: its flags, its key, and where its value is."""
        flags, count = PAGE.unpack_from(self._data, at)
        if at in self._seen or not flags & (IS_LEAF | IS_BRANCH):
            raise ValueError(f"the page at {at} has flags {flags}, or is used twice")
        self._seen.add(at)
        for element in range(at + 16, at + 16 + 16 * count, 16):
            if flags & IS_BRANCH:
                (page,) = BRANCH.unpack_from(self._data, element)
                yield from self._elements(page * self._page_bytes)
                continue
            kind, position, key_bytes, value_bytes = LEAF.unpack_from(self._data, element)
            self._left -= key_bytes + value_bytes
            middle = element + position + key_bytes
            end = middle + value_bytes
            if end > self._size or self._left < 0:
                raise ValueError(f"the page at {at} has values beyond the end")
            yield kind, self._data[middle - key_bytes : middle], middle, end
