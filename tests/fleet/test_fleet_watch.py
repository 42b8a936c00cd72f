"""Watching: all changes of one time in one item, once every member is final there."""

import random
import threading

import pytest

from snapkv.errors import (
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
)
from snapkv.fleet import FleetWatch

from .following import drained, of, own, taken
from .histories import PREFIX, Writing
from .sites import WAIT_S, eventually


@pytest.fixture
def watched(sites):
    """Three members with a random history, often at equal times; all are final at its end."""
    rng = random.Random(4)
    sites.add("a", "b", "c")
    writing = Writing(sites, rng)
    writing.steps(60)
    sites.later()
    sites.tick()
    return sites.fleet(), writing


# --- everything, once, in order ---


def test_everything_from_the_beginning(sites, watched):
    fleet, _ = watched
    with fleet.watch(since=0, timeout=0) as watch:
        assert isinstance(watch, FleetWatch)
        items = drained(watch)
        assert items == own(sites)
        assert max(len(members) for _, members in items) > 1, "some times are of two members"
        assert watch.timestamp == fleet.resolved()
        assert list(watch) == []
        sites.later()
        stamps = [store.save("new", b"1") for store in sites.stores.values()]
        assert taken(watch, 1) == [(stamps[0], {n: [("new", b"1")] for n in "abc"})]


def test_from_any_time_on(sites, watched):
    fleet, writing = watched
    everything = own(sites)
    for since in writing.times()[:12]:
        if since > fleet.resolved():
            continue
        with fleet.watch(since=since, timeout=0) as watch:
            assert watch.timestamp == since
            assert drained(watch) == [item for item in everything if item[0] > since]


@pytest.mark.parametrize("prefix", ["a", "a/", "b/ü", "zz"])
def test_keys_with_a_prefix(sites, watched, prefix):
    fleet, _ = watched
    with fleet.watch(prefix, since=0, timeout=0) as watch:
        assert drained(watch) == own(sites, prefix=prefix)
        assert watch.timestamp == fleet.resolved(), "it moves with what does not match"


def test_some_members(sites, watched):
    fleet, _ = watched
    for members, names in (("a", "a"), ("b,c", "bc"), (["c", "a"], "ac")):
        with fleet.watch(since=0, timeout=0, members=members) as watch:
            assert drained(watch) == own(sites, *names)


def test_an_item_has_the_changes_of_its_members(sites):
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet()
    with fleet.watch() as watch:
        sites.later()
        commit = sites["a"].commit(puts={"x": b"1", "y": b"2"}, note="why")
        sites["b"].save("x", b"3")
        item = watch.next(WAIT_S)
        assert item.timestamp == commit.ts
        assert item.members["a"].commit == commit
        assert [each.key for each in item.members["b"]] == ["x"]
        assert item.missing == ()
        assert watch.timestamp == commit.ts


def test_without_since_it_begins_after_the_newest_final_moment(sites):
    sites.add("a", "b")
    sites.tick()
    first = sites.later()
    late = sites["a"].save("k", b"seen by nobody yet")
    fleet = sites.fleet()
    with fleet.watch(timeout=0) as watch:
        assert watch.timestamp == fleet.resolved() < first
        assert list(watch) == [], "b may still commit below it"
        sites.tick("b")
        assert taken(watch, 1) == [(late, {"a": [("k", b"seen by nobody yet")]})]


def test_it_waits_for_the_member_that_is_behind(sites):
    """The example of the module."""
    sites.add("a", "b")
    sites.tick()
    with sites.fleet().watch(timeout=0) as watch:
        steps = []
        for name in ("a", "a", "b", "b"):
            sites.later()
            steps.append(sites[name].save("k", name.encode()))
            if name == "a":
                assert watch.next(0.05) is None
        first = [(steps[n], {"a": [("k", b"a")]}) for n in (0, 1)]
        assert taken(watch, 2) == first
        assert watch.next(0.05) is None, "a may still commit below the changes of b"
        sites.later()
        sites.tick("a")
        assert taken(watch, 1) == [(steps[2], {"b": [("k", b"b")]})]
        sites.later()
        sites.tick("a")
        eventually(lambda: watch.next(0) is not None or watch.timestamp >= steps[3])


