"""Tokens of watches that have not reached a member, which the fleet has seen before."""

import pytest
from store.wrapping import backup

import snapkv
from snapkv.errors import StoreRestoredError
from snapkv.fleet import fleet_watch

from .following import of
from .sites import WAIT_S


@pytest.fixture
def token(sites, servers):
    """The token of a watch since b's first commit of three, of which b has shown nothing yet."""
    sites.add("a", "b")
    stamps = []
    for n in range(3):
        sites.later()
        stamps.append(sites["b"].save("k", b"%d" % n))
    sites.later()
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    assert fleet.at()["b", "k"] == b"2"
    servers.set(sites.urls["b"], "away")
    with fleet.watch(since=stamps[0]) as watch:
        assert watch.next(0.05) is None
        return watch.token


def test_it_is_of_the_history_that_was_seen(sites, servers, token):
    (engine,) = servers.of[sites.urls["b"]]
    first = next(sites["b"].commits()).revision
    inner = backup(engine.inner, first, same_cluster=True)
    restored = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
    sites.later()
    for n in range(5):
        restored.save("k", b"other%d" % n)
    other = sites.fleet({"a": sites.urls["a"], "b": restored})
    with other.watch(resume=token) as watch, pytest.raises(StoreRestoredError) as e:
        watch.next(WAIT_S)
    assert e.value.member == "b"


def test_a_member_that_is_left_out_then_gives_all_that_is_missing(
    sites, servers, token, monkeypatch
):
    """Its newest commit that was seen is later than the place of the watch."""
    monkeypatch.setattr(fleet_watch, "PATIENCE_S", 0.05)
    sites.later()
    ts = sites["a"].save("k", b"1")
    with sites.fleet(timeout=0.1).watch(resume=token, behind="leave out") as watched:
        item = watched.next(WAIT_S)
        assert (of(item), item.missing) == ((ts, {"a": [("k", b"1")]}), ("b",))
        again = watched.token
    servers.set(sites.urls["b"], "here")
    with sites.fleet().watch(resume=again, behind="leave out") as watched:
        late = watched.next(WAIT_S)
        found = [change.value for changes in late.changes for change in changes]
        assert (late.member, found) == ("b", [b"1", b"2"])
