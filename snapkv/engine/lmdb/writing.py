"""Writing: one transaction at a time, run by the interpreter that all embedded engines share."""

from __future__ import annotations

from collections.abc import Callable

from snapkv.engine.apply import apply
from snapkv.engine.base import (
    Header,
    KeyValue,
    Limits,
    Put,
    Range,
    RangeResult,
    Txn,
    TxnResult,
    check_distinct,
    check_limits,
    op_bytes,
)
from snapkv.engine.lmdb import mdb, reading, records
from snapkv.engine.lmdb.env import Environment
from snapkv.engine.lmdb.records import HEADER, REMOVED, REVISION_MAX, State
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.errors import (
    EngineBusyError,
    EngineUnavailableError,
    NoSpaceError,
    OutcomeUnknown,
    Refused,
    SnapKVError,
    StoreClosedError,
)

GROWTHS_MAX = 40
"""Doublings of the map for one transaction: from 4 KiB to more than any disk."""

Prepare = Callable[[KeyValue | None], Txn]


def transact(
    env: Environment, limits: Limits, prepare: Prepare, peek: bytes, timeout: float
) -> TxnResult:
    """Run one transaction while holding the write lock.

    `prepare` is called with the lock held but outside any LMDB transaction: it may take long,
    raise, be interrupted, even fork. Nobody can write in between.
    """
    try:
        lock = env.ready().lock
    except SnapKVError as e:
        raise Refused(e) from e
    if lock.held():
        raise Refused(EngineBusyError("this thread is inside a transaction already"))
    try:
        txn = prepare(_locked_peek(env, peek, timeout))
        if env.references == 0:
            raise Refused(StoreClosedError("the engine was closed"))
        if lock.closed or env.lock is not lock:
            raise Refused(EngineUnavailableError("this process was forked inside a transaction"))
        check_distinct(txn)
        return _sent(env, limits, txn)
    finally:
        try:
            env.let_go()
        finally:
            env.let_go()


def check(txn: Txn, limits: Limits) -> None:
    """Raise `CommitTooLargeError` or `InvalidKeyError` for what cannot be taken."""
    for key in _point_keys(txn):
        records.checked_stem(key)
    check_limits(txn, limits)


def _locked_peek(env: Environment, peek: bytes, timeout: float) -> KeyValue | None:
    try:
        env.hold(timeout)
        with env.reading() as txn:
            return reading.point(txn.cursor(), peek, REVISION_MAX)
    except SnapKVError as e:
        raise Refused(e) from e


def _sent(env: Environment, limits: Limits, txn: Txn) -> TxnResult:
    """Apply and commit; whatever fails before the commit is a refusal."""
    try:
        check(txn, limits)
        needed = op_bytes(txn)
        env.check_space(needed)
        return growing(env, needed, lambda: _attempt(env, txn))
    except OutcomeUnknown:
        raise
    except SnapKVError as e:
        raise Refused(e) from e


def growing(env: Environment, needed_bytes: int, attempt: Callable[[], TxnResult]) -> TxnResult:
    """Run `attempt`, again with a larger map whenever it found the map full."""
    for _ in range(GROWTHS_MAX):
        try:
            return attempt()
        except mdb.MapFullError:
            env.grow(needed_bytes)
    raise NoSpaceError(f"{env.path}: the map cannot grow any more")


def _attempt(env: Environment, txn: Txn) -> TxnResult:
    with env.writing() as transaction:
        newest = Newest(transaction)
        result = apply(txn, newest, lambda: Header(newest.finish(), env.cluster))
        transaction.commit(changed=bool(newest.changed))
        return result


class Newest:
    """The newest state inside a write transaction, with what was written so far."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._cursor = transaction.cursor()
        self._state = transaction.state
        self._revision = transaction.state.revision + 1
        self._suffix = records.suffix_of(self._revision)
        self.changed: dict[bytes, bool] = {}

    def newest(self, key: bytes) -> KeyValue | None:
        """Return the key's newest version, None when it does not exist."""
        return reading.point(self._cursor, key, REVISION_MAX)

    def range(self, wanted: Range) -> RangeResult:
        """Answer a range, at the newest state or an older one."""
        revision = reading.revision_in(self._state, wanted)
        return reading.answer(self._cursor, self._state, wanted, revision)

    def put(self, key: bytes, value: bytes) -> KeyValue | None:
        """Write a key; return what was there."""
        prev = self.newest(key)
        created, version = (prev.create_revision, prev.version) if prev else (self._revision, 0)
        self._write(records.stem_of(key), HEADER.pack(created, version + 1, 0) + value)
        self.changed[key] = False
        return prev

    def delete(self, key: bytes, range_end: bytes) -> int:
        """Remove a key or range; return how many keys were there."""
        first, beyond = records.span_of(key, range_end)
        found = list(reading.stems(self._cursor, first, beyond, REVISION_MAX))
        for stem in found:
            self._write(stem, _REMOVAL)
            self.changed[records.key_of(stem)] = True
        return len(found)

    def finish(self) -> int:
        """Write the log entry and the state, if anything changed; return the newest revision."""
        if not self.changed:
            return self._state.revision
        txn, databases = self._transaction.txn, self._transaction.databases
        entry = records.encode_changes(self.changed)
        txn.put(records.be64(self._revision), entry, db=databases.log)
        state = State(self._revision, self._state.compacted, self._state.freed)
        txn.put(records.STATE_KEY, state.encode(), db=databases.meta)
        return self._revision

    def _write(self, stem: bytes, value: bytes) -> None:
        databases = self._transaction.databases
        self._transaction.txn.put(stem + self._suffix, value, db=databases.records)


_REMOVAL = HEADER.pack(0, 0, REMOVED)


def _point_keys(txn: Txn) -> list[bytes]:
    """All single keys that a transaction names, nested ones included."""
    keys = [compare.key for compare in txn.compare]
    for op in txn.success + txn.failure:
        if isinstance(op, Txn):
            keys += _point_keys(op)
        elif isinstance(op, Put) or not op.range_end:
            keys.append(op.key)
    return keys
