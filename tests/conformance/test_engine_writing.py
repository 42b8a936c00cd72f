"""Writing: transactions, compares, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from conformance_driver import ALL, FIRST, Background, Driver

from snapkv.engine.contract import (
    Compare,
    Delete,
    DeleteResult,
    KeyValue,
    Put,
    PutResult,
    Range,
    RangeResult,
    Refused,
    Target,
    Txn,
    TxnResult,
)
from snapkv.errors import CommitTooLargeError, SnapKVError


def test_each_changing_transaction_is_one_revision(db: Driver) -> None:
    start = db.head()
    assert db.put(b"a") == start + 1
    assert db.txn(Put(b"b", b"1"), Put(b"c", b"2"), Delete(b"a")).header.revision == start + 2
    assert {kv.mod_revision for kv in db.range(FIRST, ALL).kvs} == {start + 2}
    assert db.head() == start + 2


def test_what_changes_nothing_is_no_revision(db: Driver) -> None:
    head = db.put(b"a")
    for ops in (
        (),
        (Delete(b"b"),),
        (Delete(b"b", ALL),),
        (Range(b"a"),),
        (Txn(success=(Delete(b"x"), Range(FIRST, ALL))),),
    ):
        assert db.txn(*ops).header.revision == head
    assert db.head() == head


def test_putting_the_same_value_is_a_change(db: Driver) -> None:
    first = db.put(b"a", b"1")
    assert db.put(b"a", b"1") == first + 1
    assert db.get(b"a") == (b"a", b"1", first, first + 1, 2, 0)


def test_deleting_counts_what_was_there(db: Driver) -> None:
    db.txn(*(Put(key, b"v") for key in (b"a", b"a\0", b"a\xff", b"ab", b"b")))
    assert db.txn(Delete(b"a")).results == (DeleteResult(1),)
    assert db.txn(Delete(b"a")).results == (DeleteResult(0),)
    assert db.txn(Delete(b"a", b"b")).results == (DeleteResult(3),)
    assert db.keys() == [b"b"]
    assert db.txn(Delete(b"a", ALL)).results == (DeleteResult(1),)
    assert db.keys() == []


def test_overlapping_deletes_count_once(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"2"), Put(b"c", b"3"))
    result = db.txn(Delete(b"a", b"c"), Delete(b"b", ALL), Delete(b"a"))
    assert result.results == (DeleteResult(2), DeleteResult(1), DeleteResult(0))


def test_prev_kv_is_given_when_asked_for_and_there(db: Driver) -> None:
    first = db.put(b"a", b"1")
    result = db.txn(Put(b"a", b"2", prev_kv=True), Put(b"b", b"3", prev_kv=True))
    assert result.results == (PutResult(KeyValue(b"a", b"1", first, first, 1)), PutResult(None))
    assert db.txn(Put(b"a", b"3")).results == (PutResult(None),)
    db.delete(b"a")
    assert db.txn(Put(b"a", b"4", prev_kv=True)).results == (PutResult(None),)


def test_reads_in_a_transaction_see_what_was_written_before_them(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"c", b"3"))
    result = db.txn(
        Range(FIRST, ALL),
        Put(b"b", b"2"),
        Range(FIRST, ALL),
        Delete(b"a"),
        Range(FIRST, ALL, limit=1),
        Range(b"b"),
        Range(FIRST, ALL, count_only=True),
        Range(FIRST, ALL, keys_only=True),
    )
    found = [r for r in result.results if isinstance(r, RangeResult)]
    assert [[kv.value for kv in r.kvs] for r in found[:4]] == [
        [b"1", b"3"],
        [b"1", b"2", b"3"],
        [b"2"],
        [b"2"],
    ]
    assert (found[2].count, found[2].more) == (2, True)
    assert (found[4].kvs, found[4].count) == ([], 2)
    assert [kv[:2] for kv in found[5].kvs] == [(b"b", b""), (b"c", b"")]


def test_a_failing_compare_runs_the_other_branch(db: Driver) -> None:
    db.put(b"a", b"1")
    guard = Compare(b"a", Target.VALUE, "=", b"2")
    result = db.txn(Put(b"x", b"then"), compare=(guard,), failure=(Range(b"a"),))
    assert result.succeeded is False
    assert isinstance(result.results[0], RangeResult)
    assert result.results[0].kvs[0].value == b"1"
    assert db.get(b"x") is None


def test_all_compares_must_hold(db: Driver) -> None:
    db.txn(Put(b"a", b"1"), Put(b"b", b"2"))
    good, bad = Compare(b"a", Target.VALUE, "=", b"1"), Compare(b"b", Target.VALUE, "=", b"1")
    assert db.txn(compare=()).succeeded
    assert db.txn(compare=(good,)).succeeded
    assert not db.txn(compare=(good, bad)).succeeded
    assert not db.txn(compare=(bad, good)).succeeded


_HOLDS: dict[str, Callable[[int], bool]] = {
    "=": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
    "<": lambda sign: sign < 0,
    ">": lambda sign: sign > 0,
}


@pytest.mark.parametrize("op", list(_HOLDS))
def test_every_operator_on_every_target(db: Driver, op: str) -> None:
    created = db.put(b"a", b"m")
    db.put(b"a", b"m")
    changed = db.put(b"a", b"m")
    for target, middle in (
        (Target.CREATE, created),
        (Target.MOD, changed),
        (Target.VERSION, 3),
    ):
        for sign in (-1, 0, 1):
            guard = Compare(b"a", target, op, middle - sign)
            assert db.txn(compare=(guard,)).succeeded == _HOLDS[op](sign), guard
    for sign, operand in ((-1, b"n"), (0, b"m"), (1, b"l"), (1, b""), (1, b"lz"), (-1, b"m\0")):
        guard = Compare(b"a", Target.VALUE, op, operand)
        assert db.txn(compare=(guard,)).succeeded == _HOLDS[op](sign), guard


@pytest.mark.parametrize("removed", [False, True])
@pytest.mark.parametrize("op", list(_HOLDS))
def test_compares_on_a_missing_key(db: Driver, op: str, removed: bool) -> None:
    if removed:
        db.put(b"a", b"m")
        db.delete(b"a")
    for target in (Target.CREATE, Target.MOD, Target.VERSION):
        assert db.txn(compare=(Compare(b"a", target, op, 0),)).succeeded == _HOLDS[op](0)
        assert db.txn(compare=(Compare(b"a", target, op, 5),)).succeeded == _HOLDS[op](-1)
    for operand in (b"", b"m", b"z"):
        assert not db.txn(compare=(Compare(b"a", Target.VALUE, op, operand),)).succeeded


def test_values_compare_as_unsigned_bytes(db: Driver) -> None:
    db.put(b"a", b"\x80")
    assert db.txn(compare=(Compare(b"a", Target.VALUE, ">", b"\x7f\xff"),)).succeeded
    assert db.txn(compare=(Compare(b"a", Target.VALUE, "<", b"\x80\0"),)).succeeded


def test_compares_of_nested_transactions_see_the_state_before_all(db: Driver) -> None:
    db.put(b"a", b"old")
    was_old = Compare(b"a", Target.VALUE, "=", b"old")
    was_new = Compare(b"a", Target.VALUE, "=", b"new")
    b_absent = Compare(b"b", Target.CREATE, "=", 0)
    result = db.txn(
        Put(b"a", b"new"),
        Txn((was_old, b_absent), (Put(b"b", b"1"), Txn((b_absent,), (Put(b"c", b"1"),)))),
        Txn((b_absent,), (Put(b"d", b"1"),), (Put(b"d", b"2"),)),
        Txn((was_new,), (Put(b"e", b"1"),), (Put(b"e", b"2"),)),
    )
    assert [r.succeeded for r in result.results[1:] if isinstance(r, TxnResult)] == [1, 1, 0]
    found = {kv.key: kv.value for kv in db.range(FIRST, ALL).kvs}
    assert found == {b"a": b"new", b"b": b"1", b"c": b"1", b"d": b"1", b"e": b"2"}
    assert len({kv.mod_revision for kv in db.range(FIRST, ALL).kvs}) == 1


def test_nested_answers_carry_the_header_of_the_whole(db: Driver) -> None:
    result = db.txn(Txn(success=(Txn(success=(Put(b"a", b"1"),)),)), Range(b"a"))
    assert result.header.revision == db.head()
    inner = result.results[0]
    assert isinstance(inner, TxnResult)
    innermost = inner.results[0]
    assert isinstance(innermost, TxnResult)
    assert inner.header == innermost.header == result.header
    assert innermost.results == (PutResult(None),)


def test_nested_branches_that_change_nothing_are_no_revision(db: Driver) -> None:
    head = db.put(b"a")
    never = Compare(b"a", Target.VERSION, "=", 99)
    result = db.txn(Txn((never,), (Put(b"b", b"1"),), (Range(b"a"),)))
    assert result.header.revision == db.head() == head


DUPLICATES = {
    "two puts": (Put(b"a", b"1"), Put(b"a", b"2")),
    "put and delete": (Put(b"a", b"1"), Delete(b"a")),
    "delete and put": (Delete(b"a"), Put(b"a", b"1")),
    "put and range": (Put(b"b", b"1"), Delete(b"a", b"c")),
    "put and the rest": (Put(b"b", b"1"), Delete(b"a", ALL)),
    "nested put": (Put(b"a", b"1"), Txn(success=(Put(b"a", b"2"),))),
    "nested puts": (Txn(success=(Put(b"a", b"1"),)), Txn(failure=(Put(b"a", b"2"),))),
    "nested delete": (Put(b"a", b"1"), Txn(success=(Delete(b"a"),))),
    "put two deep": (Put(b"a", b"1"), Txn(success=(Txn(failure=(Put(b"a", b"2"),)),))),
}


@pytest.mark.parametrize("name", list(DUPLICATES))
def test_writing_a_key_twice_is_a_mistake(db: Driver, name: str) -> None:
    head = db.put(b"z")
    for txn in (Txn(success=DUPLICATES[name]), Txn((), (), DUPLICATES[name])):
        with pytest.raises(ValueError, match="key"):
            db.run(txn)
    assert db.head() == head
    assert db.keys() == [b"z"]


def test_what_looks_like_a_duplicate_and_is_none(db: Driver) -> None:
    always = Compare(b"nothing", Target.VERSION, "=", 0)
    db.txn(
        Txn((always,), (Put(b"a", b"then"),), (Put(b"a", b"else"),)),
        Put(b"b", b"1"),
        Delete(b"c", b"d"),
        Delete(b"b\0"),
        compare=(always,),
        failure=(Put(b"a", b"2"), Put(b"b", b"2")),
    )
    assert [(kv.key, kv.value) for kv in db.range(FIRST, ALL).kvs] == [
        (b"a", b"then"),
        (b"b", b"1"),
    ]


def test_what_prepare_raises_passes_through(db: Driver) -> None:
    head = db.put(b"a")

    def prepare(_: KeyValue | None) -> Txn:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        db.engine.transact(prepare, b"a", timeout=5)
    assert db.head() == head
    assert db.put(b"b") == head + 1


def test_prepare_is_called_once_with_the_newest_or_with_nothing(db: Driver) -> None:
    db.put(b"a", b"1")
    db.put(b"a", b"2")
    newest, calls = db.get(b"a"), []

    def prepare(found: KeyValue | None) -> Txn:
        calls.append(found)
        return Txn(success=(Put(b"b", b"1"),))

    db.engine.transact(prepare, b"a", timeout=5)
    db.engine.transact(prepare, b"absent", timeout=5)
    assert calls[0] in (newest, None)
    assert calls[1:] == [None]


def test_what_is_too_large_is_refused_before_anything_is_written(db: Driver) -> None:
    head, limits = db.put(b"z"), db.engine.limits
    too_long = Txn(success=(Put(b"a", b"1"), Put(b"k" * (limits.key_bytes + 1), b"v")))
    with pytest.raises(SnapKVError) as caught:
        db.engine.check_limits(too_long)
    assert isinstance(caught.value, ValueError)
    assert isinstance(_refusal(db, too_long), ValueError)
    assert db.head() == head
    assert db.keys() == [b"z"]


def _refusal(db: Driver, txn: Txn) -> SnapKVError:
    with pytest.raises(SnapKVError) as caught:
        db.run(txn)
    return caught.value.error if isinstance(caught.value, Refused) else caught.value


def test_requests_at_the_limit(make: Callable[[], Driver]) -> None:
    db = make()
    limit = db.engine.limits.request_bytes
    over = Txn(success=(Put(b"a", bytes(limit)),))
    with pytest.raises(CommitTooLargeError) as caught:
        db.engine.check_limits(over)
    assert caught.value.size > caught.value.limit
    fits = Txn(success=(Put(b"a", bytes(min(limit, 4 << 20) - 1_000)),))
    db.engine.check_limits(fits)
    db.run(fits)
    assert len(db.value(b"a") or b"") == min(limit, 4 << 20) - 1_000


@pytest.mark.parametrize("nested", [False, True])
def test_a_transaction_reads_the_newest_state_only(db: Driver, nested: bool) -> None:
    head = db.put(b"a")
    old = Range(b"a", revision=head)
    with pytest.raises(ValueError, match="newest state"):
        db.txn(Put(b"b", b"1"), Txn(failure=(old,)) if nested else old)
    assert db.head() == head
    assert db.keys() == [b"a"]


def test_threads_lose_no_update(db: Driver) -> None:
    """Counters by compare-and-swap: the sum is right and no revision is used twice."""
    rounds, threads = 25, 4
    revisions: list[int] = []

    def work() -> None:
        for _ in range(rounds):
            for _ in itertools.count():
                now = db.get(b"counter")
                number = int(now.value) if now else 0
                guard = Compare(b"counter", Target.MOD, "=", now.mod_revision if now else 0)
                result = db.txn(Put(b"counter", b"%d" % (number + 1)), compare=(guard,))
                if result.succeeded:
                    revisions.append(result.header.revision)
                    break

    running = [Background(work) for _ in range(threads)]
    for each in running:
        each.result()
    assert db.value(b"counter") == b"%d" % (rounds * threads)
    assert len(set(revisions)) == rounds * threads


def test_readers_never_see_half_a_transaction(db: Driver) -> None:
    db.txn(Put(b"a", b"0"), Put(b"z", b"0"))

    def write() -> None:
        for i in range(150):
            db.txn(Put(b"a", b"%d" % i), Put(b"z", b"%d" % i))

    writer = Background(write)
    while writer.running:
        answer = db.engine.read([Range(b"a"), Range(FIRST, ALL)])
        values = {kv.value for result in answer.results for kv in result.kvs}
        assert len(values) == 1
        assert answer.header.revision >= answer.results[0].kvs[0].mod_revision
    writer.result()
