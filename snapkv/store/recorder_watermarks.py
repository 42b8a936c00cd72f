"""Watermarks: how far recorders have copied a store, so that compaction waits for them."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgpack

from snapkv.engine.contract import Compare, Delete, Engine, OutcomeUnknown, Put, Range, Refused, Txn
from snapkv.errors import (
    CorruptStoreError,
    EngineUnavailableError,
    KeyNotFoundError,
    SessionLostError,
)
from snapkv.layout import Layout, prefix_end

WRITE_S = 10.0


class Watermark(NamedTuple):
    """A recording: commits up to `timestamp`, at `revision`, are durable in `into`."""

    id: bytes
    into: str
    timestamp: int
    revision: int


def watermark_id(into: str) -> bytes:
    """Return the id of the recording into a place."""
    return hashlib.sha256(into.encode()).hexdigest()[:16].encode()


def _prefix(layout: Layout) -> bytes:
    return layout.root + b"sys/recorded/"


def watermarks(engine: Engine, layout: Layout) -> list[Watermark]:
    """Return the recordings of a store; one round trip."""
    prefix = _prefix(layout)
    found = []
    for kv in engine.read([Range(prefix, prefix_end(prefix))]).results[0].kvs:
        try:
            into, timestamp, revision = msgpack.unpackb(kv.value)
        except (ValueError, TypeError, msgpack.UnpackException) as e:
            raise CorruptStoreError(f"{kv.key!r} holds no watermark: {kv.value!r}") from e
        found.append(Watermark(kv.key[len(prefix) :], into, timestamp, revision))
    return found


def slowest_watermark(engine: Engine, layout: Layout) -> Watermark | None:
    """Return the recording that has copied least, None if there is none; one round trip."""
    return min(watermarks(engine, layout), key=lambda mark: mark.timestamp, default=None)


def move(engine: Engine, layout: Layout, mark: Watermark, guard: Compare | None) -> None:
    """Write a watermark, if the recorder still leads; one round trip.

    It belongs to no commit. Raises `SessionLostError` if the guard fails, and
    `EngineUnavailableError`; then the next one moves it.
    """
    put = Put(_prefix(layout) + mark.id, msgpack.packb([mark.into, mark.timestamp, mark.revision]))
    txn = Txn(() if guard is None else (guard,), (put,))
    if not _succeeds(engine, layout, txn, "have moved"):
        raise SessionLostError("this recorder leads no more")


def _succeeds(engine: Engine, layout: Layout, txn: Txn, what: str) -> bool:
    try:
        return engine.transact(lambda _: txn, layout.ts, timeout=WRITE_S).succeeded
    except Refused as e:
        e.reraise()
    except OutcomeUnknown as e:
        raise EngineUnavailableError(f"the watermark may not {what}: {e}") from e


def forget(engine: Engine, layout: Layout, into: str) -> None:
    """Remove the watermark of a recording, so that compaction no longer waits for it.

    Two round trips. Raises `KeyNotFoundError` if there is none, and `EngineUnavailableError`.
    """
    found = [mark.id for mark in watermarks(engine, layout) if mark.into == into]
    if not found:
        raise KeyNotFoundError(into, reason=f"{engine.url} has no recording into {into!r}")
    txn = Txn((), tuple(Delete(_prefix(layout) + id) for id in found))
    _succeeds(engine, layout, txn, "be removed")
