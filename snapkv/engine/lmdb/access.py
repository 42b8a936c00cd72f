"""Who of this process is inside LMDB, and how to have it alone for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from snapkv.clock import bounded, monotonic, pause
from snapkv.errors import EngineBusyError

WAIT_SECONDS_MAX = 30.0
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 50e-6, 2e-3
_OWNER = "owner"


class Gate:
    """Counts the threads inside; shuts when someone needs the environment alone.

    Entering adds to a set and then looks whether somebody claimed the gate; shutting claims it
    and then looks at the set. Each step is one atomic call, so one of the two always sees the
    other, the way in costs no lock, and an interrupt between two steps leaves nothing locked:
    what it leaves in the set or as a claim is mended when that thread comes next.
    """

    __slots__ = ("active", "claim")

    def __init__(self) -> None:
        self.active: set[int] = set()
        self.claim: dict[str, int] = {}  # at most one entry: who has the environment alone

    def enter(self) -> None:
        """Come in; waits, bounded, while somebody has the environment alone."""
        me = threading.get_ident()
        self.active.add(me)
        if self.claim and self._shut_by_other(me):
            self._wait(me)

    def leave(self) -> None:
        """Go out; doing so twice is fine."""
        self.active.discard(threading.get_ident())

    def _shut_by_other(self, me: int) -> bool:
        return self.claim.get(_OWNER, me) != me

    def _wait(self, me: int) -> None:
        for _ in _pauses(bounded(WAIT_SECONDS_MAX)):
            self.active.discard(me)
            if not self._shut_by_other(me):
                self.active.add(me)
                if not self._shut_by_other(me):
                    return
        self.active.discard(me)
        raise EngineBusyError("another thread kept the environment to itself for too long")

    def close(self, timeout: float) -> bool:
        """Shut the gate and wait until the others are out; False (and open) when they stay.

        Whoever got True calls `open`.
        """
        me = threading.get_ident()
        for _ in _pauses(timeout):
            if self.claim.setdefault(_OWNER, me) == me and self.active <= {me}:
                return True
        self.open()
        return False

    def open(self) -> None:
        """Let the others in again, if it was this thread that shut the gate."""
        if self.claim.get(_OWNER) == threading.get_ident():
            self.claim.clear()

    @contextmanager
    def alone(self, timeout: float = WAIT_SECONDS_MAX) -> Iterator[None]:
        """Have the environment alone inside; `EngineBusyError` when others do not leave."""
        try:
            if not self.close(timeout):
                raise EngineBusyError("a transaction of another thread does not end")
            yield
        finally:
            self.open()

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Let the others leave, from inside the gate.

        When somebody else is shutting it they leave anyway, and that one waits for us: waiting
        for our turn to shut it would be a deadlock.
        """
        try:
            if self.claim.setdefault(_OWNER, me := threading.get_ident()) == me:
                self.close(WAIT_SECONDS_MAX)
            yield
        finally:
            self.open()


def _pauses(seconds: float) -> Iterator[None]:
    """Yield at once and then after growing pauses, a last time when `seconds` are over."""
    deadline, length = monotonic() + seconds, _PAUSE_SECONDS_MIN
    yield
    while (left := deadline - monotonic()) > 0:
        pause(min(length, left))
        length = min(2 * length, _PAUSE_SECONDS_MAX)
        yield
