"""Commits at the limits of an engine, and removals that overlap saves."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_remote import TS_KEY, Network, remote_scheme

import snapkv
from snapkv import Absent, CommitTooLargeError
from snapkv.committer.operations import (
    compile_operations,
    covers,
    merge,
    nest,
    overlap,
    without_keys,
)
from snapkv.engine.contract import Delete, EngineLimits, Op, Put, Range, Txn
from snapkv.engine.memory import MemoryEngine
from snapkv.engine.request_checks import op_bytes
from snapkv.layout import Layout

ETCD = EngineLimits(8 << 10, 1_536 << 10, request_bytes=1_536 << 10, ops_per_list=128)


@pytest.fixture
def etcd() -> Iterator[Network]:
    with remote_scheme():
        yield Network(ETCD)


def longest_path(txn: Txn, used: int = 0) -> int:
    """How much of the limit a transaction needs: a nested list has what those around it left."""
    longest = 0
    for ops in (txn.success, txn.failure):
        longest = max(longest, used + max(len(ops), len(txn.compare)))
        nested = [op for op in ops if isinstance(op, Txn)]
        longest = max([longest, *(longest_path(op, used + len(ops)) for op in nested)])
    return longest


def flat(ops: tuple[Op, ...]) -> list[Op]:
    found: list[Op] = []
    for op in ops:
        found += flat(op.success) if isinstance(op, Txn) else [op]
    return found


# --- operations -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 94, 95, 96, 127, 128, 129, 2_000, 2_209, 4_000, 20_000])
def test_many_operations_are_one_commit(etcd: Network, count: int) -> None:
    store = etcd.open("A", 1)
    commit = store.commit(puts={f"{i:05}": b"" for i in range(count)})
    assert longest_path(etcd.seen[-1][1]) <= 128
    assert len(etcd.journal.revisions[commit.revision]) == count + 1
    assert store.at(commit.ts).count() == count
    emptied = store.commit(deletes=[f"{i:05}" for i in range(count)])
    assert store.at(emptied.ts).count() == 0
    assert store.at(commit.ts).count() == count


@pytest.mark.parametrize("ops", [Put(b"k", b""), Delete(b"k")])
@pytest.mark.parametrize("budget", [9, 12, 60, 95, 126])
def test_nesting_up_to_its_limit(budget: int, ops: Op) -> None:
    """As many as fit are one tree within the budget; one more is refused."""
    most = (budget // 3) ** 3
    for count in {1, budget, budget + 1, (budget // 2) ** 2, (budget // 2) ** 2 + 1, most} - {0}:
        if count <= max(most, budget):
            nested = nest((ops,) * count, budget)
            assert longest_path(Txn(success=nested)) <= budget
            assert flat(nested) == [ops] * count
    over = max(most, (budget // 2) ** 2, budget) + 1
    with pytest.raises(CommitTooLargeError) as caught:
        nest((ops,) * over, budget)
    assert (caught.value.size, caught.value.limit) == (over, over - 1)


def test_too_many_operations_are_refused_before_sending(etcd: Network) -> None:
    store = etcd.open("A", 1)
    sent = len(etcd.seen)
    with pytest.raises(CommitTooLargeError) as caught:
        store.commit(deletes=[str(i) for i in range(40_000)])
    assert caught.value.size > caught.value.limit
    with pytest.raises(CommitTooLargeError) as caught:
        store.commit(guards=[Absent(str(i)) for i in range(129)])
    assert caught.value.what == "the number of guards"
    assert len(etcd.seen) == sent


def test_as_many_guards_as_are_promised(etcd: Network) -> None:
    store = etcd.open("A", 1)
    with pytest.raises(CommitTooLargeError) as caught:
        store.commit(guards=[Absent(str(i)) for i in range(1_000)])
    most = caught.value.limit
    assert most >= 64
    guards = [Absent(f"k{i}") for i in range(most)]
    commit = store.commit(puts={f"k{i}": b"" for i in range(most)}, guards=guards)
    assert longest_path(etcd.seen[-1][1]) <= 128
    with pytest.raises(snapkv.ConflictError) as conflict:
        store.commit(guards=guards)
    assert [found for _, found in conflict.value.failed] == [commit.revision] * most


# --- bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [1, 3])
def test_up_to_the_request_size_and_not_beyond(values: int) -> None:
    """Any size either is committed, or is refused before anything is sent or written."""
    limits = EngineLimits(512, 1 << 20, request_bytes=100_000)
    with remote_scheme():
        network = Network(limits)
        store = network.open("A", 1)
        told = []
        for size in [*range(80_000, 101_000, 250), 99_999, 100_000, 100_001]:
            sent, head = len(network.seen), network.base.info()["revision"]
            each = size // values
            try:
                store.commit(puts={f"k{i}": bytes(each) for i in range(values)})
            except CommitTooLargeError as e:
                told.append(False)
                refused = e
            else:
                told.append(True)
                continue
            assert refused.limit <= 100_000
            assert (len(network.seen), network.base.info()["revision"]) == (sent, head)
        assert told[0]
        assert not told[-1]
        assert op_bytes(network.seen[-1][1]) <= 100_000


@pytest.mark.parametrize("short", range(0, 700, 50))
@pytest.mark.parametrize("note", [None, "n" * 4_000])
def test_a_commit_too_large_leaves_nothing_not_even_a_fence(short: int, note: str | None) -> None:
    """Around the very limit of an engine that looks before it writes."""
    engine = MemoryEngine(limits=EngineLimits(512, 1 << 20, request_bytes=50_000))
    with snapkv.open_on(engine) as store:
        head = engine.info()["revision"]
        value = bytes(50_000 - short - (4_000 if note else 0))
        try:
            store.commit(puts={"k": value}, note=note)
        except CommitTooLargeError:
            assert engine.info()["revision"] == head, "something was written"
        else:
            assert engine.info()["revision"] == head + 1
            assert store.load("k") == value


def test_a_key_and_a_value_too_large(etcd: Network) -> None:
    store = etcd.open("A", 1)
    sent = len(etcd.seen)
    with pytest.raises((CommitTooLargeError, ValueError)):
        store.save("k" * (9 << 10), b"")
    with pytest.raises(CommitTooLargeError):
        store.save("k", bytes(1_600 << 10))
    with pytest.raises(CommitTooLargeError):
        store.commit(note="n" * 4_097)
    assert len(etcd.seen) == sent
    assert store.save("k", bytes(1_400 << 10))


# --- removals around saves ------------------------------------------------------------------

keys = st.text("ab/\0\x7f\xff0", min_size=1, max_size=4)
prefixes = st.text("ab/\0\xff0", max_size=3)


@given(
    before=st.dictionaries(keys, st.just(b"old"), max_size=12),
    puts=st.dictionaries(keys, st.just(b"new"), max_size=5),
    deletes=st.lists(keys, max_size=3),
    removed=st.lists(prefixes, max_size=3),
)
def test_removals_come_first_against_a_plain_dict(before, puts, deletes, removed) -> None:
    with remote_scheme():
        network = Network(ETCD)
        store = network.open("A", 1)
        if before:
            store.multi_save(before)
        commit = store.commit(puts=puts, deletes=deletes, delete_prefixes=removed)
        expected = {
            key: value
            for key, value in before.items()
            if key not in deletes and not any(key.startswith(prefix) for prefix in removed)
        }
        expected.update(puts)
        assert dict(store.at(commit.ts).items()) == expected
        assert longest_path(network.seen[-1][1]) <= 128
        # Nothing was touched that did not have to be: what stays keeps its revision.
        for key in before.keys() & expected.keys() - puts.keys():
            assert store.at().entry(key).revision < commit.revision


def test_a_prefix_is_exact_bytes(network: Network) -> None:
    store = network.open("A", 1)
    store.multi_save(dict.fromkeys(("a", "a/", "a/x", "a0", "ab", "a.", "b"), b""))
    store.multi_save_and_remove_with_prefix({"a/new": b""}, ["a/"])
    assert list(store.at()) == ["a", "a.", "a/new", "a0", "ab", "b"]
    store.multi_save_and_remove_with_prefix({}, ["a", "a/n"])
    assert list(store.at()) == ["b"]
    store.multi_save_and_remove_with_prefix({"c": b""}, [""])
    assert list(store.at()) == ["c"]


def test_a_removed_prefix_leaves_spaces_alone(network: Network) -> None:
    store = network.open("A", 1)
    store.space("s").commit(puts={b"k": b"1"})
    store.commit(puts={"k": b"1"})
    store.commit(delete_prefixes=[""])
    assert store.space("s").at()[b"k"] == b"1"
    assert network.base.read([Range(TS_KEY)]).results[0].kvs
    store.space("s").commit(delete_prefixes=[b""])
    store.save("k", b"2")
    assert list(store.space("s").at()) == []
    assert store.load("k") == b"2"


points = st.binary(min_size=0, max_size=2).map(lambda raw: bytes(byte % 4 for byte in raw))
intervals = st.tuples(points, points).filter(lambda pair: pair[0] < pair[1])
universe = [bytes(raw) for n in range(4) for raw in product(range(5), repeat=n)]


@pytest.mark.slow
@given(
    st.lists(intervals, max_size=5), st.sets(points, max_size=5), st.lists(intervals, max_size=4)
)
def test_intervals_against_sets(some, holes, others) -> None:
    def members(of) -> set[bytes]:
        return {key for key in universe if any(start <= key < end for start, end in of)}

    merged = merge(some)
    assert members(merged) == members(some)
    assert all(a[1] < b[0] for a, b in pairwise(merged))
    left = without_keys(merged, sorted(holes))
    assert members(left) == members(some) - holes
    assert all(start < end for start, end in left)
    assert {key for key in universe if covers(merged, key)} == members(some)
    # Two ranges that overlap share the beginning of one of them.
    shared = [key for key, _ in some + others if key in members(some) and key in members(others)]
    assert overlap(merged, merge(others)) == bool(shared)


def test_a_part_never_removes_what_it_saves() -> None:
    part = compile_operations(
        snapkv.Ops({"a/1": b"", "a/2": b""}, delete_prefixes=["a/", "a/1"]), Layout("default")
    )
    assert not any(covers(part.removed, key) for key in part.puts)
    assert len(part.removed) == 3
