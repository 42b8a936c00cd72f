"""Files by their path: replaced as a whole or written in place; and read.

Only a regular file is ever replaced. A device, a FIFO and a descriptor of this process
(`/dev/stdout`) are written in place: a rename would put a regular file in their place.
"""

from __future__ import annotations

import errno
import io
import os
import re
import select
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeAlias, cast

from snapkv.base.arguments import check_int, wrong_type
from snapkv.base.waiting import monotonic, pause
from snapkv.errors import (
    FileMissingError,
    InvalidFileError,
    InvalidOptionError,
    NoSpaceError,
    SnapKVError,
    raise_cause,
)

FilePath: TypeAlias = str | os.PathLike[str]

FILE_MODE = 0o600
"""The permissions of a new file, whatever the umask: its contents may be secret."""
FIFO_WAIT_S = 60.0
"""The longest that opening a FIFO waits for a program at its other end, in seconds."""

STORE_FILES = frozenset({"data.mdb", "lock.mdb", "writer.lock"})
"""The files of an lmdb store: never replaced, because that would destroy the store."""

_FIFO_PAUSE_S = 0.02
_LINKS_MAX = 40
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def written(path: FilePath, mode: int | None = None) -> Iterator[BinaryIO]:
    """Yield a binary file whose bytes become the contents of `path` when the block ends well.

    A missing file is made, and a regular file is replaced, when its new contents are complete; if
    the block raises, the path stays as it was. A symbolic link is followed: the file that it names
    is replaced, or made. A new file gets `FILE_MODE`, one that is replaced keeps its permissions;
    `mode` sets them either way. A device, a FIFO or a descriptor of this process is written in
    place. Opening a FIFO waits `FIFO_WAIT_S` for a reader; writing then waits for as long as the
    reader does.

    What the block raises passes through as it is.

    Raises `InvalidFileError` (also for a missing folder), `NoSpaceError`.
    """
    name = checked_path(path)
    with typed_errors(name):
        if (descriptor := descriptor_of(name)) is not None:
            with open(os.dup(descriptor), "wb") as file, _passed_on():
                yield _named(file, name)
            return
        try:
            found = os.stat(name)
        except FileNotFoundError:
            found = None
        if found is None and name.endswith("/"):
            raise FileMissingError(f"{name}: the folder does not exist")
        if found is None or stat.S_ISREG(found.st_mode):
            with _replacing(os.path.realpath(name), found, mode) as file, _passed_on():
                yield _named(file, name)
            return
        with open(_as_it_is(name, found), "wb") as file, _passed_on():
            yield _named(file, name)


@contextmanager
def readable(path: FilePath) -> Iterator[BinaryIO]:
    """Yield a binary file to read from; a FIFO must have bytes for us within `FIFO_WAIT_S`.

    What the block raises passes through as it is. Raises `InvalidFileError`.
    """
    name = checked_path(path)
    with typed_errors(name):
        fifo = descriptor_of(name) is None and stat.S_ISFIFO(os.stat(name).st_mode)
        with open(name, "rb", opener=_open_fifo if fifo else None) as file, _passed_on():
            yield _named(file, name)


def checked_path(path: FilePath) -> str:
    """Return the text of a path; raise `InvalidFileError` for one that no file can have."""
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        raise wrong_type("the path of a file", "a str or a Path", name)
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:
        raise InvalidFileError(f"path {name!r} has characters that no file name can have") from None
    if not raw or b"\0" in raw:
        raise InvalidFileError(f"path {name!r} does not name a file")
    return name


def check_mode(mode: object) -> int:
    """Return the permissions of files; raises `InvalidTypeError`, `InvalidOptionError`."""
    bits = check_int("mode", mode)
    if bits & ~0o666 or bits & 0o600 != 0o600:
        raise InvalidOptionError(
            f"mode must be 0o600 for the owner with none or some of 0o066, as 0o640, not {bits:#o}"
        )
    return bits


def set_mode(file: int | str, mode: int) -> None:
    """Set the permissions of a file or folder, where its file system has any."""
    with suppress(PermissionError):
        os.chmod(file, mode)


def open_made(path: str, mode: int) -> int:
    """Open a file for reading and writing; a new one gets `mode`, whatever the umask."""
    flags = os.O_RDWR | os.O_CLOEXEC
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, FILE_MODE)
            set_mode(fd, mode)
            return fd


