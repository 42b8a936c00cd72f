"""Opening a store: from a URL to an engine, and the two keys that make a store of it."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from typing import Any

from snapkv.clock import bounded
from snapkv.engine.contract import Compare, Engine, Header, KeyValue, Put, Range, Target, Txn
from snapkv.errors import (
    CorruptStoreError,
    InvalidTypeError,
    InvalidURLError,
    NotAStoreError,
    OutcomeUnknown,
    Refused,
    StoreNotFoundError,
    UnknownOptionError,
)
from snapkv.layout import FormatRecord, Layout, StampRecord

OPEN_TRIES = 3
OPEN_TIMEOUT_S = 10.0
TELLTALES = "@?="
"""What stands beside a secret in a URL, whatever its engine would be."""

COMMON_OPTIONS = (
    "name",
    "ring_slots",
    "clock",
    "retain",
    "writer",
    "commit_timeout",
    "read_timeout",
    "max_clock_skew",
    "create",
    "past",
)


def _memory(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.memory.engine import open_memory

    return open_memory(url)


def _lmdb(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.lmdb import LmdbEngine

    return LmdbEngine(_lmdb_path(url), create=create, **options)


def _lmdb_path(url: str) -> str:
    """Return the path of an lmdb URL; raise `InvalidURLError` where it would surprise."""
    path = url.removeprefix("lmdb:")
    try:
        unusable = not path.strip("/") or b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        unusable = True
    if unusable:
        raise InvalidURLError(f"{url!r} needs the path of a directory, as in lmdb:./meta", url)
    if path.startswith("//"):
        rest = path.strip("/")
        raise InvalidURLError(
            f"{url!r} has no host, so no '//': write lmdb:{rest} for a path from here, "
            f"lmdb:/{rest} for one from the root",
            url,
        )
    if path.startswith("~"):
        literal, likely = f"lmdb:./{path}", _directory_url(path)
        advice = f"{likely}, or {literal}" if likely != literal else literal
        raise InvalidURLError(
            f"{url!r}: '~' is not expanded here; write {advice} for a directory of that name", url
        )
    return path


def _directory_url(path: str) -> str:
    """Return the URL that a path is most likely meant to be."""
    path = os.path.expanduser(path)
    return f"lmdb:./{path}" if path.startswith("~") else f"lmdb:{path}"  # there is no such user


def _etcd(url: str, create: bool, home: bytes, environment: bool, **options: Any) -> Engine:
    from snapkv.engine.etcd import open_etcd
    from snapkv.engine.etcd.address import without_environment

    return open_etcd(url, home=home, **(options if environment else without_environment(options)))


_ENGINES: dict[str, tuple[Callable[..., Engine], tuple[str, ...]]] = {
    "etcd": (
        _etcd,
        (
            "ca_cert",
            "cert",
            "key",
            "max_request_bytes",
            "max_txn_ops",
            "password",
            "tls",
            "user",
        ),
    ),
    "memory": (_memory, ()),
    "lmdb": (_lmdb, ("durability", "map_bytes", "mode", "request_bytes_max")),
}


def open_engine(
    url: str,
    *,
    create: bool,
    options: dict[str, Any],
    home: bytes = b"\0",
    environment: bool = True,
) -> Engine:
    """Return the engine that a URL names; only that one is imported.

    `home` is a key that its user may read, for an engine that has questions of its own. Where
    `environment` is False, variables of the environment stand in for none of the options.

    Raises `InvalidURLError`, `UnknownOptionError`, and what the engine refuses to open.
    """
    if not isinstance(url, str):
        raise InvalidTypeError(f"a store's URL is a str, not {type(url).__name__}")
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _ENGINES:
        known = ", ".join(f"{name}:" for name in _ENGINES)
        shown = _shown(url)
        path = shown == url != "" and (not colon or "/" in scheme)
        advice = f"for a directory write {_directory_url(url)}; " if path else ""
        message = f"no engine for {shown!r}; {advice}a URL begins with one of {known}"
        raise InvalidURLError(message, shown)
    opener, known_options = _ENGINES[scheme]
    for option in options:
        if option not in known_options:
            raise UnknownOptionError(option, (*COMMON_OPTIONS, *known_options))
    return opener(url, create, home, environment, **options)


def _shown(url: str) -> str:
    """Return what may be told of a URL that nobody understands: it may hold a password."""
    if not any(mark in url for mark in TELLTALES):
        return url
    scheme, colon, _ = url.partition(":")
    return f"{scheme}:..." if colon and _shown(scheme) == scheme else "..."


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
            raise NotAStoreError(f"{layout.ts!r} exists, but no format record: not a store of ours")
        if not create:
            raise StoreNotFoundError(f"no store named {layout.name!r} in {engine.url}")
        _create(engine, layout, writer)
    raise CorruptStoreError(f"store {layout.name!r} was made and is not there")


def _create(engine: Engine, layout: Layout, writer: str) -> None:
    """Write both keys, if neither is there: others may be doing the same."""
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
        raise e.error from e
    except OutcomeUnknown as e:
        if not e.retry and e.cause is not None:
            raise e.cause from e


def default_writer() -> str:
    """Return user@host: who commits are said to be by, unless told otherwise."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
