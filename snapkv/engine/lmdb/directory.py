"""The kind of a path before it is opened: a store, an unfinished one, other files, or nothing.

Nothing here changes a file. A path is inspected before it is opened, because LMDB reads its file
through a memory map: touching a page beyond the end of a truncated file does not raise an error
but kills the process.
"""

from __future__ import annotations

import os
import stat
import struct
from enum import Enum
from typing import NamedTuple

from snapkv.base.waiting import pause
from snapkv.engine.lmdb import client
from snapkv.engine.lmdb.lock import LOCK_FILE, MARKER
from snapkv.engine.lmdb.records import META
from snapkv.errors import CorruptStoreError, NotAStoreError, ReadOnlyError

DATA_FILE, READERS_FILE = "data.mdb", "lock.mdb"
_OURS = {DATA_FILE, READERS_FILE, LOCK_FILE}

_MAGIC = 0xBEEFC0DE
_PAGE_HEADER_BYTES = 16
_META_PAGE = struct.Struct("=IIQQI92xQQ")
"""The fields of a meta page: magic, version, address, map size, page size (in the free list's
record), .., last page, txn."""
_PAGE_SIZES = {1 << bits for bits in range(8, 17)}
_LOOKS_MAX, _LOOK_PAUSE_SECONDS = 5, 1e-3


class DirectoryState(Enum):
    """The state of a directory, and what opening it has to do."""

    MISSING = "create the directory and the store"
    UNFINISHED = "create the store, or finish creating it"
    COMPLETE = "open it"


class MetaPage(NamedTuple):
    """The fields of the newer one of LMDB's two meta pages."""

    page_bytes: int
    map_bytes: int
    last_page: int
    txn: int


def state_of(path: str) -> DirectoryState:
    """Return the state of the directory `path`.

    Raises `NotAStoreError` for anything but a store, `CorruptStoreError` for one without its data
    file, `ReadOnlyError` when it cannot be read.
    """
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotAStoreError(f"{path} is a file; a store is a directory")
        names = set(os.listdir(path))
    except FileNotFoundError:
        return DirectoryState.MISSING
    except NotADirectoryError as e:
        raise NotAStoreError(f"{path} is below a file, not in a directory") from e
    except PermissionError as e:
        raise ReadOnlyError(f"{path}: {e}") from e
    except OSError as e:  # a name that is too long, say
        raise NotAStoreError(f"{path} cannot be a store: {e.strerror}") from e
    marked = _is_marked(path)
    data = os.path.join(path, DATA_FILE)
    if DATA_FILE not in names or os.stat(data).st_size == 0:
        if marked:
            raise CorruptStoreError(f"{data} is missing or empty")
        if foreign := sorted(names - _OURS):
            raise NotAStoreError(
                f"{path} is not a store; it holds other files: {', '.join(foreign[:3])}"
            )
        return DirectoryState.UNFINISHED
    if marked:
        return DirectoryState.COMPLETE
    if LOCK_FILE in names:
        return DirectoryState.UNFINISHED  # perhaps being created: decide under the lock
    _check_inside(path)
    return DirectoryState.COMPLETE


def _is_marked(path: str) -> bool:
    try:
        with open(os.path.join(path, LOCK_FILE), "rb") as file:
            return file.read(len(MARKER)) == MARKER
    except OSError:
        return False


def _check_inside(path: str) -> None:
    """Raise `NotAStoreError` unless the LMDB file is a store (a copy without the lock file, say).

    Without LMDB's locks, because locking writes files into a directory that may not be a store.
    """
    try:
        meta = read_meta(path)
        raw = client.open_raw(
            path, map_bytes=meta.map_bytes, durability="sync", readonly=True, lock=False
        )
    except (CorruptStoreError, client.Error) as e:
        raise NotAStoreError(f"{path} holds a data.mdb that is not of snapkv") from e
    try:
        with raw.begin() as txn:
            if txn.get(META) is None:
                raise NotAStoreError(f"{path} is an LMDB environment that is not of snapkv")
    except client.Error as e:
        raise NotAStoreError(f"{path} is an LMDB environment that is not of snapkv") from e
    finally:
        raw.close()


def read_meta(path: str) -> MetaPage:
    """Return the newer meta page of LMDB, after checking the length of the file.

    Raises `CorruptStoreError`, after a few more attempts: a commit that is just being written may
    be half visible.
    """
    data = os.path.join(path, DATA_FILE)
    for attempt in range(_LOOKS_MAX):
        if attempt:
            pause(_LOOK_PAUSE_SECONDS)
        try:
            return _read_meta(data)
        except CorruptStoreError as e:
            error = e
        except PermissionError as e:
            raise ReadOnlyError(f"{data}: {e}") from e
    raise error


def _read_meta(data: str) -> MetaPage:
    with open(data, "rb", buffering=0) as file:
        first = _meta_page(file.read(_PAGE_HEADER_BYTES + _META_PAGE.size), data)
        file.seek(first.page_bytes)
        second = _meta_page(file.read(_PAGE_HEADER_BYTES + _META_PAGE.size), data)
        size = os.fstat(file.fileno()).st_size
    newest = second if second.txn > first.txn else first
    needed = (newest.last_page + 1) * newest.page_bytes
    if size < needed:
        raise CorruptStoreError(f"{data} was cut short: {size:,} bytes, {needed:,} are in use")
    return newest


def _meta_page(raw: bytes, data: str) -> MetaPage:
    try:
        fields = _META_PAGE.unpack_from(raw, _PAGE_HEADER_BYTES)
    except struct.error as e:
        raise CorruptStoreError(f"{data} was cut short: not even the meta pages are whole") from e
    magic, version, _, map_bytes, page_bytes, last_page, txn = fields
    if magic != _MAGIC or version != 1 or page_bytes not in _PAGE_SIZES:
        raise CorruptStoreError(f"{data} has a damaged meta page")
    return MetaPage(page_bytes, map_bytes, last_page, txn)
