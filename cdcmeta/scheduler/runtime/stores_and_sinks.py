"""The stores and sinks of changefeeds: how they are opened, and the forms of their URLs.

They are opened in threads of their own: that may take long. A check of a URL opens nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote

import snapkv
from cdcmeta.changes import databases
from cdcmeta.errors import InvalidArgumentError, SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.contracts import (
    NAME_IN_URL,
    CalledWriter,
    Function,
    Origin,
    TableSink,
    TableSource,
)
from cdcmeta.scheduler.executors.couch_client import SCHEMES, CouchDatabase
from cdcmeta.scheduler.executors.couch_sink import CouchWriter
from cdcmeta.scheduler.executors.database_sinks import CouchReplicaWriter, DatabaseWriter
from cdcmeta.scheduler.executors.database_source import DatabasesSource
from cdcmeta.scheduler.executors.json_lines_sink import JsonLinesWriter
from cdcmeta.scheduler.executors.loop_prevention import place_of
from cdcmeta.scheduler.executors.prefix_source import PrefixTableSource
from cdcmeta.scheduler.executors.recorded_sink import RECORD, recorded_sink
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from cdcmeta.scheduler.runtime.changefeed_records import Changefeed
from snapkv import SnapshotKV
from snapkv.base.extras import requires_extra

JSON_LINES, CALL = "jsonl:", "call:"
LOCAL = ("lmdb:", "archive:", JSON_LINES, f"{RECORD}lmdb:", f"{RECORD}archive:")


class Stores:
    """The stores that a capture has open, one for each URL and name."""

    def __init__(self, mine: SnapshotKV, url: str | None = None, name: str = "default") -> None:
        """Take the capture's own store, which is not closed here, and what it was opened with."""
        self._lock, self._locks = threading.Lock(), dict[tuple[str, str], threading.Lock]()
        self._mine, self._closed = mine, False
        self._open: dict[tuple[str, str], SnapshotKV] = {}
        if url is not None:
            self._open[absolute(url), name] = mine

    def open(self, url: str, name: str, *, create: bool) -> SnapshotKV:
        """Return the store of a URL; opened if it is not. Raises what `snapkv.open` raises."""
        key = absolute(url), name
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # a directory cannot be opened twice
            found = self._open.get(key)
            if found is None:
                found = snapkv.open(url, name=name, create=create)
                with self._lock:
                    if self._closed:
                        found.close()
                        raise SinkError("the capture has ended")
                    self._open[key] = found
            return found

    def close(self) -> None:
        """Close the stores that were opened here."""
        with self._lock:
            self._closed = True
            opened, self._open = self._open, {}
        for store in opened.values():
            if store is not self._mine:
                store.close()


def absolute(url: str) -> str:
    """Return a URL that means the same in other processes of this machine.

    >>> absolute("etcd://10.0.0.7:2379")
    'etcd://10.0.0.7:2379'
    """
    for scheme in LOCAL:
        path = url.removeprefix(scheme)
        if path != url and "://" not in url:
            return scheme + os.path.abspath(path)
    return url


def check_tables(store: SnapshotKV, names: Collection[str], log: str | None) -> None:
    """Raise `InvalidArgumentError` for databases, or a log, that the store does not have."""
    missing = set(names).difference(databases(store)) if names else ()
    if missing:
        raise InvalidArgumentError(f"the source has no database {min(missing)!r}")
    if log is not None and next(iter(store.space(f"cdc/{log}").at()), None) is None:
        raise InvalidArgumentError(f"the source has no CDC log {log!r}")


def open_source(feed: Changefeed, stores: Stores) -> TableSource:
    """Return what a changefeed reads. Raises `snapkv.MissingExtraError` for a log without NumPy."""
    store = stores.open(feed.source, feed.source_name, create=False)
    if feed.databases:
        return DatabasesSource(store, feed.databases)
    if feed.log is not None:
        with requires_extra("generations", "generations"):
            from cdcmeta.scheduler.executors.cdc_log_source import CdcLogSource
        return CdcLogSource(store, feed.log, feed.tables(), feed.id)
    prefixes = dict(zip(feed.tables(), feed.prefixes, strict=True))
    return PrefixTableSource(store, prefixes, restarts=feed.with_state)


def origin_of(feed: Changefeed, store: SnapshotKV, cluster: str) -> Origin:
    """Return what a sink keeps of a changefeed, which is a record in this store."""
    return Origin(f"{place_of(store)}/{cluster}/{feed.id}", feed.created)


