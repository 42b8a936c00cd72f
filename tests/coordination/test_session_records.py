"""The value of a session's key: what is none is told as such, whoever wrote it."""

from __future__ import annotations

import msgpack
import pytest
from store.engines import write_raw

from snapkv.coordination.requests import SessionRecord, session_key
from snapkv.engine.contract import Delete, Put
from snapkv.errors import CorruptStoreError

NO_RECORDS = [
    {"w": 5, "v": b"x"},
    {"w": "ann", "v": "x"},
    {"w": b"ann", "v": b"x"},
    {"w": None, "v": b"x"},
    {"w": "ann", "v": None},
    {"w": "ann"},
    {"v": b"x"},
    [],
    "w",
    7,
    None,
]


@pytest.mark.parametrize("record", NO_RECORDS, ids=repr)
def test_a_record_of_the_wrong_types(record: object) -> None:
    with pytest.raises(CorruptStoreError, match="has an invalid value"):
        SessionRecord.decode(msgpack.packb(record))


@pytest.mark.parametrize("stored", [b"", b"\xc1", b"\x82\xa1w", b"no msgpack at all"])
def test_bytes_that_are_no_record(stored: bytes) -> None:
    with pytest.raises(CorruptStoreError):
        SessionRecord.decode(stored)


def test_a_record_may_hold_more() -> None:
    stored = msgpack.packb({"w": "ann", "v": b"x", "later": 1})
    assert SessionRecord.decode(stored) == SessionRecord("ann", b"x")


def test_listing_sessions_tells_of_one_that_is_none(store, place) -> None:
    engine, key = place.engine(), b"default/live/" + session_key(0x5F)
    write_raw(engine, Put(key, msgpack.packb({"w": 5, "v": "x"})))
    with pytest.raises(CorruptStoreError):
        store.sessions()
    write_raw(engine, Put(key, SessionRecord("ann", b"x").encode()))
    (info,) = store.sessions()  # of a version that wrote neither
    assert (info.writer, info.value, info.ttl_s, info.started) == ("ann", b"x", None, None)
    write_raw(engine, Delete(key))
