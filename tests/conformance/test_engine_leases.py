"""Leases: keys that vanish when nobody keeps them alive.

Nothing here says how soon after its time a lease ends, only that it does, and not before.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from conformance_driver import (
    ALL,
    FIRST,
    LONG_TTL_SECONDS,
    TTL_SECONDS,
    WAIT_SECONDS_MAX,
    Background,
    Driver,
    brief,
    take,
    until,
)

from snapkv.base.waiting import monotonic, pause
from snapkv.engine.contract import (
    Compare,
    Delete,
    KeyEvent,
    KeyValue,
    Put,
    Range,
    Refused,
    Target,
    Txn,
    WatchBatch,
)
from snapkv.errors import InvalidOptionError, InvalidTypeError, LeaseNotFoundError

pytestmark = pytest.mark.slow

# --- granting, attaching, revoking ---------------------------------------------------------


def test_a_lease_has_an_id_of_its_own_and_the_time_asked_for(db: Driver) -> None:
    leases = [db.engine.grant(LONG_TTL_SECONDS) for _ in range(20)]
    assert len({lease.id for lease in leases}) == 20
    assert all(0 < lease.id < 1 << 63 for lease in leases)
    assert all(lease.ttl_s >= LONG_TTL_SECONDS for lease in leases)
    assert db.engine.keep_alive(leases[0].id) >= LONG_TTL_SECONDS


@pytest.mark.parametrize("ttl_s", [0, -1, 0.0, float("nan"), float("inf"), 9_000_000_001, 10**400])
def test_a_time_out_of_range_is_told(db: Driver, ttl_s: float) -> None:
    with pytest.raises(InvalidOptionError):
        db.engine.grant(ttl_s)


@pytest.mark.parametrize("ttl_s", ["5", None, True, Decimal(5), b"5"])
def test_a_time_that_is_no_number_is_told(db: Driver, ttl_s: Any) -> None:
    with pytest.raises(InvalidTypeError):
        db.engine.grant(ttl_s)


def test_the_longest_time(db: Driver) -> None:
    lease = db.engine.grant(9_000_000_000)
    assert lease.ttl_s >= 9_000_000_000
    db.put(b"a", lease=lease.id)
    watcher = db.watch(db.head() + 1)
    assert watcher.next(0.05) is None
    assert db.value(b"a") == b"v"


def test_granting_and_keeping_alive_make_no_revision(db: Driver) -> None:
    head = db.head()
    db.engine.keep_alive(db.grant())
    assert db.head() == head


def test_reads_and_events_tell_the_lease(db: Driver) -> None:
    lease = db.grant()
    r1 = db.put(b"a", b"1", lease)
    expected = KeyValue(b"a", b"1", r1, r1, 1, lease)
    assert db.get(b"a") == expected
    assert db.range(FIRST, ALL).kvs == [expected]
    (without_value,) = db.range(FIRST, ALL, keys_only=True).kvs
    assert without_value in (expected._replace(value=b"", lease=kept) for kept in (0, lease))
    assert [kv for page in db.engine.scan(FIRST, ALL, revision=r1) for kv in page] == [expected]
    assert take(db.watch(r1), r1) == [WatchBatch(r1, (KeyEvent(expected, False),))]
    again = db.txn(Put(b"a", b"2", prev_kv=True, lease=lease))
    assert again.results[0].prev == expected  # type: ignore[union-attr]
    r2 = again.header.revision
    assert db.get(b"a") == KeyValue(b"a", b"2", r1, r2, 2, lease)


def test_an_empty_value_under_a_lease(db: Driver) -> None:
    lease = db.grant()
    db.put(b"a", b"", lease)
    found = db.get(b"a")
    assert found is not None
    assert (found.value, found.lease) == (b"", lease)


def test_revoking_removes_all_keys_in_one_revision(db: Driver) -> None:
    lease, other = db.grant(), db.grant()
    db.put(b"b\0", lease=lease)
    db.txn(Put(b"a", b"1", lease=lease), Put(b"c", b"1", lease=other), Put(b"d", b"1"))
    head = db.head()
    db.revoke(lease)
    assert db.head() == head + 1
    assert db.keys() == [b"c", b"d"]
    assert db.keys(revision=head) == [b"a", b"b\0", b"c", b"d"]
    gone = [KeyValue(key, b"", 0, head + 1, 0) for key in (b"a", b"b\0")]
    expected = WatchBatch(head + 1, tuple(KeyEvent(kv, True) for kv in gone))
    assert take(db.watch(head + 1), head + 1) == [expected]


def test_revoking_twice_or_what_never_was_is_fine(db: Driver) -> None:
    lease = db.grant()
    db.put(b"a", lease=lease)
    db.revoke(lease)
    head = db.head()
    db.revoke(lease)
    db.revoke(987_654_321)
    assert db.head() == head


def test_a_lease_without_keys_ends_without_a_revision(db: Driver) -> None:
    lease, head = db.grant(), db.head()
    db.revoke(lease)
    assert db.head() == head
    with pytest.raises(LeaseNotFoundError) as caught:
        db.engine.keep_alive(lease)
    assert caught.value.lease == lease


# --- attached and detached -------------------------------------------------------------------


def test_a_put_without_a_lease_detaches(db: Driver) -> None:
    lease = db.grant()
    db.put(b"a", b"1", lease)
    db.put(b"b", b"1", lease)
    db.put(b"a", b"2")
    db.revoke(lease)
    found = db.get(b"a")
    assert found is not None
    assert (found.value, found.version, found.lease) == (b"2", 2, 0)
    assert db.keys() == [b"a"]


def test_a_put_with_another_lease_moves_the_key(db: Driver) -> None:
    first, second = db.grant(), db.grant()
    db.put(b"a", b"1", first)
    db.put(b"a", b"2", second)
    head = db.head()
    db.revoke(first)
    assert db.head() == head
    assert db.value(b"a") == b"2"
    db.revoke(second)
    assert db.get(b"a") is None


@pytest.mark.parametrize("delete", [Delete(b"a"), Delete(b"a", b"b"), Delete(FIRST, ALL)])
def test_a_delete_detaches(db: Driver, delete: Delete) -> None:
    lease = db.grant()
    db.put(b"a", b"1", lease)
    db.txn(delete)
    created = db.put(b"a", b"2")
    db.revoke(lease)
    assert db.get(b"a") == KeyValue(b"a", b"2", created, created, 1)


def test_a_key_without_a_lease_may_get_one(db: Driver) -> None:
    db.put(b"a", b"1")
    lease = db.grant()
    db.put(b"a", b"2", lease)
    db.revoke(lease)
    assert db.get(b"a") is None


# --- leases that are not there ---------------------------------------------------------------


def unknown_puts(lease: int) -> list[Txn]:
    good, bad = Put(b"good", b"1"), Put(b"bad", b"1", lease=lease)
    never = (Compare(b"none", Target.VERSION, ">", 0),)
    return [
        Txn(success=(bad,)),
        Txn(success=(good, bad)),
        Txn(success=(Delete(b"old"), bad, good)),
        Txn(compare=never, failure=(good, bad)),
        Txn(success=(good, Txn(success=(bad,)))),
        Txn(success=(good, Txn(compare=never, failure=(Txn(success=(bad,)),)))),
    ]


def test_a_put_under_an_unknown_lease_refuses_everything(db: Driver) -> None:
    kept, ended = db.grant(), db.grant()
    db.put(b"old", b"1", kept)
    db.revoke(ended)
    head = db.head()
    for lease in (ended, 987_654_321):
        for txn in unknown_puts(lease):
            error = db.refused(txn)
            assert isinstance(error, LeaseNotFoundError)
            assert error.lease == lease
            assert (db.head(), db.keys()) == (head, [b"old"])
    db.revoke(kept)  # still the lease of what was nearly deleted
    assert db.keys() == []


def test_a_branch_that_is_not_run_needs_no_lease(db: Driver) -> None:
    never = (Compare(b"none", Target.VERSION, ">", 0),)
    bad = (Put(b"bad", b"1", lease=987_654_321),)
    result = db.run(Txn(compare=never, success=bad, failure=(Put(b"a", b"1"),)))
    assert not result.succeeded
    assert db.keys() == [b"a"]


# --- ending by themselves --------------------------------------------------------------------


def test_a_waiting_watcher_sees_the_end_with_nobody_else_around(db: Driver) -> None:
    began = monotonic()
    lease = db.engine.grant(TTL_SECONDS)
    head = db.txn(
        Put(b"b", b"1", lease=lease.id), Put(b"a", b"1", lease=lease.id), Put(b"c", b"1")
    ).header.revision
    watcher = db.watch(head + 1, b"a", b"z")
    batch = Background(lambda: watcher.next(None)).result()
    assert monotonic() - began >= lease.ttl_s
    gone = [KeyValue(key, b"", 0, head + 1, 0) for key in (b"a", b"b")]
    assert batch == WatchBatch(head + 1, tuple(KeyEvent(kv, True) for kv in gone))
    assert db.head() == head + 1
    assert db.keys() == [b"c"]


def test_a_lease_granted_while_a_watcher_waits(db: Driver) -> None:
    """It waits for nothing in particular, or for the end of a longer lease, and wakes up."""
    db.put(b"long", lease=db.grant())
    watcher = db.watch(db.head() + 1, b"a")
    waiting = Background(lambda: watcher.next(None))
    lease = db.engine.grant(TTL_SECONDS)
    head = db.put(b"a", b"1", lease.id)
    assert brief([waiting.result()]) == [(head, b"a", b"1")]
    waiting = Background(lambda: watcher.next(None))
    assert brief([waiting.result()]) == [(head + 1, b"a", None)]


def test_reading_is_enough_to_end_a_lease(db: Driver) -> None:
    began = monotonic()
    lease = db.engine.grant(TTL_SECONDS)
    head = db.put(b"a", b"1", lease.id)
    until(lambda: db.get(b"a") is None)
    assert monotonic() - began >= lease.ttl_s
    assert db.head() == head + 1
    assert db.value(b"a", head) == b"1"
    assert db.get(b"a", head + 1) is None


def test_writing_is_enough_to_end_a_lease(db: Driver) -> None:
    lease = db.engine.grant(TTL_SECONDS)
    head = db.put(b"a", b"1", lease.id)
    exists = Txn((Compare(b"a", Target.CREATE, "=", head),), (), (Put(b"gone", b"1"),))
    until(lambda: not db.run(exists).succeeded)
    assert db.get(b"gone") == KeyValue(b"gone", b"1", head + 2, head + 2, 1)
    assert brief(take(db.watch(head + 1), head + 2)) == [
        (head + 1, b"a", None),
        (head + 2, b"gone", b"1"),
    ]


def test_after_its_end(db: Driver) -> None:
    lease = db.engine.grant(TTL_SECONDS)
    created = db.put(b"a", b"1", lease.id)
    db.watch(created + 1).next(WAIT_SECONDS_MAX)
    compares = {
        Compare(b"a", Target.CREATE, "=", created): False,
        Compare(b"a", Target.CREATE, "=", 0): True,
        Compare(b"a", Target.MOD, "=", 0): True,
        Compare(b"a", Target.VERSION, "=", 0): True,
        Compare(b"a", Target.VALUE, "=", b"1"): False,
    }
    for compare, holds in compares.items():
        assert db.run(Txn((compare,))).succeeded is holds
    assert isinstance(
        db.refused(Txn(success=(Put(b"b", b"", lease=lease.id),))), LeaseNotFoundError
    )
    with pytest.raises(LeaseNotFoundError) as caught:
        db.engine.keep_alive(lease.id)
    assert caught.value.lease == lease.id
    db.revoke(lease.id)
    assert db.head() == created + 1
    assert db.get(b"a", created) == KeyValue(b"a", b"1", created, created, 1, lease.id)
    again = db.put(b"a", b"2")
    assert db.get(b"a") == KeyValue(b"a", b"2", again, again, 1)


def test_keeping_alive_holds_it(db: Driver) -> None:
    began = monotonic()
    lease = db.engine.grant(TTL_SECONDS)
    head = db.put(b"a", b"1", lease.id)
    last, kept_s = began, lease.ttl_s
    while monotonic() < began + 2.5 * lease.ttl_s:
        last = monotonic()
        kept_s = db.engine.keep_alive(lease.id)
        assert kept_s >= TTL_SECONDS
        assert db.value(b"a") == b"1"
        pause(lease.ttl_s / 8)
    assert db.head() == head
    [batch] = take(db.watch(head + 1), head + 1)
    assert monotonic() - last >= kept_s
    assert brief([batch]) == [(head + 1, b"a", None)]


def test_each_lease_ends_in_a_revision_of_its_own(db: Driver) -> None:
    leases = [db.grant(TTL_SECONDS) for _ in range(12)]
    db.txn(*(Put(b"k/%d/%d" % (i, j), b"", lease=leases[i]) for i in range(12) for j in range(3)))
    head = db.head()
    batches = take(db.watch(head + 1), head + 12)
    assert [batch.revision for batch in batches] == list(range(head + 1, head + 13))
    found = [[event.kv.key for event in batch.events] for batch in batches]
    assert sorted(found) == sorted([b"k/%d/%d" % (i, j) for j in range(3)] for i in range(12))
    assert db.head() == head + 12
    assert db.keys() == []


def test_a_lease_without_keys_ends_by_itself(db: Driver) -> None:
    idle, witness = db.grant(TTL_SECONDS), db.grant(TTL_SECONDS)
    head = db.put(b"a", lease=witness)
    assert brief(take(db.watch(head + 1), head + 1)) == [(head + 1, b"a", None)]
    until(lambda: is_over(db, idle))
    assert db.get(b"probe") is None  # if it was put, it went with the lease


def is_over(db: Driver, lease: int) -> bool:
    """Tell without keeping it alive."""
    try:
        db.txn(Put(b"probe", b"", lease=lease))
    except Refused as refusal:
        return isinstance(refusal.error, LeaseNotFoundError)
    return False


def test_detached_keys_stay_when_a_lease_ends(db: Driver) -> None:
    lease, other = db.engine.grant(TTL_SECONDS), db.grant()
    for key in (b"a", b"b", b"c", b"d"):
        db.put(key, b"1", lease.id)
    db.put(b"b", b"2")
    db.put(b"c", b"2", other)
    db.delete(b"d")
    head = db.put(b"d", b"2")
    assert brief(take(db.watch(head + 1), head + 1)) == [(head + 1, b"a", None)]
    assert db.keys() == [b"b", b"c", b"d"]


def test_leases_and_compaction(db: Driver) -> None:
    """Compacting keeps what is alive and its lease, also when it drops older versions of it."""
    lease = db.engine.grant(TTL_SECONDS)
    db.put(b"a", b"0")
    for i in range(3):
        db.put(b"a", b"%d" % i, lease.id)
    head = db.put(b"b", b"1")
    db.engine.compact(head)
    assert brief(take(db.watch(head + 1), head + 1)) == [(head + 1, b"a", None)]
    assert db.value(b"a", head) == b"2"
    db.engine.compact(head + 1)
    assert db.engine.read([Range(FIRST, ALL)]).results[0].count == 1
