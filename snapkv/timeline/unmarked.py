"""Point reads that may have shown commits whose marks are not known yet."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol
from weakref import ref

from snapkv.base.concurrency import here
from snapkv.base.lifecycle import renew_in_children
from snapkv.clock import Unmarked
from snapkv.engine.contract import Header, KeyValue
from snapkv.layout import Mark


class Tracker(Protocol):
    """What this needs of the marks that are known."""

    shown: tuple[Mark, int]
    """The newest mark, and the last revision at which it is known to be the newest."""

    def head(self) -> Mark:
        """Read the newest mark."""
        ...


class UnmarkedReads:
    """How far the point reads of a store went beyond the newest mark known; safe for threads.

    The marks of the commits that they showed are at most the newest one. `catch_up` reads it.
    Meanwhile the store is in `stores`, where commits on other stores find it.
    """

    def __init__(self, tracker: Tracker, stores: set[ref[Unmarked]] | None) -> None:
        self.tracker, self.place = tracker, here().place
        self.revision = 0
        """The newest revision shown that is above the newest mark known; 0 for none."""
        self._stores = set[ref[Unmarked]]() if stores is None else stores
        self._ref: ref[Unmarked] = ref(self)
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def note(self, header: Header, versions: Iterable[KeyValue | None]) -> None:
        """Note the newest versions that a read has shown; an absent key may just be removed."""
        shown = [header.revision if kv is None else kv.mod_revision for kv in versions]
        revision = max(shown, default=0)
        if revision <= self.tracker.shown[1]:
            return
        with self._lock:
            self.revision = max(self.revision, revision)
            self._stores.add(self._ref)

    def settle(self) -> None:
        """Forget what was noted if the newest mark known is at least as new."""
        with self._lock:
            if self.revision <= self.tracker.shown[1]:
                self._forget()

    def catch_up(self) -> None:
        """Read the newest mark if that is needed; one round trip at most.

        Tries only once: an engine that is away must not delay each commit on another one.
        """
        noted = self.revision
        try:
            if noted > self.tracker.shown[1]:
                self.tracker.head()
        finally:
            with self._lock:
                if self.revision == noted:  # else another read has shown more meanwhile
                    self._forget()

    def close(self) -> None:
        """Forget what was noted: a closed store cannot be read."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self.revision = 0
        self._stores.discard(self._ref)
