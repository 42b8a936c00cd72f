"""Hybrid clocks with the machine's time know in common what any of them has issued or seen."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import snapkv
from snapkv import clock as clocks
from snapkv.clock import HybridClock, ManualClock, SharedFloor, SystemClock
from snapkv.errors import ClockSkewError, InvalidTimeError, InvalidTypeError
from snapkv.times import TIMESTAMP_MAX, pack

NOW_MS, SKEW_MS, HOUR_MS = 1_700_000_000_000, 5_000, 3_600_000
NOW = pack(NOW_MS)


class Wall:
    """The machine's clock, which moves only when it is set."""

    ms: ClassVar[int]


@contextmanager
def new_process() -> Iterator[None]:
    """Let the machine's clock show `Wall.ms`, in a process that has issued and seen nothing."""
    Wall.ms = NOW_MS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemClock, "now_ns", staticmethod(lambda: Wall.ms * clocks.NS_PER_MS))
        patch.setattr(SystemClock, "now_ms", lambda self: Wall.ms)
        patch.setattr(clocks, "_machine_floor", SharedFloor())
        yield


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    with new_process():
        yield


def machine_clock(skew_ms: int = SKEW_MS) -> HybridClock:
    return HybridClock(SystemClock(), skew_ms)


def test_each_issues_more_than_the_other_one_issued():
    a, b = machine_clock(), machine_clock()
    assert [a.issue(), b.issue(), b.issue(), a.issue()] == [NOW + n for n in range(4)]
    claimed = a.issue(pack(20))
    assert b.issue() == claimed + 1
    Wall.ms += 30
    assert b.issue() == pack(NOW_MS + 30)


def test_each_issues_more_than_the_other_one_saw():
    a, b = machine_clock(), machine_clock()
    a.merge(pack(NOW_MS + 100))
    assert b.issue() == pack(NOW_MS + 100, 1)
    a.merge(pack(NOW_MS + 50))
    assert b.issue() == pack(NOW_MS + 100, 2)
    assert machine_clock().issue() == pack(NOW_MS + 100, 3), "of a store that is opened later, too"


def test_what_is_beyond_the_skew_moves_only_the_clock_that_saw_it():
    a, b = machine_clock(), machine_clock()
    at_the_limit = pack(NOW_MS + SKEW_MS)
    a.merge(at_the_limit + 1)
    assert b.issue() == NOW, "refused, not followed"
    assert a.issue() == at_the_limit + 2, "but a store's own history is never left behind"
    a, b = machine_clock(), machine_clock()
    a.merge(at_the_limit)
    assert b.issue() == at_the_limit + 1


def test_a_store_in_the_future_counts_on_and_drives_no_other_one():
    future, other = machine_clock(), machine_clock()
    future.merge(pack(NOW_MS + HOUR_MS))
    assert [future.issue() for _ in range(3)] == [pack(NOW_MS + HOUR_MS, n) for n in (1, 2, 3)]
    assert other.issue() == NOW
    Wall.ms += HOUR_MS
    assert future.issue() == pack(Wall.ms, 4)
    assert other.issue() == pack(Wall.ms, 5), "now it is not ahead any more"


def test_a_store_with_a_large_skew_drives_only_those_that_allow_as_much():
    large, usual, small = (machine_clock(ms) for ms in (2 * HOUR_MS, SKEW_MS, 10))
    also_large = machine_clock(2 * HOUR_MS)
    large.merge(pack(NOW_MS + HOUR_MS))
    assert (usual.issue(), small.issue()) == (NOW, NOW + 1)
    assert also_large.issue() == pack(NOW_MS + HOUR_MS, 1)
    usual.merge(pack(NOW_MS + 1_000))
    assert small.issue() == NOW + 2
    assert usual.issue() == pack(NOW_MS + 1_000, 1)
    usual.merge(pack(NOW_MS + 9))
    assert small.issue() == pack(NOW_MS + 9, 1), "the larger one before does not hide it"


def test_a_small_skew_is_also_a_limit_for_what_is_passed_on():
    small, usual = machine_clock(10), machine_clock()
    small.merge(pack(NOW_MS + 11))
    assert usual.issue() == NOW


def test_a_store_of_a_new_skew_follows_what_is_in_its_reach():
    machine_clock().merge(pack(NOW_MS + 100))
    machine_clock(2 * HOUR_MS).merge(pack(NOW_MS + HOUR_MS))
    assert machine_clock(1_000).issue() == pack(NOW_MS + 100, 1)
    assert machine_clock(99).issue() == NOW


def test_a_clock_of_another_kind_is_alone():
    class Mine(SystemClock):
        pass

    machines, manual, mine = machine_clock(), HybridClock(ManualClock(NOW_MS)), HybridClock(Mine())
    for clock in (machines, manual, mine):
        clock.merge(pack(NOW_MS + 100))
        assert clock.issue() == pack(NOW_MS + 100, 1)
    for clock in (machine_clock(), HybridClock(ManualClock(NOW_MS + 200)), HybridClock(Mine())):
        clock.merge(pack(NOW_MS + 300))
    assert manual.issue() == mine.issue() == pack(NOW_MS + 100, 2)
    assert machines.issue() == pack(NOW_MS + 300, 1)


