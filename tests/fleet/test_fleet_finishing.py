"""Moments with final=True: a tick is committed on each store that is behind."""

import pytest

from snapkv import MembersBehindError
from snapkv.errors import ClockSkewError, EngineUnavailableError, NotSupportedError

from .histories import PREFIX


def test_final_ticks_what_is_behind(sites, late):
    fleet, ts = late
    us = sites["us"].resolved()
    moment = fleet.at(ts, final=True)
    assert moment.final
    assert dict(moment) == {("eu", "k"): b"new", ("us", "k"): b"old"}
    assert [c.ts > us for c in sites["us"].commits(us)] == [True]
    assert sites["us"].resolved() >= ts
    assert sites["eu"].resolved() == ts, "who is final gets no tick"
    before = {name: store.resolved() for name, store in sites.stores.items()}
    assert dict(fleet.at(ts, final=True)) == dict(moment)
    assert {name: store.resolved() for name, store in sites.stores.items()} == before


def test_final_ticks_a_store_without_a_commit(sites):
    eu, us = sites.add("eu", "us")
    ts = eu.save("k", b"1")
    moment = sites.fleet().at(ts, final=True)
    assert moment.final
    assert us.resolved() >= ts
    assert dict(moment) == {("eu", "k"): b"1"}


def test_final_is_refused_for_what_cannot_be_ticked(sites, late):
    _, ts = late
    sites.tick("us")
    later = sites.later()
    archive = f"archive:{sites.archive('us')}"
    observed = sites.described_as("us", prefix=PREFIX)
    for member, what in ((archive, "an archive"), (observed, "observed")):
        fleet = sites.fleet({"eu": sites.urls["eu"], "us": member})
        before = sites["eu"].resolved()
        with pytest.raises(NotSupportedError, match=what) as e:
            fleet.at(later, final=True)
        assert e.value.member == "us"
        assert sites["eu"].resolved() == before, "no tick was sent"
        assert fleet.at(ts, final=True).final


def test_final_does_not_tick_the_future(sites, late):
    fleet, _ = late
    with pytest.raises(ClockSkewError) as e:
        fleet.at("+1h", final=True)
    assert e.value.member in ("eu", "us")


def test_final_and_a_member_that_is_away(sites, servers, late):
    _, ts = late
    fleet = sites.fleet()
    servers.set(sites.urls["us"], "away")
    with pytest.raises((MembersBehindError, EngineUnavailableError)):
        fleet.at(ts, final=True)
    moment = fleet.at(ts, final=True, behind="leave out")
    assert dict(moment) == {("eu", "k"): b"new"}
