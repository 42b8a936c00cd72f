"""Calls of a fleet whose servers are silent, and rounds over servers that hold several members."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from etcd_server import EtcdPool, EtcdServer

import snapkv
from snapkv.base.waiting import monotonic
from snapkv.errors import EngineUnavailableError
from snapkv.fleet import member_link, open_member
from snapkv.timeline import Timeline

TIMEOUT_S = 0.5
LOOSELY_S = 3.0
"""Added to the bounds: the machine may be busy. A request without them would take 12 s."""

pytestmark = [pytest.mark.slow, pytest.mark.kills_etcd]


@pytest.fixture
def other(etcd_pool: EtcdPool) -> Iterator[EtcdServer]:
    """A second server."""
    with etcd_pool.taken() as server:
        yield server


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, loosely."""
    began = monotonic()
    yield
    assert monotonic() - began < seconds + LOOSELY_S


# --- rounds ---


def test_two_prefixes_of_one_server_are_of_the_same_rounds(etcd: EtcdServer) -> None:
    members = {name: {"url": etcd.url, "prefix": f"/{name}/"} for name in ("pods", "events")}
    with snapkv.fleet.open(members) as fleet, fleet.ticker() as ticker:
        etcd.gateway.put(b"/pods/a", b"1")
        rounds = [ticker.tick() for _ in range(2)]
        for each in rounds:
            assert (each.ticked, each.refused, each.failed) == (("events", "pods"), {}, {})
        moment = fleet.at(rounds[0].timestamp)
        assert moment.spread == pytest.approx(rounds[0].spread, abs=1e-6)
        assert dict(moment.items()) == {("pods", "/pods/a"): b"1"}


@pytest.mark.parametrize("behind", ["error", "stale", "leave out"])
def test_a_moment_whose_round_cannot_be_read_is_no_error(
    etcd: EtcdServer, other: EtcdServer, behind: Any
) -> None:
    """Its ticks are known; that they are of one round would have to be read."""
    members = {
        "a": {"url": etcd.url, "prefix": "/k/"},
        "b": {"url": other.url, "prefix": "/k/"},
    }
    with snapkv.fleet.open(members, timeout=TIMEOUT_S) as fleet, fleet.ticker() as ticker:
        rounds = [ticker.tick() for _ in range(3)]
        first = fleet.at(rounds[0].timestamp)
        assert first.spread is not None
        etcd.pause()
        try:
            with within(2 * TIMEOUT_S):
                again = fleet.at(rounds[0].timestamp, behind=behind)
            assert (again.timestamp, again.final) == (first.timestamp, True)
            assert again.spread is None
        finally:
            etcd.resume()


# --- a member that is silent ---


READS: dict[str, Callable[[Any, Any], object]] = {
    "a key": lambda fleet, moment: moment["a", "k"],
    "an entry": lambda fleet, moment: moment.entry(("a", "k")),
    "everywhere": lambda fleet, moment: moment.everywhere("k"),
    "contains": lambda fleet, moment: ("a", "k") in moment,
    "items": lambda fleet, moment: list(moment.items()),
    "count": lambda fleet, moment: len(moment),
    "diff": lambda fleet, moment: list(moment.diff(moment.earlier)),
    "commits": lambda fleet, moment: list(fleet.commits(until=moment.timestamp)),
    "history": lambda fleet, moment: list(fleet.history("k", until=moment.timestamp)),
}


@pytest.mark.long_after(4)
@pytest.mark.parametrize("read", READS)
def test_a_read_of_a_silent_member_ends_in_time_and_names_it(
    etcd: EtcdServer, other: EtcdServer, read: str
) -> None:
    with snapkv.open(etcd.url) as a, snapkv.open(other.url) as b:
        a.save("k", b"0")
        b.save("k", b"2")
        ts = a.save("k", b"1")
        b.tick()
    members = {"a": etcd.url, "b": other.url}
    with snapkv.fleet.open(members, timeout=TIMEOUT_S) as fleet:
        moment = fleet.at(ts)
        moment.earlier = fleet.at(ts - 1)
        assert dict(moment.items()) == {("a", "k"): b"1", ("b", "k"): b"2"}
        etcd.pause()
        try:
            with within(2 * TIMEOUT_S), pytest.raises(EngineUnavailableError) as caught:
                READS[read](fleet, moment)
        finally:
            etcd.resume()
        assert caught.value.member == "a"
        assert moment["a", "k"] == b"1"