def open_sink(
    feed: Changefeed,
    stores: Stores,
    functions: Mapping[str, Function],
    write_s: float,
    *,
    origin: Origin | None = None,
) -> TableSink:
    """Return the sink of a changefeed; `write_s` bounds a write, in seconds.

    Raises `InvalidArgumentError` for a function that this capture does not have, and for a URL of
    CouchDB that names no database.
    """
    url = feed.sink
    if url.startswith(JSON_LINES):
        return partial(JsonLinesWriter, Path(url.removeprefix(JSON_LINES)), origin=origin)
    if url.startswith(CALL):
        function = functions.get(url.removeprefix(CALL))
        if function is None:
            known = ", ".join(sorted(functions)) or "none"
            raise InvalidArgumentError(
                f"this capture has no function {url.removeprefix(CALL)!r}; it has: {known}"
            )
        return partial(CalledWriter, function)
    if url.startswith(SCHEMES):
        database = CouchDatabase(url, os.environ)  # raises for what is invalid
        if not feed.databases:
            return partial(CouchWriter, database, feed.id, write_s=write_s, origin=origin)

        def replica(table: str, token: Token) -> CouchReplicaWriter:
            own = CouchDatabase(url.replace(NAME_IN_URL, quote(table, safe="")), os.environ)
            return CouchReplicaWriter(own, feed.id, table, token, write_s=write_s, origin=origin)

        return replica
    if url.startswith(RECORD):
        source = stores.open(feed.source, feed.source_name, create=False)
        return recorded_sink(url, feed.sink_name, feed.id, source)
    target = stores.open(url, feed.sink_name, create=True)
    place = place_of(stores.open(feed.source, feed.source_name, create=False))
    kind = DatabaseWriter if feed.databases else StoreTableWriter
    return partial(kind, target, feed.id, write_s=write_s, origin=origin, source=place)


STORES = "lmdb:DIR, etcd://HOST:PORT, memory:NAME"
SOURCES = f"{STORES}, archive:PLACE"
SINKS = (
    f"{STORES}, jsonl:DIR, call:NAME, couch+http://HOST:PORT/DB, couch+https://HOST/DB, "
    "record+lmdb:DIR, record+etcd://HOST:PORT, record+archive:PLACE"
)
OBJECT_STORES = ("az", "gs", "s3")
_ENDPOINT = r" *(?:\[[^\s\[\]/@?]+\]|[^\s:\[\]/@?,]+)(?::[0-9]{0,5})? *"
_PATH = r"(?!~|//)/*[^/\0][^\0]*"
_BUCKET = rf"(?:{'|'.join(OBJECT_STORES)})://[^/@?#]+(?:/[^@?#]*)?"
_PLACES = {
    "lmdb": (_PATH, "the path of a directory, in which '~' is not expanded and '//' does not lead"),
    "etcd": (
        rf"//{_ENDPOINT}(?:,{_ENDPOINT})*/?",
        "//HOST:PORT, or several with commas, without a path or a login",
    ),
    "memory": (r".*", "any name"),
    "archive": (rf"(?!.*://)/*[^/\0][^\0]*|{_BUCKET}", "the path of a folder, or s3://BUCKET/PATH"),
}
"""The form of what follows a scheme of snapkv, which checks more when it opens a store."""
_SECRETS = "@?="
"""The characters beside which a URL of another program may have a password."""


def check_source(url: str) -> None:
    """Raise `InvalidArgumentError` for a URL that `snapkv.open` rejects by its form.

    >>> check_source("lmdb:./shop")
    """
    try:
        _check_store(url, *_PLACES)
    except InvalidArgumentError as e:
        raise InvalidArgumentError(f"{e}; a source has one of the forms {SOURCES}") from e


def check_sink(url: str, databases: Sequence[str] = ()) -> None:
    """Raise `InvalidArgumentError`, with all forms, for a URL of which no sink can be made.

    `databases` are the tables of a changefeed that has databases.

    >>> check_sink("couch+http://127.0.0.1:5984/copy-*", ["users"])
    """
    try:
        if url.startswith((JSON_LINES, CALL)):
            scheme, _, name = url.partition(":")
            if not name.strip():
                what = "a function" if scheme + ":" == CALL else "a directory"
                raise InvalidArgumentError(f"{url!r} lacks the name of {what}")
        elif url.startswith(SCHEMES):
            if NAME_IN_URL in url and not databases:
                raise InvalidArgumentError(
                    f"a {NAME_IN_URL!r} in {url!r} is the name of a database, and the tables of "
                    "this changefeed are not databases"
                )
            CouchDatabase(url, {})  # a path may have a '*'; names of databases are valid there, too
        elif url.startswith(RECORD):
            _check_store(url.removeprefix(RECORD), *_PLACES)
        else:
            _check_store(url, "lmdb", "etcd", "memory")
    except InvalidArgumentError as e:
        raise InvalidArgumentError(f"{e}; a sink has one of the forms {SINKS}") from e


# --- helpers ---


def _check_store(url: str, *schemes: str) -> None:
    scheme, colon, place = url.partition(":")
    shown = "..." if any(mark in url for mark in _SECRETS) else repr(url)
    if not colon or scheme not in schemes:
        raise InvalidArgumentError(f"the URL {shown} is of an unknown form")
    form, words = _PLACES[scheme]
    if re.fullmatch(form, place, re.DOTALL) is None:
        raise InvalidArgumentError(f"in the URL {shown}, {scheme}: is followed by {words}")
