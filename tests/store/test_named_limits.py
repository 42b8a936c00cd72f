"""Errors of keys and values that an engine does not take name the key, in every way to write."""

import pytest

import snapkv
from snapkv.errors import CommitTooLargeError, InvalidKeyError

KEY = "kept/here/" + "k" * (70 << 10)
SMALL = {
    "memory": {},
    "lmdb": {"request_bytes_max": 64 << 10},
    "etcd": {"max_request_bytes": 64 << 10},
}


@pytest.fixture
def small(place):
    """A store whose engine takes little."""
    kind = place.url.partition(":")[0]
    with snapkv.open(place.url, name="small", **(place.kind.options | SMALL[kind])) as store:
        yield store


def saves(store, key, value, folder):
    store.save(key, value)


def commits_many(store, key, value, folder):
    store.commit(puts={"a": b"1", key: value, "z": b"1"})


def updates(store, key, value, folder):
    store.update(key, lambda old: value)


def writes_a_space(store, key, value, folder):
    store.space("s").commit(puts={key.encode(): value})


def puts_a_live_key(store, key, value, folder):
    store.live.put(key, value, ttl=5)


def imports(store, key, value, folder):
    with snapkv.open(f"memory:{folder}-other", name="far") as far:
        engine = far._core.engine
        put = snapkv.engine.contract.Put(key.encode(), value)
        engine.transact(lambda _: snapkv.engine.contract.Txn(success=(put,)), b"-", timeout=5)
        snapkv.import_prefix(store, f"memory:{folder}-other", "kept/")


WAYS = [saves, commits_many, updates, writes_a_space, puts_a_live_key, imports]


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_value_that_is_too_large(small, way, tmp_path):
    with pytest.raises(CommitTooLargeError, match="kept/large"):
        way(small, "kept/large", bytes(100_000), tmp_path)


@pytest.mark.parametrize("place", ["lmdb", "etcd"], indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_too_long(small, way, tmp_path):
    key = KEY if small._core.engine.remote else KEY[:600]
    with pytest.raises((CommitTooLargeError, InvalidKeyError), match="kept/here/kkkk"):
        way(small, key, b"1", tmp_path)
