"""The hybrid logical clock: always forward, whatever the wall clock does."""

import itertools
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapkv.clock import HybridClock, ManualClock, SystemClock
from snapkv.errors import InvalidTimeError
from snapkv.times import LOGICAL_BITS, LOGICAL_MASK, PHYSICAL_MS_MAX, TIMESTAMP_MAX, pack


def test_follows_the_wall_clock():
    wall = ManualClock(1_000)
    hybrid = HybridClock(wall)
    assert hybrid.issue() == pack(1_000)
    assert hybrid.issue() == pack(1_000, 1)
    wall.advance(1)
    assert hybrid.issue() == pack(1_001)


def test_a_clock_that_goes_back_counts_on():
    wall = ManualClock(1_000)
    hybrid = HybridClock(wall)
    hybrid.issue()
    wall.set(5)
    assert [hybrid.issue() for _ in range(3)] == [pack(1_000, n) for n in (1, 2, 3)]
    wall.set(1_001)
    assert hybrid.issue() == pack(1_001)


def test_never_at_or_below_what_was_seen():
    hybrid = HybridClock(ManualClock(1_000))
    hybrid.merge(pack(2_000, 9))
    hybrid.merge(pack(1_500))
    assert hybrid.issue() == pack(2_000, 10)
    hybrid.merge(pack(500))
    assert hybrid.issue() == pack(2_000, 11)


def test_logical_overflows_into_the_next_millisecond():
    hybrid = HybridClock(ManualClock(7))
    hybrid.merge(pack(7, (1 << 18) - 1))
    assert hybrid.issue() == pack(8)


def test_a_claim_lies_ahead_and_stays_issued():
    hybrid = HybridClock(ManualClock(1_000))
    assert hybrid.issue(pack(16)) == pack(1_016)
    assert hybrid.issue() == pack(1_016, 1)
    assert hybrid.issue(9) == pack(1_016, 11), "ahead of what was seen, not of the wall alone"
    assert hybrid.issue(at=pack(2_000)) == pack(2_000)
    assert hybrid.issue(at=pack(1_000)) == pack(2_000, 1)
    assert hybrid.reading() == pack(1_000)


def test_the_end_of_64_bits_is_an_error_not_a_wrap():
    hybrid = HybridClock(ManualClock(0))
    hybrid.merge(TIMESTAMP_MAX - 1)
    assert hybrid.issue() == TIMESTAMP_MAX
    for _ in range(2):
        with pytest.raises(InvalidTimeError):
            hybrid.issue()


@pytest.mark.parametrize("now_ms", [-1, PHYSICAL_MS_MAX + 1])
def test_a_wall_clock_out_of_range(now_ms):
    with pytest.raises(InvalidTimeError):
        HybridClock(ManualClock(now_ms)).issue()


STEPS = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 50)),
    st.tuples(st.just("merge"), st.integers(0, pack(60))),
    st.tuples(st.just("issue"), st.integers(0, 3)),
)


@given(st.lists(STEPS, max_size=40))
def test_issues_rise_above_all_issued_seen_and_the_wall(steps):
    wall = ManualClock(0)
    hybrid = HybridClock(wall)
    floor = -1
    for what, value in steps:
        if what == "set":
            wall.set(value)
        elif what == "merge":
            hybrid.merge(value)
            floor = max(floor, value)
        else:
            issued = hybrid.issue(value)
            assert issued == max(floor + 1, pack(wall.now_ms()), 1 if floor < 0 else 0) + value
            floor = issued


def test_threads_never_get_the_same_timestamp():
    hybrid = HybridClock(ManualClock(1))
    issued = [[] for _ in range(4)]
    gate = threading.Barrier(4)

    def issue(mine):
        gate.wait(10)
        mine.extend(hybrid.issue() for _ in range(2_000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=issue, args=(mine,)) for mine in issued]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(interval)
    together = list(itertools.chain(*issued))
    assert len(set(together)) == 8_000
    assert all(mine == sorted(mine) for mine in issued)


def test_the_machines_clock_fills_the_logical_bits():
    hybrid = HybridClock(SystemClock())
    before = time.time_ns()
    issued = [hybrid.issue() for _ in range(100)]
    after = time.time_ns()
    assert (before << LOGICAL_BITS) // 10**6 <= issued[0]
    assert issued[-1] <= (after << LOGICAL_BITS) // 10**6 + len(issued)
    assert issued == sorted(set(issued))
    assert len({stamp & LOGICAL_MASK for stamp in issued}) > 50


def test_another_clock_counts_within_its_milliseconds():
    class Mine(SystemClock):
        def now_ms(self):
            return 5

    hybrid = HybridClock(Mine())
    assert [hybrid.issue(), hybrid.issue()] == [pack(5), pack(5, 1)]


def test_the_system_clock_tells_milliseconds():
    before = int(time.time() * 1_000)
    assert before - 1 <= SystemClock().now_ms() <= int(time.time() * 1_000) + 1
