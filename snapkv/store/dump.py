"""One moment of a store as a file, and back.

A dump is a msgpack stream: a header map; one [relative key, value] pair a key, in key order,
where the relative key begins with `data/` or `space/<name>/`; and a closing map with the number
of pairs and the SHA-256 of everything before it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

import msgpack

from snapkv.base import files
from snapkv.base.files import FilePath
from snapkv.engine.contract import SCAN
from snapkv.engine.request_checks import OP_OVERHEAD_BYTES, shown_key
from snapkv.errors import (
    CommitTooLargeError,
    CorruptStoreError,
    FormatError,
    InvalidTypeError,
    NotAStoreError,
    StoreNotEmptyError,
)
from snapkv.layout import Keyspace, prefix_end, space_name
from snapkv.model import Commit, HeadAt, Ops, SpaceOps
from snapkv.reading.snapshot import StateReads
from snapkv.store.store_writer import StoreWriter
from snapkv.times import When

MAGIC = "snapkv-dump"
DUMP_FORMAT = 1
MAP_BYTES_MAX = 4_096
"""The header and the closing map of a dump are smaller."""
STEP_BYTES = 1 << 20
"""The most bytes that are read at once: a length that a file only claims allocates no more."""

_PAIR = 0x92
_MAPS = range(0x80, 0x90)
_LENGTH_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
"""The bytes of a length that follow the first byte of binary data."""


Progress = Callable[[int], None]
"""Hears how much is done."""


def dump(
    core: StoreWriter,
    file: BinaryIO | FilePath,
    at: When | None,
    mode: int | None,
    progress: Progress,
) -> int:
    """Write the state of a moment to a file; return the number of keys.

    The moment is resolved before the file is touched.
    """
    if mode is not None:
        files.check_mode(mode)
    target: AbstractContextManager[BinaryIO]
    if isinstance(file, str | os.PathLike):
        target = files.written(files.checked_path(file), mode)
    else:
        target = nullcontext(_checked(file, "write"))
    source = core.source(at, None, False)
    with target as opened:
        return _write(core, source, opened, progress)


def _write(core: StoreWriter, source: StateReads, file: BinaryIO, progress: Progress) -> int:
    digest, count = hashlib.sha256(), 0

    def write(item: Any) -> None:
        packed = msgpack.packb(item)
        digest.update(packed)
        files.write_all(file, packed)

    write(
        {
            "magic": MAGIC,
            "format": DUMP_FORMAT,
            "name": core.layout.name,
            "timestamp": source.timestamp,
            "revision": source.revision,
        }
    )
    root = core.layout.root
    for start in (core.layout.data.prefix, core.layout.spaces):
        for page in source.pages(SCAN, start, prefix_end(start)):
            for kv in page:
                write([kv.key[len(root) :], kv.value])
                count += 1
            progress(count)
    files.write_all(file, msgpack.packb({"count": count, "sha256": digest.digest()}))
    return count


@dataclass(slots=True)
class DumpContents:
    """The contents of a dump, as far as an engine could commit them at once.

    `size` counts all of them, as the engine counts a request; contents over `size_max` are dropped.
    """

    size_max: int
    size: int = 0
    puts: dict[str, bytes] = field(default_factory=dict)
    spaces: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes) -> None:
        """Take in one pair."""
        kind, _, rest = key.partition(b"/")
        name, _, raw = rest.partition(b"/")
        if not (rest if kind == b"data" else kind == b"space" and name and raw):
            raise CorruptStoreError(f"the dump has a key of no known kind: {key[:80]!r}")
        self.size += OP_OVERHEAD_BYTES + len(key) + len(value)
        try:
            if self.size > self.size_max:
                self.puts, self.spaces = {}, {}
            elif kind == b"data":
                self.puts[rest.decode()] = value
            else:
                self.spaces.setdefault(space_name(rest), {})[raw] = value
        except UnicodeDecodeError as e:
            raise CorruptStoreError(f"the dump has a key that is not UTF-8: {key[:80]!r}") from e


class _DumpReader:
    """Reads the few forms of msgpack that a dump is made of, and nothing larger than it may be."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self._file, self._bytes_max = file, bytes_max
        self.digest = hashlib.sha256()

    def header(self) -> dict[Any, Any]:
        """Return the first map; raise `NotAStoreError` when the file does not begin as a dump."""
        try:
            first = self._take(1)
            header = self._map(first) if first[0] in _MAPS else {}
        except CorruptStoreError as e:
            raise NotAStoreError("this file is not a dump of snapkv") from e
        if header.get("magic") != MAGIC:
            raise NotAStoreError("this file is not a dump of snapkv")
        return header

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs, and check the closing map that follows them."""
        count, last = 0, b""
        while (first := self._take(1))[0] == _PAIR:
            self.digest.update(first)
            key = self._binary("a key")
            value = self._binary(f"the value of {shown_key(key)}")
            if key <= last:
                raise CorruptStoreError(f"the keys of the dump are not in order: {key[:80]!r}")
            yield key, value
            count, last = count + 1, key
        sha256 = self.digest.digest()
        if first[0] not in _MAPS or self._map(first) != {"count": count, "sha256": sha256}:
            raise CorruptStoreError("the dump does not match its checksum")
        if self._file.read(1):
            raise CorruptStoreError("the dump continues after its end")

    def _map(self, first: bytes) -> dict[Any, Any]:
        """Return a small map, fed byte by byte, because its length is known only at its end."""
        unpacker = msgpack.Unpacker(max_buffer_size=MAP_BYTES_MAX)
        for _ in range(MAP_BYTES_MAX):
            self.digest.update(first)
            try:
                unpacker.feed(first)
                return unpacker.unpack()  # type: ignore[no-any-return]
            except msgpack.OutOfData:
                first = self._take(1)
            except (ValueError, TypeError, msgpack.UnpackException) as e:
                raise CorruptStoreError(f"the dump cannot be read: {e}") from e
        raise CorruptStoreError(f"the dump has a map of more than {MAP_BYTES_MAX:,} bytes")

    def _binary(self, what: str) -> bytes:
        """Return binary data; raise `CommitTooLargeError` for more than a commit takes."""
        form = self._take(1)
        if form[0] not in _LENGTH_BYTES:
            raise CorruptStoreError(f"the dump has {form!r} where a key or value begins")
        raw = self._take(_LENGTH_BYTES[form[0]])
        length = int.from_bytes(raw)
        if length > self._bytes_max:
            for _ in self._chunks(length):  # a file that only claims so much is cut off instead
                pass
            raise CommitTooLargeError(f"{what} in bytes", length, self._bytes_max)
        data = self._take(length)
        self.digest.update(form + raw + data)
        return data

    def _take(self, size: int) -> bytes:
        return b"".join(self._chunks(size))

    def _chunks(self, size: int) -> Iterator[bytes]:
        """Yield the next bytes as they come; `CorruptStoreError` when there are fewer."""
        while size > 0:
            chunk = self._file.read(min(size, STEP_BYTES))
            if not isinstance(chunk, bytes):
                raise InvalidTypeError(f"read() of the file returned {type(chunk).__name__}")
            if not chunk:
                raise CorruptStoreError("the dump is cut off: its end is missing")
            size -= len(chunk)
            yield chunk


def read_dump(file: BinaryIO, bytes_max: int) -> DumpContents:
    """Read and verify a dump; raise for one that is cut or changed before any of it is used.

    Holds about `bytes_max` of it at most, the limit of one commit, whatever size it declares.
    Raises `NotAStoreError` (no dump), `FormatError` (a newer one), `CorruptStoreError`,
    `CommitTooLargeError`.
    """
    reader, contents = _DumpReader(file, bytes_max), DumpContents(bytes_max)
    header = reader.header()
    if header.get("format") != DUMP_FORMAT:
        raise FormatError("the dump", header.get("format"), DUMP_FORMAT)
    for key, value in reader.pairs():
        contents.add(key, value)
    if contents.size > bytes_max:
        raise CommitTooLargeError("the dump in bytes", contents.size, bytes_max)
    return contents


class _Kept:
    """A file that keeps what is read of it, up to a size."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self._file, self._bytes_max = file, bytes_max
        self.content = bytearray()

    def read(self, size: int) -> bytes:
        chunk = self._file.read(size)
        if len(self.content) <= self._bytes_max:
            self.content += chunk
        return chunk


