"""Short words for the tests of the lmdb engine."""

from __future__ import annotations

from snapkv.engine.contract import Delete, Put, Range, Txn, TxnResult
from snapkv.engine.lmdb import LmdbEngine

FIRST = ALL = b"\0"
WAIT_SECONDS_MAX = 20.0


def run_txn(engine: LmdbEngine, *ops: object, timeout: float = 20.0) -> TxnResult:
    txn = Txn(success=ops)  # type: ignore[arg-type]
    return engine.transact(lambda _: txn, b"peek", timeout=timeout)


def put(engine: LmdbEngine, key: bytes, value: bytes = b"v", timeout: float = 20.0) -> int:
    return run_txn(engine, Put(key, value), timeout=timeout).header.revision


def delete(engine: LmdbEngine, key: bytes, range_end: bytes = b"") -> int:
    return run_txn(engine, Delete(key, range_end)).header.revision


def get(engine: LmdbEngine, key: bytes, revision: int = 0) -> bytes | None:
    found = engine.read([Range(key, b"", revision)]).results[0].kvs
    return found[0].value if found else None


def keys(engine: LmdbEngine, revision: int = 0) -> list[bytes]:
    return [kv.key for kv in engine.read([Range(FIRST, ALL, revision)]).results[0].kvs]


def head(engine: LmdbEngine) -> int:
    return engine.read([]).header.revision


def leased(engine: LmdbEngine, lease: int, *names: bytes) -> int:
    return run_txn(engine, *(Put(name, b"v", lease=lease) for name in names)).header.revision


def gone(engine: LmdbEngine, start: int) -> list[tuple[int, list[bytes]]]:
    """Return the next batch of a new watcher as (revision, removed keys)."""
    batch = engine.watch(FIRST, ALL, start_revision=start).next(WAIT_SECONDS_MAX)
    assert batch is not None
    assert all(event.is_delete for event in batch.events)
    return [(batch.revision, [event.kv.key for event in batch.events])]
