"""The life of an engine: what it tells about itself, and its end."""

from __future__ import annotations

import pytest
from conformance_driver import ALL, FIRST, Driver

from snapkv.engine.contract import Put, Range, Refused, Txn
from snapkv.errors import StoreClosedError


def test_an_engine_tells_about_itself(db: Driver) -> None:
    db.put(b"a")
    info = db.engine.info()
    assert all(isinstance(value, int | str) for value in info.values())
    assert info["engine"]
    assert db.engine.url
    assert db.engine.check() == []
    limits = db.engine.limits
    assert min(limits.key_bytes, limits.value_bytes, limits.request_bytes) > 0


def test_the_servers_time_is_a_time_or_none(db: Driver) -> None:
    now = db.engine.server_time_ms()
    assert now is None or (now[0] > 1_600_000_000_000 and now[1] >= 0)


def test_closing_twice_is_fine_and_using_it_then_is_not(db: Driver) -> None:
    db.put(b"a")
    db.engine.close()
    db.engine.close()
    uses = [
        lambda: db.engine.read([Range(b"a")]),
        lambda: list(db.engine.scan(FIRST, ALL, revision=1)),
        lambda: db.engine.pieces(FIRST, ALL, revision=1, rows=1),
        lambda: db.engine.watch(b"a", b"", start_revision=1).next(0),
        lambda: db.engine.compact(1),
    ]
    for use in uses:
        with pytest.raises(StoreClosedError):
            use()
    with pytest.raises((StoreClosedError, Refused)):
        db.engine.transact(lambda _: Txn(success=(Put(b"a", b"1"),)), b"a", timeout=1)


def test_a_scan_ends_with_its_engine(db: Driver) -> None:
    db.txn(*(Put(b"%06d" % i, b"v") for i in range(6_000)))
    db.txn(*(Put(b"%06d" % i, b"v") for i in range(6_000, 12_000)))
    pages = db.engine.scan(FIRST, ALL, revision=db.head())
    next(pages)
    db.engine.close()
    with pytest.raises(StoreClosedError):
        list(pages)
