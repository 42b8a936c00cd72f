"""One open directory: its LMDB environment, and the transactions this process runs on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import NamedTuple

from snapkv.base import files
from snapkv.base.concurrency import ThreadCondition
from snapkv.engine.contract import GetResult, Header, OutcomeUnknown
from snapkv.engine.lmdb import client, directory, records
from snapkv.engine.lmdb.lock import Access, WriterLock
from snapkv.errors import (
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    FormatError,
    NoSpaceError,
    NotAStoreError,
    ReadOnlyError,
    StoreClosedError,
)


class Databases(NamedTuple):
    """The handles of the named databases."""

    meta: client.Database
    records: client.Database
    log: client.Database


class Transaction:
    """A transaction between `with` and its end, where it is aborted unless it was committed.

    Only the holder of the lock may write. Errors of LMDB inside become errors of snapkv, except
    `MapFullError`: then the caller aborts, makes the map larger and tries again.
    """

    __slots__ = ("_begun", "_ended", "_write", "databases", "env", "state", "txn")

    def __init__(self, env: Environment, *, write: bool = False) -> None:
        self.env, self._write = env, write
        self._begun = self._ended = False
        self.txn: client.Transaction
        self.state: records.StoredState
        self.databases: Databases

    def __enter__(self) -> Transaction:
        env = self.env
        try:
            self.txn = env.begin(self._write)
            self._begun = True
            assert env.databases is not None
            self.databases = databases = env.databases
            self.state = records.decode_state(self.txn.get(records.STATE_KEY, db=databases.meta))
        except BaseException as e:
            self.__exit__(type(e), e, None)
            if isinstance(e, OSError) and client.error_number(e):
                raise client.translate(e, env.path) from e
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Abort a running transaction, and free it, before leaving `access`.

        Aborting is not enough: py-lmdb keeps a reader's slot until its object is freed.
        """
        try:
            if self._begun and self._write and not self._ended:
                self._abort_undisturbed()
            elif self._begun:
                self.txn.abort()
        finally:
            if self._begun:
                self._begun = False
                del self.txn
            if self._write:
                self.env.running_write = None
            self.env.access.active.discard(get_ident())  # `leave`, without its own call
        if isinstance(error, client.Error) and not isinstance(error, client.MapFullError):
            raise client.translate(error, self.env.path) from error

    def _abort_undisturbed(self) -> None:
        """Abort a write transaction while no other thread reads.

        py-lmdb's abort waits for a moment at which no thread is inside any call on the
        environment. With two threads that read without a break such a moment may never come.
        """
        with self.env.access.pause_others():
            self.txn.abort()

    def cursor(self) -> client.Cursor:
        """Return a cursor over the records."""
        return self.txn.cursor(self.databases.records)

    def put_state(self, state: records.StoredState) -> None:
        """Write the state record; from now on it is the state of this transaction."""
        self.txn.put(records.STATE_KEY, state.encode(), db=self.databases.meta)
        self.state = state

    def commit(self, *, changed: bool = True) -> None:
        """Commit; see `Environment.commit`. Without changes LMDB writes nothing."""
        self._ended = True  # LMDB ends it even when it raises
        self.env.commit(self.txn, self.state if changed else None)


# --- environment ---

GROWTH_FACTOR, PAGE_BYTES_MAX = 2, 1 << 16
SPACE_MARGIN_BYTES = 256 << 10
"""The bytes that stay free on the disk beside twice the transaction, for LMDB's tree pages."""
_BEGIN_TRIES_MAX = 5
_new = tuple.__new__  # of a named tuple, without the call of its own constructor


class EnvironmentOptions(NamedTuple):
    """What an environment was opened with."""

    durability: str
    map_bytes: int
    mode: int


class CachedState(NamedTuple):
    """The state at one transaction number of LMDB: reads decode it once per commit."""

    txn: int
    state: records.StoredState
    header: Header
    absent: GetResult


