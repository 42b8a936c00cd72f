"""Leases of a directory: bytes, formats, reboots, what check finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from lmdb_processes import run
from lmdb_words import ALL, FIRST, get, keys, leased, put, run_txn

from snapkv.base.clocks import boot_tag, uptime_ns
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Delete, Range, Refused
from snapkv.engine.lmdb import LmdbEngine, records
from snapkv.errors import LeaseNotFoundError

pytestmark = pytest.mark.slow

Opened = Callable[..., LmdbEngine]

WAIT_SECONDS_MAX = 20.0


# --- bytes and formats -------------------------------------------------------------------------


def test_the_bytes_of_leases() -> None:
    assert records.StoredState(7, 5, 3, 2, 1).encode().hex() == (
        "0000000000000007000000000000000500000000000000030000000000000002" + "0000000000000001"
    )
    assert records.decode_state(records.StoredState(7, 5, 3).encode()) == records.StoredState(
        7, 5, 3, 0, 0
    )
    assert records.decode_state(records.StoredState(7, 5, 3, 2, 1).encode()) == (7, 5, 3, 2, 1)
    assert records.LeaseRecord(2, 1).encode().hex() == "00000000000000020000000000000001"
    assert records.due_key(2, 1).hex() == "02" + "0000000000000002" + "0000000000000001"
    assert records.encode_value(2, 1, b"v").hex() == "0000000000000002000000000000000100" + "76"
    assert records.encode_value(2, 1, b"v", 7).hex() == (
        "0000000000000002000000000000000102" + "0000000000000007" + "76"
    )
    assert records.encode_format(9, records.LEASED_FORMAT).hex() == "000000020000000000000009"


def raw_meta(path: Path) -> dict[bytes, bytes]:
    """Return what stands in the meta database of a closed store."""
    env = lmdb.open(str(path), max_dbs=8, readonly=True)
    with env.begin() as txn:
        found = dict(txn.cursor(env.open_db(b"meta", txn=txn, create=False)).iternext())
    env.close()
    return found


def test_the_records_of_leases(path: Path) -> None:
    engine = LmdbEngine(path)
    before = uptime_ns()
    lease = engine.grant(1000).id
    after = uptime_ns()
    leased(engine, lease, b"a\0")
    engine.close()
    meta, id_ = raw_meta(path), lease.to_bytes(8, "big")
    state = records.decode_state(meta[b"state"])
    assert before <= state.due - 1000 * 10**9 <= after
    assert state == (2, 0, 0, state.due, boot_tag())
    due = state.due.to_bytes(8, "big")
    assert meta.pop(b"format")[:4] == b"\0\0\0\x02"
    del meta[b"state"]
    assert meta == {
        b"\x01" + id_: (1000 * 10**9).to_bytes(8, "big") + due,
        b"\x02" + due + id_: b"",
        b"\x03" + id_ + b"a\0": b"",
    }


def test_a_store_without_leases_stays_in_the_first_format(path: Path) -> None:
    engine = LmdbEngine(path)
    at = put(engine, b"a")
    with pytest.raises(LeaseNotFoundError):
        engine.keep_alive(5)
    engine.revoke(5)
    with pytest.raises(Refused):
        leased(engine, 5, b"b")
    put(engine, b"b")
    engine.compact(at)
    assert engine.check() == []
    engine.close()
    meta = raw_meta(path)
    assert set(meta) == {b"format", b"state"}
    assert meta[b"format"][:4] == b"\0\0\0\x01"
    assert meta[b"state"] == records.StoredState(3, 2, 2).encode()
    assert len(meta[b"state"]) == 24


def test_a_store_that_had_a_lease_stays_in_the_second(path: Path) -> None:
    engine = LmdbEngine(path)
    lease = engine.grant(1000).id
    at = leased(engine, lease, b"a")
    engine.revoke(lease)
    assert engine.info()["leases"] == 0
    engine.close()
    meta = raw_meta(path)
    assert set(meta) == {b"format", b"state"}
    assert meta[b"format"][:4] == b"\0\0\0\x02"
    assert records.decode_state(meta[b"state"]) == (3, 0, 0, 0, boot_tag())
    engine = LmdbEngine(path)
    found = engine.read([Range(b"a", b"", at)]).results[0].kvs[0]
    assert (found.value, found.lease) == (b"v", lease)
    engine.close()


def test_the_longest_keys_can_have_a_lease(opened: Opened) -> None:
    engine = opened()
    lease = engine.grant(1000).id
    longest = [b"k" * engine.limits.key_bytes, b"\0" * (engine.limits.key_bytes // 2), b"\xff"]
    at = leased(engine, lease, *longest)
    assert keys(engine) == sorted(longest)
    assert engine.check() == []
    engine.revoke(lease)
    assert keys(engine) == []
    assert keys(engine, at) == sorted(longest)


# --- reboots and clocks ------------------------------------------------------------------------


def as_of_another_boot(path: Path, due: int) -> None:
    """Write a closed store's leases as another boot would have left them, due at that time."""
    raw = records.be64(due)
    env = lmdb.open(str(path), max_dbs=8, map_size=64 << 20)
    with env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn, create=False)
        for key, value in list(txn.cursor(meta).iternext()):
            if key[:1] == b"\x01":
                txn.put(key, value[:8] + raw, db=meta)
            elif key[:1] == b"\x02":
                txn.delete(key, db=meta)
                txn.put(b"\x02" + raw + key[9:], b"", db=meta)
        state = records.decode_state(txn.get(b"state", db=meta))
        txn.put(b"state", state._replace(due=due, boot=boot_tag() ^ 2).encode(), db=meta)
    env.close()


