"""One open directory: its LMDB environment, and the transactions this process runs on it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from snapkv import files
from snapkv.engine.contract import GetResult, Header
from snapkv.engine.lmdb import client as mdb
from snapkv.engine.lmdb import directory as place
from snapkv.engine.lmdb import format as records
from snapkv.engine.lmdb.access import Gate
from snapkv.engine.lmdb.lock import WriterLock
from snapkv.engine.lmdb.transaction import Databases, Transaction
from snapkv.errors import (
    CorruptStoreError,
    EngineBusyError,
    EngineUnavailableError,
    FormatError,
    NoSpaceError,
    NotAStoreError,
    OutcomeUnknown,
    ReadOnlyError,
    StoreClosedError,
)

GROWTH_FACTOR = 2
SPACE_MARGIN_BYTES = 256 << 10
"""Left free on the disk beside twice the transaction: what LMDB's tree pages may take."""
_BEGIN_TRIES_MAX = 5
_new = tuple.__new__  # of a named tuple, without the call of its own constructor


class Options(NamedTuple):
    """What an environment was opened with."""

    durability: str
    map_bytes: int
    mode: int


class Known(NamedTuple):
    """The state at one transaction of LMDB's: a short read looks it up once."""

    txn: int
    state: records.State
    header: Header
    absent: GetResult


