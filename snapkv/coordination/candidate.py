"""A candidate's key in an election: made, changed and removed by requests that may be repeated.

What was sent and not answered may arrive late, when much has happened since. So each request has
a guard that makes a late copy harmless:

* the key is made only while the session's key is unchanged; removing it after an unknown outcome
  writes that one again, as it was;
* it is changed only at its last revision;
* it is removed only with its create revision.

An engine that is out of space still removes keys, but writes none again: then what stands is
removed, and the rest, that no late copy makes it anew, is left to the next removal.
"""

from __future__ import annotations

from collections.abc import Callable

from snapkv.coordination.requests import REQUEST_S, found, transact
from snapkv.coordination.session import Session
from snapkv.engine.contract import Compare, Delete, Engine, Put, Range, Target, Txn, TxnResult
from snapkv.errors import NoSpaceError, SessionLostError, SnapKVError


class Candidacy:
    """One try to lead, from its key's creation to its removal; requests from one thread at a time.

    `revision` made the key, 0 before. `elected` is told by the election; `ended` says that the
    candidate resigned, gave up or was deposed; `removed` that its key is gone.
    """

    def __init__(self, engine: Engine, session: Session, key: bytes, before: Candidacy | None):
        """Begin with `before`, the last one that stood in this election: its key may be left."""
        self.session, self.key, self.revision = session, key, 0
        self.elected = self.ended = self.removed = False
        self._engine, self._mod = engine, 0
        left = before if before is not None and before.key == key and not before.removed else None
        # whether a copy of a request that makes the key may still arrive, or may have arrived
        self._open: bool = left is not None and left._open
        self._may_stand = left is not None

    def create(self, value: bytes, check: Callable[[], None]) -> None:
        """Make the key, once, however often that is sent; or take over what `before` left there.

        `check` raises what ends the candidacy. Raises `CommitTooLargeError`, and as `transact`.
        """
        put, is_open, self._open = self._put(value), self._open, True

        def left_open() -> None:
            nonlocal is_open
            is_open = True

        try:
            self._create(value, put, check, left_open)
        except SnapKVError:  # after anything else, what stands is not known
            is_open |= self._may_stand and not self.revision
            self._open = is_open
            raise
        self._open = is_open

    def _create(
        self, value: bytes, put: Put, check: Callable[[], None], left_open: Callable[[], None]
    ) -> None:
        session, seen = self.session, self.session.revision
        while not self.revision:
            check()
            unchanged = Compare(session.key, Target.MOD, "=", seen)
            txn = Txn(
                (Compare(self.key, Target.CREATE, "=", 0), unchanged),
                (put,),
                (Range(self.key), Range(session.key, keys_only=True)),
            )
            answer = transact(self._engine, txn, left_open=left_open)
            if answer.succeeded:
                self.revision = self._mod = answer.header.revision
                break
            seen = self._written(answer)
            for mine in found(answer, 0).kvs:
                self.revision, self._mod = mine.create_revision, mine.mod_revision
                if mine.value != value:
                    self.write(value)

    def write(self, value: bytes) -> None:
        """Change the key's value; raises `SessionLostError` when the key is gone."""
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
            if kvs[0].value == value:  # an earlier copy did it
                return

    def remove(self) -> None:
        """Remove the key, for good; nothing to do when it is gone.

        Raises `NoSpaceError` when it is gone, but a late copy may make it anew; and as `transact`.
        """
        try:
            if self._open:
                self._remove_and_shut_out()
            elif self.revision:
                self._remove_at(self.revision)
        except NoSpaceError:
            answer = self._engine.read([Range(self.key, keys_only=True)], timeout=REQUEST_S)
            for kv in answer.results[0].kvs:
                self._remove_at(kv.create_revision)
            raise
        except SessionLostError:
            pass  # it went with the session

    def _remove_at(self, revision: int) -> None:
        mine = Compare(self.key, Target.CREATE, "=", revision)
        transact(self._engine, Txn((mine,), (Delete(self.key),)))

    def _remove_and_shut_out(self) -> None:
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
        """Return at which revision the session's key was last written: the second range says."""
        kvs = found(answer, 1).kvs
        if not kvs:
            raise SessionLostError(f"session {self.session.id:x} has ended: its key is gone")
        return kvs[0].mod_revision
