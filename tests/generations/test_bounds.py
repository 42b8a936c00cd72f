"""What bounds a switch: how many streams are asked for, wrong clocks, and who is waited for."""

import contextlib
import pickle

import pytest

from cdcmeta.errors import (
    InvalidArgumentError,
    SwitchAbortedError,
    SwitchPendingError,
)
from cdcmeta.generations import GenerationLog
from snapkv import ManualClock, pack

from .test_switching import RING, TOKEN, WIDER, Slow, in_background, until_pending

pytestmark = pytest.mark.slow

# --- streams ---


def test_limits_of_streams(log):
    with pytest.raises(InvalidArgumentError, match="streams, more than 4"):
        log.make(RING, streams_max=4)
    assert log.generations() == []
    assert log.make(RING, streams_max=4, limit=True).streams == 4


def test_limited_topologies_are_optimal_too(log):
    first = log.regenerate_if_needed(RING, streams_max=4, limit=True)
    assert log.regenerate_if_needed(RING, streams_max=4, limit=True) == first
    assert log.regenerate_if_needed(RING, streams_max=5, limit=True).streams == 5


def test_who_asks_for_all_streams_gets_them_after_a_limited_generation(log):
    limited = log.regenerate_if_needed(RING, streams_max=2, limit=True)
    whole = log.regenerate_if_needed(RING)
    again = log.regenerate_if_needed(RING, streams_max=2, limit=True)
    assert [each.streams for each in (limited, whole, again)] == [2, 5, 2]
    assert log.generations() == [limited, whole, again]
    assert log.regenerate_if_needed(RING, streams_max=4, limit=True).streams == 4
    with pytest.raises(InvalidArgumentError, match="streams, more than 4"):
        log.regenerate_if_needed(RING, streams_max=4)


def test_a_limit_that_does_not_bind_asks_for_the_same(log):
    first = log.regenerate_if_needed(RING)
    assert log.regenerate_if_needed(RING, streams_max=5) == first


def test_a_limited_switch_is_not_joined_by_who_wants_all(log, clock):
    with Slow(log, clock) as slow:
        limited = in_background(lambda: log.make(RING, streams_max=2, limit=True, timeout=60))
        until_pending(log)
        whole = in_background(lambda: log.regenerate_if_needed(RING, timeout=60))
        slow.catch_up_until(limited)
        slow.catch_up_until(whole)
    assert (limited.result().streams, whole.result().streams) == (2, 5)


# --- clocks, and who is waited for ---


@pytest.mark.parametrize("skew_s", [30, 3_600])
def test_one_clock_that_is_far_ahead_ends_the_switch(store, clock, skew_s):
    """Else the new one would begin years ahead, and no later one could come before."""
    log = GenerationLog(store, patience=1.0, clock_skew_max=float(skew_s))
    first = log.make(RING)
    ahead_ms = clock.now_ms() + skew_s * 1_000
    with Slow(log, ManualClock(ahead_ms + 60_000), "ahead") as ahead, Slow(log, clock, "fine"):
        ahead.generations.stream(pack(ahead_ms + 2_000), TOKEN)
        made = in_background(lambda: log.make(WIDER, timeout=60))
        ahead.catch_up_until(made)
        with pytest.raises(SwitchAbortedError, match="the clock of ahead is ahead"):
            made.result()
        assert (log.generations(), log.pending()) == ([first], None)
        assert ahead.generations.stream(pack(ahead_ms + 2_000), TOKEN)
    with Slow(log, ManualClock(ahead_ms), "less") as less:
        less.generations.stream(pack(ahead_ms), TOKEN)
        again = in_background(
            lambda: GenerationLog(store, clock_skew_max=float(skew_s)).make(WIDER, timeout=60)
        )
        less.catch_up_until(again)
    assert again.result().time == max(pack(ahead_ms) + 1, again.result().made + pack(65_000))


@pytest.mark.parametrize("skew", [-1, None, "1", float("nan")])
def test_skews_that_cannot_be(store, skew):
    with pytest.raises(InvalidArgumentError, match="clock_skew_max"):
        GenerationLog(store, clock_skew_max=skew)


def test_who_waits_is_told_for_whom(log, clock):
    with contextlib.ExitStack() as stack:
        for n in range(12):
            stack.enter_context(Slow(log, clock, f"node-{n:02}"))
        with pytest.raises(SwitchPendingError, match="waits for node-00, node-01, ") as caught:
            log.make(RING, timeout=0.0)
        assert "node-09 and 2 more" in str(caught.value)
        assert caught.value.waiting == tuple(f"node-{n:02}" for n in range(12))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
