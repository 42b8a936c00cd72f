"""The environments of this process, one for each directory; and forks.

LMDB forbids opening an environment twice in a process, and using an inherited one after a fork. So
engines share an `Environment`, found by the identity of its data file. A fork waits until no
transaction runs; the child closes the inherited environments and opens its own at their first use.
"""

from __future__ import annotations

import os
import random
import threading

from snapkv.base import files
from snapkv.base.waiting import bounded, monotonic
from snapkv.engine.lmdb import client, directory, records
from snapkv.engine.lmdb.directory import DirectoryState
from snapkv.engine.lmdb.environment import Environment, EnvironmentOptions, extend_file
from snapkv.errors import InvalidOptionError, ReadOnlyError, SnapKVError, StoreNotFoundError

FORK_WAIT_SECONDS_MAX = 10.0
CREATE_WAIT_SECONDS_MAX = 10.0

_environments: list[Environment] = []
_lock = threading.Lock()


def acquire(path: str, options: EnvironmentOptions, *, create: bool) -> Environment:
    """Return the environment of a directory, opened or shared; each call needs a `release`."""
    path = os.path.abspath(path)
    with _lock:
        env = _shared(path)
        if env is None:
            env = _open(path, options, create)
            _environments.append(env)
        elif env.options.durability != options.durability:
            raise InvalidOptionError(
                f"{path} is open in this process with durability={env.options.durability!r}, "
                f"so it cannot be opened with {options.durability!r} too"
            )
        env.references += 1
        return env


def release(env: Environment) -> None:
    """Give an environment back; the last one closes it."""
    with _lock:
        env.references -= 1
        if env.references == 0:
            _environments.remove(env)
            env.close()


def _shared(path: str) -> Environment | None:
    """Return the open environment of the data file that is at `path` now."""
    try:
        found = os.stat(os.path.join(path, directory.DATA_FILE))
    except OSError:
        return None
    file_id = found.st_dev, found.st_ino
    for env in _environments:
        if env.file_id == file_id:
            return env
    return None


def _open(path: str, options: EnvironmentOptions, create: bool) -> Environment:
    state = directory.state_of(path)
    if state is DirectoryState.COMPLETE:
        return _open_complete(path, options)
    if not create:
        raise StoreNotFoundError(f"no store at {path}")
    try:
        files.make_folder(path, options.mode)
        env = _created(path, options)
    except OSError as e:
        if isinstance(e, SnapKVError):
            raise
        raise client.translate(e, path) from e
    return env


def _open_complete(path: str, options: EnvironmentOptions) -> Environment:
    env = Environment(path, options)
    try:
        env.open()
        if not env.lock.marked():
            env.lock.mark_complete()  # a copy that came without the lock file
    except BaseException:
        env.close()
        raise
    return env


def _created(path: str, options: EnvironmentOptions) -> Environment:
    """Create a store, or wait for the process that is creating it."""
    env = Environment(path, options)
    if env.readonly:
        raise ReadOnlyError(f"{path} cannot be written, so no store can be created there")
    try:
        env.lock.acquire(bounded(CREATE_WAIT_SECONDS_MAX))
        if directory.state_of(path) is not DirectoryState.COMPLETE:
            _initialise(env)
            env.lock.mark_complete()
        if env.raw is None:
            env.open()
    except BaseException:
        env.lock.release()
        env.close()
        raise
    env.lock.release()
    return env


def _initialise(env: Environment) -> None:
    """Write revision 1 in one transaction; the names in LMDB's main database come with it."""
    data = os.path.join(env.path, directory.DATA_FILE)
    if os.path.exists(data) and os.path.getsize(data):
        directory.read_meta(env.path)
    os.close(files.open_made(data, env.mode))
    env.open_raw(env.options.map_bytes, write=True)
    assert env.raw is not None
    if not _is_blank(env.raw):
        env.close_raw()
        env.open()  # complete but not marked: its creator died in between, or it is not a store
        return
    map_bytes = env.raw.info()["map_size"]
    extend_file(env.path, map_bytes)
    cluster = random.SystemRandom().getrandbits(63)
    with env.raw.begin(write=True) as txn:
        meta = env.raw.open_db(records.META, txn=txn)
        for name in (records.RECORDS, records.LOG):
            env.raw.open_db(name, txn=txn)
        txn.put(records.FORMAT_KEY, records.encode_format(cluster), db=meta)
        txn.put(records.STATE_KEY, records.StoredState(1, 0, 0).encode(), db=meta)
    env.close_raw()
    for folder in (env.path, os.path.dirname(env.path)):  # the names of the new files
        files.sync_folder(folder)


def _is_blank(raw: client.RawEnvironment) -> bool:
    with raw.begin() as txn:
        return txn.stat()["entries"] == 0


# --- forks ---------------------------------------------------------------------------------


class _Fork:
    """What the forking thread holds during the fork."""

    registry = False
    quiet: dict[int, bool] = {}  # noqa: RUF012, one per process


def _before_fork() -> None:
    deadline = monotonic() + FORK_WAIT_SECONDS_MAX
    _Fork.registry = _lock.acquire(timeout=FORK_WAIT_SECONDS_MAX)
    _Fork.quiet = {
        id(env): env.access.acquire(max(0.0, deadline - monotonic())) for env in _environments
    }


def _after_in_parent() -> None:
    for env in _environments:
        if _Fork.quiet.get(id(env)):
            env.access.release()
    if _Fork.registry:
        _lock.release()


def _after_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    for env in _environments:
        env.forget_parent(_Fork.quiet.get(id(env), False))


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
