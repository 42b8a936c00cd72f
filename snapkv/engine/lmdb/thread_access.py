"""Access of this process's threads to an LMDB environment: shared, or exclusive for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from snapkv.base.waiting import bounded, monotonic, pause
from snapkv.errors import EngineBusyError

WAIT_SECONDS_MAX = 30.0
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 50e-6, 2e-3
_OWNER = "owner"


class Access:
    """Counts the threads that use the environment; one thread can have it alone.

    `enter` adds the thread to a set and then checks for a claim; `acquire` makes a claim and then
    checks the set. Each step is one atomic call, so one of the two always sees the other. `enter`
    takes no lock, and an interrupt between two steps leaves none locked. The entry or claim that
    an interrupt leaves behind is removed at the next call of the same thread.
    """

    __slots__ = ("active", "claim")

    def __init__(self) -> None:
        self.active: set[int] = set()
        self.claim: dict[str, int] = {}  # at most one entry: the thread with exclusive access

    def enter(self) -> None:
        """Begin to use the environment; waits, bounded, while another thread has it alone."""
        me = threading.get_ident()
        self.active.add(me)
        if self.claim and self._claimed_by_other(me):
            self._wait(me)

    def leave(self) -> None:
        """End the use; a second call does nothing."""
        self.active.discard(threading.get_ident())

    def _claimed_by_other(self, me: int) -> bool:
        return self.claim.get(_OWNER, me) != me

    def _wait(self, me: int) -> None:
        """Enter once no other thread has a claim.

        The thread leaves `active` while it waits: the one with the claim waits until it is alone
        there, so each would wait for the other. For example, A enters while B has the claim:

            A                            B                             active    claim
            enters: adds itself          waits until `active` is {}    {A}       B
            sees the claim, leaves                                     {}        B
                                         has the environment alone     {}        B
                                         releases it                   {}
            adds itself                                                {A}
            sees no claim: has entered                                 {A}

        If B claims again just before A adds itself, A sees that claim and leaves again.
        """
        for _ in _pauses(bounded(WAIT_SECONDS_MAX)):
            self.active.discard(me)
            if not self._claimed_by_other(me):
                self.active.add(me)
                if not self._claimed_by_other(me):
                    return
        self.active.discard(me)
        raise EngineBusyError("another thread had exclusive access to the environment for too long")

    def acquire(self, timeout: float) -> bool:
        """Claim exclusive access and wait until the other threads left; False when they stay.

        After True the caller must call `release`.
        """
        me = threading.get_ident()
        for _ in _pauses(timeout):
            if self.claim.setdefault(_OWNER, me) == me and self.active <= {me}:
                return True
        self.release()
        return False

    def release(self) -> None:
        """Give up exclusive access, if this thread has it."""
        if self.claim.get(_OWNER) == threading.get_ident():
            self.claim.clear()

    @contextmanager
    def exclusive(self, timeout: float = WAIT_SECONDS_MAX) -> Iterator[None]:
        """Have exclusive access inside; `EngineBusyError` when the other threads do not leave."""
        try:
            if not self.acquire(timeout):
                raise EngineBusyError("a transaction of another thread does not end")
            yield
        finally:
            self.release()

    @contextmanager
    def pause_others(self) -> Iterator[None]:
        """Let the other threads leave, for a thread that has entered itself.

        If another thread is already waiting for exclusive access, do not claim it too: that
        thread waits for us, so both would deadlock. Its claim makes the remaining threads leave
        anyway.
        """
        try:
            if self.claim.setdefault(_OWNER, me := threading.get_ident()) == me:
                self.acquire(WAIT_SECONDS_MAX)
            yield
        finally:
            self.release()


def _pauses(seconds: float) -> Iterator[None]:
    """Yield at once and then after growing pauses, a last time when `seconds` are over."""
    deadline, length = monotonic() + seconds, _PAUSE_SECONDS_MIN
    yield
    while (left := deadline - monotonic()) > 0:
        pause(min(length, left))
        length = min(2 * length, _PAUSE_SECONDS_MAX)
        yield
