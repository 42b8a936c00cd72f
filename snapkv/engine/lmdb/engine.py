"""The engine that `lmdb:path` names: the contract over one shared environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence

from snapkv.engine.base import (
    KeyValue,
    Limits,
    Range,
    ReadResult,
    Txn,
    TxnResult,
)
from snapkv.engine.lmdb import check, compaction, reading, records, registry, writing
from snapkv.engine.lmdb.env import Environment, Options
from snapkv.engine.lmdb.watcher import LmdbWatcher
from snapkv.errors import InvalidOptionError, InvalidTypeError, ReadOnlyError, StoreClosedError

DURABILITIES = ("sync", "relaxed", "none")
MAP_BYTES = 64 << 20
MAP_BYTES_MIN = 64 << 10
REQUEST_BYTES_MAX = 64 << 20
REQUEST_BYTES_MIN = 8 << 10


class LmdbEngine:
    """Key-value metadata with all its revisions in one directory; safe for threads and forks.

    `durability`: "sync" loses nothing that was acknowledged; "relaxed" may lose the last commits
    at a power loss; "none" may then also lose the store. `map_bytes` is where the memory map
    starts; it grows by itself. Engines of one process on one directory share what they can.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = True,
        durability: str = "sync",
        map_bytes: int = MAP_BYTES,
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        if durability not in DURABILITIES:
            raise InvalidOptionError(f"durability {durability!r} is none of {DURABILITIES}")
        _check_bytes("map_bytes", map_bytes, MAP_BYTES_MIN)
        _check_bytes("request_bytes_max", request_bytes_max, REQUEST_BYTES_MIN)
        path = os.fspath(path)
        self.url = f"lmdb:{path}"
        self.limits = Limits(
            key_bytes=records.KEY_BYTES_MAX,
            value_bytes=request_bytes_max,
            request_bytes=request_bytes_max,
        )
        self._closed, self._closing = False, threading.Lock()
        self._shared = registry.acquire(path, Options(durability, map_bytes), create=create)

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

    def read(
        self, ranges: Sequence[Range], *, serializable: bool = False, timeout: float | None = None
    ) -> ReadResult:
        """Answer all ranges from one state; a seek for a key, about a microsecond for a row."""
        return reading.read(self._env, ranges)

    def scan(
        self, key: bytes, range_end: bytes, *, revision: int, keys_only: bool = False
    ) -> Iterator[list[KeyValue]]:
        """Yield pages of `SCAN_PAGE_ROWS` keys, each from a read transaction of its own."""
        return reading.scan(lambda: self._env, key, range_end, revision, keys_only)

    # --- writing ---

    def transact(
        self, prepare: Callable[[KeyValue | None], Txn], peek: bytes, *, timeout: float
    ) -> TxnResult:
        """Run one transaction; waits up to `timeout` seconds for the write lock."""
        return writing.transact(self._env, self.limits, prepare, peek, timeout)

    def check_limits(self, txn: Txn) -> None:
        """Raise `CommitTooLargeError`, or `InvalidKeyError` for a key too long when escaped."""
        writing.check(txn, self.limits)

    # --- following ---

    def watch(self, key: bytes, range_end: bytes, *, start_revision: int) -> LmdbWatcher:
        """Return a watcher of a range from a revision on."""
        return LmdbWatcher(self._env, lambda: not self._closed, key, range_end, start_revision)

    # --- forgetting ---

    def compact(
        self, revision: int, *, batches: int | None = None, timeout: float | None = None
    ) -> None:
        """Forget what is not part of the state at `revision` or newer."""
        env = self._env
        if env.readonly:
            raise ReadOnlyError(f"{env.path}: the store is open for reading only")
        wait = compaction.LOCK_SECONDS_MAX if timeout is None else timeout
        compaction.compact(env, revision, batches, wait)

    def compacted_revision(self) -> int:
        """Return the oldest readable revision, 0 before any compaction."""
        with self._env.reading() as txn:
            return txn.state.compacted

    # --- the rest ---

    def server_time_ms(self) -> tuple[int, int] | None:
        """Return None: the clock is ours."""
        return None

    def info(self) -> dict[str, int | str]:
        """Return sizes, revisions and durability."""
        env = self._env
        with env.reading() as txn:
            return {
                "engine": "lmdb",
                "path": env.path,
                "revision": txn.state.revision,
                "compacted_revision": txn.state.compacted,
                "durability": env.options.durability,
                "readonly": int(env.readonly),
                **env.sizes(txn),
            }

    def check(self) -> list[str]:
        """Return broken rules of what is stored; reads everything in one transaction."""
        return check.check(self._env)

    def close(self) -> None:
        """Give the environment back; ends watchers of this engine. Twice is fine."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._shared.notify()
        registry.release(self._shared)


def _check_bytes(option: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidTypeError(f"{option} is an int, not {type(value).__name__}")
    if value < least:
        raise InvalidOptionError(f"{option} is {value}, the least is {least}")
