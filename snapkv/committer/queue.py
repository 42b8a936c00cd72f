"""Who leads and who waits: the queue of callers, and the handing over of the lead."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from snapkv.clock import monotonic
from snapkv.committer.request import Attempt
from snapkv.errors import NestedCommitError, StoreClosedError
from snapkv.model import Build, Commit


class Signal:
    """Wakes the one thread that waits for it; an `Event` would take ten times as long.

    `set` is called under the lock of the queue, so no two threads call it at once.
    """

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken = threading.Lock()
        self._taken.acquire()

    def set(self) -> None:
        """Let the waiting thread go on, or the one that comes to wait."""
        if self._taken.locked():
            self._taken.release()

    def wait(self, timeout: float) -> None:
        """Wait until `set` was called, or for `timeout` seconds."""
        self._taken.acquire(timeout=timeout)


@dataclass(slots=True, eq=False)
class Call:
    """One caller's commit, from the queue to its outcome.

    `done` is set once, under the turnstile's lock: with the outcome, or because its caller left.
    """

    build: Build
    deadline: float
    at_least: int = 0
    is_tick: bool = False
    alone: bool = False  # a group with it was refused, and nobody knows for whose sake
    woken: Signal | None = None
    """Of one that has to wait, for its outcome or for the lead."""
    leads: bool = False
    done: bool = False
    result: Commit | None = None
    error: BaseException | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self.deadline - monotonic())

    def finish(self, *, result: Commit | None = None, error: BaseException | None = None) -> None:
        """Tell the outcome, unless the caller has left or was told; call it under the lock."""
        if not self.done:
            self.result, self.error, self.done = result, error, True
            if self.woken is not None:
                self.woken.set()


class Turnstile:
    """A queue of calls of which one leads; no thread of its own.

    The first to come leads at once. A leader that leaves passes the lead on: first to a caller
    whose transaction is still open (`attempt`), then to the one that waits longest.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.queue: list[Call] = []
        self.attempt: Attempt[Call] | None = None
        self._leader: int | None = None  # thread id; 0 while the next one wakes
        self._closed = False

    def enter(self, call: Call) -> None:
        """Join the queue; `call.leads` tells whether to lead at once."""
        with self.lock:
            if self._leader == threading.get_ident():
                raise NestedCommitError("commit() called from inside a function given to commit()")
            if self._closed:
                raise StoreClosedError("the store was closed")
            if self._leader is not None:
                call.woken = Signal()  # before others see it
            self.queue.append(call)
            if self._leader is None:
                call.leads = True  # first, so that an interrupt here cannot lose the lead
                self._leader = threading.get_ident()

    def wait(self, call: Call) -> bool:
        """Wait for an outcome or for the lead until the deadline; return whether to lead."""
        if not call.leads and call.woken is not None:
            call.woken.wait(call.left_s)
        with self.lock:
            if call.leads:
                self._leader = threading.get_ident()
            return call.leads and not call.done

    def leave(self, call: Call) -> None:
        """Let a caller go, with or without an outcome; what it sent goes on without it.

        Doing it again completes one that an interrupt cut short, and else changes nothing.
        """
        me = threading.get_ident()
        with self.lock:
            call.done = True
            if call in self.queue:
                self.queue.remove(call)
            if call.leads:
                self._leader = me
                call.leads = False
            if self._leader == me:
                self._pass_on()

    def _pass_on(self) -> None:
        """Give the lead away; wherever it is cut short, doing it again completes it."""
        riders = [c for c in self.attempt.calls if not c.done] if self.attempt else []
        if not riders:
            self.attempt = None  # nobody is left to tell; its timestamp stays issued
        waiting = riders or self.queue
        if not waiting:
            self._leader = None
            return
        waiting[0].leads = True
        if waiting[0].woken is not None:
            waiting[0].woken.set()
        self._leader = 0

    def close(self) -> None:
        """Refuse newcomers and those who wait; what is in flight is told when it is settled."""
        with self.lock:
            self._closed = True
            for call in self.queue:
                if not call.leads:
                    call.finish(error=StoreClosedError("the store was closed"))
            self.queue = [call for call in self.queue if not call.done]
