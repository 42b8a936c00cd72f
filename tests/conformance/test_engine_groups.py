"""Several transactions in one call: in order, each a revision, until one fails."""

from __future__ import annotations

import pytest
from conformance_driver import WAIT_SECONDS_MAX, Driver, brief, take

from snapkv.engine.contract import Compare, Delete, Op, Put, Refused, Target, Txn, TxnResult
from snapkv.errors import SnapKVError


def each(db: Driver, *txns: Txn) -> list[TxnResult]:
    return db.engine.transact_each(txns, timeout=WAIT_SECONDS_MAX)


def after(value: bytes, *ops: Op) -> Txn:
    """Return a transaction for the time when the key k has a value."""
    return Txn((Compare(b"k", Target.VALUE, "=", value),), ops, (Put(b"failed", value),))


def test_each_is_a_revision_that_sees_those_before_it(db: Driver) -> None:
    head = db.put(b"k", b"0")
    watcher = db.watch(head + 1)
    results = each(
        db,
        after(b"0", Put(b"k", b"1"), Put(b"a", b"1")),
        after(b"1", Put(b"k", b"2"), Delete(b"a")),
        after(b"2", Delete(b"missing")),
        after(b"2", Put(b"k", b"3"), Put(b"a", b"3")),
    )
    assert [r.succeeded for r in results] == [True] * 4
    assert [r.header.revision - head for r in results] == [1, 2, 2, 3]
    assert db.head() == head + 3
    assert [db.value(b"k", head + n) for n in range(4)] == [b"0", b"1", b"2", b"3"]
    assert db.get(b"k") == (b"k", b"3", head, head + 3, 4, 0)
    assert db.get(b"a", head + 2) is None
    assert brief(take(watcher, head + 3)) == [
        (head + 1, b"a", b"1"),
        (head + 1, b"k", b"1"),
        (head + 2, b"a", None),
        (head + 2, b"k", b"2"),
        (head + 3, b"a", b"3"),
        (head + 3, b"k", b"3"),
    ]


def test_it_ends_with_the_first_that_fails(db: Driver) -> None:
    head = db.put(b"k", b"0")
    results = each(
        db, after(b"0", Put(b"k", b"1")), after(b"0", Put(b"k", b"2")), after(b"1", Put(b"k", b"3"))
    )
    assert [(r.succeeded, r.header.revision) for r in results] == [
        (True, head + 1),
        (False, head + 2),
    ]
    assert (db.value(b"k"), db.value(b"failed"), db.head()) == (b"1", b"0", head + 2)


def test_none_are_nothing(db: Driver) -> None:
    head = db.head()
    assert each(db) == []
    assert db.head() == head


def test_an_error_leaves_the_first_ones_or_none(db: Driver) -> None:
    head = db.put(b"k", b"0")
    too_long = Txn(success=(Put(b"x" * (db.engine.limits.key_bytes + 1), b"v"),))
    with pytest.raises((SnapKVError, Refused)):
        each(db, after(b"0", Put(b"k", b"1")), too_long, after(b"1", Put(b"k", b"2")))
    assert (db.head() - head, db.value(b"k")) in ((0, b"0"), (1, b"1"))
    assert each(db, Txn(success=(Put(b"k", b"3"),)))[0].header.revision == db.head()


def test_groups_grow_the_engine(db: Driver) -> None:
    """More than an embedded engine's files had room for when they were made."""
    head, value = db.head(), bytes(1 << 20)
    results = each(db, *(Txn(success=(Put(b"k%d" % n, value),)) for n in range(24)))
    assert [r.header.revision for r in results] == list(range(head + 1, head + 25))
    assert all(db.value(b"k%d" % n) == value for n in range(24))