def make_folder(path: str, mode: int) -> None:
    """Make a folder for files with that mode, and its parents; readers of the files may enter it.

    An existing folder stays as it is, and parents get the permissions of the umask.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    inherited = os.stat(path).st_mode & stat.S_ISGID
    set_mode(path, folder_mode(mode) | inherited)


def folder_mode(mode: int) -> int:
    """Return the permissions of a folder for files with that mode: readers may enter."""
    return mode | (mode & 0o444) >> 2


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def descriptor_of(path: str) -> int | None:
    """Return the descriptor of this process that a path names, such as /dev/stdout, or None."""
    ours = re.compile(rf"/proc/{os.getpid()}(/task/\d+)?/fd")
    for _ in range(_LINKS_MAX):
        folder, name = os.path.split(path)
        if name.isdecimal() and ours.fullmatch(os.path.realpath(folder)):
            return int(name)
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))
    return None


def write_all(file: BinaryIO, data: bytes) -> None:
    """Write bytes to a file that may take only a part of them at a time, as raw files do.

    Raises `InvalidFileError` for a file that takes none, and what its `write` raises.
    """
    taken: object = file.write(data)  # a file of the caller may return anything
    while isinstance(taken, int) and taken < len(data):
        if taken <= 0:
            raise InvalidFileError(f"the file takes none of {len(data):,} bytes: {file!r}")
        data = data[taken:]
        taken = file.write(data)
    if taken is None and isinstance(file, io.RawIOBase):
        raise InvalidFileError(f"the file would block: make it blocking, or buffered: {file!r}")


@contextmanager
def typed_errors(path: str) -> Iterator[None]:
    """Turn the system's errors into errors of snapkv, which name the path."""
    try:
        yield
    except OSError as e:
        if isinstance(e, SnapKVError):
            raise
        raise _typed(e, path) from e
    except _PassedOnError as e:
        raise_cause(e.error)  # it is the very error of the block


def _typed(error: OSError, path: str) -> SnapKVError:
    kind: type[SnapKVError] = NoSpaceError if error.errno in _FULL else InvalidFileError
    if isinstance(error, FileNotFoundError):
        kind = FileMissingError
    return kind(f"{path}: {error.strerror or error}")


class _PassedOnError(Exception):
    """An error of the system that is not about the file."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def _passed_on() -> Iterator[None]:
    """Let the block's own errors pass `typed_errors` as they are."""
    try:
        yield
    except OSError as e:
        raise _PassedOnError(e) from e


class _Named:
    """A file whose errors name its path."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path

    def read(self, size: int = -1) -> bytes:
        try:
            return self._file.read(size)
        except OSError as e:
            raise _typed(e, self._path) from e

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as e:
            raise _typed(e, self._path) from e


def _named(file: BinaryIO, path: str) -> BinaryIO:
    return cast(BinaryIO, _Named(file, path))


@contextmanager
def _replacing(path: str, found: os.stat_result | None, mode: int | None) -> Iterator[BinaryIO]:
    """Yield a new file in the folder of a path, which replaces the path when it is complete."""
    folder, name = os.path.split(path)
    if name in STORE_FILES and os.path.exists(os.path.join(folder, "writer.lock")):
        raise InvalidFileError(f"{path} is a file of an lmdb store: name another one")
    fd, partial = tempfile.mkstemp(prefix=".snapkv-", suffix=".partial", dir=folder)
    try:
        with open(fd, "wb") as file:
            set_mode(fd, _mode_like(fd, found) if mode is None else mode)
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(partial, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(partial)
        raise
    sync_folder(folder)


def _mode_like(fd: int, found: os.stat_result | None) -> int:
    """Return the mode of the replaced file, and give the new one its owner and group.

    If that group is not allowed, the new file's own group gets no rights.
    """
    if found is None:
        return FILE_MODE
    mode = stat.S_IMODE(found.st_mode) & 0o777
    for owner in (found.st_uid, -1):
        with suppress(OSError):  # only root gives files away
            os.chown(fd, owner, found.st_gid)
            return mode
    return mode & ~0o070


def _as_it_is(path: str, found: os.stat_result) -> int:
    """Open a file that is not a regular one for writing."""
    deadline = monotonic() + FIFO_WAIT_S
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as e:
            if e.errno != errno.ENXIO or not stat.S_ISFIFO(found.st_mode):
                raise
            if monotonic() >= deadline:
                message = f"{path}: no program has opened this FIFO to read for {FIFO_WAIT_S:g} s"
                raise InvalidFileError(message) from e
            pause(_FIFO_PAUSE_S)
        else:
            os.set_blocking(fd, True)
            return fd


def _open_fifo(path: str, flags: int) -> int:
    """Open a FIFO for reading, as soon as there is something to read."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(FIFO_WAIT_S * 1_000):
        os.close(fd)
        raise InvalidFileError(f"{path}: nothing was written to this FIFO for {FIFO_WAIT_S:g} s")
    os.set_blocking(fd, True)
    return fd
