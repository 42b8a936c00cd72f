"""The bytes: key lengths at LMDB's limit, and the vectors of the codecs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmdb_words import ALL, FIRST, get, head, keys, put, run_txn

from snapkv.engine.contract import Compare, Delete, Put, Range, Refused, Target, Txn
from snapkv.engine.lmdb import LmdbEngine, records
from snapkv.errors import CommitTooLargeError, CorruptStoreError, InvalidKeyError

Opened = Callable[..., LmdbEngine]
LONGEST = 501


def test_the_longest_keys(opened: Opened) -> None:
    engine = opened()
    assert engine.limits.key_bytes == LONGEST
    names = sorted(
        [b"k" * LONGEST, b"\0" * 250 + b"k", b"\xff" * LONGEST, b"k" * 499 + b"\0", b"a\0" * 167]
    )
    for name in names:
        put(engine, name)
        assert get(engine, name) == b"v"
    assert keys(engine) == names
    for name in names:
        below = [each for each in names if each <= name]
        for end in (name + b"\0", name + b"\0" * 300, name + b"\0\xff"):
            found = engine.read([Range(FIRST, end)]).results[0].kvs
            assert [kv.key for kv in found] == below
            assert [kv.key for kv in engine.read([Range(end, ALL)]).results[0].kvs] == names[
                len(below) :
            ]
    run_txn(engine, Delete(names[0] + b"\0", ALL))
    assert keys(engine) == names[:1]


@pytest.mark.parametrize(
    "key", [b"k" * (LONGEST + 1), b"\0" * 251, b"k" * 500 + b"\0", b"k" * 9_999]
)
def test_keys_that_are_too_long(opened: Opened, key: bytes) -> None:
    engine = opened()
    put(engine, b"a")
    with pytest.raises(InvalidKeyError):
        engine.read([Range(key)])
    with pytest.raises(InvalidKeyError):
        engine.get(key)
    with pytest.raises(InvalidKeyError):
        list(engine.scan(key, b"", revision=1))
    with pytest.raises(InvalidKeyError):
        engine.watch(key, b"", start_revision=1)
    guard = Compare(key, Target.VERSION, "=", 0)
    for txn in (
        Txn(success=(Put(b"b", b"1"), Put(key, b"1"))),
        Txn(success=(Put(b"b", b"1"), Delete(key))),
        Txn(success=(Put(b"b", b"1"), Range(key))),
        Txn((guard,), (Put(b"b", b"1"),)),
        Txn(success=(Txn(failure=(Put(key, b"1"),)), Put(b"b", b"1"))),
    ):
        with pytest.raises(InvalidKeyError):
            engine.check_limits(txn)
        with pytest.raises(Refused) as caught:
            engine.transact(lambda _, txn=txn: txn, b"a", timeout=5)
        assert isinstance(caught.value.error, InvalidKeyError)
    with pytest.raises(Refused) as caught:
        engine.transact(lambda _: Txn(), key, timeout=5)
    assert head(engine) == 2
    assert keys(engine) == [b"a"]
    assert engine.read([Range(key, ALL)]).results[0].count in (0, 1)


def test_a_request_that_is_too_large(opened: Opened) -> None:
    engine = opened(request_bytes_max=10_000)
    run_txn(engine, Put(b"a", b"x" * 9_900))
    with pytest.raises(Refused) as caught:
        run_txn(engine, Put(b"a", b"x" * 10_001))
    assert isinstance(caught.value.error, CommitTooLargeError)
    assert engine.limits.ops_per_list is None


def test_vectors_of_the_codecs() -> None:
    raw = records.stem_of(b"a\0") + records.suffix_of(2)
    assert raw.hex() == "6100ff0001fffffffffffffffd"
    assert records.HEADER.pack(2, 1, 0).hex() == "0000000000000002000000000000000100"
    assert (
        records.StoredState(7, 5, 3).encode().hex()
        == "000000000000000700000000000000050000000000000003"
    )
    assert records.encode_format(9).hex() == "000000010000000000000009"
    assert records.encode_changes({b"b": True, b"a\0": False}).hex() == "0000026100" + "01000162"
    assert records.be64(258).hex() == "0000000000000102"


short = st.binary(max_size=6) | st.lists(st.sampled_from(b"\0\1\2a\xfe\xff")).map(bytes)


@given(short, short, st.integers(1, 1 << 62), st.integers(1, 1 << 62))
def test_records_sort_as_keys_and_then_newest_first(a: bytes, b: bytes, r: int, s: int) -> None:
    first = records.stem_of(a) + records.suffix_of(r)
    second = records.stem_of(b) + records.suffix_of(s)
    assert (first < second) == ((a, -r) < (b, -s))
    assert records.key_of(first[:-8]) == a
    assert records.revision_of(first[-8:]) == r


@given(st.dictionaries(st.binary(max_size=20), st.booleans()))
def test_log_entries_read_back(changed: dict[bytes, bool]) -> None:
    entry = records.encode_changes(changed)
    assert dict(records.decode_changes(entry)) == changed
    assert [key for key, _ in records.decode_changes(entry)] == sorted(changed)
    if entry:
        with pytest.raises(CorruptStoreError):
            list(records.decode_changes(entry[:-1] if len(entry) > 3 else entry[:2]))


@pytest.mark.parametrize("cut", [b"", b"short", bytes(25)])
def test_records_of_the_wrong_size_are_told(cut: bytes) -> None:
    with pytest.raises(CorruptStoreError):
        records.decode_state(cut)
    with pytest.raises(CorruptStoreError):
        records.decode_state(None)
    with pytest.raises(CorruptStoreError):
        records.decode_format(None)
