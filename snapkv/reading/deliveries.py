"""Counting what the watches of a store return, and how late that is."""

from __future__ import annotations

import threading
from typing import Any

from snapkv.base.lifecycle import renew_in_children
from snapkv.clock import HybridClock
from snapkv.hooks import Notifier, WatchEvent
from snapkv.model import Changes
from snapkv.times import physical_ms


class Deliveries:
    """Counts of the commits and changes that watches returned; safe for threads."""

    def __init__(self, clock: HybridClock, notify: Notifier | None) -> None:
        self._clock, self._notify = clock, notify
        self.commits = self.changes = 0
        self.lag_s: float | None = None
        """How old the newest commit was that a watch returned; None before the first one."""
        self._lock = threading.Lock()
        renew_in_children(self)

    def after_fork(self) -> None:
        """Renew the lock."""
        self._lock = threading.Lock()

    def note(self, changes: Changes[Any]) -> None:
        """Count the changes of a commit that a watch is about to return."""
        timestamp, count = changes.commit.ts, len(changes.changes)
        lag_s = max(0.0, (self._clock.now_ms() - physical_ms(timestamp)) / 1_000)
        with self._lock:
            self.commits += 1
            self.changes += count
            self.lag_s = lag_s
        if self._notify is not None:
            self._notify(WatchEvent(self._notify.store, timestamp, count, lag_s))
