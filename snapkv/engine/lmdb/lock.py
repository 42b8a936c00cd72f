r"""Locks of a store: one writer at a time, and one thread of a process alone; bounded waits.

`WriterLock` is for all threads and processes, `Access` for the threads of this process that use the
LMDB environment.

LMDB has a writer mutex of its own, but waiting for it cannot be bounded. So all writers take the
`WriterLock` first, and find that mutex free. The lock is `flock` on `writer.lock`; the kernel
frees it when its holder dies. Bytes of that file: 0..11 `snapkv lmdb\n` once the store is
complete, 16..31 the process id of the last holder, for messages.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from snapkv.base import files
from snapkv.base.waiting import bounded, monotonic, pause
from snapkv.errors import EngineBusyError, ReadOnlyError, StoreClosedError, StoreNotFoundError

LOCK_FILE = "writer.lock"
MARKER = b"snapkv lmdb\n"
_PID_OFFSET, _PID_BYTES = 16, 16
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 50e-6, 2e-3
WAIT_SECONDS_MAX = 30.0
_OWNER = "owner"


class WriterLock:
    """Held by one thread of one process; threads of this process take it in turn.

    Call `acquire` inside a `try` that ends with `release`, which frees the lock if this thread
    holds it, and does nothing otherwise: so an interrupt loses nothing.
    """

    def __init__(self, path: str, fd: int | None) -> None:
        self.path, self._fd = path, fd
        # `with` on the plain lock, not on the condition: entering and leaving it is one step, so an
        # interrupt cannot come between taking the lock and entering the block
        self._mutex = threading.Lock()
        self._released = threading.Condition(self._mutex)
        self.owner: int | None = None
        """The thread that holds the lock, or is about to take it."""
        self._waiting: deque[int] = deque()
        self.closed = False

    @classmethod
    def open(cls, directory: str, mode: int) -> WriterLock:
        """Open the lock file of a directory; raises `OSError` when it cannot be written.

        A new file gets the permissions `mode`.
        """
        path = os.path.join(directory, LOCK_FILE)
        return cls(path, files.open_made(path, mode))

    @property
    def readonly(self) -> bool:
        """Whether the lock file could not be opened for writing."""
        return self._fd is None and not self.closed

    def acquire(self, timeout: float) -> None:
        """Take the lock within `timeout` seconds or raise `EngineBusyError`, naming the holder."""
        if self._fd is None and not self.closed:
            raise ReadOnlyError(f"{self.path}: the store is open for reading only")
        deadline = None
        with self._mutex:
            is_free = self.owner is None
            if is_free:
                self.owner = threading.get_ident()
        if not is_free:
            deadline = monotonic() + max(0.0, timeout)
            self._queue(deadline)
        fd = self._fd
        if fd is None or self.closed:
            raise StoreClosedError("the engine was closed")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            deadline = deadline or monotonic() + max(0.0, timeout)
            self._poll_flock(fd, timeout, deadline)
        if os.fstat(fd).st_nlink == 0:
            raise StoreNotFoundError(f"{self.path}: the store was removed while it was open")
        try:
            ours = b"%-15d\n" % os.getpid()
            # A write makes the commit's fdatasync wait for the file system's journal, too.
            if os.pread(fd, _PID_BYTES, _PID_OFFSET) != ours:
                os.pwrite(fd, ours, _PID_OFFSET)
        except OSError:
            pass  # the number is for messages only

    def release(self) -> None:
        """Free the lock if this thread holds it, and hand it to the thread that waits longest."""
        if self.owner != threading.get_ident():
            return
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        with self._mutex:
            if self._waiting:
                self._released.notify_all()  # first: after an interrupt the rest is done again
            self.owner = self._waiting[0] if self._waiting else None  # it leaves the queue itself
            if self.closed and self.owner is None:
                self._close_file()

    def held(self) -> bool:
        """Return whether this thread holds the lock."""
        return self.owner == threading.get_ident()

    def _queue(self, deadline: float) -> None:
        me = threading.get_ident()
        with self._mutex:
            if self.owner == me:
                raise EngineBusyError("this thread is inside a transaction already")
            if self.owner is None:
                self.owner = me
                return
            try:
                self._waiting.append(me)
                while self.owner != me:
                    left = deadline - monotonic()
                    if left <= 0:
                        raise EngineBusyError("another thread of this process holds the lock")
                    self._released.wait(left)
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)

    def _poll_flock(self, fd: int, timeout: float, deadline: float) -> None:
        for _ in _pauses(deadline - monotonic()):
            if self.closed:
                raise StoreClosedError("the engine was closed")
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
        raise EngineBusyError(
            f"{self.path}: process {self.holder()} has held the write lock for {timeout:g} s "
            "or more"
        )

    def holder(self) -> str:
        """Return the process id of the last holder as text, `?` when there was none."""
        if self._fd is None:
            return "?"
        text = os.pread(self._fd, _PID_BYTES, _PID_OFFSET).strip(b"\0 \n")
        return text.decode("ascii", "replace") or "?"

    def marked(self) -> bool:
        """Return whether the store was created completely."""
        return self._fd is not None and os.pread(self._fd, len(MARKER), 0) == MARKER

    def mark_complete(self) -> None:
        """Remember that the store is complete: from now on a missing data file is damage."""
        if self._fd is not None:
            os.pwrite(self._fd, MARKER, 0)

    def close(self) -> None:
        """Close the file, or let the thread that has the lock, or waits for `flock`, close it.

        That thread uses the descriptor, whose number would go to the next file that is opened.
        """
        self.closed = True
        with self._mutex:
            if self.owner is None:
                self._close_file()

    def abandon(self) -> None:
        """Close the file in a forked child, which has no other thread.

        The lock stays with the parent: closing a copy of its descriptor frees nothing, while
        unlocking there would.
        """
        self.closed = True
        self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


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
    def exclusive(self) -> Iterator[None]:
        """Have exclusive access inside; `EngineBusyError` when the other threads do not leave."""
        try:
            if not self.acquire(WAIT_SECONDS_MAX):
                raise EngineBusyError("a transaction of another thread does not end")
            yield
        finally:
            self.release()

    @contextmanager
    def pause_others(self) -> Iterator[None]:
        """Let the other threads leave, for a thread that has entered itself.

        If another thread is already waiting for exclusive access, do not claim it too: that thread
        waits for us, so both would deadlock. Its claim makes the remaining threads leave anyway.
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