def test_members_with_ticks_only(sites):
    sites.add("a", "quiet", "silent")
    sites.tick()
    with sites.fleet().watch(timeout=0) as watch:
        for n in range(30):
            sites.later()
            ts = sites["a"].save("k", b"%d" % n)
            sites.tick("quiet")
            if n % 10 < 9:
                continue
            sites.tick("silent")
            found = taken(watch, 10)
            assert found[-1] == (ts, {"a": [("k", b"%d" % n)]})


def test_observed_members_and_archives(sites):
    sites.add("a", "b", "c")
    stamps = []
    for n in range(6):
        for name in "ab":
            sites.write_raw(name, f"{PREFIX}k{n}", b"%d" % n)
        sites["c"].save("k", b"%d" % n)
        sites.later()
        stamps.append(min(sites.tick().values()))
    members = {
        "a": sites.described_as("a", prefix=PREFIX),
        "b": sites.described_as("b", prefix=f"{PREFIX}k3"),
        "c": f"archive:{sites.archive('c')}",
    }
    with sites.fleet(members).watch(since=0, timeout=0) as watch:
        found = [of(item) for item in watch]
    seen = {name: [] for name in members}
    for ts, each in found:
        for name, changes in each.items():
            seen[name].append((ts, changes))
    assert seen["a"] == [(ts, [(f"{PREFIX}k{n}", b"%d" % n)]) for n, ts in enumerate(stamps)]
    assert seen["b"] == [(stamps[3], [(f"{PREFIX}k3", b"3")])]
    assert [changes for _, changes in seen["c"]] == [[("k", b"%d" % n)] for n in range(6)]
    with sites.fleet(members).watch(f"{PREFIX}k3", since=0, timeout=0) as watch:
        (item,) = drained(watch)
    assert item == (stamps[3], {name: [(f"{PREFIX}k3", b"3")] for name in "ab"})


# --- timeouts ---


def test_what_comes_while_the_timeout_passes_is_of_this_iteration(sites, servers, monkeypatch):
    sites.add("a", "b")
    ts = min(store.save("k", b"1") for store in sites.stores.values())
    fleet, original = sites.fleet(timeout=WAIT_S), FleetWatch.next

    def late(self, timeout=None):
        found = original(self, timeout)
        if not servers.is_here(sites.urls["b"]):
            assert found is None
            servers.set(sites.urls["b"], "here")
            eventually(lambda: self.has_caught_up)
        return found

    monkeypatch.setattr(FleetWatch, "next", late)
    servers.set(sites.urls["b"], "hung")
    with fleet.watch(since=0, timeout=0) as watch:
        assert drained(watch) == [(ts, {name: [("k", b"1")] for name in "ab"})]


def test_next_waits_so_long(sites):
    sites.add("a")
    sites.tick()
    fleet = sites.fleet()
    with fleet.watch(timeout=0.05) as watch:
        assert watch.next(0) is None
        assert list(watch) == []
        timer = threading.Timer(0.1, lambda: sites["a"].save("k", b"1"))
        timer.start()
        assert watch.next(WAIT_S).members["a"].changes[0].value == b"1"
        timer.join()
    for timeout in (-1, float("nan"), "1", True):
        with pytest.raises((InvalidOptionError, InvalidTypeError)):
            fleet.watch(timeout=timeout)
        with fleet.watch() as watch, pytest.raises((InvalidOptionError, InvalidTypeError)):
            watch.next(timeout)


# --- members that come and go ---


def test_members_that_joined_and_left(sites):
    sites.add("a", "b", "c")
    stamps = {name: [] for name in "abc"}
    for _ in range(6):
        for name in "abc":
            sites.later()
            stamps[name].append(sites[name].save("k", b"1"))
    sites.later()
    sites.tick("a", "b")
    joined, left = stamps["b"][3], stamps["c"][2]
    members = {
        "a": sites.urls["a"],
        "b": sites.described_as("b", joined=joined),
        "c": sites.described_as("c", left=left),
    }
    fleet = sites.fleet(members)
    with fleet.watch(since=0, timeout=0) as watch:
        items = drained(watch)
    wanted = [
        *((ts, "a") for ts in stamps["a"]),
        *((ts, "b") for ts in stamps["b"] if ts >= joined),
    ]
    wanted += [(ts, "c") for ts in stamps["c"] if ts <= left]
    assert [(ts, *each) for ts, each in items] == sorted(wanted)
    with fleet.watch(since=left, timeout=0) as watch:
        assert [(ts, *each) for ts, each in drained(watch)] == [
            each for each in sorted(wanted) if each[0] > left
        ]


