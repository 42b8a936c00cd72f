"""The engine of `lmdb:path`: the contract on a shared environment."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

from snapkv.base import files
from snapkv.base.arguments import check_int
from snapkv.base.clocks import SystemClock
from snapkv.base.waiting import bounded
from snapkv.engine.contract import (
    ChangeColumns,
    Columns,
    EngineLimits,
    GetResult,
    KeyValue,
    Lease,
    Pairs,
    Range,
    RangePiece,
    ReadResult,
    Replay,
    Txn,
    TxnResult,
    Versions,
    one_of,
)
from snapkv.engine.lmdb import client, directory, integrity, reading, records, registry, writing
from snapkv.engine.lmdb.environment import Environment, EnvironmentOptions, Transaction
from snapkv.engine.lmdb.leases import Leases
from snapkv.engine.lmdb.watcher import LmdbWatcher
from snapkv.errors import (
    EngineBusyError,
    InvalidFileError,
    InvalidOptionError,
    NoSpaceError,
    ReadOnlyError,
    StoreClosedError,
)

DURABILITIES = ("sync", "relaxed", "none")
MAP_BYTES = 64 << 20
MAP_BYTES_MIN = 64 << 10
MAP_BYTES_MAX = 1 << 47
"""The address space of a process."""
REQUEST_BYTES_MAX = 64 << 20
REQUEST_BYTES_MIN = 8 << 10
EXPIRE_SECONDS_MAX = 0.25
"""The longest that a read waits for the write lock to end a lease that is due, in seconds."""


class LmdbEngine:
    """Key-value metadata with all its revisions in one directory; safe for threads and forks.

    `durability`: "sync" loses nothing that was acknowledged; "relaxed" may lose the last commits
    at a power loss; "none" may then also lose the store. `map_bytes` is where the memory map
    starts; it grows by itself. `mode` is the permissions of the files of a new store: 0o600 admits
    its owner only, 0o660 its group, too. A user who may read the files may enter the directory.
    Engines of one process on one directory share what they can.
    """

    remote = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        durability: str = "sync",
        map_bytes: int = MAP_BYTES,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        mode: int = files.FILE_MODE,
    ) -> None:
        if durability not in DURABILITIES:
            raise InvalidOptionError(f"durability must be in {DURABILITIES}, not {durability!r}")
        check_int("map_bytes", map_bytes, MAP_BYTES_MIN, MAP_BYTES_MAX)
        check_int("request_bytes_max", request_bytes_max, REQUEST_BYTES_MIN, MAP_BYTES_MAX)
        files.check_mode(mode)
        path = os.fspath(path)
        self.url = f"lmdb:{path}"
        self.limits = EngineLimits(
            key_bytes=records.KEY_BYTES_MAX,
            value_bytes=request_bytes_max,
            request_bytes=request_bytes_max,
        )
        self._closed, self._closing = False, threading.Lock()
        self._shared = registry.acquire(
            path, EnvironmentOptions(durability, map_bytes, mode), create=create
        )

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def _env(self) -> Environment:
        if self._closed:
            raise StoreClosedError("the engine was closed")
        return self._shared

    # --- reading ---

    def get(self, key: bytes, revision: int = 0) -> GetResult:
        """Answer one key at a revision: one seek."""
        found = None if self._closed else reading.get(self._shared, key, revision)
        return found or one_of(self.read([Range(key, revision=revision)]))

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; a seek for a key, about a microsecond for a row.

        A lease that is due is ended first; if that fails, the answer leaves out its keys. A store
        that is open for reading only answers as if leases never ended.
        """
        env = self._env if self._closed else self._shared  # the first raises
        while (found := reading.read(env, ranges)) is None:
            try:
                writing.expire_due(env, min(EXPIRE_SECONDS_MAX, _wait(timeout)))
            except (EngineBusyError, NoSpaceError):
                return reading.read_around(env, ranges)
        return found

    def versions(self, key: bytes, revision: int, limit: int) -> Versions:
        """Return versions of a key from a revision down: one seek, 0.3 us for each."""
        env = self._env if self._closed else self._shared  # the first raises
        return reading.versions(env, key, revision, limit)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield pages of up to some thousand keys, each from a read transaction of its own."""
        wanted = Range(key, range_end, revision, keys_only=keys_only)
        return reading.pages(lambda: self._env, wanted, reading.key_values)

    def pairs(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Pairs]:
        """Yield the pages of a scan as keys and values, in half of the time."""
        wanted = Range(key, range_end, revision, keys_only=keys_only)
        return reading.pages(lambda: self._env, wanted, reading.pairs_of)

    def columns(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[Columns]:
        """Yield chunks of up to 8 MiB, in half of the time that `scan` takes."""
        from snapkv.engine.lmdb import columns

        wanted = Range(key, range_end, revision, keys_only=keys_only)
        return columns.columns(lambda: self._env, wanted)

    def pieces(self, key: bytes, range_end: bytes, *, revision: int, rows: int) -> list[RangePiece]:
        """Cut a range by its records, all versions counted; 0.1 us for each."""
        return reading.pieces(lambda: self._env, key, range_end, revision, rows)

    # --- writing ---

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Run one transaction; waits up to `timeout` seconds for the write lock."""
        env = self._env if self._closed else self._shared  # the first raises
        return writing.transact(env, self.limits, prepare, peek, timeout)

    def transact_each(self, txns: Sequence[Txn], *, timeout: float) -> list[TxnResult]:
        """Run transactions in order, durable together; stops at the first one that fails."""
        return writing.transact_each(self._env, self.limits, txns, timeout)

    def check_limits(self, txn: Txn) -> int:
        """Return the size of `txn`; `InvalidKeyError`, too, for a key too long when escaped."""
        return writing.check(txn, self.limits)

    # --- leases ---

    def grant(self, ttl_s: float, *, timeout: float | None = None) -> Lease:
        """Return a new lease of exactly `ttl_s` seconds; one durable commit.

        The first lease of a store raises its format: versions without leases cannot open it from
        then on. Raises as `ttl_ns_of`, and `EngineBusyError`.
        """
        return writing.grant(self._writable(), ttl_s, _wait(timeout))

    def keep_alive(self, lease: int, *, timeout: float | None = None) -> float:
        """Restart a lease's time: one durable commit, O(log leases)."""
        return writing.keep_alive(self._writable(), lease, _wait(timeout))

    def revoke(self, lease: int, *, timeout: float | None = None) -> None:
        """End a lease and remove its keys, in one revision if it has any."""
        writing.revoke(self._writable(), lease, _wait(timeout))

    def _writable(self) -> Environment:
        env = self._env
        if env.readonly:
            raise ReadOnlyError(f"{env.path}: the store is open for reading only")
        return env

    # --- watching ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> LmdbWatcher:
        """Return a watcher of a range from a revision on."""
        return LmdbWatcher(self._env, lambda: not self._closed, key, range_end, start_revision)

    def changes(self, wanted: Replay) -> Iterator[ChangeColumns]:
        """Yield chunks of some thousand changes, in a tenth of the time that a watch takes."""
        from snapkv.engine.lmdb import columns

        return columns.changes(lambda: self._env, wanted)

    # --- compaction ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Delete versions that are not part of the state at `revision` or newer."""
        env = self._writable()
        writing.compact(env, revision, batches, _wait(timeout))

    def compacted_revision(self) -> int:
        """Return the oldest readable revision, 0 before any compaction."""
        with Transaction(self._env) as txn:
            return txn.state.compacted

    # --- the rest ---

    def server_time_ms(self, *, fresh: bool = False) -> tuple[int, int] | None:
        """Return the machine's clock, which all processes of a directory share."""
        return SystemClock().now_ms(), 0

    def info(self) -> dict[str, int | str]:
        """Return sizes, revisions and durability."""
        env = self._env
        with Transaction(env) as txn:
            return {
                "engine": "lmdb",
                "path": env.path,
                "revision": txn.state.revision,
                "compacted_revision": txn.state.compacted,
                "durability": env.options.durability,
                "readonly": int(env.readonly),
                "leases": sum(1 for _ in Leases(txn).each()),
                **env.sizes(txn),
            }

    def check(self) -> list[str]:
        """Return broken rules of the stored bytes; reads everything in one transaction."""
        return integrity.check(self._env)

    def backup(self, path: str, mode: int) -> None:
        """Copy the whole directory to a new one, at one moment; writers continue."""
        backup(self._env, path, mode)

    def close(self) -> None:
        """Release the environment, end this engine's watchers; a second call does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._shared.notify()
        registry.release(self._shared)


def _wait(timeout: float | None) -> float:
    return bounded(writing.LOCK_SECONDS_MAX) if timeout is None else timeout


# --- a copy of a whole store while other threads and processes write ---


def backup(env: Environment, path: str, mode: int) -> None:
    """Create a directory with the present state and its history; see `SnapshotKV.backup`.

    It is one read transaction: while it runs, the file does not reuse pages.
    """
    target = os.path.abspath(files.checked_path(path))
    with files.typed_errors(target):
        is_folder = os.path.isdir(target) and not os.path.islink(target)
        if os.path.lexists(target) and not (is_folder and not os.listdir(target)):
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
        with Transaction(env):
            assert env.raw is not None
            try:
                env.raw.copyfd(fd, compact=True)
            except client.Error as e:
                raise client.translate(e, target) from e
        os.fsync(fd)
    finally:
        os.close(fd)
