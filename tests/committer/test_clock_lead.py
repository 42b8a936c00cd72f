"""The fastest clock: learned from lost rounds, followed for a short time, bounded."""

from __future__ import annotations

import pytest

from snapkv.committer import backoff as backoff_module
from snapkv.committer.backoff import FORGET_S, LEAD_MS_MAX, FastestClock
from snapkv.layout import StampRecord
from snapkv.times import pack

NOW = pack(1_000_000)
SKEW_MS = 5_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [50.0]
    monkeypatch.setattr(backoff_module, "monotonic", lambda: clock[0])
    return clock


def lost_to(stamp: StampRecord, *, sent: int = NOW, skew_ms: int = SKEW_MS) -> FastestClock:
    """Return the fastest clock after one round that was lost to a stamp, answered at `NOW`."""
    fastest = FastestClock(skew_ms)
    fastest.learn(stamp, sent, NOW)
    return fastest


def test_nothing_is_followed_before_a_round_is_lost() -> None:
    assert FastestClock(SKEW_MS).followed(NOW) == NOW


def test_a_faster_clock_is_followed_as_time_passes(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    assert fastest.followed(NOW) == NOW + pack(50)
    now[0] += 0.25
    assert fastest.followed(NOW + pack(250)) == NOW + pack(300)


def test_own_time_counts_where_it_is_later(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    assert fastest.followed(NOW + pack(60)) == NOW + pack(60), "the clock was set forward"
    assert lost_to(StampRecord(NOW - pack(50))).followed(NOW) == NOW


def test_half_of_the_flight_is_added(now: list[float]) -> None:
    """The stamp was compared half way, and its clock has gone on since."""
    fastest = lost_to(StampRecord(NOW + pack(50)), sent=NOW - pack(4))
    assert fastest.followed(NOW) == NOW + pack(52)


def test_a_claim_is_not_followed_only_the_clock_behind_it(now: list[float]) -> None:
    stamp = StampRecord(NOW + pack(50), ahead=pack(32))
    assert lost_to(stamp).followed(NOW) == NOW + pack(18)


def test_many_that_follow_each_other_do_not_run_away(now: list[float]) -> None:
    """Each claims more than the one before it, and none learns more than the fastest clock."""
    fast = lost_to(StampRecord(NOW + pack(50)))
    for _ in range(100):
        issued = fast.followed(NOW) + pack(32)
        other = lost_to(StampRecord(issued, ahead=issued - NOW))
        assert other.followed(NOW) == NOW
        fast.learn(StampRecord(issued, ahead=issued - NOW), NOW, NOW)
    assert fast.followed(NOW) == NOW + pack(50)


def test_it_is_forgotten(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    now[0] += FORGET_S
    later = NOW + pack(round(FORGET_S * 1_000))
    assert fastest.followed(later) == later


def test_a_slower_clock_does_not_replace_a_faster_one(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    fastest.learn(StampRecord(NOW + pack(20)), NOW, NOW)
    assert fastest.followed(NOW) == NOW + pack(50)


@pytest.mark.parametrize(
    ("ahead_ms", "skew_ms", "followed"),
    [
        (LEAD_MS_MAX, SKEW_MS, True),
        (LEAD_MS_MAX + 1, SKEW_MS, False),
        (50, 50, True),
        (51, 50, False),
        (1, 0, False),
    ],
)
def test_a_clock_beyond_the_bounds_is_not_followed(
    now: list[float], ahead_ms: int, skew_ms: int, followed: bool
) -> None:
    fastest = lost_to(StampRecord(NOW + pack(ahead_ms)), skew_ms=skew_ms)
    assert fastest.followed(NOW) == NOW + pack(ahead_ms if followed else 0)


def test_a_clock_that_is_set_back_goes_on_with_its_lead(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    back = NOW - pack(LEAD_MS_MAX)
    assert fastest.followed(back) == back + pack(50)


def test_a_clock_that_stands_still_is_not_left_behind(now: list[float]) -> None:
    fastest = lost_to(StampRecord(NOW + pack(50)))
    now[0] += 0.5
    assert fastest.followed(NOW) == NOW + pack(50)


def test_a_fence_teaches_nothing(now: list[float]) -> None:
    fence = StampRecord(NOW + pack(50), fence_of=bytes(16))
    assert lost_to(fence).followed(NOW) == NOW
