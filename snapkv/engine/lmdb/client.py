"""The third-party `lmdb` client; no other module imports it."""

from __future__ import annotations

import errno
import os
import resource
from typing import TypeAlias

import lmdb

from snapkv.errors import (
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    NoSpaceError,
    ReadOnlyError,
    SnapKVError,
)

MAX_KEY_BYTES = 511
READERS_MAX = 1_024
DATABASES_MAX = 8

RawEnvironment: TypeAlias = lmdb.Environment
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Cursor: TypeAlias = "lmdb.Cursor[bytes]"
Database: TypeAlias = "lmdb._Database"

Error = lmdb.Error
MapFullError = lmdb.MapFullError
MapResizedError = lmdb.MapResizedError
NotFoundError = lmdb.NotFoundError
PanicError = lmdb.PanicError
ReadersFullError = lmdb.ReadersFullError
BadValsizeError = lmdb.BadValsizeError

ABORTED_FOR_SURE = (lmdb.MapFullError, lmdb.TxnFullError, lmdb.BadTxnError)
"""The errors that LMDB raises before it writes the first page of a commit."""

_CORRUPT = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.BadValsizeError,
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL_FREE_BYTES = 64 << 10


def open_raw(
    path: str, *, map_bytes: int, durability: str, readonly: bool = False, lock: bool = True
) -> RawEnvironment:
    """Open the LMDB environment of an existing directory.

    LMDB keeps no read transactions for reuse (`max_spare_txns`): a forked child that closes the
    inherited environment would free their slots in the shared reader table.
    """
    return lmdb.open(
        path,
        map_size=map_bytes,
        readonly=readonly,
        metasync=durability == "sync",
        sync=durability != "none",
        create=False,
        max_readers=READERS_MAX,
        max_dbs=DATABASES_MAX,
        max_spare_txns=0,
        lock=lock,
    )


def error_number(error: BaseException) -> int:
    """Return the errno behind an error of LMDB or of the system; 0 when there is none."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    return code if isinstance(code, int) and code > 0 else 0


def translate(error: BaseException, path: str) -> SnapKVError:
    """Return the snapkv error for one of LMDB or of the system."""
    text = f"{path}: {error}"
    number = error_number(error)
    if isinstance(error, lmdb.DiskError | lmdb.MapFullError) or number in _FULL:
        return NoSpaceError(text)
    if number == errno.EIO and disk_is_full(path):  # LMDB reports a short write so
        return NoSpaceError(text)
    if isinstance(error, lmdb.ReadonlyError) or number in _FORBIDDEN:
        return ReadOnlyError(text)
    if isinstance(error, _CORRUPT):
        return CorruptStoreError(text)
    if isinstance(error, lmdb.ReadersFullError):
        return EngineBusyError(f"{path}: all {READERS_MAX} reader slots are taken")
    return EngineUnavailableError(text)


def disk_is_full(path: str) -> bool:
    """Return whether writes at `path` may be cut short: little free space, or a file size limit."""
    free = free_bytes(path)
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    return limited or (free is not None and free < _FULL_FREE_BYTES)


def free_bytes(path: str) -> int | None:
    """Return the free space of the file system of `path`; None if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found.f_blocks else None
