"""Turns: calls of one process that update one key try one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from snapkv.base.concurrency import Lock, here
from snapkv.base.lifecycle import renew_in_children


@dataclass(slots=True, eq=False)
class _Turn:
    """The turn at one key: a lock, and how many calls have it or wait for it.

    The lock is held in waits, so it is one of the loop where the calls run in a loop.
    """

    lock: Lock = field(default_factory=lambda: here().lock())
    calls: int = 0


class Turns:
    """Turns at keys.

    A courtesy, which nothing relies on: a call that does not get its turn in time goes without.
    So two calls that each have a turn and wait for that of the other go on after a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[bytes, _Turn] = {}
        renew_in_children(self)

    def __len__(self) -> int:
        return len(self._turns)

    def after_fork(self) -> None:
        """Start anew in a child, which has none of the threads."""
        self._lock, self._turns = threading.Lock(), {}

    @contextmanager
    def turn(self, key: bytes, seconds: float) -> Iterator[None]:
        """Wait for the turn at a key, for some seconds at most, and have it in the block."""
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.calls += 1
        got = False
        try:
            got = turn.lock.acquire(timeout=seconds)
            yield
        finally:
            if got:
                turn.lock.release()
            with self._lock:
                turn.calls -= 1
                if not turn.calls and self._turns.get(key) is turn:
                    del self._turns[key]
