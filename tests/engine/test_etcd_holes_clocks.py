"""The hole H13: clocks that are wrong, judged against the Date of a real server."""

from __future__ import annotations

import time

import pytest
from etcd_server import EtcdServer

import snapkv
from snapkv import ClockSkewError, ClockWarning, ManualClock, pack
from snapkv.times import physical_ms

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def raw_state(etcd: EtcdServer) -> tuple[int, bytes]:
    found = etcd.gateway.get(b"default/sys/ts")
    assert found is not None
    return etcd.gateway.revision(), found.value


@pytest.mark.parametrize("wrong_ms", [HOUR_MS, -HOUR_MS])
def test_h13_a_wrong_clock_commits_nothing(etcd: EtcdServer, wrong_ms: int) -> None:
    clock = ManualClock(now_ms() + wrong_ms)
    with snapkv.open(etcd.url, clock=clock) as store:
        before = raw_state(etcd)
        for write in (lambda: store.save("k", b"v"), store.tick, lambda: store.remove("k")):
            with pytest.raises(ClockSkewError) as caught:
                write()
            assert abs(caught.value.skew_ms - wrong_ms) < 60_000
            assert caught.value.limit_ms == 5_000
        assert raw_state(etcd) == before
        clock.set(now_ms())  # mended: it goes on without opening again
        assert physical_ms(store.save("k", b"v")) == clock.now_ms()


@pytest.mark.parametrize("wrong_ms", [3_000, -3_000])
def test_h13_a_clock_within_bounds_commits(etcd: EtcdServer, wrong_ms: int) -> None:
    clock = ManualClock(now_ms() + wrong_ms)
    with snapkv.open(etcd.url, clock=clock, max_clock_skew=30.0) as store:
        assert physical_ms(store.save("k", b"v")) == clock.now_ms()


def test_h13_the_bound_can_be_set(etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url, clock=ManualClock(now_ms() - HOUR_MS), max_clock_skew=7_200) as slow:
        slow.save("k", b"slow")
    with (
        snapkv.open(etcd.url, clock=ManualClock(now_ms() - 60_000), max_clock_skew=10) as slow,
        pytest.raises(ClockSkewError, match=r"-\d+ ms, more than max_clock_skew \(10000 ms\)"),
    ):
        slow.save("k", b"slower")


def test_h13_a_far_future_is_not_made_final(etcd: EtcdServer) -> None:
    with snapkv.open(etcd.url) as store:
        store.save("k", b"v")
        before = raw_state(etcd)
        far = pack(now_ms() + HOUR_MS)
        with pytest.raises(ClockSkewError) as caught:
            store.at(far, final=True)
        assert abs(caught.value.skew_ms - HOUR_MS) < 60_000
        with pytest.raises(ClockSkewError):
            store.resolve(far, bytes(16))
        assert raw_state(etcd) == before, "the clock of the store was spoiled"
        near = pack(now_ms() + 1_000)
        assert store.at(near, final=True).final
        assert store.resolved() >= near


def test_h13_a_store_that_is_ahead_is_told_of_and_followed(etcd: EtcdServer) -> None:
    ahead = ManualClock(now_ms() + HOUR_MS)
    with snapkv.open(etcd.url, clock=ahead, max_clock_skew=7_200) as fast:
        first = fast.save("k", b"fast")
    with pytest.warns(ClockWarning, match="ahead of the clock"):
        store = snapkv.open(etcd.url)
    with store:
        second = store.save("k", b"right")
        assert second > first
        assert physical_ms(second) == physical_ms(first)
        assert store.load("k", first) == b"fast"
