"""A transaction between `with` and its end."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

from snapkv.engine.lmdb import client, records
from snapkv.engine.lmdb.thread_access import Access


class Databases(NamedTuple):
    """The handles of the named databases."""

    meta: client.Database
    records: client.Database
    log: client.Database


class Owner(Protocol):
    """The part of the environment that a transaction uses."""

    path: str
    access: Access
    databases: Databases | None
    running_write: client.Transaction | None

    def begin(self, write: bool) -> client.Transaction:
        """Begin a transaction inside `access`."""
        ...

    def commit(self, txn: client.Transaction, changed: records.State | None) -> None:
        """Commit, and wake waiting watchers."""
        ...


class Transaction:
    """A transaction between `with` and its end, where it is aborted unless it was committed.

    Errors of LMDB inside become errors of snapkv, except `MapFullError`: then the caller aborts,
    makes the map larger and tries again.
    """

    __slots__ = ("_begun", "_ended", "_env", "_write", "databases", "state", "txn")

    def __init__(self, env: Owner, write: bool) -> None:
        self._env, self._write = env, write
        self._begun = self._ended = False
        self.txn: client.Transaction
        self.state: records.State
        self.databases: Databases

    def __enter__(self) -> Transaction:
        env = self._env
        try:
            self.txn = env.begin(self._write)
            self._begun = True
            assert env.databases is not None
            self.databases = databases = env.databases
            self.state = records.decode_state(self.txn.get(records.STATE_KEY, db=databases.meta))
        except BaseException as e:
            self._end()
            if isinstance(e, client.Error):
                raise client.translate(e, env.path) from e
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
        self._end()
        if isinstance(error, client.Error) and not isinstance(error, client.MapFullError):
            raise client.translate(error, self._env.path) from error

    def _end(self) -> None:
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
                self._env.running_write = None
            self._env.access.leave()

    def _abort_undisturbed(self) -> None:
        """Abort a write transaction while no other thread reads.

        py-lmdb's abort waits for a moment at which no thread is inside any call on the
        environment. With two threads that read without a break such a moment may never come.
        """
        with self._env.access.pause_others():
            self.txn.abort()

    def cursor(self) -> client.Cursor:
        """Return a cursor over the records."""
        return self.txn.cursor(self.databases.records)

    def put_state(self, state: records.State) -> None:
        """Write the state record; from now on it is the state of this transaction."""
        self.txn.put(records.STATE_KEY, state.encode(), db=self.databases.meta)
        self.state = state

    def commit(self, *, changed: bool = True) -> None:
        """Commit; see `Environment.commit`. Without changes LMDB writes nothing."""
        self._ended = True  # LMDB ends it even when it raises
        self._env.commit(self.txn, self.state if changed else None)
