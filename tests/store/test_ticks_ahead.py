"""A store whose timestamps are ahead of the clock: a tick would say that now is then."""

from __future__ import annotations

from pathlib import Path

import pytest

import snapkv
from snapkv.clock import ManualClock
from snapkv.errors import ClockSkewError

NOW_MS, HOUR_MS, SKEW_MS = 1_700_000_000_000, 3_600_000, 5_000


@pytest.fixture(params=["memory:ahead-{}", "lmdb:{}"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path / "store")


def opened(url: str, now_ms: int) -> snapkv.SnapshotKV:
    return snapkv.open(url, clock=ManualClock(now_ms))


def test_a_tick_beyond_now_and_the_skew_is_refused(url: str) -> None:
    with opened(url, NOW_MS) as store:
        before = store.save("k", b"1")
        with opened(url, NOW_MS + HOUR_MS) as fast:
            ahead = fast.save("k", b"2")
        store.load("k")
        with pytest.raises(ClockSkewError) as caught:
            store.tick()
        assert caught.value.limit_ms == SKEW_MS
        assert HOUR_MS <= caught.value.skew_ms <= HOUR_MS + 1
        assert store.resolved() == ahead, "nothing was written"
        assert before < store.save("k", b"3"), "commits go on behind it"
        store._core.clock.wall.advance(HOUR_MS)
        assert store.tick().ts > ahead


def test_a_tick_within_the_skew_is_none_of_that(url: str) -> None:
    with opened(url, NOW_MS) as store:
        with opened(url, NOW_MS + SKEW_MS - 1) as fast:
            ahead = fast.save("k", b"2")
        assert store.tick().ts > ahead
