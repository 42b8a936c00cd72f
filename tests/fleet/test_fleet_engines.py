"""All that a fleet does, once on each engine, with two members."""

import random

import pytest

from .following import drained, own, taken
from .histories import PREFIX, Writing, state
from .sites import WAIT_S


@pytest.fixture(params=["memory", "lmdb", "etcd"])
def pair(request, sites):
    """Two members on an engine, with a random history that is final on both."""
    sites.add("a", "b", kind=request.param)
    writing = Writing(sites, random.Random(9))
    writing.steps(30)
    sites.later()
    sites.tick()
    return sites.fleet(), writing


def test_moments_and_tokens(sites, pair):
    fleet, writing = pair
    newest = fleet.resolved()
    assert newest == min(store.resolved() for store in sites.stores.values())
    other = sites.fleet()
    for ts in [newest, *(ts for ts in writing.stamps[::6] if ts <= newest)]:
        moment = fleet.at(ts)
        own_states = {name: state(store.at(ts)) for name, store in sites.stores.items()}
        items = {(name, key): v for name, each in own_states.items() for key, v in each.items()}
        assert dict(moment.items()) == items
        assert all(moment[key] == value for key, value in items.items())
        assert len(moment) == len(items)
        assert dict(other.at(token=moment.token).items()) == items


def test_differences_histories_and_commits(sites, pair):
    fleet, writing = pair
    newest = fleet.resolved()
    a, b = sorted(ts for ts in writing.stamps if ts <= newest)[10::10][:2]
    found = fleet.diff(a, b)
    assert [(each.key, each.before, each.after) for each in found] == [
        ((name, each.key), each.before, each.after)
        for name in "ab"
        for each in sites[name].diff(a, b)
    ]
    commits = sorted((c.ts, name, c) for name in "ab" for c in sites[name].commits())
    assert [(e.commit.ts, e.member, e.commit) for e in fleet.commits()] == [
        each for each in commits if each[0] <= newest
    ]
    versions = sorted((v.ts, name, v) for name in "ab" for v in sites[name].history("a"))
    assert [(e.version.ts, e.member, e.version) for e in fleet.history("a")] == [
        each for each in versions if each[0] <= newest
    ]


def test_watches(sites, pair):
    fleet, _ = pair
    everything = own(sites)
    with fleet.watch(since=0, timeout=0) as watch:
        assert drained(watch) == everything
        token = watch.token
        sites.later()
        ts = min(store.save("new", b"1") for store in sites.stores.values())
        new = (ts, {name: [("new", b"1")] for name in "ab"})
        assert taken(watch, 1) == [new]
    with fleet.watch(resume=token) as watch:
        assert taken(watch, 1) == [new]
    middle = everything[len(everything) // 2][0]
    with sites.fleet().watch(since=middle, timeout=0) as watch:
        assert drained(watch) == [*(item for item in everything if item[0] > middle), new]


def test_rounds_over_observed_members(sites, pair):
    fleet = sites.fleet(sites.described(prefix=PREFIX))
    with fleet.ticker() as ticker:
        made = []
        for n in range(3):
            for name in "ab":
                sites.write_raw(name, f"{PREFIX}round", b"%d" % n)
            sites.later()
            made.append(ticker.tick())
            assert made[-1].ticked == ("a", "b")
    moment = fleet.at()
    assert moment.timestamp == made[1].timestamp
    assert moment.spread == pytest.approx(made[1].spread, abs=1e-6)
    assert moment.everywhere(f"{PREFIX}round") == {"a": b"1", "b": b"1"}
    with fleet.watch(since=made[0].timestamp - 1) as watch:
        for n in range(3):
            item = watch.next(WAIT_S)
            assert item.timestamp == made[n].timestamp
            assert {c.changes[-1].value for c in item.members.values()} == {b"%d" % n}
    stores = sites.fleet()
    moment = stores.at(sites.now + 1, final=True)
    assert moment.final
    assert stores.resolved() > sites.now
