"""Opening a store: the two keys that make a store of an engine's keys, and the default writer."""

from __future__ import annotations

import getpass
import os
import socket

from snapkv.base.waiting import bounded
from snapkv.engine.contract import (
    Compare,
    Engine,
    Header,
    KeyValue,
    OutcomeUnknown,
    Put,
    Range,
    Refused,
    Target,
    Txn,
)
from snapkv.errors import CorruptStoreError, NotAStoreError, StoreNotFoundError
from snapkv.layout import FormatRecord, Layout, StampRecord

OPEN_TRIES = 3
OPEN_TIMEOUT_S = 10.0


def open_keys(
    engine: Engine, layout: Layout, writer: str, *, create: bool
) -> tuple[KeyValue, FormatRecord, Header]:
    """Return the timestamp key, the format record and the header of a store, made if need be.

    One round trip for a store that exists. Raises `StoreNotFoundError` (with `create=False`),
    `FormatError`, `NotAStoreError`, `CorruptStoreError`.
    """
    for _ in range(OPEN_TRIES):
        answer = engine.read([Range(layout.ts), Range(layout.format)])
        ts, format_ = (result.kvs[0] if result.kvs else None for result in answer.results)
        if format_ is not None:
            record = FormatRecord.decode(format_.value)
            if ts is None:
                raise CorruptStoreError(f"store {layout.name!r} has lost its timestamp key")
            StampRecord.decode(ts.value)
            return ts, record, answer.header
        if ts is not None:
            raise NotAStoreError(
                f"{layout.ts!r} exists without a format record: not a snapkv store"
            )
        if not create:
            raise StoreNotFoundError(f"no store named {layout.name!r} in {engine.url}")
        _create(engine, layout, writer)
    raise CorruptStoreError(f"store {layout.name!r} was created, but cannot be found")


def _create(engine: Engine, layout: Layout, writer: str) -> None:
    """Write both keys if neither exists; another process may do so at the same time."""
    stamp = StampRecord(0, os.urandom(16), writer, "created").encode()
    record = FormatRecord(os.urandom(16)).encode()
    txn = Txn(
        (
            Compare(layout.ts, Target.CREATE, "=", 0),
            Compare(layout.format, Target.CREATE, "=", 0),
        ),
        (Put(layout.ts, stamp), Put(layout.format, record)),
    )
    try:
        engine.transact(lambda _: txn, layout.ts, timeout=bounded(OPEN_TIMEOUT_S))
    except Refused as e:
        e.reraise()
    except OutcomeUnknown as e:
        if not e.retry and e.cause is not None:
            raise e.cause from e


def default_writer() -> str:
    """Return user@host, the default writer of commits."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
