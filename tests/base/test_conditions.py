"""Conditions of threads: Ctrl-C or a signal handler at every place where Python runs one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

import snapkv
import snapkv.coordination.session as session_module
from snapkv.base import concurrency
from snapkv.base.concurrency import Flag, ThreadCondition
from snapkv.errors import StoreClosedError

WAIT_S = 20.0
PLACES_MAX = 2_000
TIMEOUT_S = 0.001
ENTERS_IN_TWO_STEPS = sys.version_info[:2] == (3, 14)
"""Python 3.14 alone runs signal handlers when `with` has taken a lock and its block has not begun:
no program can keep its locks from staying taken there."""


def signalled_at(place: int, run: Callable[[], object], act: Callable[[], object]) -> bool:
    """Run a function, and `act` at the `place`-th place inside; return whether there are fewer."""
    left = place

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        inside = frame.f_code.co_filename.endswith("threading.py") or (
            "/snapkv/" in frame.f_code.co_filename
        )
        if (
            inside
            and event in ("call", "c_return")
            and not (ENTERS_IN_TWO_STEPS and getattr(argument, "__name__", "") == "__enter__")
        ):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                act()

    sys.setprofile(profile)
    try:
        run()
    except (KeyboardInterrupt, StoreClosedError):
        pass
    finally:
        sys.setprofile(None)
    return left > 0


def interrupt() -> None:
    raise KeyboardInterrupt


def ends(function: Callable[[], object]) -> bool:
    """Return whether another thread can call a function."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return not thread.is_alive()


def test_an_interrupt_leaves_no_lock_taken() -> None:
    condition = ThreadCondition()

    def waits() -> None:
        with condition:
            condition.wait(TIMEOUT_S)
            condition.notify_all()

    def enters() -> None:
        with condition:
            pass

    place = 1
    while not signalled_at(place, waits, interrupt):
        assert ends(enters), f"interrupted at place {place}"
        place += 1
    assert place > 5


def test_it_wakes_those_that_wait() -> None:
    condition, found = ThreadCondition(), list[bool]()
    ready, news = threading.Event(), False

    def waits() -> None:
        with condition:
            ready.set()
            found.append(condition.wait_for(lambda: news, WAIT_S))

    waiting = threading.Thread(target=waits, daemon=True)
    waiting.start()
    assert ready.wait(WAIT_S)
    with condition:
        condition.notify()  # without news it waits on
        news = True
        condition.notify_all()
    waiting.join(WAIT_S)
    assert found == [True]
    with condition:
        assert not condition.wait(TIMEOUT_S)
        assert not condition.wait_for(lambda: False, TIMEOUT_S)


@pytest.mark.parametrize("act", ["load", "save", "watch"])
def test_an_interrupt_leaves_a_memory_store_usable(act: str) -> None:
    with snapkv.open("memory:") as store:
        store.save("k", b"0")
        place = 1
        while True:
            acts = {
                "load": lambda: store.load("k"),
                "save": lambda: store.save("k", b"1"),
                "watch": lambda: store.watch().next(TIMEOUT_S),
            }
            over = signalled_at(place, acts[act], interrupt)
            assert ends(lambda: store.save("k", b"2")), f"interrupted at place {place}"
            assert store.load("k") == b"2"
            if over:
                break
            place += 1
            assert place < PLACES_MAX


@pytest.mark.parametrize("engine", ["memory", "lmdb"])
def test_a_handler_closes_the_watch_that_its_thread_reads(engine: str, tmp_path: Path) -> None:
    store = snapkv.open("memory:" if engine == "memory" else f"lmdb:{tmp_path}")
    store.save("k", b"0")
    over = False

    def reads(place: int) -> None:
        nonlocal over
        with store.watch() as watch:
            over = signalled_at(place, lambda: watch.next(TIMEOUT_S), watch.close)

    place = 1
    while not over:
        assert ends(partial(reads, place)), f"the handler came at place {place}"
        place += 1
        assert place < PLACES_MAX
    store.close()  # after a failure it would hang, too


@pytest.mark.parametrize("by", ["interrupt", "handler"])
@pytest.mark.parametrize("act", ["alive", "wait_lost", "renew", "close"])
def test_a_session_that_is_interrupted_ends_with_its_store(
    act: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the keeper may wait for a lock that the thread of the handler has
    monkeypatch.setattr(session_module, "CLOSE_S", 0.01)
    over = False

    def closes(store: snapkv.SnapshotKV, place: int) -> None:
        nonlocal over
        session = store.session(60)
        acts = {
            "alive": lambda: session.alive,
            "wait_lost": lambda: session.wait_lost(TIMEOUT_S),
            "renew": session.renew,
            "close": session.close,
        }
        end = interrupt if by == "interrupt" else session.close
        over = signalled_at(place, acts[act], end)
        store.close()

    place = 1
    while not over:
        store = snapkv.open("memory:")
        assert ends(partial(closes, store, place)), f"interrupted at place {place}"
        place += 1
        assert place < PLACES_MAX


@pytest.mark.slow
def test_no_writer_of_a_memory_store_starves() -> None:
    stores = [snapkv.open("memory:writers") for _ in range(4)]
    counts, enough = [0] * len(stores), threading.Event()

    def saves(own: int) -> None:
        while not enough.is_set():
            stores[own].save("k", b"1")
            counts[own] += 1
            if counts[own] >= 1_000:
                enough.set()

    threads = [threading.Thread(target=saves, args=(own,)) for own in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert min(counts) >= 10, counts
    for store in stores:
        store.close()


@pytest.mark.parametrize("place", range(1, 5))
def test_an_event_that_a_handler_sets_ends_the_wait_of_its_own_thread(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody wakes a thread that does not wait yet, so it looks by itself."""
    monkeypatch.setattr(concurrency, "LOOK_S", 0.01)
    event = Flag(ThreadCondition())
    assert ends(lambda: signalled_at(place, event.wait, event.set))
