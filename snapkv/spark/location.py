"""Where rows come from: plain facts that go to every process, which opens its own engine."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Any

from snapkv.full_keys import FullKeys
from snapkv.layout import Keyspace, Layout
from snapkv.observing.observe import Observed, observe
from snapkv.reading.reader import Reader
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError
from snapkv.store.open import open as open_store
from snapkv.store.store import SnapshotKV

Opened = SnapshotKV | Observed[str]

OPENED_MAX = 8
"""Engines that one worker process keeps open."""


@dataclass(frozen=True, slots=True)
class Place:
    """A store, one of its spaces, or keys that others write; can be pickled and hashed."""

    url: str
    name: str
    space: str | None
    observe: str | None
    options: tuple[tuple[str, Any], ...] = field(repr=False)  # they may hold a password

    def open(self) -> Opened:
        """Open it for reading; the caller closes it. Raises as `snapkv.open` and `observe`."""
        options = dict(self.options)
        if self.observe is not None:
            return observe(self.url, prefix=self.observe, name=self.name, **options)
        return open_store(self.url, name=self.name, create=False, **options)

    def keyspace(self, *, text: bool) -> Keyspace:
        """Return the kind of keys that are read, as text or as bytes."""
        if self.observe is not None:
            return FullKeys(self.observe.encode(), text=text)
        layout = Layout(self.name)
        space = layout.data if self.space is None else layout.space(self.space)
        return replace(space, text=text)


def absolute(url: str) -> str:
    """Return the URL as every process of this machine understands it.

    Raises `SourceError` for a store that lives in one process.
    """
    if not isinstance(url, str):
        raise SourceError(codes.INVALID_OPTION, f"a store's URL is a str, not {type(url).__name__}")
    if url.startswith("memory:"):
        raise SourceError(
            codes.INVALID_OPTION,
            f"{url!r} lives in one process, where Spark's workers cannot see it: "
            "use lmdb: or etcd:, or to_arrow() without Spark",
        )
    scheme, _, path = url.partition(":")
    return f"lmdb:{os.path.abspath(path)}" if scheme == "lmdb" and path else url


_opened: OrderedDict[Place, Opened] = OrderedDict()


def opened(place: Place) -> Reader:
    """Return this process's own reader of a place, kept for the tasks to come.

    Nobody tells an embedded engine that its files were exchanged. So it is opened again, which is
    a look at its folder while what was open before stands there still.
    """
    kept = _opened.get(place)
    if kept is None or not kept.reader.engine.remote:
        found = place.open()
        forget(place)
        while len(_opened) >= OPENED_MAX:
            _opened.popitem(last=False)[1].close()
        _opened[place] = found
    _opened.move_to_end(place)
    return _opened[place].reader


def forget(place: Place) -> None:
    """Close what this process holds of a place: it may be another store by now."""
    found = _opened.pop(place, None)
    if found is not None:
        found.close()


def forget_all() -> None:
    """Close everything that this process holds."""
    while _opened:
        _opened.popitem()[1].close()
