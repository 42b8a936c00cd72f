"""Watching with behind="leave out": the others go on, and what was missed comes later."""

import random
import time

import pytest
from store.wrapping import backup

import snapkv
from snapkv.errors import StoreRestoredError
from snapkv.fleet import Late, fleet_watch

from .following import of, own, plain, taken
from .sites import WAIT_S, eventually

pytestmark = pytest.mark.slow


class Clock:
    """The machine's seconds, and those that a test lets pass."""

    passed = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.passed


@pytest.fixture
def passing(monkeypatch):
    """The clock by which members are left out; the machine may take a minute for a test."""
    clock = Clock()
    monkeypatch.setattr(fleet_watch, "PATIENCE_S", 60.0)
    monkeypatch.setattr(fleet_watch, "monotonic", clock)
    return clock


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(fleet_watch, "PATIENCE_S", 0.05)


def settled(watch, sites):
    """Wait until a watch has read all that its members have."""
    newest = {name: store.resolved() for name, store in sites.stores.items()}
    eventually(
        lambda: all(each.progress >= newest[each.name] for each in watch._followers),
        "the followers do not catch up",
    )


def lates_before(watch):
    """What comes before the next item of all members, and that."""
    lates = []
    while isinstance(item := watch.next(WAIT_S), Late):
        lates.append(item)
    return lates, item


def lates_until(watch, ts):
    """What comes of a member that was left out, up to a time."""
    lates = [watch.next(WAIT_S)]
    while lates[-1].until < ts:
        lates.append(watch.next(WAIT_S))
    return lates


# --- who is left out ---


def test_a_member_that_hangs_is_left_out_and_comes_late(sites, servers, monkeypatch):
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch(behind="leave out") as watch:
        sites.later()
        both = min(store.save("k", b"0") for store in sites.stores.values())
        item = watch.next(WAIT_S)
        assert (of(item)[0], list(item.members), item.missing) == (both, ["a", "b"], ())
        servers.set(sites.urls["b"], "hung")
        monkeypatch.setattr(fleet_watch, "PATIENCE_S", 0.05)
        missed, stamps = [], []
        for n in range(3):
            sites.later()
            stamps.append(sites["a"].save("k", b"%d" % n))
            missed.append(sites["b"].save("k", b"%d" % n))
        for n in range(3):
            item = watch.next(WAIT_S)
            assert of(item) == (stamps[n], {"a": [("k", b"%d" % n)]})
            assert item.missing == ("b",)
        monkeypatch.setattr(fleet_watch, "PATIENCE_S", 60.0)  # the machine may pause, too
        servers.set(sites.urls["b"], "here")
        lates = lates_until(watch, stamps[-1])  # before a goes on: it would not wait for b
        sites.later()
        again = min(store.save("k", b"9") for store in sites.stores.values())
        item = watch.next(WAIT_S)
        assert {late.member for late in lates} == {"b"}
        assert (lates[0].since, lates[-1].until) == (both, stamps[-1])
        assert [(each.commit.ts, plain(each)) for late in lates for each in late.changes] == [
            (ts, [("k", b"%d" % n)]) for n, ts in enumerate(missed)
        ]
        assert of(item) == (again, {name: [("k", b"9")] for name in "ab"})
        assert item.missing == ()


def test_who_was_quiet_like_all_others_is_not_left_out_at_once(sites, passing):
    sites.add("a", "b")
    sites.tick()
    with sites.fleet().watch(behind="leave out") as watch:
        settled(watch, sites)
        assert watch.next(0) is None
        passing.passed += 100  # nobody commits
        sites.later()
        ts = sites["a"].save("k", b"1")
        settled(watch, sites)
        assert watch.next(0) is None, "a is there, and b may be on its way"
        sites.tick("b")
        assert of(watch.next(WAIT_S)) == (ts, {"a": [("k", b"1")]})


def test_who_holds_others_back_for_long_is_left_out(sites, passing):
    sites.add("a", "b", "c")
    sites.tick()
    with sites.fleet().watch(behind="leave out") as watch:
        sites.later()
        ts = sites["a"].save("k", b"1")
        sites.tick("c")
        settled(watch, sites)
        assert watch.next(0) is None
        passing.passed += 60
        item = watch.next(0)
        assert (item.timestamp, item.missing) == (ts, ("b",))


def test_who_is_slow_but_moves_is_not_left_out(sites, passing):
    sites.add("a", "b")
    sites.tick()
    with sites.fleet().watch(behind="leave out") as watch:
        late = sites.later(100_000)
        sites["a"].save("k", b"1")
        sites.clock.set(sites.clock.now_ms() - 99_000)
        for _ in range(10):
            sites.later()
            sites.tick("b")
            eventually(lambda: watch._followers[1].progress == sites["b"].resolved())
            assert watch.next(0) is None
            passing.passed += 40
        assert watch.timestamp < late


def test_in_strict_watches_no_member_is_left_out(sites, passing):
    sites.add("a", "b")
    sites.tick()
    with sites.fleet().watch() as watch:
        sites.later()
        sites["a"].save("k", b"1")
        settled(watch, sites)
        assert watch.next(0) is None
        passing.passed += 1_000
        assert watch.next(0) is None


def test_the_member_that_is_ahead_is_not_left_out(sites, passing):
    """Also when all others were left out, and no one is ahead of it."""
    sites.add("a", "b")
    sites.tick()
    with sites.fleet().watch(behind="leave out", timeout=0) as watch:
        sites.later()
        sites["a"].save("k", b"1")
        settled(watch, sites)
        for _ in range(3):
            list(watch)
            passing.passed += 100
        assert [each.left_out for each in watch._followers] == [False, True]


