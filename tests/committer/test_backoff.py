"""Rounds lost to other writers: the claim, the wait, and when the last round begins."""

from __future__ import annotations

import random

import pytest

from snapkv.clock import HybridClock, ManualClock
from snapkv.committer import backoff as backoff_module
from snapkv.committer.backoff import (
    AGE_AFTER,
    AGE_FLIGHTS,
    AGE_MS_MAX,
    BACKOFF_DOUBLINGS_MAX,
    BACKOFF_S_MAX,
    CLAIM_FLIGHT_MS_MAX,
    CLAIM_FLIGHTS,
    CLAIM_MS_AFTER,
    CLAIM_MS_MAX,
    CLAIM_STEPS_AFTER,
    Backoff,
    FastestClock,
)
from snapkv.engine.contract import KeyValue
from snapkv.layout import StampRecord
from snapkv.times import pack, physical_ms

NOW_MS = 1_000_000
OLD = KeyValue(b"ts", StampRecord(0).encode(), 1, 1, 1)
"""A stored stamp that teaches nothing of other clocks."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [50.0]
    monkeypatch.setattr(backoff_module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(backoff_module, "monotonic", lambda: clock[0])
    return clock


def begun() -> Backoff:
    return Backoff(random.Random(1), FastestClock(5_000))


def lose(
    backoff: Backoff, clock: HybridClock, now: list[float], flight_s: float, times: int
) -> int:
    """Lose some rounds that each took so long, and return the timestamp of the next one."""
    for _ in range(times):
        backoff.issue(clock)
        now[0] += flight_s
        backoff.lose(clock, OLD)
    return backoff.issue(clock)


def test_the_first_round_claims_nothing(now: list[float]) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    assert backoff.issue(clock) == pack(NOW_MS)
    assert backoff.ahead == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_the_first_lost_rounds_claim_nothing(now: list[float], lost: int) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    assert lose(backoff, clock, now, 0.005, lost) == pack(NOW_MS) + lost
    assert backoff.ahead == 0


@pytest.mark.parametrize("lost", [4, 5, 6])
def test_each_lost_round_more_claims_two_flights_more(now: list[float], lost: int) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    issued = lose(backoff, clock, now, 0.005, lost)
    assert physical_ms(issued) - NOW_MS == AGE_FLIGHTS * (lost - AGE_AFTER) * 5
    assert backoff.ahead == issued - pack(NOW_MS)


def test_the_age_of_a_call_claims_no_more_than_its_bound(now: list[float]) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    issued = lose(backoff, clock, now, 0.005, 7)
    assert AGE_AFTER + AGE_MS_MAX / (AGE_FLIGHTS * 5) < 7
    assert physical_ms(issued) - NOW_MS == AGE_MS_MAX


@pytest.mark.parametrize("flight_s", [0.05, 0.3, 1.0, 60.0])
def test_a_long_flight_claims_the_time_of_its_arrival(now: list[float], flight_s: float) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    ahead_ms = physical_ms(lose(backoff, clock, now, flight_s, CLAIM_STEPS_AFTER)) - NOW_MS
    assert ahead_ms == min(CLAIM_FLIGHT_MS_MAX, round(CLAIM_FLIGHTS * flight_s * 1_000))


def test_however_many_claim_they_do_not_run_away_from_the_clock(now: list[float]) -> None:
    """Each merges what the one before it claimed, and its claim is none on top of that."""
    clock = HybridClock(ManualClock(NOW_MS))
    for _ in range(100):
        issued = lose(begun(), clock, now, 0.3, CLAIM_STEPS_AFTER)
        clock.merge(issued)
    assert physical_ms(issued) - NOW_MS <= round(CLAIM_FLIGHTS * 300) + 1


def test_short_flights_claim_little(now: list[float]) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    issued = lose(backoff, clock, now, 0.0001, CLAIM_MS_AFTER + 2 * CLAIM_MS_MAX)
    assert 0 < physical_ms(issued) - NOW_MS <= CLAIM_MS_MAX * 2 * CLAIM_MS_MAX


@pytest.mark.parametrize("flight_s", [0.001, 0.05, 3.0])
def test_waits_grow_at_random_from_a_flight_up_to_a_bound(
    now: list[float], flight_s: float
) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    waits = []
    for _ in range(40):
        backoff.issue(clock)
        now[0] += flight_s
        backoff.lose(clock, OLD)
        waits.append(backoff.wait_s())
    bound = min(BACKOFF_S_MAX, flight_s * 2**BACKOFF_DOUBLINGS_MAX)
    assert all(0 <= wait <= bound for wait in waits)
    assert max(waits) > bound / 2
    assert waits[0] <= flight_s


def test_no_round_begins_that_cannot_be_answered_in_time(now: list[float]) -> None:
    clock, backoff = HybridClock(ManualClock(NOW_MS)), begun()
    assert backoff.fits(0.001)
    assert not backoff.fits(0.0)
    lose(backoff, clock, now, 0.3, 1)
    assert backoff.fits(0.7)
    assert not backoff.fits(0.5)
    now[0] += 0.1
    backoff.lose(clock, OLD)
    assert backoff.fits(0.3), "the shortest one counts: a slow one may have been an accident"
