"""What was peeked at under the write lock is what the transaction sees, and what may change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lmdb_words import get, put, run_txn

from snapkv.base.clocks import uptime_ns
from snapkv.engine.contract import Compare, KeyValue, Put, PutResult, Target, Txn
from snapkv.engine.lmdb import LmdbEngine, leases, reading, writing

Opened = Callable[..., LmdbEngine]


@pytest.mark.parametrize("is_leased", [False, True])
def test_a_lease_may_end_between_the_peek_and_the_transaction(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, is_leased: bool
) -> None:
    engine = opened()
    lease = engine.grant(60).id
    run_txn(engine, Put(b"k", b"v", lease=lease if is_leased else 0), Put(b"l", b"v", lease=lease))

    def prepare(peeked: KeyValue | None) -> Txn:
        assert peeked is not None
        later = uptime_ns() + 61 * 10**9
        for module in (leases, writing):
            monkeypatch.setattr(module, "uptime_ns", lambda: later)
        unchanged = Compare(b"k", Target.MOD, "=", peeked.mod_revision)
        return Txn((unchanged,), (Put(b"k", b"w", prev_kv=True),), ())

    answer = engine.transact(prepare, b"k", timeout=5)
    assert answer.succeeded is not is_leased
    assert get(engine, b"l") is None
    assert get(engine, b"k") == (None if is_leased else b"w")


def test_a_killed_writers_commit_may_stand_above_the_peek(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the meta page and the readers' table, its commit is seen by writers only."""
    engine = opened()
    put(engine, b"k", b"1")
    older = engine.get(b"k")
    put(engine, b"k", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(reading, "get", lambda env, key, revision: older)
        answer = engine.transact(
            lambda _: Txn((), (Put(b"k", b"3", prev_kv=True),)), b"k", timeout=5
        )
    (put_,) = answer.results
    assert isinstance(put_, PutResult)
    assert put_.prev is not None
    assert (put_.prev.value, put_.prev.version) == (b"2", 2)
    found = engine.get(b"k").kv
    assert found is not None
    assert (found.value, found.version) == (b"3", 3)
    assert engine.check() == []


def test_a_read_after_a_commit_sees_it(opened: Opened) -> None:
    engine, other = opened(), opened()
    for n in range(3):
        revision = put(engine, b"k", b"%d" % n)
        for each in (engine, other):
            found = each.get(b"k")
            assert found.header.revision == revision
            assert found.kv is not None
            assert found.kv.value == b"%d" % n


def test_what_writes_nothing_uses_no_number_up(opened: Opened) -> None:
    """LMDB gives the number of a transaction without changes to the next one."""
    engine = opened()
    before = put(engine, b"k", b"1")
    never = Compare(b"k", Target.VERSION, "=", 0)
    answer = engine.transact(lambda _: Txn((never,), (Put(b"k", b"2"),), ()), b"k", timeout=5)
    assert not answer.succeeded
    assert engine.get(b"k").header.revision == before
    after = put(engine, b"k", b"3")
    found = engine.get(b"k")
    assert (found.header.revision, found.kv and found.kv.value) == (after, b"3")
