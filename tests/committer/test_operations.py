"""One caller's part: operations in stored keys, nested as deep as an engine's lists need."""

import random

import numpy
import pytest

import snapkv
from snapkv.committer import compile_operations
from snapkv.committer.group import CommitGroup
from snapkv.committer.operations import guards_max, nest
from snapkv.engine.contract import Delete, EngineLimits, Put, Txn
from snapkv.engine.request_checks import check_distinct, check_limits
from snapkv.errors import (
    CommitTooLargeError,
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.layout import Layout

ETCD = EngineLimits(key_bytes=1 << 20, value_bytes=1 << 20, request_bytes=1 << 30, ops_per_list=128)
BUDGET = 126


def leaves(ops):
    for op in ops:
        if isinstance(op, Txn):
            yield from leaves(op.success)
        else:
            yield op


def longest_path(ops):
    """Operations on the fullest way down: what etcd counts against its limit."""
    nested = [longest_path(op.success) for op in ops if isinstance(op, Txn)]
    return len(ops) + max(nested, default=0)


SIZES = [0, 1, 125, 126, 127, 128, 200, 3_968, 3_969, 3_970, 10_000, 74_087, 74_088]


@pytest.mark.parametrize("size", SIZES)
def test_nest_keeps_every_operation_in_order_within_the_budget(size):
    ops = tuple(Delete(n.to_bytes(4, "big")) for n in range(size))
    nested = nest(ops, BUDGET)
    assert tuple(leaves(nested)) == ops
    assert longest_path(nested) <= BUDGET
    if size <= BUDGET:
        assert nested == ops
    check_limits(Txn(success=nested), EngineLimits(9, 9, 1 << 30, ops_per_list=BUDGET))


@pytest.mark.parametrize("budget", [3, 4, 5, 6, 12, 95, 126])
def test_nest_at_other_budgets(budget):
    most = max(budget, (budget // 2) ** 2, (budget // 3) ** 3)
    for size in {budget, budget + 1, (budget // 2) ** 2, most}:
        if size > most:
            continue
        ops = tuple(Delete(n.to_bytes(4, "big")) for n in range(size))
        nested = nest(ops, budget)
        assert tuple(leaves(nested)) == ops
        assert longest_path(nested) <= budget


def test_nest_says_when_three_deep_is_not_enough():
    ops = tuple(Delete(n.to_bytes(4, "big")) for n in range(42**3 + 1))
    with pytest.raises(CommitTooLargeError) as caught:
        nest(ops, BUDGET)
    assert (caught.value.size, caught.value.limit) == (42**3 + 1, 42**3)


def compiled(**ops):
    return compile_operations(snapkv.Ops(**ops), Layout("m"))


def test_operations_become_stored_keys():
    part = compiled(
        puts={"b": b"2"},
        deletes=["d"],
        delete_prefixes=["a/"],
        guards=[snapkv.Absent("b"), snapkv.HeadAt(9)],
        note="why",
        spaces={"x/y": snapkv.SpaceOps(puts={b"\0": b"3"}, delete_prefixes=[b"\xff"])},
    )
    assert part.puts == {b"m/data/b": b"2", b"m/space/x%2Fy/\0": b"3"}
    assert part.removed == [
        (b"m/data/a/", b"m/data/a0"),
        (b"m/data/d", b"m/data/d\0"),
        (b"m/space/x%2Fy/\xff", b"m/space/x%2Fy0"),
    ]
    assert [check.key for check in part.checks] == [b"m/data/b", b"m/sys/ts"]
    assert [check.guard for check in part.checks] == [snapkv.Absent("b"), snapkv.HeadAt(9)]
    assert part.note == "why"


def test_removals_are_cut_around_saved_keys_so_no_key_is_written_twice():
    part = compiled(
        puts={"a/new": b"1", "a/": b"2", "d": b"3"},
        deletes=["d", "a/old"],
        delete_prefixes=["a/", "a/old", "a"],
    )
    txn = part.txn(guards_max(ETCD, 32))
    check_distinct(txn)
    assert {op.key for op in leaves(txn.success) if isinstance(op, Put)} == set(part.puts)
    assert not any(start <= key < end for key in part.puts for start, end in part.removed)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 95, 96, 2_000, 29_000])
def test_parts_fit_the_limits_of_lists_beside_31_others(count):
    part = compiled(puts={f"{n:05}": b"" for n in range(count)}, guards=[snapkv.Absent("a")])
    mine = part.txn(guards_max(ETCD, 32))
    check_limits(Txn(success=(Put(b"t", b""), *[mine] * 32)), ETCD)


def test_too_many_guards_for_one_list():
    guards = [snapkv.Absent(str(n)) for n in range(200)]
    with pytest.raises(CommitTooLargeError):
        compiled(guards=guards).txn(guards_max(ETCD, 32))


def parts_of(*several):
    return [compiled(**ops) for ops in several]


def may_join(first, *others):
    """Whether the last of some parts may join a group of those before it."""
    group = CommitGroup(first)
    for part in others[:-1]:
        assert group.takes(part)
        group.add(part)
    return group.takes(others[-1])


@pytest.mark.parametrize(
    ("a", "b", "clash"),
    [
        ({"puts": {"a": b""}}, {"puts": {"b": b""}}, False),
        ({"puts": {"a": b""}}, {"puts": {"a": b""}}, True),
        ({"puts": {"a": b""}}, {"deletes": ["a"]}, True),
        ({"puts": {"a": b""}}, {"delete_prefixes": [""]}, True),
        ({"puts": {"a/x": b""}}, {"delete_prefixes": ["a/"]}, True),
        ({"puts": {"ab": b""}}, {"delete_prefixes": ["a/"]}, False),
        ({"deletes": ["a"]}, {"deletes": ["b"]}, False),
        ({"deletes": ["a/x"]}, {"delete_prefixes": ["a/"]}, True),
        ({"delete_prefixes": ["a"]}, {"delete_prefixes": ["ab"]}, True),
        ({"delete_prefixes": ["a/"]}, {"delete_prefixes": ["ab"]}, False),
        ({"puts": {"a": b""}}, {"guards": [snapkv.Absent("a")]}, True),
        ({"deletes": ["a"]}, {"guards": [snapkv.AtRevision("a", 2)]}, True),
        ({"delete_prefixes": ["a"]}, {"guards": [snapkv.Absent("ab")]}, True),
        ({"delete_prefixes": ["b"]}, {"guards": [snapkv.Absent("ab")]}, False),
        ({"guards": [snapkv.Absent("a")]}, {"guards": [snapkv.Absent("a")]}, False),
    ],
)
def test_who_may_share_a_transaction(a, b, clash):
    left, right = parts_of(a, b)
    assert may_join(left, right) is not clash
    assert may_join(right, left) is not clash


def test_a_group_takes_who_may_share_with_each_of_it():
    """Whether a part may join a group is decided at once, as if with each of its parts alone."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def some(least=0):
        return [
            "".join(rng.choices("ab", k=rng.randrange(1, 4))) for _ in range(rng.choice((least, 1)))
        ]

    def any_part():
        ops = {
            "puts": dict.fromkeys(some(), b""),
            "deletes": some() if rng.random() < 0.3 else (),
            "delete_prefixes": some() if rng.random() < 0.2 else (),
            "guards": [snapkv.Absent(key) for key in some()],
            "note": rng.choice((None, None, None, "note")),
        }
        return compiled(**ops)

    taken = left = 0
    for _ in range(300):
        members = [any_part()]
        group = CommitGroup(members[0])
        for part in (any_part() for _ in range(5)):
            alone = all(may_join(other, part) and may_join(part, other) for other in members)
            assert group.takes(part) is alone
            if alone:
                group.add(part)
                members.append(part)
                taken += 1
            else:
                left += 1
    assert min(taken, left) > 100


def test_data_and_spaces_never_clash():
    left, right = parts_of(
        {"puts": {"a": b""}, "delete_prefixes": [""]},
        {"spaces": {"s": snapkv.SpaceOps(puts={b"a": b""}, delete_prefixes=[b""])}},
    )
    assert may_join(left, right)


@pytest.mark.parametrize(
    ("ops", "error"),
    [
        ({"puts": {"": b""}}, InvalidKeyError),
        ({"puts": {"a": "text"}}, InvalidTypeError),
        ({"puts": {"a": bytearray(b"")}}, InvalidTypeError),
        ({"puts": {b"a": b""}}, InvalidTypeError),
        ({"puts": {"\udfff": b""}}, InvalidKeyError),
        ({"puts": [("a", b"1"), ("a", b"2")]}, InvalidKeyError),
        ({"puts": None}, InvalidTypeError),
        ({"puts": 5}, InvalidTypeError),
        ({"puts": "ab"}, InvalidTypeError),
        ({"puts": {"key"}}, InvalidTypeError),
        ({"puts": [("a", b"1", b"2")]}, InvalidTypeError),
        ({"puts": [5]}, InvalidTypeError),
        ({"deletes": "abc"}, InvalidTypeError),
        ({"deletes": b"abc"}, InvalidTypeError),
        ({"deletes": [""]}, InvalidKeyError),
        ({"deletes": 5}, InvalidTypeError),
        ({"delete_prefixes": "abc"}, InvalidTypeError),
        ({"delete_prefixes": [None]}, InvalidTypeError),
        ({"guards": ["a"]}, InvalidTypeError),
        ({"guards": [snapkv.Absent(b"a")]}, InvalidTypeError),
        ({"guards": [snapkv.Absent("")]}, InvalidKeyError),
        ({"guards": [snapkv.AtRevision("a", True)]}, InvalidTypeError),
        ({"guards": [snapkv.AtRevision("a", 0)]}, InvalidOptionError),
        ({"guards": [snapkv.HeadAt(-1)]}, InvalidOptionError),
        ({"note": b"why"}, InvalidTypeError),
        ({"note": "x" * 4_097}, CommitTooLargeError),
        ({"spaces": {"s": {}}}, InvalidTypeError),
        ({"spaces": {"": snapkv.SpaceOps()}}, InvalidKeyError),
        ({"spaces": {5: snapkv.SpaceOps()}}, InvalidTypeError),
        ({"spaces": {"s": snapkv.SpaceOps(puts={"a": b""})}}, InvalidTypeError),
        ({"spaces": None}, InvalidTypeError),
        ({"spaces": ["s"]}, InvalidTypeError),
    ],
)
def test_what_cannot_be_committed(ops, error):
    with pytest.raises(error):
        compiled(**ops)


def test_only_ops_can_be_compiled():
    for wrong in (None, {}, snapkv.SpaceOps(), [("a", b"")]):
        with pytest.raises(InvalidTypeError):
            compile_operations(wrong, Layout("m"))


class Odd(list):
    """A list whose compares say what NumPy's do: an answer that counts as false, or an error."""

    def __ne__(self, other):
        return []


KINDS = [list, set, iter, dict.fromkeys, Odd, lambda keys: numpy.array(list(keys), dtype=object)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2])
def test_any_iterable_of_removals_and_guards(kind, count):
    keys = ["a", "b"][:count]
    part = compile_operations(snapkv.Ops(deletes=kind(keys)), Layout("n"))
    assert [start for start, _ in part.removed] == [b"n/data/" + key.encode() for key in keys]
    part = compile_operations(snapkv.Ops(delete_prefixes=kind(keys)), Layout("n"))
    assert [start for start, _ in part.removed] == [b"n/data/a"]  # one that goes on to the end
    part = compile_operations(snapkv.Ops(guards=kind(map(snapkv.Absent, keys))), Layout("n"))
    assert {check.key for check in part.checks} == {b"n/data/" + key.encode() for key in keys}