@pytest.mark.parametrize("off", [-1, 0, 1, 1 << 30])
def test_a_member_that_has_left_holds_nothing_back(sites, off):
    """Also if its last timestamp is that at which it left, and none follows."""
    sites.add("a", "b")
    first = min(store.save("k", b"1") for store in sites.stores.values())
    members = {"a": sites.urls["a"], "b": sites.described_as("b", left=first + off)}
    with sites.fleet(members).watch(since=0, timeout=0) as watch:
        sites.later(60_000)
        late = sites["a"].save("k", b"2")
        if off <= 0:
            both = {name: [("k", b"1")] for name in ("ab" if off == 0 else "a")}
            assert taken(watch, 2) == [(first, both), (late, {"a": [("k", b"2")]})]
            return
        assert taken(watch, 1) == [(first, {name: [("k", b"1")] for name in "ab"})]
        assert watch.next(0.05) is None, "it belongs to the fleet, and has no later tick"
        sites.tick("b")
        assert taken(watch, 1) == [(late, {"a": [("k", b"2")]})]


def test_a_member_that_is_created_later(sites):
    sites.add("a")
    sites.tick()
    since = sites.now - 1
    with sites.fleet(sites.urls | {"b": "memory:site-late"}).watch(since=since) as watch:
        sites.later()
        first = sites["a"].save("k", b"1")
        assert watch.next(0.1) is None
        sites.urls["b"] = "memory:site-late"
        sites.stores["b"] = sites.open("b")
        sites["b"].save("k", b"2")
        assert taken(watch, 1) == [(first, {"a": [("k", b"1")], "b": [("k", b"2")]})]


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_member_that_never_opens(sites, servers, mode):
    sites.add("a", "b")
    first = min(store.save("k", b"1") for store in sites.stores.values())
    servers.set(sites.urls["b"], mode)
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch(since=0, timeout=0.1) as watch:
        assert list(watch) == [], "b may have commits before those of a; the iteration ends"
        servers.set(sites.urls["b"], "here")
        assert taken(watch, 1) == [(first, {name: [("k", b"1")] for name in "ab"})]


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_member_that_comes_back_misses_nothing(sites, servers, mode):
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch() as watch:
        for _ in range(3):
            sites.later()
            for store in sites.stores.values():
                store.save("k", b"1")
            taken(watch, 1)
            servers.set(sites.urls["b"], mode)
            sites.later()
            for store in sites.stores.values():
                store.save("k", b"2")
            assert watch.next(0.05) is None
            servers.set(sites.urls["b"], "here")
            ((_, changes),) = taken(watch, 1)
            assert changes == {name: [("k", b"2")] for name in "ab"}


def test_arguments_of_watch(sites):
    sites.add("a")
    sites.tick()
    fleet = sites.fleet()
    for options, error in (
        ({"behind": "stale"}, InvalidOptionError),
        ({"behind": None}, InvalidOptionError),
        ({"hold_bytes": 0}, InvalidOptionError),
        ({"hold_bytes": 1.5}, InvalidTypeError),
        ({"members": "x"}, InvalidOptionError),
        ({"prefix": 5}, InvalidTypeError),
        ({"prefix": b"x"}, InvalidTypeError),
        ({"since": 0, "resume": fleet.at().token}, InvalidOptionError),
    ):
        with pytest.raises(error):
            fleet.watch(**options)
    with fleet.watch("\ud800") as watch, pytest.raises(InvalidKeyError):
        watch.next(WAIT_S)


def test_who_holds_it_back_is_named(sites):
    sites.add("a", "b", "c")
    sites.tick()
    with sites.fleet().watch() as watch:
        assert watch.waits_for == ()
        sites.later()
        ts = sites["a"].save("k", b"1")
        sites.tick("c")
        eventually(lambda: watch.waits_for == ("b",))
        assert watch.next(0) is None
        sites.tick("b")
        assert [of(watch.next(WAIT_S))] == [(ts, {"a": [("k", b"1")]})]
        assert watch.waits_for == ()