def verified(file: BinaryIO, bytes_max: int) -> BinaryIO:
    """Return a dump as a file in memory, after verifying all of it; raises as `read_dump`."""
    # what is around a pair takes fewer bytes in a dump than in a request
    kept = _Kept(file, bytes_max + 2 * MAP_BYTES_MAX)
    read_dump(cast(BinaryIO, kept), bytes_max)
    return io.BytesIO(kept.content)


def load_dump(core: StoreWriter, file: BinaryIO, said: Ops, *, replaces: bool) -> Commit:
    """Commit what a dump holds, see `SnapshotKV.load_dump`; `said` has note, writer and meta."""
    contents = read_dump(file, core.engine.limits.request_bytes)
    head = core.source(None, None, False)
    root = core.layout.root
    old_spaces = {
        space_name(kv.key[len(core.layout.spaces) :])
        for page in head.pages(
            SCAN, core.layout.spaces, prefix_end(core.layout.spaces), keys_only=True
        )
        for kv in page
    }
    data = core.layout.data
    if not replaces and (old_spaces or head.count(data.prefix, prefix_end(data.prefix))):
        raise StoreNotEmptyError(f"store {root.decode()!r} has keys; replace=True replaces them")
    spaces = {}
    for name in old_spaces | set(contents.spaces):
        puts = contents.spaces.get(name, {})
        deletes, prefixes = _removals(head, core.layout.space(name), puts)
        spaces[name] = SpaceOps(puts=puts, deletes=deletes, delete_prefixes=prefixes)
    deletes, prefixes = _removals(head, data, contents.puts)
    whole = replace(said, puts=contents.puts, deletes=deletes, delete_prefixes=prefixes)
    guards = [HeadAt(head.revision)]
    return core.commit(replace(whole, guards=guards, spaces=spaces), None)


def _removals(
    head: StateReads, space: Keyspace, kept: Mapping[Any, bytes]
) -> tuple[list[Any], list[Any]]:
    """Return keys to remove from a space, or the whole of it if it keeps fewer keys."""
    gone = []
    for page in head.pages(SCAN, *space.range_of(space.default_prefix), keys_only=True):
        for kv in page:
            try:
                key = space.decode(kv.key)
            except UnicodeDecodeError:  # another program's: no operation can name it
                return [], [space.default_prefix]
            if key not in kept:
                gone.append(key)
        if len(gone) > len(kept):
            return [], [space.default_prefix]
    return gone, []


def open_file(file: BinaryIO | FilePath) -> AbstractContextManager[BinaryIO]:
    """Return the file of a path to read from, or the file that was given, which stays open."""
    if isinstance(file, str | os.PathLike):
        return files.readable(file)
    return nullcontext(_checked(file, "read"))


def _checked(file: Any, method: str) -> BinaryIO:
    if not callable(getattr(file, method, None)) or isinstance(file, io.TextIOBase):
        raise InvalidTypeError(f"a dump is a path or a binary file, not {type(file).__name__}")
    return file  # type: ignore[no-any-return]