def test_a_wall_clock_that_is_set_back_leaves_the_others_on_it():
    """A clock that jumped ahead for a moment must not move every store of the process."""
    jumped, other = machine_clock(), machine_clock()
    Wall.ms += HOUR_MS
    assert jumped.issue() == pack(NOW_MS + HOUR_MS)
    Wall.ms = NOW_MS
    assert other.issue() == NOW
    assert jumped.issue() == pack(NOW_MS + HOUR_MS, 1), "counts on, as always"
    third = machine_clock()
    third.merge(pack(NOW_MS + 7))
    assert other.issue() == pack(NOW_MS + 7, 1), "they have each other again"


# skew in ms of three clocks; then: whose turn, what it does, by how much
WALKS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["issue", "merge", "wait"]), st.integers(0, pack(60))
    ),
    max_size=40,
)


@given(st.tuples(*[st.sampled_from([1, 5, 20, 40])] * 3), WALKS)
def test_issues_rise_above_all_that_is_in_the_reach_of_both(skews, steps):
    """The oracle keeps every timestamp with the reach of who has issued or seen it."""
    with new_process():
        hybrids = [machine_clock(skew) for skew in skews] + [HybridClock(ManualClock(NOW_MS))]
        own, known = [0] * 4, []

        for who, what, amount in steps:
            if what == "wait":
                Wall.ms += amount % 30
                continue
            now = pack(Wall.ms)
            if what == "merge":
                timestamp = now + amount
                hybrids[who].merge(timestamp)
            else:
                wall = NOW if who == 3 else now
                floors = [0]
                if who < 3:
                    floors += [seen for seen, ahead in known if ahead <= pack(skews[who])]
                alone = max(wall, own[who] + 1) + amount % 3
                timestamp = hybrids[who].issue(amount % 3)
                assert timestamp == max(alone, max(floors) + 1)
            own[who] = max(own[who], timestamp)
            if who < 3 and timestamp - now <= pack(skews[who]):
                known.append((timestamp, timestamp - now))


def test_threads_with_clocks_of_their_own_never_get_the_same_timestamp():
    issued: list[list[int]] = [[] for _ in range(4)]
    gate = threading.Barrier(4)

    def issue(mine: list[int]) -> None:
        hybrid = machine_clock()
        gate.wait(10)
        mine.extend(hybrid.issue() for _ in range(1_000))

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
    assert sorted(ts for mine in issued for ts in mine) == [NOW + n for n in range(4_000)]


@pytest.mark.forks
def test_a_child_does_not_wait_for_the_lock_of_its_parent():
    hybrid = machine_clock()
    last = hybrid.issue()
    with hybrid._shared.lock:
        pid = os.fork()
        if pid == 0:
            hybrid.merge(last + 1)
            os._exit(0 if machine_clock().issue() == last + 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert hybrid.issue() == last + 1, "what a child sees, its parent does not"


# --- timestamps from outside ---


def test_commits_after_a_timestamp_from_outside():
    early, small = machine_clock(), machine_clock(10)
    snapkv.commit_after(pack(NOW_MS + 100))
    assert early.issue() == pack(NOW_MS + 100, 1)
    assert small.issue() == pack(NOW_MS + 100, 1), "also above its own skew: it was asked for"
    assert machine_clock().issue() == pack(NOW_MS + 100, 2)
    snapkv.commit_after(pack(NOW_MS + 50))
    assert small.issue() == pack(NOW_MS + 100, 2)
    assert HybridClock(ManualClock(NOW_MS)).issue() == NOW


def test_the_beginning_is_a_timestamp():
    snapkv.commit_after(0)
    assert machine_clock().issue() == NOW


def test_a_timestamp_too_far_ahead_is_refused():
    limit = pack(NOW_MS + SKEW_MS)
    snapkv.commit_after(limit)
    with pytest.raises(
        ClockSkewError, match=r"2023-11-14T22:13:25.100Z is 5100 ms ahead"
    ) as caught:
        snapkv.commit_after(limit + pack(100))
    assert (caught.value.skew_ms, caught.value.limit_ms) == (SKEW_MS + 100, SKEW_MS)
    assert machine_clock().issue() == limit + 1, "it moves nothing"
    snapkv.commit_after(limit + pack(100), max_clock_skew=6.0)
    assert machine_clock().issue() == limit + pack(100) + 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (NOW_MS, InvalidTimeError),
        (17, InvalidTimeError),
        (-1, InvalidTimeError),
        (TIMESTAMP_MAX + 1, InvalidTimeError),
        ("-5m", InvalidTypeError),
        (None, InvalidTypeError),
        (1.5, InvalidTypeError),
        (True, InvalidTypeError),
    ],
)
def test_what_is_not_a_timestamp(given, error):
    with pytest.raises(error):
        snapkv.commit_after(given)
    assert machine_clock().issue() == NOW
