"""A copy of a whole store while other threads and processes write: LMDB's own, of one moment."""

from __future__ import annotations

import os
import shutil
import tempfile

from snapkv.base import files
from snapkv.engine.lmdb import client, directory
from snapkv.engine.lmdb.environment import Environment
from snapkv.errors import InvalidFileError


def backup(env: Environment, path: str, mode: int) -> None:
    """Create a directory with the present state and its history, without free pages.

    It appears when it is complete. Writers continue, but the copy is one read transaction: while
    it runs, the file does not reuse pages, and a commit of this process that needs a larger map
    waits. Raises `InvalidFileError` (also when `path` exists), `NoSpaceError`.
    """
    target = os.path.abspath(files.checked_path(path))
    with files.typed_errors(target):
        if os.path.lexists(target) and not _is_empty_folder(target):
            raise InvalidFileError(f"{target} exists; a backup makes a new directory")
        partial = tempfile.mkdtemp(
            prefix=".snapkv-", suffix=".partial", dir=os.path.dirname(target)
        )
        try:
            _copy(env, os.path.join(partial, directory.DATA_FILE), target, mode)
            files.set_mode(partial, files.folder_mode(mode))
            files.sync_folder(partial)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        files.sync_folder(os.path.dirname(target))


def _copy(env: Environment, data: str, target: str, mode: int) -> None:
    fd = files.open_made(data, mode)
    try:
        with env.reading():
            assert env.raw is not None
            try:
                env.raw.copyfd(fd, compact=True)
            except client.Error as e:
                raise client.translate(e, target) from e
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_empty_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)
