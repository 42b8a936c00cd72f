"""Forgetting: what stays readable, what goes, in how many steps."""

from __future__ import annotations

import pytest
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.contract import Delete, Put
from snapkv.errors import CompactedError, FutureRevisionError


@pytest.mark.new_engine
def test_nothing_is_compacted_at_first(db: Driver) -> None:
    assert db.engine.compacted_revision() == 0
    db.put(b"a")
    assert db.engine.compacted_revision() == 0


def test_the_state_at_the_compacted_revision_stays(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"1"), Put(b"c", b"1"))
    db.put(b"a", b"2")
    at = db.delete(b"b")
    after = db.txn(Put(b"a", b"3"), Delete(b"c"), Put(b"d", b"1")).header.revision
    before = [db.range(FIRST, ALL, revision=r).kvs for r in (at, after)]
    db.engine.compact(at)
    assert db.engine.compacted_revision() == at
    assert [db.range(FIRST, ALL, revision=r).kvs for r in (at, after)] == before
    assert [kv.value for kv in before[0]] == [b"2", b"1"]
    with pytest.raises(CompactedError):
        db.keys(revision=at - 1)


def test_versions_go_on_after_compaction(db: Driver) -> None:
    first = db.put(b"a", b"1")
    db.put(b"a", b"2")
    db.engine.compact(db.put(b"a", b"3"))
    last = db.put(b"a", b"4")
    assert db.get(b"a") == (b"a", b"4", first, last, 4, 0)


def test_a_removed_key_begins_anew_after_compaction(db: Driver) -> None:
    db.put(b"a", b"1")
    db.engine.compact(db.delete(b"a"))
    assert db.get(b"a", db.head()) is None
    last = db.put(b"a", b"2")
    assert db.get(b"a") == (b"a", b"2", last, last, 1, 0)


def test_compacting_to_the_newest_and_at_once_again(db: Driver) -> None:
    head = [db.put(b"a", b"%d" % i) for i in range(4)][-1]
    db.engine.compact(head)
    db.engine.compact(head)
    assert db.value(b"a", head) == b"3"
    assert db.engine.compacted_revision() == head
    assert db.engine.check() == []


def test_compacting_backward_and_forward(db: Driver) -> None:
    revisions = [db.put(b"a", b"%d" % i) for i in range(5)]
    db.engine.compact(revisions[2])
    with pytest.raises(CompactedError) as compacted:
        db.engine.compact(revisions[1])
    assert (compacted.value.requested, compacted.value.earliest) == (revisions[1], revisions[2])
    with pytest.raises(FutureRevisionError) as future:
        db.engine.compact(revisions[4] + 1)
    assert (future.value.requested, future.value.current) == (revisions[4] + 1, revisions[4])
    assert db.engine.compacted_revision() == revisions[2]
    db.engine.compact(revisions[3])
    assert db.value(b"a", revisions[3]) == b"3"


def test_compacting_makes_no_revision(db: Driver) -> None:
    head = db.put(b"a")
    db.engine.compact(head)
    assert db.head() == head
    assert db.put(b"a") == head + 1


@pytest.mark.long_on("asyncio etcd")
def test_freeing_in_batches(db: Driver) -> None:
    """However far it came, what is readable is the same, and the rest is refused."""
    for i in range(2_500):
        db.txn(Put(b"k%d" % (i % 50), b"%d" % i))
    at = db.head()
    db.txn(Delete(b"k1", b"k2"))
    state = db.range(FIRST, ALL, revision=at).kvs
    for batches in (0, 1, 1, None):
        db.engine.compact(at, batches=batches)
        assert db.engine.compacted_revision() == at
        assert db.range(FIRST, ALL, revision=at).kvs == state
        assert db.engine.check() == []
        with pytest.raises(CompactedError):
            db.get(b"k1", at - 1)


def test_compacting_again_while_freeing_was_not_done(db: Driver) -> None:
    for i in range(2_200):
        db.put(b"k%d" % (i % 10), b"%d" % i)
    middle, head = db.head() - 100, db.head()
    db.engine.compact(middle, batches=1)
    state = db.range(FIRST, ALL, revision=head).kvs
    db.engine.compact(head, batches=1)
    assert db.engine.check() == []
    db.engine.compact(head)
    assert db.range(FIRST, ALL, revision=head).kvs == state
    assert db.engine.check() == []


@pytest.mark.long_on("etcd")
@pytest.mark.new_engine
def test_every_revision_of_a_small_history_can_be_the_compacted_one(make) -> None:  # type: ignore[no-untyped-def]
    def history(db: Driver) -> None:
        db.txn(Put(b"a", b"1"), Put(b"b", b"1"))
        db.txn(Delete(b"a"), Put(b"b", b"2"))
        db.txn(Put(b"a", b"3"), Delete(b"b"))
        db.txn(Put(b"a", b"4"))
        db.txn(Delete(b"a"))
        db.txn(Put(b"a", b"6"), Put(b"b", b"6"))

    model = make()
    base = model.head()
    history(model)
    states = {r: model.range(FIRST, ALL, revision=r).kvs for r in range(base, base + 7)}
    for steps in ([base + i] for i in range(7)):
        _compare_after(make(), history, steps, states)
    for first in range(6):
        for second in range(first, 7):
            _compare_after(make(), history, [base + first, base + second], states)


def _compare_after(db: Driver, history, steps: list[int], states) -> None:  # type: ignore[no-untyped-def]
    history(db)
    for revision in steps:
        db.engine.compact(revision)
        assert db.engine.check() == []
    for revision, state in states.items():
        if revision >= steps[-1]:
            assert db.range(FIRST, ALL, revision=revision).kvs == state
        else:
            with pytest.raises(CompactedError):
                db.keys(revision=revision)
