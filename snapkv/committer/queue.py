"""The queue of commits: which caller's thread sends for all of them, and which wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from snapkv.base.concurrency import here
from snapkv.base.waiting import monotonic
from snapkv.committer.request import Request
from snapkv.errors import NotSupportedError, StoreClosedError
from snapkv.model import Build, Commit, Ops


class Signal:
    """Wakes the one thread that waits for it; ten times as fast as an `Event`.

    Callers of `set` hold the lock of the queue, so no two threads call it at once.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = here().lock()
        self._taken.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that calls `wait`."""
        if self._taken.locked():
            self._taken.release()

    def wait(self, timeout: float) -> None:
        """Wait until `set` was called, or for `timeout` seconds."""
        self._taken.acquire(timeout=timeout)


@dataclass(slots=True, eq=False)
class Call:
    """One caller's commit, from the queue to its outcome.

    `done` is set once, under the lock of the queue: with the outcome, or when the caller leaves.
    """

    build: Build | Ops
    deadline: float
    at_least: int = 0
    is_tick: bool = False
    alone: bool = False
    """Commits in a transaction of its own: the engine rejected a group, perhaps because of it."""
    woken: Signal | None = None
    """Set when the call has an outcome or the lead; None for a call that never waits."""
    request: Request[Call] | None = None
    """The last request that it is a member of."""
    leads: bool = False
    members: int = 0
    """The number of calls that shared the transaction that landed; 0 while none has."""
    lost_rounds: int = 0
    done: bool = False
    result: Commit | None = None
    error: BaseException | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - monotonic())

    def finish(self, *, result: Commit | None = None, error: BaseException | None = None) -> None:
        """Set the outcome unless the call is done; the caller of this holds the queue's lock."""
        if not self.done:
            if self.woken is not None:
                self.woken.set()  # first: an interrupt here leaves the call to the next leader
            self.result, self.error, self.done = result, error, True


class CommitQueue:
    """Calls that wait for a commit. One of them leads: its thread sends for all of them.

    It needs no thread of its own. The first call leads at once; a leader that leaves hands the lead
    over, first to a call of the transaction whose outcome is open (`request`), then to the call
    that has waited longest.

    For example, threads A to D, of which B and C come while A's transaction is on its way, and D
    while that of B and C is:

        event                        leader   request   waiting
        A joins: it leads            A        -         A
        A sends                      A        A         -
        B and C join and wait        A        A         B C
        A is answered and leaves     -> B     -         B C
        B wakes, sends for both      B        B C       -
        D joins and waits            B        B C       D
        B is answered: B, C finish   B        -         D
        B leaves                     -> D     -         D

    "-> B" means that B has the lead and its thread is about to wake: `_leader` is 0, so a call that
    joins now waits. If B's deadline passes before the answer, B raises `CommitUnknownError` and
    leaves while `request` is still open. Then C gets the lead and finds out the outcome first; D
    waits for that, since at most one request is open at a time.

    A thread may be interrupted anywhere (Ctrl-C), so each step of a hand-over can be repeated.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: list[Call] = []
        self.request: Request[Call] | None = None
        self._ident = here().ident
        self._leader: int | None = None  # `_ident` of a call; 0 while the next leader wakes up
        self._closed = False

    def join(self, call: Call) -> None:
        """Add a call; it leads (`call.leads`) if no other call does."""
        with self.lock:
            if self._leader == self._ident():
                raise NotSupportedError("commit() called from inside a function given to commit()")
            if self._closed:
                raise StoreClosedError("the store was closed")
            if self._leader is not None:
                call.woken = Signal()  # before other threads can see the call
            self.waiting.append(call)
            if self._leader is None:
                call.leads = True  # first, so that an interrupt here cannot lose the lead
                self._leader = self._ident()

    def wait(self, call: Call) -> bool:
        """Wait for an outcome or for the lead until the deadline; return whether to lead."""
        while True:
            if not call.leads and call.woken is not None:
                call.woken.wait(call.left_s)
            with self.lock:
                if call.leads:
                    self._leader = self._ident()
                if call.leads or call.done or not call.left_s:
                    return call.leads and not call.done

    def leave(self, call: Call) -> None:
        """Remove a call, with or without an outcome, and hand its lead over.

        What the call has sent goes on without it. Calling this again completes a call of it that
        an interrupt cut short; otherwise it changes nothing.
        """
        me = self._ident()
        with self.lock:
            call.done = True
            if call in self.waiting:
                self.waiting.remove(call)
            if call.leads:
                self._leader = me
                call.leads = False
            if self._leader == me:
                self._hand_over()

    def _hand_over(self) -> None:
        """Give the lead to the next call; repeating it completes one that was interrupted."""
        members = [c for c in self.request.calls if not c.done] if self.request else []
        if not members:
            self.request = None  # no caller waits for its outcome; its timestamp stays issued
        heirs = members or self.waiting
        if not heirs:
            self._leader = None
            return
        heirs[0].leads = True
        if heirs[0].woken is not None:
            heirs[0].woken.set()
        self._leader = 0

    def close(self) -> None:
        """Reject new calls and waiting calls; calls that were sent still get their outcome."""
        with self.lock:
            self._closed = True
            for call in self.waiting:
                if not call.leads:
                    call.finish(error=StoreClosedError("the store was closed"))
            self.waiting = [call for call in self.waiting if not call.done]
