"""The origin of rows: each process opens its own engine of the location that Spark sends."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import replace

from snapkv.layout import Keyspace, Layout, RawKeyspace
from snapkv.location import Location
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.store.observe import Keys, open_to_read
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV

OPENED_MAX = 8
"""Engines that one worker process keeps open."""


def open_to_write(location: Location, writer: str | None) -> SnapshotKV:
    """Open a store for writing, or create it; the caller closes it. Raises as `snapkv.open`."""
    options = dict(location.options)
    return open_store(location.url, codec=None, name=location.name, writer=writer, **options)


def keyspace_of(location: Location, *, text: bool) -> Keyspace:
    """Return the key space that is read, with keys as text or as bytes."""
    if location.prefix is not None:
        return RawKeyspace(location.prefix.encode(), text=text)
    layout = Layout(location.name)
    space = layout.data if location.space is None else layout.space(location.space)
    return replace(space, text=text)


def absolute(url: str) -> str:
    """Return the URL as every process of this machine understands it.

    Raises `SourceError` for a store that lives in one process.
    """
    if not isinstance(url, str):
        raise SourceError(
            errors.INVALID_OPTION, f"a store's URL is a str, not {type(url).__name__}"
        )
    if url.startswith("memory:"):
        raise SourceError(
            errors.INVALID_OPTION,
            f"{url!r} lives in one process, where Spark's workers cannot see it: "
            "use lmdb: or etcd:, or to_arrow() without Spark",
        )
    scheme, _, path = url.partition(":")
    if scheme == "lmdb" and path:
        return f"lmdb:{os.path.abspath(path)}"
    return f"archive:{absolute_archive(path)}" if scheme == "archive" else url


def absolute_archive(url: str) -> str:
    """Return the URL of an archive as every process of this machine understands it.

    Raises `SourceError` for a URL with credentials, which plans and messages would show.
    """
    if not isinstance(url, str):
        raise SourceError(
            errors.INVALID_OPTION, f"an archive's URL is a str, not {type(url).__name__}"
        )
    scheme, remote, rest = url.partition("://")
    if not remote:
        return os.path.abspath(url) if url else url
    if "@" in rest.partition("/")[0]:
        raise SourceError(
            errors.INVALID_OPTION,
            f"{scheme}://... has credentials, which do not belong into a URL: set environment "
            "variables, or options that begin with 'storage.'",
        )
    return url


_opened: OrderedDict[Location, Keys] = OrderedDict()


def opened(location: Location) -> Reader:
    """Return this process's own reader of a location, kept for later tasks.

    An embedded engine does not notice that its files were replaced, so the location is opened
    again. While the directory still has the open files, that only looks at the directory.
    """
    kept = _opened.get(location)
    if kept is None or not kept.reader.engine.remote:
        found = open_to_read(location)
        forget(location)
        while len(_opened) >= OPENED_MAX:
            _opened.popitem(last=False)[1].close()
        _opened[location] = found
    _opened.move_to_end(location)
    return _opened[location].reader


def forget(location: Location) -> None:
    """Close this process's reader of a location: another store may have taken its place."""
    found = _opened.pop(location, None)
    if found is not None:
        found.close()


def forget_all() -> None:
    """Close all locations that this process has open."""
    while _opened:
        _opened.popitem()[1].close()
