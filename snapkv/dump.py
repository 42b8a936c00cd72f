"""One moment of a store as a file, and back.

A dump is a msgpack stream: a header map; one [relative key, value] pair a key, in key order,
where the relative key begins with `data/` or `space/<name>/`; and a closing map with the number
of pairs and the SHA-256 of everything before it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from snapkv.core import Core
from snapkv.errors import (
    CorruptStoreError,
    FileMissingError,
    FormatError,
    InvalidFileError,
    InvalidTypeError,
    NoSpaceError,
    NotAStoreError,
    SnapKVError,
    StoreNotEmptyError,
)
from snapkv.model import Commit, HeadAt, Ops, SpaceOps
from snapkv.records import prefix_end, space_name
from snapkv.snapshot import Source
from snapkv.times import When

MAGIC = "snapkv-dump"
DUMP_FORMAT = 1


def dump(core: Core, file: BinaryIO | str | Path, at: When | None) -> int:
    """Write the state of a moment to a file; return the number of keys.

    The moment is resolved before the file is touched, and a path is replaced only by a complete
    dump.
    """
    source = core.source(at, None, False)
    if not isinstance(file, str | Path):
        return _write(core, source, _checked(file, "write"))
    path = Path(file)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _typed_errors(path):
        try:
            with partial.open("xb") as opened:
                count = _write(core, source, opened)
                opened.flush()
                os.fsync(opened.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return count


def _write(core: Core, source: Source, file: BinaryIO) -> int:
    digest, count = hashlib.sha256(), 0

    def write(item: Any) -> None:
        packed = msgpack.packb(item)
        digest.update(packed)
        file.write(packed)

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
        for page in source.scan(start, prefix_end(start)):
            for kv in page:
                write([kv.key[len(root) :], kv.value])
                count += 1
    file.write(msgpack.packb({"count": count, "sha256": digest.digest()}))
    return count


@dataclass(slots=True)
class Contents:
    """What a dump holds, read and verified as a whole."""

    puts: dict[str, bytes] = field(default_factory=dict)
    spaces: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    def add(self, key: bytes, value: bytes) -> None:
        """Take in one pair."""
        if not isinstance(key, bytes) or not isinstance(value, bytes):
            raise CorruptStoreError(f"the dump has a pair that is none: {key!r}")
        kind, _, rest = key.partition(b"/")
        if kind == b"data":
            self.puts[rest.decode()] = value
        elif kind == b"space":
            raw = rest.partition(b"/")[2]
            self.spaces.setdefault(space_name(rest), {})[raw] = value
        else:
            raise CorruptStoreError(f"the dump has a key of no known kind: {key!r}")


def read_dump(file: BinaryIO) -> Contents:
    """Read and verify a dump; raises before anything is used of one that is cut or changed.

    Raises `NotAStoreError` (no dump), `FormatError` (a newer one), `CorruptStoreError`.
    """
    items = _items(file)
    try:
        header, _ = next(items)
        if not isinstance(header, dict) or header.get("magic") != MAGIC:
            raise NotAStoreError("this file is no dump of snapkv")
        if header["format"] != DUMP_FORMAT:
            raise FormatError("the dump is of another format", header["format"], DUMP_FORMAT)
        contents = Contents()
        for count, (item, digest) in enumerate(items):
            if isinstance(item, dict):
                if item["count"] != count or item["sha256"] != digest:
                    raise CorruptStoreError("the dump does not match its checksum")
                if next(items, None) is not None:
                    raise CorruptStoreError("the dump goes on after its end")
                return contents
            contents.add(*item)
    except StopIteration:
        raise NotAStoreError("this file is empty, no dump of snapkv") from None
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as e:
        if isinstance(e, NotAStoreError | FormatError):
            raise
        raise CorruptStoreError(f"the dump cannot be read: {e}") from e
    raise CorruptStoreError("the dump is cut off: its end is missing")


def _items(file: BinaryIO) -> Iterator[tuple[Any, bytes]]:
    """Yield items, each with the SHA-256 of everything before it.

    Packing is deterministic, so an item packed again gives the bytes it was written as.
    """
    unpacker = msgpack.Unpacker(file, max_buffer_size=0)
    digest = hashlib.sha256()
    for item in unpacker:
        yield item, digest.digest()
        digest.update(msgpack.packb(item))


def load_dump(core: Core, file: BinaryIO, *, replace: bool, note: str | None) -> Commit:
    """Commit what a dump holds, see `SnapshotKV.load_dump`."""
    contents = read_dump(file)
    head = core.source(None, None, False)
    root = core.layout.root
    old_spaces = {
        space_name(kv.key[len(core.layout.spaces) :])
        for page in head.scan(core.layout.spaces, prefix_end(core.layout.spaces), keys_only=True)
        for kv in page
    }
    data = core.layout.data
    if not replace and (old_spaces or head.count(data.prefix, prefix_end(data.prefix))):
        raise StoreNotEmptyError(f"store {root.decode()!r} has keys; replace=True replaces them")
    spaces = {
        name: SpaceOps(puts=contents.spaces.get(name, {}), delete_prefixes=[b""])
        for name in old_spaces | set(contents.spaces)
    }
    ops = Ops(
        puts=contents.puts,
        delete_prefixes=[""],
        guards=[HeadAt(head.revision)],
        note=note,
        spaces=spaces,
    )
    return core.commit(lambda _: ops, None)


@contextmanager
def opened(file: BinaryIO | str | Path) -> Iterator[BinaryIO]:
    """Yield the file of a path to read from, or the file that was given, which stays open."""
    if not isinstance(file, str | Path):
        yield _checked(file, "read")
        return
    with _typed_errors(Path(file)), Path(file).open("rb") as found:
        yield found


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if isinstance(e, SnapKVError):
            raise
        typed = InvalidFileError
        if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpaceError(f"{path}: {e.strerror}") from e
        if isinstance(e, FileNotFoundError):
            typed = FileMissingError
        raise typed(f"{path}: {e.strerror}") from e


def _checked(file: Any, method: str) -> BinaryIO:
    if not callable(getattr(file, method, None)) or isinstance(file, io.TextIOBase):
        raise InvalidTypeError(f"a dump is a path or a binary file, not {type(file).__name__}")
    return file  # type: ignore[no-any-return]
