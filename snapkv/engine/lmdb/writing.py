"""Writing: one transaction at a time, run by the interpreter that all embedded engines share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from snapkv.engine.caller_rules import check_distinct, check_limits, measure
from snapkv.engine.contract import Header, KeyValue, Limits, Put, Txn, TxnResult
from snapkv.engine.embedded import apply
from snapkv.engine.errors import OutcomeUnknown, Refused
from snapkv.engine.lmdb import client, reading, records
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.leases import is_due
from snapkv.engine.lmdb.records import REVISION_MAX
from snapkv.engine.lmdb.write_view import WriteView, expire
from snapkv.errors import (
    EngineBusyError,
    EngineUnavailableError,
    NoSpaceError,
    SnapKVError,
    StoreClosedError,
)

GROWTHS_MAX = 40
"""Doublings of the map for one transaction: from 4 KiB to more than any disk."""

SHORT_KEY_BYTES = records.KEY_BYTES_MAX // 2
"""A key of this length fits, whatever its bytes: each zero byte counts twice."""

LOCK_SECONDS_MAX = 30.0
"""How long a call waits for the write lock without a timeout."""

T = TypeVar("T")

Prepare: TypeAlias = Callable[[KeyValue | None], Txn]


class Seen(NamedTuple):
    """The version of a key that was peeked at, and the revision of that read.

    It may not be the newest, although the lock is held: a lease may have ended since, and a writer
    that was killed in its commit may have left a revision that readers do not see yet.
    """

    key: bytes
    kv: KeyValue | None
    revision: int


def transact(
    env: Environment, limits: Limits, prepare: Prepare, peek: bytes, timeout: float
) -> TxnResult:
    """Run one transaction while holding the write lock.

    `prepare` is called with the lock held but outside any LMDB transaction: it may take long,
    raise, be interrupted, even fork. No other writer can come in between.
    """
    try:
        lock = env.ready().lock
    except SnapKVError as e:
        raise Refused(e) from e
    if lock.held():
        raise Refused(EngineBusyError("this thread is inside a transaction already"))
    try:
        peeked, revision = _locked_peek(env, peek, timeout)
        txn = prepare(peeked)
        if env.references == 0:
            raise Refused(StoreClosedError("the engine was closed"))
        if lock.closed or env.lock is not lock:
            raise Refused(EngineUnavailableError("this process was forked inside a transaction"))
        check_distinct(txn)
        return _sent(env, limits, txn, Seen(peek, peeked, revision))
    finally:
        try:
            env.release()
        except BaseException:  # an interrupt cut it short
            env.release()
            raise


def _finished(env: Environment, view: WriteView) -> Header:
    return Header(view.finish(), env.cluster)


def transact_each(
    env: Environment, limits: Limits, txns: Sequence[Txn], timeout: float
) -> list[TxnResult]:
    """Run transactions in order in one of LMDB, each in a revision of its own.

    So they wait for the disk once. Ends with the first one of which a compare fails.
    """
    needed = 0
    for txn in txns:
        check_distinct(txn)
        needed += check(txn, limits)

    def attempt() -> list[TxnResult]:
        with env.writing() as transaction:
            before, results = transaction.state.revision, list[TxnResult]()
            expire(transaction)
            for txn in txns:
                view = WriteView(transaction)
                results.append(apply(txn, view, partial(_finished, env, view)))
                if not results[-1].succeeded:
                    break
            transaction.commit(changed=transaction.state.revision > before)
            return results

    return _locked(env, timeout, attempt, needed)


def check(txn: Txn, limits: Limits) -> int:
    """Return the size of `txn`; raise `CommitTooLargeError`, `InvalidKeyError` over `limits`."""
    size, longest = measure(txn)
    if longest <= SHORT_KEY_BYTES and size <= min(limits.value_bytes, limits.request_bytes):
        return size
    for key in _point_keys(txn):
        records.checked_stem(key)
    return check_limits(txn, limits)


def _locked_peek(env: Environment, peek: bytes, timeout: float) -> tuple[KeyValue | None, int]:
    """Return a key's newest version, and the revision of that read."""
    try:
        env.lock.acquire(timeout)
        if (found := reading.get(env, peek, 0)) is not None:
            return found.kv, found.header.revision
        while True:
            with env.reading() as txn:
                if not is_due(txn.state):
                    kv = reading.point(txn.cursor(), peek, REVISION_MAX)
                    return kv, txn.state.revision
            expire_held(env)
    except SnapKVError as e:
        raise Refused(e) from e


def _sent(env: Environment, limits: Limits, txn: Txn, seen: Seen) -> TxnResult:
    """Apply and commit; any failure before the commit raises `Refused`."""
    try:
        needed = check(txn, limits)
        env.check_space(needed)
        return growing(env, needed, partial(_attempt, env, txn, seen))
    except OutcomeUnknown:
        raise
    except SnapKVError as e:
        raise Refused(e) from e


def growing(env: Environment, needed_bytes: int, attempt: Callable[[], T]) -> T:
    """Run `attempt`; repeat it with a larger map whenever the map was full."""
    for _ in range(GROWTHS_MAX):
        try:
            return attempt()
        except client.MapFullError:
            env.grow(needed_bytes)
    raise NoSpaceError(f"{env.path}: the map cannot grow any more")


def _attempt(env: Environment, txn: Txn, seen: Seen) -> TxnResult:
    with env.writing() as transaction:
        before = transaction.state.revision
        if transaction.state.due:
            expire(transaction)
        view = WriteView(transaction)
        if seen.revision == transaction.state.revision:
            view.seen[seen.key] = seen.kv
        result = apply(txn, view, partial(_finished, env, view))
        transaction.commit(changed=transaction.state.revision > before)
        return result


def locked(env: Environment, wait_s: float, work: Callable[[], T]) -> T:
    """Do some work under the write lock; repeat it with a larger map if the map was full.

    The work must be repeatable: the outcome of a failed commit stays unknown.
    """
    try:
        return _locked(env, wait_s, work, 0)  # copies of tree pages: freeing needs space, too
    except OutcomeUnknown as e:
        e.reraise()


def _locked(env: Environment, wait_s: float, work: Callable[[], T], needed_bytes: int) -> T:
    if env.ready().lock.held():
        raise EngineBusyError("this thread is inside a transaction already")
    try:
        env.acquire(wait_s)
        if needed_bytes:
            env.check_space(needed_bytes)
        return growing(env, needed_bytes, work)
    finally:
        try:
            env.release()
        except BaseException:  # an interrupt cut it short
            env.release()
            raise


def expire_held(env: Environment) -> None:
    """End the leases that are due, while holding the write lock."""

    def attempt() -> None:
        with env.writing() as transaction:
            before = transaction.state.revision
            expire(transaction)
            transaction.commit(changed=transaction.state.revision > before)

    try:
        growing(env, 0, attempt)
    except OutcomeUnknown as e:  # whether or not it happened: the next call checks again
        e.reraise()


def _point_keys(txn: Txn) -> list[bytes]:
    """Return all single keys that a transaction names, nested ones included."""
    keys = []
    for compare in txn.compare:
        keys.append(compare.key)
    for op in txn.success + txn.failure:
        if isinstance(op, Txn):
            keys += _point_keys(op)
        elif isinstance(op, Put) or not op.range_end:
            keys.append(op.key)
    return keys