@pytest.mark.parametrize("due", [1, 1 << 62], ids=["long overdue", "not due for long"])
@pytest.mark.parametrize("first", ["read", "write", "keep_alive", "watch", "grant"])
def test_after_a_reboot_a_lease_has_its_full_time_again(path: Path, first: str, due: int) -> None:
    engine = LmdbEngine(path)
    lease, other = engine.grant(0.5).id, engine.grant(1000).id
    at = leased(engine, lease, b"a")
    leased(engine, other, b"b")
    engine.close()
    as_of_another_boot(path, due)

    engine = LmdbEngine(path)
    assert engine.check() == []
    began = monotonic()
    watcher = engine.watch(FIRST, ALL, start_revision=at + 2)
    use: dict[str, Callable[[], object]] = {
        "read": lambda: get(engine, b"a"),
        "write": lambda: run_txn(engine, Delete(b"none")),
        "keep_alive": lambda: engine.keep_alive(lease),
        "watch": lambda: watcher.next(0),
        "grant": lambda: engine.grant(1000),
    }
    use[first]()
    assert get(engine, b"a") == b"v"
    assert engine.check() == []
    batch = watcher.next(WAIT_SECONDS_MAX)
    assert batch is not None
    assert [event.kv.key for event in batch.events] == [b"a"]
    assert monotonic() - began >= 0.5
    assert keys(engine) == [b"b"]
    assert engine.check() == []
    engine.close()


def test_setting_the_wall_clock_ends_nothing(path: Path) -> None:
    run(
        """
        import time
        engine = LmdbEngine(path)
        lease = engine.grant(1000).id
        run = lambda txn: engine.transact(lambda _: txn, b"", timeout=20)
        run(Txn(success=(Put(b"a", b"v", lease=lease),)))
        real = time.time_ns
        time.time_ns = lambda: real() + 10**18
        time.time = lambda: real() / 1e9 + 1e9
        assert get(engine, b"a") == b"v"
        assert engine.watch(b"a", b"", start_revision=3).next(0.1) is None
        engine.keep_alive(lease)
        """,
        path,
    )


# --- check -------------------------------------------------------------------------------------

Plant = Callable[[Any, Any, Any, bytes, int], object]

PLANTS: dict[str, tuple[Plant, str]] = {
    "a key that its lease does not list": (
        lambda t, m, r, id_, due: t.delete(b"\x03" + id_ + b"a", db=m),
        "does not list it",
    ),
    "a list with a key that has no lease": (
        lambda t, m, r, id_, due: t.put(b"\x03" + id_ + b"free", b"", db=m),
        "leases list 3 keys, 2 have a lease",
    ),
    "a list of a lease that ended": (
        lambda t, m, r, id_, due: t.delete(b"\x01" + id_, db=m),
        "has ended but still lists keys",
    ),
    "a lease without a turn": (
        lambda t, m, r, id_, due: t.delete(b"\x02" + records.be64(due) + id_, db=m),
        "1 leases, 0 due times",
    ),
    "a wrong due time": (
        lambda t, m, r, id_, due: t.put(b"\x01" + id_, records.be64(5) * 2, db=m),
        "is listed as due at",
    ),
    "a state that knows of no lease": (
        lambda t, m, r, id_, due: t.put(
            b"state", records.StoredState(3, 0, 0, 0, boot_tag()).encode(), db=m
        ),
        "the next lease is due at 0",
    ),
    "a format that has no leases": (
        lambda t, m, r, id_, due: t.put(b"format", records.encode_format(1), db=m),
        "format 1",
    ),
    "a record too short for its lease": (
        lambda t, m, r, id_, due: t.put(
            records.stem_of(b"a") + records.suffix_of(2), records.HEADER.pack(2, 1, 2), db=r
        ),
        "cannot have a lease",
    ),
}


@pytest.mark.parametrize("name", PLANTS)
def test_check_tells_what_is_wrong_with_leases(path: Path, name: str) -> None:
    engine = LmdbEngine(path, durability="none")
    lease = engine.grant(1000).id
    leased(engine, lease, b"a", b"b")
    put(engine, b"free")
    assert engine.check() == []
    engine.close()
    due = records.decode_state(raw_meta(path)[b"state"]).due
    plant, word = PLANTS[name]
    env = lmdb.open(str(path), max_dbs=8, map_size=64 << 20)
    with env.begin(write=True) as txn:
        meta = env.open_db(b"meta", txn=txn, create=False)
        plant(txn, meta, env.open_db(b"records", txn=txn), lease.to_bytes(8, "big"), due)
    env.close()
    engine = LmdbEngine(path)
    found = engine.check()
    engine.close()
    assert any(word in problem for problem in found), found
