"""Counting lookups by the path that they took: only for stores that were opened with it.

A store that was opened without has no `Meter`, and its reads cost nothing more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, ParamSpec, TypeVar

from snapkv.base.lifecycle import renew_in_children
from snapkv.base.waiting import perf_counter
from snapkv.engine.contract import KeyValue
from snapkv.hooks import LookupEvent, Notifier, Path
from snapkv.timeline import TakenPath, Timeline

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """The number of lookups that took each path.

    `head`: of now, or of times at or above the newest commit. `ring`: among the newest commits.
    `block`: beside a time that was searched before. `search`: in the timestamp key's history.
    """

    head: int = 0
    ring: int = 0
    block: int = 0
    search: int = 0

    @property
    def ring_hit_rate(self) -> float | None:
        """The share of the ring among lookups of past times; None without any."""
        past = self.ring + self.block + self.search
        return self.ring / past if past else None


class Meter:
    """Counts a store's lookups, and reports them if a hook wants them; safe for threads.

    It takes the place of the three calls by which views read: `get` of the short way, and what
    `timed` makes of `Reader.get` and `Reader.source`.
    """

    def __init__(self, timeline: Timeline, notify: Notifier | None) -> None:
        self._timeline, self._tracker = timeline, timeline.tracker
        self._taken = timeline.taken = TakenPath()
        self._notify = notify if notify is not None and notify.wants(LookupEvent) else None
        self._counts: dict[Path, int] = {"head": 0, "ring": 0, "block": 0, "search": 0}
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def lookups(self) -> Lookups:
        """Return the counts so far."""
        with self._lock:
            return Lookups(**self._counts)

    def get(self, key: bytes, timestamp: object) -> KeyValue | None:
        """Answer as `Timeline.get`; what that cannot answer is counted by the careful way."""
        began = 0.0 if self._notify is None else perf_counter()
        kv = self._timeline.get(key, timestamp)
        if kv is None:
            return None
        path: Path = "head"
        if type(timestamp) is int:  # it was found by the same decisions
            if self._tracker.ring.revision_at(timestamp):
                path = "ring"
            elif timestamp < self._tracker.newest.timestamp:
                path = "block"
        if self._notify is None:
            with self._lock:
                self._counts[path] += 1
        else:
            self._report("load", path, began, None)
        return kv

    def timed(self, operation: Literal["load", "at"], read: Callable[P, R]) -> Callable[P, R]:
        """Return a read that is counted and reported."""

        def timed_read(*args: P.args, **options: P.kwargs) -> R:
            taken, began = self._taken, perf_counter()
            taken.path, error = "head", None
            try:
                return read(*args, **options)
            except BaseException as e:
                error = e
                raise
            finally:
                if taken.path:
                    self._report(operation, taken.path, began, error)

        return timed_read

    def _report(
        self,
        operation: Literal["load", "at"],
        path: Path,
        began: float,
        error: BaseException | None,
    ) -> None:
        if error is None:
            with self._lock:
                self._counts[path] += 1
        if self._notify is not None:
            took_s = perf_counter() - began
            self._notify(LookupEvent(self._notify.store, operation, path, took_s, error))
