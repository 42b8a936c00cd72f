"""Clocks that are wrong, jump, or stand still: safety never depends on them, meaning does."""

import warnings

import pytest
from protocol_remote import Network, delay

from snapkv import ClockSkewError, ClockWarning, ManualClock
from snapkv.clock import HybridClock
from snapkv.committer import backoff as rounds
from snapkv.engine.contract import Range
from snapkv.errors import InvalidTimeError
from snapkv.layout import StampRecord
from snapkv.times import PHYSICAL_MS_MAX, TIMESTAMP_MAX, pack, physical_ms

NOW_MS = 1_700_000_000_000


@pytest.fixture
def served(network: Network) -> Network:
    """An engine with a clock of its own, half a second uncertain."""
    network.server_time = (NOW_MS, 500)
    return network


@pytest.mark.parametrize("skew_ms", [0, 5_000, -5_000, 5_500, -5_500])
def test_a_clock_within_the_skew_commits(served: Network, skew_ms: int) -> None:
    store = served.open("A", NOW_MS + skew_ms, max_clock_skew=5)
    assert physical_ms(store.save("k", b"1")) == NOW_MS + skew_ms


@pytest.mark.parametrize("skew_ms", [5_501, -5_501, 3_600_000, -3_600_000])
def test_a_clock_beyond_the_skew_is_refused_in_either_direction(
    served: Network, skew_ms: int
) -> None:
    store = served.open("A", NOW_MS + skew_ms, max_clock_skew=5)
    sent = len(served.seen)
    for write in (lambda: store.save("k", b"1"), store.tick):
        with pytest.raises(ClockSkewError) as caught:
            write()
        assert (caught.value.skew_ms, caught.value.limit_ms) == (skew_ms, 5_000)
    assert len(served.seen) == sent, "nothing was sent"
    assert store.at().count() == 0, "reading goes on"
    store._core.clock.wall.set(NOW_MS)
    assert store.save("k", b"1")


def test_h13_a_slow_clock_on_an_idle_store_does_not_write_into_the_past(served: Network) -> None:
    store = served.open("A", NOW_MS - 3_600_000, max_clock_skew=5)
    with pytest.raises(ClockSkewError):
        store.save("k", b"1")
    assert store.resolved() == 0


def test_h13_a_final_read_of_the_far_future_does_not_poison_the_clock(network: Network) -> None:
    store = network.open("A", NOW_MS, max_clock_skew=5)
    far = pack(NOW_MS + 5_001)
    with pytest.raises(ClockSkewError) as caught:
        store.at(far, final=True)
    assert caught.value.skew_ms == 5_001
    assert store.resolved() == 0
    assert physical_ms(store.save("k", b"1")) == NOW_MS
    near = pack(NOW_MS + 5_000)
    snap = store.at(near, final=True)
    assert (snap.final, snap["k"]) == (True, b"1")
    assert store.resolved() == near
    assert store.save("k", b"2") == near + 1


def test_h13_resolving_a_timestamp_of_the_far_future_is_refused(network: Network) -> None:
    store = network.open("A", NOW_MS, max_clock_skew=5)
    with pytest.raises(ClockSkewError):
        store.resolve(pack(NOW_MS + 60_000), b"x" * 16)
    assert store.resolved() == 0


def test_a_past_ahead_of_the_clock_is_warned_about_and_kept(network: Network) -> None:
    ahead = network.open("A", NOW_MS + 60_000, max_clock_skew=5)
    newest = ahead.save("k", b"1")
    with pytest.warns(ClockWarning, match="60000 ms ahead"):
        behind = network.open("B", NOW_MS, max_clock_skew=5)
    assert behind.save("k", b"2") == newest + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network.open("C", NOW_MS + 55_000, max_clock_skew=5)


def test_timestamps_rise_while_clocks_go_back(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "monotonic", lambda: 50.0)  # flights that take no time
    clock = ManualClock(1_000)
    a, b = network.open("A", clock=clock), network.open("B", 900)
    told = []
    for ms in (1_000, 1_000, 999, 0, 1_001, 500, 1_001):
        clock.set(ms)
        told += [a.save("k", b""), b.save("k", b"")]
    assert told == sorted(set(told))
    assert {physical_ms(ts) for ts in told} == {1_000, 1_001}
    stamps = network.journal.stamps
    assert [stamp.ts for stamp in stamps[1:]] == told
    assert not a.check().problems


