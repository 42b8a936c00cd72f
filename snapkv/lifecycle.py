"""How objects begin anew in a forked child, and how they end with a `with` block.

A lock that another thread of the parent held would stay held for ever in the child. And calls into
libraries that do not survive a fork must not be on their way when it happens.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Protocol, Self


class Renewable(Protocol):
    """What must be renewed in a forked child before it is used."""

    def after_fork(self) -> None:
        """Make new locks, and drop what another thread may have left half-changed."""
        ...


class Gate:
    """Lets nobody through while the process forks: `with gate:` around what a fork would break.

    A fork waits for those inside, `FORK_WAIT_S` at most. Costs about a microsecond.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # an interrupt can leave a Condition's lock taken for ever
        self._inside = 0
        self._shut = False
        _gates.add(self)

    def __enter__(self) -> None:
        while True:
            with self._lock:
                if not self._shut:
                    self._inside += 1
                    return
            _pause()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside -= 1

    def shut(self) -> None:
        """Let nobody in, and wait for those inside."""
        with self._lock:
            self._shut = True
        for _ in range(round(FORK_WAIT_S / LOOK_S)):
            if not self._inside:
                return
            _pause()

    def open(self) -> None:
        """Let them in again."""
        self._shut = False

    def after_fork(self) -> None:
        """Start anew in a child: who was inside is not here."""
        self._lock = threading.Lock()
        self._inside, self._shut = 0, False


LOOK_S = 0.001
"""How often it is looked whether the last one is out, or the fork is over."""


def _pause() -> None:
    threading.Event().wait(LOOK_S)


FORK_WAIT_S = 5.0
"""Longer than the longest call, which an endpoint that does not answer makes of each (4 s)."""

_gates: weakref.WeakSet[Gate] = weakref.WeakSet()
_renewables: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_in_children(renewable: Renewable) -> None:
    """Call `after_fork` of an object in every child forked from now on, while it lives."""
    _renewables.add(renewable)


def _before_fork() -> None:
    for gate in list(_gates):
        gate.shut()


def _after_fork_in_parent() -> None:
    for gate in list(_gates):
        gate.open()


def _after_fork_in_child() -> None:
    for gate in list(_gates):
        gate.after_fork()
    for renewable in list(_renewables):
        renewable.after_fork()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


class Closing(ABC):
    """A context manager whose end is its own `close()`."""

    @abstractmethod
    def close(self) -> None:
        """End it; twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
