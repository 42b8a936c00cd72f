"""The folder of an archive: its files appear whole and never change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from snapkv.base.files import FILE_MODE, make_folder, set_mode, sync_folder, typed_errors

PARTIAL = ".partial"


class FileEntry(NamedTuple):
    """A file of a listing: its name, with slashes, its size in bytes, and when it was written.

    `written` is in seconds, by the clock of the place where the files are.
    """

    name: str
    size: int
    written: float


class Files(Protocol):
    """Named files that are written once, as a whole."""

    url: str

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file, durable on return; return False if there is one of that name."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raises `FileMissingError`."""

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file, fewer at its end; raises `FileMissingError`."""

    def list(self, folder: str) -> list[FileEntry]:
        """Return the files below a folder, sorted by name; one request for each 1,000."""
        return sorted(self.walk(folder))

    def walk(self, folder: str) -> Iterator[FileEntry]:
        """Yield the files below a folder, unsorted; one request before each 1,000."""

    def above(self) -> tuple[Files, Sequence[str]]:
        """Return the disk or bucket, and the folders in it above these files. No request."""

    def delete(self, name: str) -> None:
        """Remove a file; do nothing if there is none."""


class Folder(Files):
    """The files of an archive in a local folder, which is made when the first file is written."""

    def __init__(self, path: str, *, mode: int = FILE_MODE) -> None:
        self.url, self._root, self._mode = path, os.path.abspath(path), mode

    def put_new(self, name: str, data: bytes) -> bool:
        """Write a file under another name, wait for the disk, then link it to its own name.

        Of several processes that put the same name at once, one succeeds.
        """
        path = self._path(name)
        folder = os.path.dirname(path)
        with typed_errors(path):
            self._make(folder)
            fd, partial = tempfile.mkstemp(prefix=".", suffix=PARTIAL, dir=folder)
            try:
                with open(fd, "wb") as file:
                    set_mode(fd, self._mode)
                    file.write(data)
                    file.flush()
                    os.fsync(fd)
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                os.unlink(partial)
            sync_folder(folder)
        return True

    def read(self, name: str) -> bytes:
        """Return a file's bytes."""
        path = self._path(name)
        with typed_errors(path), open(path, "rb") as file:
            return file.read()

    def read_part(self, name: str, start: int, size: int) -> bytes:
        """Return `size` bytes of a file, fewer at its end."""
        path = self._path(name)
        with typed_errors(path), open(path, "rb", buffering=0) as file:
            file.seek(start)
            parts = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
            return b"".join(parts)

    def walk(self, folder: str) -> Iterator[FileEntry]:
        """Yield the files below a folder, without what this process may not read in it."""
        with typed_errors(self._path(folder)):
            yield from self._walk(folder)

    def above(self) -> tuple[Files, Sequence[str]]:
        """Return the disk, and the folders above by their names and by what links name."""
        roots = {self._root, os.path.realpath(self._root)}
        return Folder(os.sep), sorted({above for root in roots for above in _above(root)})

    def delete(self, name: str) -> None:
        """Remove a file."""
        path = self._path(name)
        with typed_errors(path), suppress(FileNotFoundError):
            os.unlink(path)

    def _walk(self, folder: str) -> Iterator[FileEntry]:
        try:
            entries = os.scandir(self._path(folder))
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    with suppress(PermissionError):  # such as lost+found
                        yield from self._walk(name)
                elif not entry.name.endswith(PARTIAL):
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found = entry.stat()
                        yield FileEntry(name, found.st_size, found.st_mtime)

    def _make(self, folder: str) -> None:
        """Make a folder, and make its name in its parent durable."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        if folder != self._root and parent:
            self._make(parent)
        make_folder(folder, self._mode)
        sync_folder(parent)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, *name.split("/")) if name else self._root


def _above(path: str) -> Iterator[str]:
    """Yield the folders above an absolute path, relative to the root of the disk."""
    while (parent := os.path.dirname(path)) != path:
        yield parent.strip(os.sep)
        path = parent
