"""The writer lock of one process: who waits for it, who was interrupted, who closes it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

import pytest

from snapkv.engine.lmdb.lock import WriterLock
from snapkv.errors import StoreClosedError

WAIT_S = 20.0


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[WriterLock]:
    found = WriterLock.open(str(tmp_path), 0o600)
    yield found
    found.close()


class Waiting(threading.Thread):
    """A thread that takes the lock and gives it back; `outcome` is what came of it."""

    def __init__(self, lock: WriterLock) -> None:
        super().__init__()
        self._lock, self.outcome = lock, "nothing"
        self.start()
        queued = threading.Event()
        while not lock._waiting and lock.owner != self.ident and self.is_alive():
            queued.wait(0.001)

    def run(self) -> None:
        try:
            self._lock.acquire(WAIT_S)
            self.outcome = "acquired"
        except BaseException as e:
            self.outcome = type(e).__name__
        finally:
            self._lock.release()


def release_interrupted(lock: WriterLock, place: int) -> bool:
    """Release, and again after an interrupt at the so-manieth step; return whether one came."""
    left = place

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        nonlocal left
        if sys.version_info[:2] == (3, 14) and getattr(arg, "__name__", "") == "__enter__":
            return  # Python 3.14 alone enters `with` in two steps: docs/install.md
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(
            ("lmdb/lock.py", "threading.py")
        ):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        lock.release()
    except KeyboardInterrupt:
        lock.release()
        return True
    finally:
        sys.setprofile(None)
    return False


def test_an_interrupted_release_hands_it_on(lock: WriterLock) -> None:
    place = 1
    while True:
        lock.acquire(WAIT_S)
        waiting = Waiting(lock)
        came = release_interrupted(lock, place)
        waiting.join(WAIT_S)
        assert waiting.outcome == "acquired", f"interrupted at step {place}"
        assert (lock.owner, list(lock._waiting)) == (None, [])
        if not came:
            return
        place += 1


def test_who_was_interrupted_while_queueing_has_left(lock: WriterLock) -> None:
    class Interrupted(deque[int]):
        def append(self, thread: int) -> None:
            super().append(thread)
            raise KeyboardInterrupt

    lock.acquire(WAIT_S)
    lock._waiting = Interrupted()
    waiting = Waiting(lock)
    waiting.join(WAIT_S)
    assert waiting.outcome == "KeyboardInterrupt"
    lock.release()
    lock.acquire(0.0)
    lock.release()


def test_a_lock_that_is_closed_meanwhile(lock: WriterLock) -> None:
    lock.acquire(WAIT_S)
    waiting = Waiting(lock)
    lock.close()
    lock.release()
    waiting.join(WAIT_S)
    assert waiting.outcome == "StoreClosedError"
    with suppress(StoreClosedError):
        lock.acquire(0.0)
        pytest.fail("it is closed")


def test_a_lock_that_is_closed_while_another_process_has_it(
    lock: WriterLock, tmp_path: Path
) -> None:
    other = WriterLock.open(str(tmp_path), 0o600)  # its `flock` is one of its own
    other.acquire(0.0)
    waiting = Waiting(lock)
    lock.close()
    with (tmp_path / "next").open("wb+") as file:  # may get the number of the closed descriptor
        waiting.join(WAIT_S)
        assert not file.read(), "the lock wrote its process id into another file"
    assert waiting.outcome == "StoreClosedError"
    assert lock._fd is None
    other.release()
    other.close()