def test_a_member_that_is_away_from_the_beginning(sites, servers, impatient):
    sites.add("a", "b")
    sites["b"].save("k", b"0")
    servers.set(sites.urls["b"], "away")
    fleet = sites.fleet(timeout=0.1)
    sites.tick("a")
    with fleet.watch(behind="leave out") as watch:
        sites.later()
        ts = sites["a"].save("k", b"1")
        item = watch.next(WAIT_S)
        assert (of(item), item.missing) == ((ts, {"a": [("k", b"1")]}), ("b",))
        missed = sites["b"].save("k", b"1")
        servers.set(sites.urls["b"], "here")
        late = watch.next(WAIT_S)
        assert (late.member, late.until) == ("b", ts)
        assert [each.commit.ts for each in late.changes] == [missed]


def test_a_member_without_changes_comes_back(sites, servers, impatient):
    """Its Late has none, and says that from its end on the member is there again."""
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch(behind="leave out") as watch:
        servers.set(sites.urls["b"], "hung")
        sites.later()
        ts = sites["a"].save("k", b"1")
        assert watch.next(WAIT_S).missing == ("b",)
        sites.tick("b")
        servers.set(sites.urls["b"], "here")
        late = watch.next(WAIT_S)
        assert (late.member, late.until, late.changes) == ("b", ts, ())


def test_a_restore_of_a_member_that_was_left_out(sites, servers, impatient):
    sites.add("a", "b")
    stamps = []
    for n in range(4):
        sites.later()
        stamps.append(sites["b"].save("k", b"%d" % n))
        sites.tick("a")
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch(since=0, behind="leave out") as watch:
        taken(watch, 4)
        (engine,) = servers.of[sites.urls["b"]]
        servers.set(sites.urls["b"], "hung")
        sites.later()
        sites["a"].save("k", b"1")
        assert watch.next(WAIT_S).missing == ("b",)
        revision = sites["b"].at(stamps[1]).revision
        inner = backup(engine.inner, revision, same_cluster=True)
        other = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
        for _ in range(6):
            other.save("k", b"other")
        engine.inner = inner
        servers.set(sites.urls["b"], "here")
        with pytest.raises(StoreRestoredError) as e:
            watch.next(WAIT_S)
        assert e.value.member == "b"


# --- nothing twice, nothing lost ---


def replayed(items, names):
    """The changes of each member, of items and of Late, in the order in which they came."""
    found = {name: [] for name in names}
    for item in items:
        if isinstance(item, Late):
            assert item.since <= item.until
            for changes in item.changes:
                assert item.since < changes.commit.ts <= item.until
                found[item.member].append((changes.commit.ts, plain(changes)))
        else:
            for name, changes in item.members.items():
                assert name not in item.missing
                found[name].append((item.timestamp, plain(changes)))
    return found


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_members_that_come_and_go_at_random(sites, servers, monkeypatch, seed, resumed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    monkeypatch.setattr(fleet_watch, "PATIENCE_S", 0.01)
    names = ["a", "b", "c"]
    sites.add(*names)
    sites.tick()
    fleet = sites.fleet(timeout=0.05)
    monkeypatch.setattr(fleet_watch, "RETRY_S_MAX", 0.1)
    followed = fleet.watch(since=0, behind="leave out")
    items, times = [], []

    def take(seconds):
        nonlocal followed
        item = followed.next(seconds)
        if item is not None:
            items.append(item)
            if not isinstance(item, Late):
                times.append(item.timestamp)
            if resumed and rng.random() < 0.5:
                token = followed.token
                followed.close()
                followed = fleet.watch(resume=token, behind="leave out")
        return item

    for n in range(60):
        name = rng.choice(names)
        sites.clock.advance(rng.choice([0, 1, 1_000]))
        sites[name].commit(puts={"k": b"%d" % n} if rng.random() < 0.7 else {})
        if rng.random() < 0.2:
            mode = rng.choice(["here", "here", "hung", "away"])
            servers.set(sites.urls[rng.choice(names)], mode)
        take(rng.choice([0, 0, 0.02]))
    for name in names:
        servers.set(sites.urls[name], "here")
    sites.later()
    sites.tick()
    wanted = {name: [(ts, each[name]) for ts, each in own(sites, name)] for name in names}
    eventually(lambda: take(0.02) is None and replayed(items, names) == wanted)
    assert replayed(items, names) == wanted
    assert times == sorted(set(times))
    followed.close()


def test_a_token_of_a_watch_that_left_a_member_out(sites, servers, impatient):
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    with fleet.watch(behind="leave out") as watch:
        servers.set(sites.urls["b"], "hung")
        sites.later()
        missed = sites["b"].save("k", b"1")
        sites.later()
        ts = sites["a"].save("k", b"1")
        assert watch.next(WAIT_S).missing == ("b",)
        token = watch.token
    servers.set(sites.urls["b"], "here")
    with fleet.watch(resume=token, behind="leave out") as watch:
        assert watch.timestamp == ts
        late = watch.next(WAIT_S)
        assert (late.member, [each.commit.ts for each in late.changes]) == ("b", [missed])
    servers.set(sites.urls["b"], "hung")
    with fleet.watch(resume=token) as watch:  # strict: b has to come back first
        for _ in range(2):
            sites.later()
            sites["a"].tick()
        eventually(lambda: watch._followers[0].progress == sites["a"].resolved())
        assert watch.next(0.05) is None
        assert watch.timestamp == ts
        servers.set(sites.urls["b"], "here")
        sites.later()
        again = min(store.save("k", b"2") for store in sites.stores.values())
        lates, item = lates_before(watch)
        assert [each.commit.ts for late in lates for each in late.changes] == [missed]
        assert of(item) == (again, {name: [("k", b"2")] for name in "ab"})
        assert item.missing == ()
