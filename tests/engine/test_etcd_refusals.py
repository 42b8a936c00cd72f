"""What a real server refuses, and that each refusal is told as what it is, and is definite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from etcd_engines import get, head, opened, put, transact
from etcd_server import EtcdServer, eventually

import snapkv
from snapkv.engine.contract import ALL_KEYS_END, Delete, OutcomeUnknown, Put, Range, Refused, Txn
from snapkv.engine.etcd.engine import EtcdEngine
from snapkv.engine.etcd.error_texts import (
    is_for_elsewhere,
    is_stale_token,
    may_be_applied,
    refusal_of,
)
from snapkv.engine.etcd.grpc_client import CallFailed
from snapkv.errors import (
    CommitTooLargeError,
    CompactedError,
    CorruptStoreError,
    EngineBusyError,
    FutureRevisionError,
    InvalidKeyError,
    LeaseNotFoundError,
    NoSpaceError,
    SnapKVError,
)

pytestmark = pytest.mark.slow

MIB = 1 << 20
SMALL_BYTES = 64 << 10
GRPC_MORE_BYTES = 512 << 10
"""So much more than --max-request-bytes the server's gRPC takes in."""


def refused(engine: EtcdEngine, txn: Txn) -> SnapKVError:
    """Return what a transaction is refused with; nothing of it was applied."""
    before = head(engine)
    with pytest.raises(Refused) as raised:
        transact(engine, txn)
    assert head(engine) == before
    return raised.value.error


# --- space ----------------------------------------------------------------------------------


@contextmanager
def full(folder: Path) -> Iterator[EtcdServer]:
    """A server whose quota is used up."""
    with EtcdServer(folder, flags=["--quota-backend-bytes=16777216"]) as server:
        with opened(server.url) as engine:
            with pytest.raises(OutcomeUnknown) as raised:
                fill(lambda: put(engine, b"filler", b"x" * MIB))
            assert raised.value.answered
            assert isinstance(raised.value.cause, NoSpaceError)
        yield server


def fill(write: Callable[[], object]) -> None:
    """Write more than there is room for; a server that is slow to count sees that late."""
    for _ in range(400):
        write()


def make_room(server: EtcdServer) -> None:
    """Do what operators do about a used-up quota."""
    gateway = server.gateway
    gateway.compact(gateway.revision())
    gateway.defragment()
    gateway.disarm()
    eventually(lambda: gateway.alarms() == [], "the alarm to end")


@pytest.mark.etcd_since("3.5.7", "reading and removing under the alarm NOSPACE")
def test_a_used_up_quota_refuses_puts_until_there_is_room(tmp_path: Path) -> None:
    with full(tmp_path) as server, opened(server.url) as engine:
        assert server.gateway.alarms() == ["NOSPACE"]
        before = head(engine)
        with pytest.raises(OutcomeUnknown) as raised:
            put(engine, b"k", b"v")
        assert isinstance(raised.value.cause, NoSpaceError)
        assert "compact" in str(raised.value.cause)
        assert raised.value.answered
        assert not raised.value.retry
        assert head(engine) == before, "under the alarm nothing is applied"
        transact(engine, Txn(success=(Delete(b"k"),)))  # removing goes on
        assert get(engine, b"filler") == b"x" * MIB  # reading goes on
        assert any("NOSPACE" in complaint for complaint in engine.check())
        make_room(server)
        assert put(engine, b"k") == head(engine)
        assert engine.check() == []


@pytest.mark.etcd_since("3.5.7", "reading and removing under the alarm NOSPACE")
def test_a_store_on_a_used_up_quota(tmp_path: Path) -> None:
    flags = ["--quota-backend-bytes=16777216"]
    with EtcdServer(tmp_path, flags=flags) as server, snapkv.open(server.url) as store:
        first = store.save("a", b"1")
        with pytest.raises(NoSpaceError):
            fill(lambda: store.save("filler", b"x" * MIB))
        with pytest.raises(NoSpaceError):
            store.save("a", b"2")
        assert store.load("a") == b"1"
        assert store.load("a", first) == b"1"
        make_room(server)
        store.save("a", b"3")
        assert store.load("a") == b"3"
        assert store.check().problems == ()