class Environment:
    """An open directory, shared by all engines of this process that name it.

    A `stale` environment is closed and reopened before its next use: after a failed commit, which
    leaves LMDB's handle unusable, and in a forked child, which must not use the parent's.
    """

    def __init__(self, path: str, options: EnvironmentOptions) -> None:
        self.path, self.options = path, options
        self.references = 0
        self.access = Access()
        self._new_conditions()
        self.commits = 0  # of this process
        self.running_write: client.Transaction | None = None  # until `Transaction` ends it
        self.stale, self.unusable = False, ""
        self.raw: client.RawEnvironment | None = None
        self.databases: Databases | None = None
        self.cached: CachedState | None = None
        self.cluster = 0
        self.file_id: tuple[int, int] = (0, 0)
        self._extended = self._for_writing = False
        self.mode = _mode_of(path, options.mode)
        self.lock = _open_lock(path, self.mode)

    def _new_conditions(self) -> None:
        """Create the condition that watchers wait for; its lock is held only briefly."""
        self.changed = ThreadCondition()
        self.watching = 0  # threads that wait for it

    # --- opening and closing ---

    @property
    def readonly(self) -> bool:
        """Whether the directory can only be read."""
        return self.lock.readonly

    def open(self, *, write: bool = False) -> None:
        """Open the LMDB environment of a directory with a store.

        It is opened for reading only until the first write: opening LMDB's named databases for
        writing takes LMDB's writer mutex, which a stopped process may hold.
        """
        assert not write or self.lock.held()
        for tries_left in reversed(range(_BEGIN_TRIES_MAX)):
            try:
                meta = directory.read_meta(self.path)
                self.open_raw(max(meta.map_bytes, self.options.map_bytes), write=write)
                self._open_databases()
                return
            except BaseException as e:
                self.close_raw()
                grown = isinstance(e.__cause__, client.MapResizedError)  # between the two calls
                if not (grown and tries_left):
                    raise

    def open_raw(self, map_bytes: int, *, write: bool) -> None:
        """Open the LMDB environment, without its databases."""
        readers = os.path.join(self.path, directory.READERS_FILE)
        lock = not self.lock.readonly or os.access(readers, os.R_OK | os.W_OK)
        try:
            if lock:
                os.close(files.open_made(readers, self.mode))
            self.raw = client.open_raw(
                self.path,
                map_bytes=map_bytes,
                durability=self.options.durability,
                readonly=not write,
                lock=lock,
            )
            if lock:
                self.raw.reader_check()
        except (client.Error, OSError) as e:
            raise client.translate(e, self.path) from e
        self._for_writing, self._extended = write, False
        found = os.stat(os.path.join(self.path, directory.DATA_FILE))
        self.file_id = found.st_dev, found.st_ino

    def _open_databases(self) -> None:
        assert self.raw is not None
        names = (records.META, records.RECORDS, records.LOG)
        try:
            self.databases = Databases(*map(partial(self.raw.open_db, create=False), names))
            with self.raw.begin() as txn:
                raw_format = txn.get(records.FORMAT_KEY, db=self.databases.meta)
        except client.NotFoundError as e:
            raise NotAStoreError(f"{self.path} is an LMDB environment that is not of snapkv") from e
        except client.Error as e:
            raise client.translate(e, self.path) from e
        found, self.cluster = records.decode_format(raw_format)
        if found not in (records.FORMAT, records.LEASED_FORMAT):
            raise FormatError(f"the directory {self.path}", found, records.LEASED_FORMAT)

    def close_raw(self) -> None:
        """Close the LMDB environment, if it is open."""
        raw, self.raw, self.databases, self.cached = self.raw, None, None, None
        if raw is not None:
            raw.close()

    def close(self) -> None:
        """Close everything."""
        try:
            self.access.acquire(1.0)  # without it, py-lmdb itself ends running transactions
            self.close_raw()
        finally:
            self.access.release()
        self.lock.close()

    def forget_parent(self, quiet: bool) -> None:
        """In a forked child: prepare to reopen, with new locks.

        `quiet` says that no transaction was running at the fork. Otherwise closing the inherited
        handle would free the parent's slot in the shared reader table, so the environment stays
        unusable in the child.
        """
        self.lock.abandon()
        self.access, self.stale, self.running_write = Access(), True, None
        self._new_conditions()
        if not quiet:
            self.unusable = "this process was forked while a transaction was running"

    def mend(self) -> None:
        """Close and reopen a stale environment, unless another thread just did."""
        with self.access.exclusive():
            if self.unusable:
                raise EngineUnavailableError(f"{self.path}: {self.unusable}")
            if self.references == 0:
                raise StoreClosedError("the engine was closed")
            if not self.stale and self.raw is not None:
                return
            if self.lock.closed:
                self.lock = _open_lock(self.path, self.mode)
            self._reopen(write=False)
            self.stale = False

    def _reopen(self, *, write: bool) -> None:
        self.close_raw()
        before = self.file_id
        self.open(write=write)
        if self.file_id != before:
            self.close_raw()
            raise CorruptStoreError(f"{self.path}: the data file was replaced while in use")

    def ready(self) -> Environment:
        """Return this environment, reopened if it was stale."""
        if self.stale or self.raw is None:
            self.mend()
        return self

    # --- transactions ---

    def begin(self, write: bool) -> client.Transaction:
        """Enter and begin a transaction; the caller calls `access.leave` even when this raises."""
        assert not write or self.lock.owner == get_ident()
        for _ in range(_BEGIN_TRIES_MAX):
            self.access.active.add(get_ident())  # `enter`, without its own call
            if self.access.claim:
                self.access.enter()
            if self.stale or self.raw is None:
                self.access.leave()
                self.mend()
                continue
            if write and not self._for_writing:
                self.access.leave()
                with self.access.exclusive():
                    if self.references == 0:  # closed while we waited: it must stay closed
                        raise StoreClosedError("the engine was closed")
                    self._reopen(write=True)
                continue
            try:
                if write and not self._extended:
                    self._extend()
                if write:
                    self.running_write = self.raw.begin(write=True)
                    return self.running_write
                return self.raw.begin()
            except client.MapResizedError:  # another process made the map grow
                self.access.leave()
                self._resize(lambda _: 0)  # 0: adopt the present size
            except client.PanicError:
                self.stale = True
            except client.ReadersFullError as e:
                if self.raw.reader_check() == 0:
                    raise EngineBusyError(f"{self.path}: all reader slots are taken") from e
        raise EngineUnavailableError(f"{self.path}: LMDB cannot begin a transaction")

    def read_state(self, txn: client.Transaction) -> CachedState:
        """Return the state that a transaction sees, and cache it by its transaction number.

        LMDB shows a number to readers only after its commit is complete, so one number means one
        state as long as the file is open.
        """
        assert self.databases is not None
        state = records.decode_state(txn.get(records.STATE_KEY, db=self.databases.meta))
        return self.cache_state(txn.id(), state)

    def cache_state(self, number: int, state: records.StoredState) -> CachedState:
        """Cache the state at the transaction `number`."""
        header = _new(Header, (state.revision, self.cluster))
        absent = _new(GetResult, (header, None))
        self.cached = cached = _new(CachedState, (number, state, header, absent))
        return cached

    def acquire(self, timeout: float) -> None:
        """Take the write lock; the caller does so in a `try` that ends with `release`, twice.

        Twice, because an interrupt may come just as the first begins.
        """
        self.ready().lock.acquire(timeout)

    def release(self) -> None:
        """Free the write lock, if held, and abort a transaction that an interrupt left running."""
        if self.lock.owner == get_ident():
            if self.running_write is not None:
                with self.access.pause_others():
                    self.running_write.abort()
                self.running_write = None
            self.lock.release()

    def commit(self, txn: client.Transaction, changed: records.StoredState | None) -> None:
        """Commit, and wake waiting watchers if it changes the state to `changed`.

        Raises LMDB's own error if LMDB wrote nothing (the map is full, say), and `OutcomeUnknown`
        for any other: the commit may still appear, because an error may hit the last page only.
        """
        number = txn.id()
        try:
            txn.commit()
        except client.ABORTED_FOR_SURE:
            raise
        except client.Error as e:
            self.stale = True
            cause = client.translate(e, self.path)
            raise OutcomeUnknown(f"the commit failed: {cause}", retry=False, cause=cause) from e
        if changed is not None:  # LMDB reuses the number of a commit without changes
            self.cache_state(number, changed)
            self.commits += 1
            with self.changed:  # as `notify`
                if self.watching:
                    self.changed.notify_all()

    def notify(self) -> None:
        """Wake all waiting watchers of this process."""
        with self.changed:
            if self.watching:
                self.changed.notify_all()

    def last_txn(self) -> int:
        """Return LMDB's number of the newest transaction of any process; costs no transaction."""
        try:
            self.access.enter()
            if self.stale or self.raw is None:
                return -1
            return self.raw.info()["last_txnid"]
        finally:
            self.access.leave()

    # --- space ---

    def sizes(self, txn: Transaction) -> dict[str, int | str]:
        """Return facts about LMDB's file and tables, for people."""
        assert self.raw is not None
        info, page_bytes = self.raw.info(), self.raw.stat()["psize"]
        return {
            "map_bytes": info["map_size"],
            "used_bytes": (info["last_pgno"] + 1) * page_bytes,
            "records": txn.txn.stat(txn.databases.records)["entries"],
            "log_entries": txn.txn.stat(txn.databases.log)["entries"],
            "readers": info["num_readers"],
        }

    def grow(self, needed_bytes: int = 0) -> None:
        """Double the map, or more if one transaction needs more."""
        assert self.lock.held()

        def larger(now: int) -> int:
            size = max(GROWTH_FACTOR * now, now + 2 * needed_bytes)
            return -(-size // PAGE_BYTES_MAX) * PAGE_BYTES_MAX

        self._resize(larger)

    def _resize(self, size_from: Callable[[int], int]) -> None:
        """Set the size of the map, computed from the present one, with exclusive access."""
        with self.access.exclusive():
            if self.raw is None:
                return
            try:
                self.raw.set_mapsize(size_from(self.raw.info()["map_size"]))
            except client.Error as e:
                self.stale = True
                raise client.translate(e, self.path) from e
            self._extended = False

    def _extend(self) -> None:
        """Make the data file as long as the map, with a hole.

        LMDB leaves the file shorter than its last page when the last pages are free. After this, a
        file shorter than its last page is damaged, which `read_meta` sees before the map is used.
        """
        assert self.raw is not None
        extend_file(self.path, self.raw.info()["map_size"])
        self._extended = True

    def check_space(self, needed_bytes: int) -> None:
        """Raise `NoSpaceError` when the disk may be too small for a transaction of that size."""
        free = client.free_bytes(self.path)
        if free is not None and free < 2 * needed_bytes + SPACE_MARGIN_BYTES:
            raise NoSpaceError(f"{self.path}: the disk is full, {free:,} bytes are left")


def extend_file(path: str, map_bytes: int) -> None:
    """Make the data file of a directory at least that long; the writer lock is held."""
    data = os.path.join(path, directory.DATA_FILE)
    if os.stat(data).st_size < map_bytes:
        os.truncate(data, map_bytes)


def _mode_of(path: str, mode: int) -> int:
    """Return the permissions of the files of a directory: as the data file has them, if any."""
    try:
        return os.stat(os.path.join(path, directory.DATA_FILE)).st_mode & 0o666
    except OSError:
        return mode


def _open_lock(path: str, mode: int) -> WriterLock:
    try:
        return WriterLock.open(path, mode)
    except OSError as e:
        error = client.translate(e, path)
        if isinstance(error, ReadOnlyError):
            return WriterLock(path, None)
        raise error from e
