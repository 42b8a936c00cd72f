"""Objects that survive a fork, and objects that a `with` block closes.

A lock that another thread of the parent held would stay held for ever in the child. And while the
process forks, no call may be inside a library that does not survive a fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Protocol, Self


class Renewable(Protocol):
    """An object that must be renewed in a forked child before it is used."""

    def after_fork(self) -> None:
        """Make new locks, and drop what another thread may have left half-changed."""


class ForkBarrier:
    """Blocks threads while the process forks; `with barrier:` around a call that a fork breaks.

    A fork waits for the threads inside, `FORK_WAIT_S` at most. Costs about a microsecond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an interrupt can leave a Condition's lock taken
        self._inside = 0
        self._closed = False
        _barriers.add(self)

    def __enter__(self) -> None:
        while True:
            with self._lock:
                if not self._closed:
                    self._inside += 1
                    return
            _pause()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1

    def close(self) -> None:
        """Let no thread in, and wait for the threads inside."""
        with self._lock:
            self._closed = True
        for _ in range(round(FORK_WAIT_S / LOOK_S)):
            if not self._inside:
                return
            _pause()

    def open(self) -> None:
        """Let threads in again."""
        self._closed = False

    def after_fork(self) -> None:
        """Start anew in a child, which has none of the threads inside."""
        self._lock = threading.Lock()
        self._inside, self._closed = 0, False


LOOK_S = 0.001
"""The pause between two checks of a thread whether the last call has ended, or the fork is over, in
seconds."""


def _pause() -> None:
    threading.Event().wait(LOOK_S)


FORK_WAIT_S = 5.0
"""The longest that a fork waits for calls, in seconds: more than the longest call, which takes 4 s
at an endpoint that does not answer."""

_barriers: weakref.WeakSet[ForkBarrier] = weakref.WeakSet()
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Call `after_fork` of an object in every child forked from now on, while it lives."""
    _renewables.add(renewable)


def _before_fork() -> None:
    for barrier in list(_barriers):
        barrier.close()


def _after_fork_in_parent() -> None:
    for barrier in list(_barriers):
        barrier.open()


def _after_fork_in_child() -> None:
    for barrier in list(_barriers):
        barrier.after_fork()
    for renewable in list(_renewables):
        renewable.after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


class Closing(ABC):
    """A context manager that ends with its own `close()`."""

    @abstractmethod
    def close(self) -> None:
        """Close it; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