def test_moments_do_not_wait_again_for_a_member_that_was_silent(
    etcd: EtcdServer, other: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_link, "AWAY_S", 60.0)
    asked: list[str] = []
    plain = open_member.OpenMember._pinned

    def pinned(each: Any, *arguments: Any) -> Any:
        asked.append(each.name)
        return plain(each, *arguments)

    with snapkv.open(etcd.url) as a, snapkv.open(other.url) as b:
        a.save("k", b"1")
        later = b.save("k", b"2") + 1
    with snapkv.fleet.open({"a": etcd.url, "b": other.url}, timeout=TIMEOUT_S) as fleet:
        monkeypatch.setattr(open_member.OpenMember, "_pinned", pinned)
        etcd.pause()
        try:
            for _ in range(3):
                assert fleet.at(later, behind="stale").members["a"].state == "missing"
        finally:
            etcd.resume()
    assert sorted(asked) == ["a", "b", "b", "b"]


@pytest.mark.parametrize("behind", ["stale", "leave out"])
def test_the_token_of_a_stale_moment_while_its_member_is_away(
    etcd: EtcdServer, other: EtcdServer, behind: Any
) -> None:
    with snapkv.open(etcd.url) as a, snapkv.open(other.url) as b:
        a.save("k", b"1")
        ts = b.save("k", b"2")
    with snapkv.fleet.open({"a": etcd.url, "b": other.url}, timeout=TIMEOUT_S) as fleet:
        moment = fleet.at(ts, behind="stale")
        assert moment.members["a"].state == "behind"
        etcd.kill()
        with snapkv.fleet.open({"a": etcd.url, "b": other.url}, timeout=TIMEOUT_S) as later:
            again = later.at(token=moment.token, behind=behind)
            assert again.members["a"].state == "missing"
            assert dict(again.items()) == {("b", "k"): b"2"}
            with pytest.raises(snapkv.MembersBehindError) as caught:
                later.at(token=moment.token)
            assert set(caught.value.members) == {"a"}
        etcd.start()


# --- what other threads see meanwhile ---


@pytest.mark.parametrize("first", ["one tick", "no tick"])
@pytest.mark.parametrize("prefix", [None, "/k/"])
def test_ticks_that_come_after_a_moment_was_found_do_not_make_it_final(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch, prefix: str | None, first: str
) -> None:
    """Another thread learns of two ticks, one before and one after the time of the moment."""
    clock = snapkv.ManualClock(time.time_ns() // 1_000_000)
    member = {"url": etcd.url} | ({} if prefix is None else {"prefix": prefix})
    with snapkv.open(etcd.url, clock=clock) as store:
        if first == "one tick":
            store.tick()
        with snapkv.fleet.open({"a": member}) as fleet:
            reads = fleet._members.by_name["a"].reads()
            timestamp, timeline = clock.now_ms() + 5 << 18, reads.reader.timeline
            plain = Timeline.at

            def at(asked: Timeline, wanted: int) -> Any:
                found = plain(asked, wanted)
                if asked is timeline and not ticks:
                    for _ in range(2):
                        clock.advance(4)
                        ticks.append(store.tick().ts)
                    assert timeline.head().timestamp == ticks[1]
                return found

            ticks: list[int] = []
            monkeypatch.setattr(Timeline, "at", at)
            moment = fleet.at(timestamp, members="a", behind="stale")
            assert ticks[0] < timestamp < ticks[1]
            seen = moment.members["a"]
            assert not (moment.final and seen.timestamp != ticks[0])
            again = fleet.at(timestamp, members="a")
            assert again.members["a"].timestamp == ticks[0]
