"""A transaction between `with` and its end."""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

from snapkv.engine.lmdb import client as mdb
from snapkv.engine.lmdb import format as records
from snapkv.engine.lmdb.access import Gate


class Databases(NamedTuple):
    """The handles of the named databases."""

    meta: mdb.Database
    records: mdb.Database
    log: mdb.Database


class Owner(Protocol):
    """What a transaction needs of the environment that it runs in."""

    path: str
    gate: Gate
    databases: Databases | None
    running_write: mdb.Transaction | None

    def begin(self, write: bool) -> mdb.Transaction:
        """Begin a transaction inside the gate."""
        ...

    def commit(self, txn: mdb.Transaction, changed: records.State | None) -> None:
        """Commit, and wake who waits for changes."""
        ...


class Transaction:
    """A transaction between `with` and its end, where it is aborted unless it was committed.

    Errors of LMDB inside come out as ours, except those that mean "abort, grow, try again".
    """

    __slots__ = ("_begun", "_ended", "_env", "_write", "databases", "state", "txn")

    def __init__(self, env: Owner, write: bool) -> None:
        self._env, self._write = env, write
        self._begun = self._ended = False
        self.txn: mdb.Transaction
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
            if isinstance(e, mdb.Error):
                raise mdb.translate(e, env.path) from e
            if isinstance(e, OSError) and mdb.error_number(e):
                raise mdb.translate(e, env.path) from e
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        if isinstance(error, mdb.Error) and not isinstance(error, mdb.MapFullError):
            raise mdb.translate(error, self._env.path) from error

    def _end(self) -> None:
        """Abort what is still running, and free it, before leaving the gate.

        Aborting is not enough: py-lmdb keeps a reader's slot until its object is freed.
        """
        try:
            if self._begun and self._write and not self._ended:
                self._abort_calmly()
            elif self._begun:
                self.txn.abort()
        finally:
            if self._begun:
                self._begun = False
                del self.txn
            if self._write:
                self._env.running_write = None
            self._env.gate.leave()

    def _abort_calmly(self) -> None:
        """Abort a write transaction while nobody reads.

        py-lmdb's abort waits for a moment at which no thread is inside any call on the
        environment. With two threads that read without a break such a moment may never come.
        """
        with self._env.gate.calm():
            self.txn.abort()

    def cursor(self) -> mdb.Cursor:
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
