"""Rounds lost to others: how far ahead is claimed, how long is waited, and when it ends."""

from __future__ import annotations

import random

import pytest

from snapkv.clock import HybridClock, ManualClock
from snapkv.committer import rounds as rounds_module
from snapkv.committer.rounds import (
    BACKOFF_DOUBLINGS_MAX,
    BACKOFF_S_MAX,
    CLAIM_FLIGHT_MS_MAX,
    CLAIM_FLIGHTS,
    CLAIM_MS_AFTER,
    CLAIM_MS_MAX,
    CLAIM_TICKS_AFTER,
    Rounds,
)
from snapkv.times import pack, physical_ms

NOW_MS = 1_000_000


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [50.0]
    monkeypatch.setattr(rounds_module, "monotonic", lambda: clock[0])
    return clock


def lose(rounds: Rounds, clock: HybridClock, now: list[float], flight_s: float, times: int) -> int:
    """Lose some rounds that each took so long, and return the timestamp of the next one."""
    for _ in range(times):
        rounds.issue(clock)
        now[0] += flight_s
        rounds.lose()
    return rounds.issue(clock)


def test_the_first_rounds_claim_nothing(now: list[float]) -> None:
    clock, rounds = HybridClock(ManualClock(NOW_MS)), Rounds(random.Random(1))
    issued = lose(rounds, clock, now, 0.5, CLAIM_TICKS_AFTER - 1)
    assert issued == pack(NOW_MS) + CLAIM_TICKS_AFTER - 1


@pytest.mark.parametrize("flight_s", [0.05, 0.3, 1.0, 60.0])
def test_a_long_flight_claims_the_time_of_its_arrival(now: list[float], flight_s: float) -> None:
    clock, rounds = HybridClock(ManualClock(NOW_MS)), Rounds(random.Random(1))
    ahead_ms = physical_ms(lose(rounds, clock, now, flight_s, CLAIM_TICKS_AFTER)) - NOW_MS
    assert ahead_ms == min(CLAIM_FLIGHT_MS_MAX, round(CLAIM_FLIGHTS * flight_s * 1_000))


def test_however_many_claim_they_do_not_run_away_from_the_clock(now: list[float]) -> None:
    """Each merges what the one before it claimed, and its claim is none on top of that."""
    clock = HybridClock(ManualClock(NOW_MS))
    for _ in range(100):
        issued = lose(Rounds(random.Random(1)), clock, now, 0.3, CLAIM_TICKS_AFTER)
        clock.merge(issued)
    assert physical_ms(issued) - NOW_MS <= round(CLAIM_FLIGHTS * 300) + 1


def test_short_flights_claim_little(now: list[float]) -> None:
    clock, rounds = HybridClock(ManualClock(NOW_MS)), Rounds(random.Random(1))
    issued = lose(rounds, clock, now, 0.0001, CLAIM_MS_AFTER + 2 * CLAIM_MS_MAX)
    assert 0 < physical_ms(issued) - NOW_MS <= CLAIM_MS_MAX * 2 * CLAIM_MS_MAX


@pytest.mark.parametrize("flight_s", [0.001, 0.05, 3.0])
def test_waits_grow_at_random_from_a_flight_up_to_a_bound(
    now: list[float], flight_s: float
) -> None:
    clock, rounds = HybridClock(ManualClock(NOW_MS)), Rounds(random.Random(1))
    waits = []
    for _ in range(40):
        rounds.issue(clock)
        now[0] += flight_s
        rounds.lose()
        waits.append(rounds.wait_s())
    bound = min(BACKOFF_S_MAX, flight_s * 2**BACKOFF_DOUBLINGS_MAX)
    assert all(0 <= wait <= bound for wait in waits)
    assert max(waits) > bound / 2
    assert waits[0] <= flight_s


def test_no_round_begins_that_cannot_be_answered_in_time(now: list[float]) -> None:
    clock, rounds = HybridClock(ManualClock(NOW_MS)), Rounds(random.Random(1))
    assert rounds.fits(0.001)
    assert not rounds.fits(0.0)
    lose(rounds, clock, now, 0.3, 1)
    assert rounds.fits(0.7)
    assert not rounds.fits(0.5)
    now[0] += 0.1
    rounds.lose()
    assert rounds.fits(0.3), "the shortest one counts: a slow one may have been an accident"