class Environment:
    """An open directory, shared by all engines of this process that name it.

    `stale` means: close and reopen before the next use (after a failed commit, which leaves
    LMDB's handle unusable, and in a forked child, which must not use the parent's).
    """

    def __init__(self, path: str, options: Options) -> None:
        self.path, self.options = path, options
        self.references = 0
        self.gate = Gate()
        self._new_conditions()
        self.commits = 0  # of this process
        self.running_write: mdb.Transaction | None = None  # until `Transaction` saw its end
        self.stale, self.unusable = False, ""
        self.raw: mdb.RawEnvironment | None = None
        self.databases: Databases | None = None
        self.known: Known | None = None
        self.cluster = 0
        self.file_id: tuple[int, int] = (0, 0)
        self._extended = self._for_writing = False
        self.mode = _mode_of(path, options.mode)
        self.lock = _open_lock(path, self.mode)

    def _new_conditions(self) -> None:
        """Make what watchers wait on; whoever holds `changed_lock` waits for nothing else.

        It is taken with `with`, instead of the condition itself, for the reason in `lock`.
        """
        self.changed_lock = threading.Lock()
        self.changed = threading.Condition(self.changed_lock)
        self.watching = 0  # threads that wait for it

    # --- opening and closing ---

    @property
    def readonly(self) -> bool:
        """Whether the directory can only be read."""
        return self.lock.readonly

    def open(self, *, write: bool = False) -> None:
        """Open the LMDB environment of a directory in which a store stands.

        Before the first write it is opened for reading only: opening LMDB's named databases for
        writing takes its writer mutex, which may be held by a process that stands still.
        """
        assert not write or self.lock.held()
        for tries_left in reversed(range(_BEGIN_TRIES_MAX)):
            try:
                meta = place.read_meta(self.path)
                self.open_raw(max(meta.map_bytes, self.options.map_bytes), write=write)
                self._open_databases()
                return
            except BaseException as e:
                self.close_raw()
                grown = isinstance(e.__cause__, mdb.MapResizedError)  # between look and open
                if not (grown and tries_left):
                    raise

    def open_raw(self, map_bytes: int, *, write: bool) -> None:
        """Open the LMDB environment, whatever is in it."""
        readers = os.path.join(self.path, place.READERS_FILE)
        lock = not self.readonly or os.access(readers, os.R_OK | os.W_OK)
        try:
            if lock:
                os.close(files.open_made(readers, self.mode))
            self.raw = mdb.open_raw(
                self.path,
                map_bytes=map_bytes,
                durability=self.options.durability,
                readonly=not write,
                lock=lock,
            )
            if lock:
                self.raw.reader_check()
        except (mdb.Error, OSError) as e:
            raise mdb.translate(e, self.path) from e
        self._for_writing, self._extended = write, False
        found = os.stat(os.path.join(self.path, place.DATA_FILE))
        self.file_id = found.st_dev, found.st_ino

    def _open_databases(self) -> None:
        assert self.raw is not None
        names = (records.META, records.RECORDS, records.LOG)
        try:
            self.databases = Databases(*(self.raw.open_db(name, create=False) for name in names))
            with self.raw.begin() as txn:
                raw_format = txn.get(records.FORMAT_KEY, db=self.databases.meta)
        except mdb.NotFoundError as e:
            raise NotAStoreError(f"{self.path} is an LMDB environment that is not ours") from e
        except mdb.Error as e:
            raise mdb.translate(e, self.path) from e
        found, self.cluster = records.decode_format(raw_format)
        if found not in (records.FORMAT, records.LEASED_FORMAT):
            newest = records.LEASED_FORMAT
            raise FormatError(
                f"{self.path} has engine format {found}, this version reads up to {newest}",
                found,
                newest,
            )

    def close_raw(self) -> None:
        """Close the LMDB environment, if it is open."""
        raw, self.raw, self.databases, self.known = self.raw, None, None, None
        if raw is not None:
            raw.close()

    def close(self) -> None:
        """Close everything."""
        if self.gate.close(1.0):
            try:
                self.close_raw()
            finally:
                self.gate.open()
        else:  # LMDB's client itself ends what is still running
            self.close_raw()
        self.lock.close()

    def forget_parent(self, quiet: bool) -> None:
        """In a forked child: get ready to reopen, with locks that nobody of the parent holds.

        `quiet` says that no transaction was running at the fork. Otherwise closing the
        inherited handle would free the parent's slot in the shared reader table, so the
        environment must stay unusable here.
        """
        self.lock.close()
        self.gate, self.stale, self.running_write = Gate(), True, None
        self._new_conditions()
        if not quiet:
            self.unusable = "this process was forked while a transaction was running"

    def mend(self) -> None:
        """Close and reopen what is stale; nothing when another thread just did."""
        with self.gate.alone():
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
        """Return this environment, mended if that was due."""
        if self.stale or self.raw is None:
            self.mend()
        return self

    # --- transactions ---

    def reading(self) -> Transaction:
        """Return a short read transaction, to be used with `with`."""
        return Transaction(self, write=False)

    def writing(self) -> Transaction:
        """Return a write transaction for the holder of the lock; aborted unless committed."""
        assert self.lock.held()
        return Transaction(self, write=True)

    def begin(self, write: bool) -> mdb.Transaction:
        """Begin a transaction inside the gate; the caller leaves the gate when this raises."""
        for _ in range(_BEGIN_TRIES_MAX):
            self.gate.enter()
            if self.stale or self.raw is None:
                self.gate.leave()
                self.mend()
                continue
            if write and not self._for_writing:
                self.gate.leave()
                with self.gate.alone():
                    if self.references == 0:  # closed while we waited: nobody would close it again
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
            except mdb.MapResizedError:  # another process made the map grow
                self.gate.leave()
                self._resize(lambda _: 0)  # LMDB's word for "what it is now"
            except mdb.PanicError:
                self.stale = True
            except mdb.ReadersFullError as e:
                if self.raw.reader_check() == 0:
                    raise EngineBusyError(f"{self.path}: all reader slots are taken") from e
        raise EngineUnavailableError(f"{self.path}: LMDB cannot begin a transaction")

    def look(self, txn: mdb.Transaction) -> Known:
        """Return the state that a transaction sees, and keep it for others of the same number.

        LMDB gives a number to readers only once its commit is complete, so a number stands for
        one state as long as the file is open.
        """
        assert self.databases is not None
        state = records.decode_state(txn.get(records.STATE_KEY, db=self.databases.meta))
        return self.keep(txn.id(), state)

    def keep(self, number: int, state: records.State) -> Known:
        """Keep the state that a transaction sees, or leaves, by its number."""
        header = _new(Header, (state.revision, self.cluster))
        absent = _new(GetResult, (header, None))
        self.known = known = _new(Known, (number, state, header, absent))
        return known

    def hold(self, timeout: float) -> None:
        """Take the write lock; the caller does so in a `try` that ends with `let_go`, twice.

        Twice, because an interrupt may come just as the first begins.
        """
        self.ready().lock.acquire(timeout)

    def let_go(self) -> None:
        """Free the write lock, if this thread holds it, and what an interrupt left running."""
        if self.lock.held():
            if self.running_write is not None:
                with self.gate.calm():
                    self.running_write.abort()
                self.running_write = None
            self.lock.release()

    def commit(self, txn: mdb.Transaction, changed: records.State | None) -> None:
        """Commit, and wake who waits for changes: then `changed` is the state that it leaves.

        Raises what LMDB found before writing anything as it is (the map is full, say), and
        `OutcomeUnknown` for everything else: an error at the meta page may surface later.
        """
        number = txn.id()
        try:
            txn.commit()
        except mdb.ABORTED_FOR_SURE:
            raise
        except mdb.Error as e:
            self.stale = True
            cause = mdb.translate(e, self.path)
            raise OutcomeUnknown(f"the commit failed: {cause}", retry=False, cause=cause) from e
        if changed is not None:  # LMDB gives a number without any write to the next transaction
            self.keep(number, changed)
            self.commits += 1
            self.notify()

    def notify(self) -> None:
        """Wake everybody of this process who waits for changes."""
        with self.changed_lock:
            if self.watching:
                self.changed.notify_all()

    def last_txn(self) -> int:
        """Return LMDB's number of the newest transaction of any process: a cheap look for news."""
        try:
            self.gate.enter()
            if self.stale or self.raw is None:
                return -1
            return self.raw.info()["last_txnid"]
        finally:
            self.gate.leave()

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
        """Make the map larger: twice, or more when one transaction needs more."""
        assert self.lock.held()

        def larger(now: int) -> int:
            return _whole_pages(max(GROWTH_FACTOR * now, now + 2 * needed_bytes))

        self._resize(larger)

    def _resize(self, size_from: Callable[[int], int]) -> None:
        """Set the size of the map, computed from what it is now, with nobody inside."""
        with self.gate.alone():
            if self.raw is None:
                return
            try:
                self.raw.set_mapsize(size_from(self.raw.info()["map_size"]))
            except mdb.Error as e:
                self.stale = True
                raise mdb.translate(e, self.path) from e
            self._extended = False

    def _extend(self) -> None:
        """Make the data file as long as the map, with a hole.

        LMDB leaves the file shorter than its last page when the last pages are free. With this
        a file shorter than its last page was cut, and that can be told before touching it.
        """
        assert self.raw is not None
        extend_file(self.path, self.raw.info()["map_size"])
        self._extended = True

    def check_space(self, needed_bytes: int) -> None:
        """Raise `NoSpaceError` when the disk may not take a transaction of that size."""
        free = mdb.free_bytes(self.path)
        if free is not None and free < 2 * needed_bytes + SPACE_MARGIN_BYTES:
            raise NoSpaceError(f"{self.path}: the disk is full, {free:,} bytes are left")


def extend_file(path: str, map_bytes: int) -> None:
    """Make the data file of a directory at least that long; the writer lock is held."""
    data = os.path.join(path, place.DATA_FILE)
    if os.stat(data).st_size < map_bytes:
        os.truncate(data, map_bytes)


def _mode_of(path: str, mode: int) -> int:
    """Return the permissions of the files of a directory: as the data file has them, if any."""
    try:
        return os.stat(os.path.join(path, place.DATA_FILE)).st_mode & 0o666
    except OSError:
        return mode


def _open_lock(path: str, mode: int) -> WriterLock:
    try:
        return WriterLock.open(path, mode)
    except OSError as e:
        error = mdb.translate(e, path)
        if isinstance(error, ReadOnlyError):
            return WriterLock(path, None)
        raise error from e


def _whole_pages(size: int) -> int:
    unit = 1 << 16  # the largest page size of LMDB
    return -(-size // unit) * unit
