"""A candidate's key in an election: made, changed and removed by requests that may be repeated.

A request that was not answered may arrive late, when much has happened since. So each request has
a guard that makes a late copy harmless:

* the key is made only while the session's key is unchanged; removing the candidate's key after an
  unknown outcome writes the session's key again, with the same value, so that the guard fails;
* it is changed only at its last revision;
* it is removed only with its create revision.

An engine that is out of space removes keys but writes none. Then only the candidate's key is
removed; the next removal also makes late copies harmless.
"""

from __future__ import annotations

from collections.abc import Callable

from snapkv.coordination.requests import REQUEST_S, found, transact
from snapkv.coordination.session import Session
from snapkv.engine.contract import Compare, Delete, Engine, Put, Range, Target, Txn, TxnResult
from snapkv.errors import NoSpaceError, SessionLostError, SnapKVError


class Candidacy:
    """One try to lead, from its key's creation to its removal; requests from one thread at a time.

    `revision` is the one that made the key, 0 before. The election sets `elected`, and `ended` when
    the candidate has resigned, timed out or lost its key; `removed` means that the key is gone.
    """

    def __init__(self, engine: Engine, session: Session, key: bytes, before: Candidacy | None):
        """`before` is this process's previous candidacy in the election: its key may be left."""
        self.session, self.key, self.revision = session, key, 0
        self.elected = self.ended = self.removed = False
        self._engine, self._mod = engine, 0
        left = before if before is not None and before.key == key and not before.removed else None
        # whether a copy of a request that makes the key may still arrive, or may have been applied
        self._open: bool = left is not None and left._open
        self._may_exist = left is not None

    def create(self, value: bytes, check: Callable[[], None]) -> None:
        """Make the key, once, however often that is sent; or take over the key that `before` left.

        `check` raises what ends the candidacy. Raises `CommitTooLargeError`, and as `transact`.
        """
        put = self._put(value)
        try:
            self._create(value, put, check)
        except SnapKVError:
            if self._may_exist and not self.revision:
                self._open = True
            raise
        except BaseException:
            self._open = True
            raise

    def _create(self, value: bytes, put: Put, check: Callable[[], None]) -> None:
        def on_open() -> None:
            self._open = True

        session, seen = self.session, self.session.revision
        while not self.revision:
            check()
            unchanged = Compare(session.key, Target.MOD, "=", seen)
            txn = Txn(
                (Compare(self.key, Target.CREATE, "=", 0), unchanged),
                (put,),
                (Range(self.key), Range(session.key, keys_only=True)),
            )
            answer = transact(self._engine, txn, on_open=on_open)
            if answer.succeeded:
                self.revision = self._mod = answer.header.revision
                break
            seen = self._written(answer)
            for mine in found(answer, 0).kvs:
                self.revision, self._mod = mine.create_revision, mine.mod_revision
                if mine.value != value:
                    self.write(value)

    def write(self, value: bytes) -> None:
        """Change the key's value; raises `SessionLostError` if the key is gone."""
        put = self._put(value)
        while True:
            unchanged = Compare(self.key, Target.MOD, "=", self._mod)
            answer = transact(self._engine, Txn((unchanged,), (put,), (Range(self.key),)))
            if answer.succeeded:
                self._mod = answer.header.revision
                return
            kvs = found(answer, 0).kvs
            if not kvs or kvs[0].create_revision != self.revision:
                self.ended = True
                raise SessionLostError(f"candidate {self.key!r} was removed")
            self._mod = kvs[0].mod_revision
            if kvs[0].value == value:  # an earlier copy was applied
                return

    def remove(self) -> None:
        """Remove the key, if it exists, and make sure that no late copy makes it again.

        Raises `NoSpaceError` if the key is removed, but a late copy may make it again; and as
        `transact`.
        """
        try:
            if self._open:
                self._remove_and_stop_copies()
            elif self.revision:
                self._remove_at(self.revision)
        except NoSpaceError:
            answer = self._engine.read([Range(self.key, keys_only=True)], timeout=REQUEST_S)
            for kv in answer.results[0].kvs:
                self._remove_at(kv.create_revision)
            raise
        except SessionLostError:
            pass  # the key vanished with the session

    def _remove_at(self, revision: int) -> None:
        mine = Compare(self.key, Target.CREATE, "=", revision)
        transact(self._engine, Txn((mine,), (Delete(self.key),)))

    def _remove_and_stop_copies(self) -> None:
        session = self.session
        seen = session.revision
        while True:
            unchanged = Compare(session.key, Target.MOD, "=", seen)
            again = Put(session.key, session.record, lease=session.id)
            seeing = (Range(self.key, keys_only=True), Range(session.key, keys_only=True))
            txn = Txn((unchanged,), (again, Delete(self.key)), seeing)
            answer = transact(self._engine, txn)
            if answer.succeeded:
                return
            seen = self._written(answer)

    def _put(self, value: bytes) -> Put:
        put = Put(self.key, value, lease=self.session.id)
        self._engine.check_limits(Txn(success=(put,)))
        return put

    def _written(self, answer: TxnResult) -> int:
        """Return the revision that last wrote the session's key, from the second range."""
        kvs = found(answer, 1).kvs
        if not kvs:
            raise SessionLostError(f"session {self.session.id:x} has ended: its key is gone")
        return kvs[0].mod_revision
