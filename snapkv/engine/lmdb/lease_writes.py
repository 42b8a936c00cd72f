"""Granting, keeping and ending leases, under the write lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from snapkv.engine.contract import Lease
from snapkv.engine.leases import is_id, new_id, ttl_ns_of
from snapkv.engine.lmdb.environment import Environment
from snapkv.engine.lmdb.leases import Leases
from snapkv.engine.lmdb.transaction import Transaction
from snapkv.engine.lmdb.write_view import end, expire
from snapkv.engine.lmdb.writing import expire_held, locked
from snapkv.errors import LeaseNotFoundError

T = TypeVar("T")

_NS = 1_000_000_000


def grant(env: Environment, ttl_s: float, wait_s: float) -> Lease:
    """Write a new lease; its time starts once the lock is held."""
    ttl_ns = ttl_ns_of(ttl_s)

    def work(transaction: Transaction) -> Lease:
        leases, lease = Leases(transaction), new_id()
        while leases.find(lease) is not None:
            lease = new_id()
        leases.put(lease, ttl_ns)
        return Lease(lease, ttl_s)

    return _changing(env, wait_s, work)


def keep_alive(env: Environment, lease: int, wait_s: float) -> float:
    """Start a lease's time anew and return that in seconds."""

    def work(transaction: Transaction) -> float | None:
        leases = Leases(transaction)
        found = leases.find(lease)
        if found is None:
            return None
        leases.put(lease, found.ttl, after=found)
        return found.ttl / _NS

    left = _changing(env, wait_s, work) if is_id(lease) else None
    if left is None:  # raised outside the transaction, which ended the leases that were due
        raise LeaseNotFoundError(lease)
    return left


def revoke(env: Environment, lease: int, wait_s: float) -> None:
    """End a lease, if it is alive."""

    def work(transaction: Transaction) -> None:
        if Leases(transaction).find(lease) is not None:
            end(transaction, lease)

    if is_id(lease):
        _changing(env, wait_s, work)


def _changing(env: Environment, wait_s: float, work: Callable[[Transaction], T]) -> T:
    """Do some work in a write transaction in which nothing is due, and commit it."""

    def attempt() -> T:
        with env.writing() as transaction:
            before = transaction.state.revision
            expire(transaction)
            result = work(transaction)
            transaction.commit(changed=transaction.state.revision > before)
            return result

    return locked(env, wait_s, attempt)


def expire_due(env: Environment, wait_s: float) -> None:
    """End the leases that are due, unless another process just did.

    Inside a transaction of this thread the lock is held already; then they end before that
    transaction.
    """
    if env.ready().lock.held():
        expire_held(env)
    else:
        locked(env, wait_s, lambda: expire_held(env))