def test_a_clock_that_stands_still_counts(network: Network) -> None:
    store = network.open("A", 5)
    assert [store.save("k", b"") for _ in range(3)] == [pack(5, n) for n in range(3)]


@pytest.mark.parametrize("ms", [-1, PHYSICAL_MS_MAX + 1])
def test_a_clock_out_of_range_is_told_and_stops_nobody_else(network: Network, ms: int) -> None:
    clock = ManualClock(5)
    store = network.open("A", clock=clock)
    clock.set(ms)
    with pytest.raises(InvalidTimeError):
        store.save("k", b"1")
    clock.set(6)
    assert store.save("k", b"1") == pack(6)


def test_the_end_of_time(network: Network) -> None:
    store = network.open("A", PHYSICAL_MS_MAX, max_clock_skew=10)
    store.save("k", b"1")
    hybrid = HybridClock(ManualClock(0))
    hybrid.merge(TIMESTAMP_MAX)
    with pytest.raises(InvalidTimeError):
        hybrid.issue()


def test_a_tick_moves_the_resolved_timestamp_and_nothing_else(network: Network) -> None:
    clock = ManualClock(10)
    store = network.open("A", clock=clock)
    store.save("k", b"1")
    clock.set(20)
    assert not store.at(pack(20)).final
    tick = store.tick()
    assert (tick.ts, store.resolved()) == (pack(20), pack(20))
    assert network.journal.revisions[tick.revision].keys() == {b"default/sys/ts"}
    assert store.at(pack(20)).final
    assert store.at()["k"] == b"1"


def test_a_tick_whose_answer_is_lost_is_settled(network: Network) -> None:
    store = network.open("A", 10)
    network.plan("A", delay)
    tick = store.tick()
    assert tick.ts >= pack(10)
    assert network.journal.found(tick.ts).revision == tick.revision
    assert [answer.succeeded for answer in network.arrive()] == [False]


def test_final_ticks_once_and_only_when_needed(network: Network) -> None:
    clock = ManualClock(10)
    a, b = network.open("A", clock=clock), network.open("B", 10)
    first = a.save("k", b"1")
    sent = len(network.seen)
    assert a.at(first, final=True).final
    assert len(network.seen) == sent
    snap = a.at(first + 5, final=True)
    assert (snap.final, snap["k"], len(network.seen)) == (True, b"1", sent + 1)
    assert b.save("k", b"2") > first + 5
    assert a.at(first + 5)["k"] == b"1"


def test_nothing_commits_at_or_below_what_was_resolved(network: Network) -> None:
    """A request on its way when its time was made final is refused, and tried at a later time."""
    a, b = network.open("A", 10), network.open("B", 10)

    def finish(message):
        b.at(pack(30), final=True)
        return message.deliver()

    network.plan("A", finish)
    ts = a.save("k", b"1")
    assert ts > pack(30)
    assert "k" not in b.at(pack(30))


def test_a_process_that_lost_a_round_follows_the_fastest_clock(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its stamps say so: who loses to it learns of no clock faster than there is."""
    at = [50.0]
    monkeypatch.setattr(rounds, "monotonic", lambda: at[0])
    fast, slow = network.open("A", NOW_MS + 50), network.open("B", NOW_MS)
    fast.save("k", b"1")
    assert physical_ms(slow.save("k", b"2")) == NOW_MS + 50, "it lost a round"
    assert physical_ms(slow.save("k", b"3")) == NOW_MS + 50
    assert newest_stamp(network).ahead == slow.resolved() - pack(NOW_MS)
    third = network.open("C", NOW_MS)
    fast.save("k", b"4")
    fast._core.clock.wall.set(NOW_MS + 60)
    assert physical_ms(third.save("k", b"5")) == NOW_MS + 50, "the clock behind the stamp"
    at[0] += rounds.FORGET_S
    slow._core.clock.wall.set(NOW_MS + 1_000)
    assert physical_ms(slow.save("k", b"6")) == NOW_MS + 1_000, "its own clock again"
    assert newest_stamp(network).ahead == 0


def newest_stamp(network: Network) -> StampRecord:
    (found,) = network.base.read([Range(b"default/sys/ts")]).results[0].kvs
    return StampRecord.decode(found.value)
