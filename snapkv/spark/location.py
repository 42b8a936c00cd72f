"""The origin of rows: a value that Spark sends to every process, which opens its own engine."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from snapkv.archive.storage import SECONDS
from snapkv.layout import Keyspace, Layout, RawKeyspace
from snapkv.reading.observed import Observed
from snapkv.reading.reader import Reader
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.store.observe import observe
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV

Opened = SnapshotKV | Observed[str]

OPENED_MAX = 8
"""Engines that one worker process keeps open."""


@dataclass(frozen=True, slots=True)
class Location:
    """A store, one of its spaces, or an observed prefix; can be pickled and hashed."""

    url: str
    name: str
    space: str | None
    observe: str | None
    options: tuple[tuple[str, Any], ...] = field(repr=False)  # they may hold a password
    archive: str | None = None
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # so may these

    def open(self) -> Opened:
        """Open it for reading; the caller closes it. Raises as `snapkv.open` and `observe`."""
        options = dict(self.options)
        if self.observe is not None:
            return observe(self.url, prefix=self.observe, name=self.name, **options)
        return open_store(
            self.url,
            codec=None,
            name=self.name,
            create=False,
            archive=self.archive,
            storage={name: _typed(name, text) for name, text in self.storage} or None,
            **options,
        )

    def open_to_write(self, writer: str | None) -> SnapshotKV:
        """Open the store for writing, or create it; the caller closes it. Raises as `open`."""
        return open_store(self.url, codec=None, name=self.name, writer=writer, **dict(self.options))

    def keyspace(self, *, text: bool) -> Keyspace:
        """Return the key space that is read, with keys as text or as bytes."""
        if self.observe is not None:
            return RawKeyspace(self.observe.encode(), text=text)
        layout = Layout(self.name)
        space = layout.data if self.space is None else layout.space(self.space)
        return replace(space, text=text)


def _typed(name: str, text: str) -> str | bool | float:
    """Return the value of an option of an object store, all of which Spark passes as text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text) if name == "max_retries" else float(text) if name in SECONDS else text
    except ValueError:
        return text  # which the archive rejects


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


_opened: OrderedDict[Location, Opened] = OrderedDict()


def opened(location: Location) -> Reader:
    """Return this process's own reader of a location, kept for later tasks.

    An embedded engine does not notice that its files were replaced, so the location is opened
    again. While the open files are still those of the directory, that only looks at the directory.
    """
    kept = _opened.get(location)
    if kept is None or not kept.reader.engine.remote:
        found = location.open()
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
