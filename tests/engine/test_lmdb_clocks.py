"""One process whose clock is ahead moves nobody's time: its commits are refused."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest

import snapkv
from snapkv import ClockSkewError, ClockWarning, ManualClock, pack
from snapkv.times import physical_ms

HOUR_MS = 3_600_000
SLACK_MS = 60_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_clock_ahead_of_the_machines_commits_nothing(path: Path) -> None:
    url, ahead = f"lmdb:{path}", ManualClock(now_ms() + HOUR_MS)
    with snapkv.open(url, clock=ahead) as wrong, snapkv.open(url) as right:
        first = right.save("k", b"right")
        for write in (
            lambda: wrong.save("k", b"wrong"),
            wrong.tick,
            lambda: wrong.at(pack(ahead.now_ms()), final=True),
        ):
            with pytest.raises(ClockSkewError, match="from the machine's by 3") as caught:
                write()
            assert abs(caught.value.skew_ms - HOUR_MS) < SLACK_MS
            assert caught.value.limit_ms == 5_000
        assert wrong.load("k") == b"right", "reading goes on"
        assert right.resolved() == first, "nobody's time was moved"
        assert abs(physical_ms(right.save("k", b"on")) - now_ms()) < SLACK_MS
        ahead.set(now_ms())  # mended: it goes on without opening again
        assert wrong.save("k", b"mended") > first


def test_the_first_commit_of_a_store_is_no_exception(path: Path) -> None:
    with snapkv.open(f"lmdb:{path}", clock=ManualClock(now_ms() + HOUR_MS)) as wrong:
        with pytest.raises(ClockSkewError):
            wrong.save("k", b"wrong")
        assert wrong.resolved() == 0


@pytest.mark.parametrize("ms", [0, 1_000, 1_700_000_000_000])
def test_a_store_may_live_in_the_past(path: Path, ms: int) -> None:
    with snapkv.open(f"lmdb:{path}", clock=ManualClock(ms)) as store:
        assert physical_ms(store.save("k", b"1")) == ms


def test_a_store_that_is_to_live_in_the_future_says_so(path: Path) -> None:
    clock = ManualClock(now_ms() + HOUR_MS)
    with snapkv.open(f"lmdb:{path}", clock=clock, max_clock_skew=7_200) as store:
        assert physical_ms(store.save("k", b"1")) == clock.now_ms()


def test_a_store_that_is_ahead_is_told_of_and_carried_no_further(path: Path) -> None:
    url, ahead = f"lmdb:{path}", ManualClock(now_ms() + HOUR_MS)
    with snapkv.open(url, clock=ahead, max_clock_skew=7_200) as store:
        first = store.save("k", b"1")
    with pytest.warns(ClockWarning, match="ahead of the clock"):
        store = snapkv.open(url)
    with store:
        assert [store.save("k", b"2") - first for _ in range(3)] == [1, 2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClockWarning)
        worse = snapkv.open(url, clock=ManualClock(now_ms() + 2 * HOUR_MS))
    with worse, pytest.raises(ClockSkewError):
        worse.save("k", b"3")