# --- sizes ----------------------------------------------------------------------------------


def test_what_is_larger_than_the_server_takes(tmp_path: Path) -> None:
    """The engine trusts its option; the server, started with less, has the last word."""
    with EtcdServer(tmp_path, flags=[f"--max-request-bytes={SMALL_BYTES}"]) as server:
        with opened(server.url) as engine:
            value = b"x" * SMALL_BYTES
            error = refused(engine, Txn(success=(Put(b"k", value),)))
            assert isinstance(error, CommitTooLargeError)
            assert error.size > SMALL_BYTES
            assert "--max-request-bytes" in str(error)
            # above another limit gRPC speaks, before etcd has seen it
            value = b"x" * (SMALL_BYTES + GRPC_MORE_BYTES)
            before = head(engine)
            with pytest.raises(OutcomeUnknown) as unknown:
                put(engine, b"k", value)
            assert isinstance(unknown.value.cause, CommitTooLargeError)
            assert not unknown.value.retry
            assert head(engine) == before
            put(engine, b"k", b"x" * (SMALL_BYTES // 2))
        with snapkv.open(server.url) as store:
            for size in (SMALL_BYTES, SMALL_BYTES + GRPC_MORE_BYTES):
                with pytest.raises(CommitTooLargeError):
                    store.save("a", b"x" * size)
            store.save("a", b"fits")
            assert store.check().problems == ()


def test_what_is_larger_than_the_engine_takes_is_not_sent(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        error = refused(engine, Txn(success=(Put(b"k", b"x" * engine.limits.request_bytes),)))
        assert isinstance(error, CommitTooLargeError)
        assert error.limit == engine.limits.request_bytes
        many = tuple(Put(b"%d" % i, b"") for i in range(129))
        assert isinstance(refused(engine, Txn(success=many)), CommitTooLargeError)


def test_all_that_the_engine_takes_is_taken_by_a_server_with_its_defaults(
    etcd: EtcdServer,
) -> None:
    with opened(etcd.url) as engine:
        room = engine.limits.request_bytes
        for size in range(room - 200, room, 8):  # up to the last byte that passes the check
            txn = Txn(success=(Put(b"k", b"x" * size),))
            try:
                engine.check_limits(txn)
            except CommitTooLargeError:
                break
        else:
            raise AssertionError("no limit was met")
        put(engine, b"k", b"x" * (size - 8))
        assert len(get(engine, b"k") or b"") == size - 8
        many = tuple(Put(b"%d" % i, b"") for i in range(128))
        transact(engine, Txn(success=many))


def test_larger_limits_on_both_sides(tmp_path: Path) -> None:
    flags = [f"--max-request-bytes={4 * MIB}", "--max-txn-ops=1000"]
    with (
        EtcdServer(tmp_path, flags=flags) as server,
        opened(server.url, max_request_bytes=4 * MIB, max_txn_ops=1000) as engine,
    ):
        put(engine, b"k", b"x" * (3 * MIB))
        transact(engine, Txn(success=tuple(Put(b"%d" % i, b"") for i in range(1000))))


def test_more_operations_than_the_server_takes(tmp_path: Path) -> None:
    with (
        EtcdServer(tmp_path, flags=["--max-txn-ops=20"]) as server,
        opened(server.url) as engine,
    ):
        error = refused(engine, Txn(success=tuple(Put(b"%d" % i, b"") for i in range(21))))
        assert isinstance(error, CommitTooLargeError)
        assert "--max-txn-ops" in str(error)


def test_a_large_answer_arrives(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        for i in range(8):
            put(engine, b"big%d" % i, b"%d" % i * MIB)
        found = engine.read([Range(b"big", b"bih")]).results[0]
        assert sum(len(kv.value) for kv in found.kvs) == 8 * MIB
        found = engine.read([Range(b"big", b"bih"), Range(b"big0")]).results[0]
        assert len(found.kvs) == 8


# --- revisions, leases, keys ----------------------------------------------------------------


def test_compacted_and_future_with_their_facts(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        newest = [put(engine, b"k", b"%d" % i) for i in range(5)][-1]
        engine.compact(newest - 1)
        for ranges in ([Range(b"k", revision=2)], [Range(b"k"), Range(b"k", revision=2)]):
            for serializable in (False, True):
                with pytest.raises(CompactedError) as compacted:
                    engine.read(ranges, serializable=serializable)
                facts = compacted.value
                assert (facts.requested, facts.earliest, facts.unit) == (2, newest - 1, "revision")
        for serializable in (False, True):
            with pytest.raises(FutureRevisionError) as future:
                engine.read([Range(b"k", revision=newest + 7)], serializable=serializable)
            assert (future.value.requested, future.value.current) == (newest + 7, newest)
        with pytest.raises(CompactedError) as compacted:
            list(engine.scan(b"k", b"l", revision=2))
        assert compacted.value.earliest == newest - 1
        with pytest.raises(CompactedError) as compacted:
            engine.compact(2)
        assert (compacted.value.requested, compacted.value.earliest) == (2, newest - 1)
        with pytest.raises(FutureRevisionError) as future:
            engine.compact(newest + 1)
        assert (future.value.requested, future.value.current) == (newest + 1, newest)


def test_a_put_under_a_lease_that_never_was(etcd: EtcdServer) -> None:
    with opened(etcd.url) as engine:
        error = refused(engine, Txn(success=(Put(b"k", b"v", lease=77),)))
        assert isinstance(error, LeaseNotFoundError)
        assert error.lease == 77
        nested = Txn(success=(Txn(success=(Put(b"k", b"v", lease=78),)),))
        error = refused(engine, nested)
        assert isinstance(error, LeaseNotFoundError)
        assert error.lease == 78


@pytest.mark.parametrize("nested", [False, True])
def test_a_lease_that_never_was_is_found_before_anything_is_written(
    etcd: EtcdServer, nested: bool
) -> None:
    """The put that names it is the last of many, and nothing of those before it stands."""
    with opened(etcd.url) as engine:
        first = tuple(Put(b"first%d" % i, b"v") for i in range(5))
        last: tuple[Put | Txn, ...] = (Put(b"last", b"v", lease=79),)
        if nested:
            last = (Txn(success=(Put(b"inner", b"v"), *last)),)
        assert isinstance(refused(engine, Txn(success=(*first, *last))), LeaseNotFoundError)
        assert get(engine, b"first0") is None
        transact(engine, Txn(success=first))  # the server is in order
        assert get(engine, b"first0") == b"v"


def test_an_empty_key_and_a_key_twice(etcd: EtcdServer) -> None:
    """The second is a bug of the caller that the engine sees before it sends."""
    with opened(etcd.url) as engine:
        assert isinstance(refused(engine, Txn(success=(Put(b"", b"v"),))), InvalidKeyError)
        before = head(engine)
        for other in (Put(b"k", b"2"), Delete(b"a", ALL_KEYS_END)):
            with pytest.raises(ValueError, match="one transaction"):
                transact(engine, Txn(success=(Put(b"k", b"1"), other)))
        assert head(engine) == before


# --- texts that one healthy node never says -------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("etcdserver: corrupt cluster", CorruptStoreError),
        ("etcdserver: duplicate key given in txn request", InvalidKeyError),
        ("etcdserver: too many requests", EngineBusyError),
        ("etcdserver: rpc not supported for learner", EngineBusyError),
    ],
)
def test_refusals_that_are_hard_to_come_by(text: str, error: type[SnapKVError]) -> None:
    failure = CallFailed("UNKNOWN", text)
    assert isinstance(refusal_of(failure), error)
    assert may_be_applied(failure) is (error is CorruptStoreError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "etcdserver: request timed out",
        "etcdserver: request timed out, possibly due to previous leader failure",
        "etcdserver: request timed out, possibly due to connection lost",
        "etcdserver: leader changed",
        "etcdserver: no leader",
        "etcdserver: server stopped",
        "Socket closed",
        "Deadline Exceeded",
        "raft: stopped",
    ],
)
def test_what_leaves_the_outcome_open(text: str) -> None:
    failure = CallFailed("UNAVAILABLE", text)
    assert refusal_of(failure) is None
    assert not may_be_applied(failure)
    assert not is_stale_token(failure)
    assert not is_for_elsewhere(failure)
