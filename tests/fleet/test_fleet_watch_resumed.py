"""Watches that are ended and continued, with writers at work: as one that was not interrupted."""

import random
import threading
from collections import defaultdict

import pytest
from store.wrapping import backup

import snapkv
from snapkv.errors import InvalidOptionError, MembersBehindError, StoreRestoredError
from snapkv.fleet import fleet_watch

from .following import drained, of, own, taken
from .histories import PREFIX, Writing
from .sites import WAIT_S, eventually

pytestmark = pytest.mark.slow


def continued(fleet, how, since, **options):
    """Take each item with a watch of its own, which continues after the one before."""
    found, token = [], None
    while True:
        start = {"since": since} if token is None or how == "since" else {"resume": token}
        with fleet.watch(**start, timeout=0, **options) as watch:
            item = next(watch, None)
            if item is None:
                return found
            found.append(of(item))
            since, token = item.timestamp, watch.token
            assert watch.timestamp == since


@pytest.mark.parametrize("how", ["since", "token"])
@pytest.mark.parametrize("options", [{}, {"prefix": "a"}, {"members": "m1,disk"}], ids=str)
def test_after_each_item(sites, how, options):
    seed = 21
    print(f"seed {seed}")
    sites.add("m1", "m2")
    sites.add("disk", kind="lmdb")
    Writing(sites, random.Random(seed)).steps(40)
    sites.later()
    sites.tick()
    fleet = sites.fleet()
    names = options.get("members", "m1,m2,disk").split(",")
    wanted = own(sites, *names, prefix=options.get("prefix", ""))
    stamps = [ts for ts, _ in wanted]
    assert options or any(len(members) > 1 for _, members in wanted)
    assert continued(fleet, how, 0, **options) == wanted
    assert len(stamps) == len(set(stamps))


@pytest.mark.parametrize("how", ["since", "token"])
def test_observed_members_after_each_item(sites, how):
    sites.add("a", "b")
    rng = random.Random(8)
    for n in range(12):
        for name in "ab":
            for _ in range(rng.randrange(3)):
                sites.write_raw(name, f"{PREFIX}k{rng.randrange(3)}", b"%d" % n)
            if rng.random() < 0.7:
                sites[name].tick()
        sites.clock.advance(rng.choice([0, 1_000]))
    sites.later()
    sites.tick()
    fleet = sites.fleet(sites.described(prefix=PREFIX))
    with fleet.watch(since=0, timeout=0) as watch:
        wanted = drained(watch)
    assert len(wanted) > 5
    assert continued(fleet, how, 0) == wanted


def test_a_token_is_for_another_fleet_and_of_its_members(sites):
    sites.add("a", "b", "c")
    for n in range(3):
        sites.later()
        for store in sites.stores.values():
            store.save("k", b"%d" % n)
    wanted = own(sites, "a", "b")
    with sites.fleet().watch(since=0, members="a,b") as watch:
        assert taken(watch, 1) == wanted[:1]
        token = watch.token
    with sites.fleet().watch(resume=token, timeout=0) as watch:
        assert drained(watch) == wanted[1:], "c is not one of its members"
    with pytest.raises(InvalidOptionError, match="'b', which is not a member of this fleet"):
        sites.fleet(sites.described("a", "c")).watch(resume=token)
    with pytest.raises(InvalidOptionError, match="names none of the members c"):
        sites.fleet().watch(resume=token, members="c")


def test_new_members_are_followed_from_the_time_of_the_token_on(sites):
    sites.add("a", "b", "c")
    for n in range(4):
        sites.later()
        for store in sites.stores.values():
            store.save("k", b"%d" % n)
    sites.later()
    sites.tick()
    with sites.fleet().watch(since=0, members="a,b") as watch:
        given = taken(watch, 3)
        token = watch.token
    rest = [item for item in own(sites) if item[0] > given[-1][0]]
    assert any("c" in changes for _, changes in rest)
    with sites.fleet().watch(resume=token, members="*", timeout=0) as watch:
        assert drained(watch) == rest
    some = [(ts, {m: each for m, each in c.items() if m in "bc"}) for ts, c in rest]
    with sites.fleet().watch(resume=token, members="b,c", timeout=0) as watch:
        assert drained(watch) == [(ts, changes) for ts, changes in some if changes]


def test_the_token_of_a_moment_begins_after_it(sites):
    sites.add("a", "b")
    Writing(sites, random.Random(3)).steps(30)
    sites.later()
    sites.tick()
    fleet = sites.fleet()
    everything = own(sites)
    for ts, _ in everything[::5]:
        with fleet.watch(resume=fleet.at(ts).token, timeout=0) as watch:
            assert drained(watch) == [item for item in everything if item[0] > ts]


def test_a_member_that_was_restored_in_between(sites, servers):
    sites.add("a", "b")
    stamps = []
    for n in range(5):
        sites.later()
        stamps.append(min(store.save("k", b"%d" % n) for store in sites.stores.values()))
    fleet = sites.fleet()
    tokens = []
    with fleet.watch(since=0) as watch:
        for _ in stamps:
            taken(watch, 1)
            tokens.append(watch.token)
    (engine,) = servers.of[sites.urls["a"]]
    inner = backup(engine.inner, sites["a"].at(stamps[2]).revision, same_cluster=True)
    restored = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
    sites.later()
    again = restored.save("k", b"again")
    for _ in range(4):
        restored.tick()
    sites.tick("b")
    other = sites.fleet({"a": restored, "b": sites.urls["b"]})
    for n, token in enumerate(tokens):
        with other.watch(resume=token) as watch:
            if n > 2:
                with pytest.raises(StoreRestoredError) as e:
                    watch.next(WAIT_S)
                assert e.value.member == "a"
                continue
            left = taken(watch, len(stamps) - 1 - n + 1)
            assert left[-1] == (again, {"a": [("k", b"again")]})


@pytest.mark.parametrize("ends", ["with an item", "with a tick"])
def test_a_quiet_member_that_was_restored_in_between(sites, servers, ends):
    """Its ticks are in the token: what commits below them later would be lost otherwise."""
    sites.add("a", "b")
    stamps, ticks = [], []
    for n in range(4):
        sites.later()
        ticks.append(sites["b"].tick().ts)
        stamps.append(sites["a"].save("k", b"%d" % n))
    fleet = sites.fleet()
    with fleet.watch(since=0) as watch:
        assert [ts for ts, _ in taken(watch, 4)] == stamps
        to = ticks[2]
        if ends == "with a tick":
            to = sites["b"].resolved()
            sites.later()
            stamps = [min(sites.tick().values())]
            eventually(lambda: watch.next(0) is None and watch.timestamp == stamps[-1])
        token = watch.token
    (engine,) = servers.of[sites.urls["b"]]
    inner = backup(engine.inner, sites["b"].at(to).revision, same_cluster=True)
    sites.clock.set((to >> 18) + 1)
    restored = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
    assert restored.save("k", b"below") <= stamps[-1]
    sites.clock.advance(60_000)
    restored.tick()
    other = sites.fleet({"a": sites.urls["a"], "b": restored})
    with other.watch(resume=token) as watch, pytest.raises(StoreRestoredError) as e:
        watch.next(WAIT_S)
    assert e.value.member == "b"


# --- memory ---


@pytest.mark.parametrize("hold_bytes", [1, 300, 5_000])
def test_little_memory_is_enough(sites, hold_bytes, monkeypatch):
    rng = random.Random(2)
    sites.add("a", "b", "c")
    Writing(sites, rng).steps(150)
    sites.later()
    sites.tick()
    wanted, held = own(sites), []
    original = fleet_watch.MemberFollower._move

    def move(self, progress):
        held.append(self.held)
        original(self, progress)

    monkeypatch.setattr(fleet_watch.MemberFollower, "_move", move)
    with sites.fleet().watch(since=0, timeout=0, hold_bytes=hold_bytes) as watch:
        assert drained(watch) == wanted
    largest = 3 * 250  # one step more than it may hold
    assert max(held) <= hold_bytes + largest


def test_the_faster_members_are_not_read_on(sites):
    sites.add("fast", "slow")
    sites.tick()
    fleet = sites.fleet()
    with fleet.watch(hold_bytes=2_000) as watch:
        for n in range(200):
            sites.later()
            sites["fast"].save("k", b"%d" % n)
        reader, _ = watch._followers
        eventually(lambda: reader.held >= 2_000)
        assert watch.next(0.05) is None
        assert reader.held < 2_500
        assert reader.progress < sites["fast"].resolved()
        sites.tick("slow")
        assert [ts for ts, _ in taken(watch, 200)] == [c.ts for c in sites["fast"].commits()][1:]
        assert reader.held == 0


# --- writers at work ---


class Writer(threading.Thread):
    """Commits to a member by the machine's clock; keeps what it committed, by time."""

    def __init__(self, sites, name, number, seed, count) -> None:
        super().__init__(name=f"writer {name} {number}")
        self.store = sites.open(name, clock=snapkv.SystemClock())
        self.member, self.number, self.count = name, number, count
        self.rng, self.made, self.failed = random.Random(seed), {}, None

    def run(self) -> None:
        try:
            for n in range(self.count):
                if self.rng.random() < 0.2:
                    self.store.tick()
                    continue
                key = f"w{self.number}/{self.rng.randrange(3)}"
                value = b"%d" % n
                self.made[self.store.commit(puts={key: value}).ts] = {key: value}
        except BaseException as e:
            self.failed = e


@pytest.mark.long_after(2)
@pytest.mark.parametrize("hold_bytes", [400, 64 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_random_writers_and_restarts(sites, seed, hold_bytes):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.clock.set(snapkv.SystemClock().now_ms() - 60_000)
    sites.add("a", "b", "c")
    sites.tick()
    fleet = sites.fleet(clock=snapkv.SystemClock())
    writers = [Writer(sites, name, n, rng.random(), 60) for name in "abc" for n in range(2)]
    whole, pieces = [], []
    uninterrupted = fleet.watch(since=0, hold_bytes=hold_bytes)
    parts = fleet.watch(since=0, hold_bytes=hold_bytes)
    for writer in writers:
        writer.start()
    done = False
    while not done:
        done = not any(writer.is_alive() for writer in writers)
        if done:
            for name in "abc":
                sites.open(name, clock=snapkv.SystemClock()).tick()
            newest = fleet.resolved()
        if rng.random() < 0.3:
            since, token = parts.timestamp, parts.token
            parts.close()
            start = rng.choice([{"since": since}, {"resume": token}])
            parts = fleet.watch(**start, hold_bytes=hold_bytes)
        for watch, found in ((uninterrupted, whole), (parts, pieces)):
            if (item := watch.next(0.005)) is not None:
                found.append(of(item))
    wanted = defaultdict(dict)
    for writer in writers:
        writer.join()
        assert writer.failed is None, writer.failed
        for ts, puts in writer.made.items():
            wanted[ts].setdefault(writer.member, {}).update(puts)
    for watch, found in ((uninterrupted, whole), (parts, pieces)):
        while watch.timestamp < newest:
            if (item := watch.next(0.05)) is not None:
                found.append(of(item))
        watch.close()
        stamps = [ts for ts, _ in found]
        assert stamps == sorted(set(stamps))
        assert {ts: {n: dict(c) for n, c in each.items()} for ts, each in found} == wanted
    assert whole == pieces


def check_set_back(sites, servers, kept, final, token):
    """Set "a" back to a commit, commit below a time, and go on there: it must not be missed."""
    (engine,) = servers.of[sites.urls["a"]]
    inner = backup(engine.inner, sites["a"].at(kept).revision, same_cluster=True)
    sites.clock.set((final >> 18) - 10)
    restored = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
    assert restored.save("k", b"below") < final
    for _ in range(3):
        sites.later(60_000)
        restored.tick()
    other = sites.fleet({"a": restored, "b": sites.urls["b"]})
    with other.watch(resume=token) as watch, pytest.raises(StoreRestoredError) as e:
        watch.next(WAIT_S)
    assert e.value.member == "a"


@pytest.mark.parametrize("begins", ["since a time", "from now on"])
def test_a_member_that_lost_what_made_the_time_final(sites, servers, begins):
    """It keeps the commit that was returned last, and has a new one below the time now."""
    sites.add("a", "b")
    kept = min(store.save("k", b"0") for store in sites.stores.values())
    sites.later()
    fleet = sites.fleet()
    if begins == "since a time":
        with fleet.watch(since=kept) as watch:
            sites.later(2_000)
            sites["a"].save("k", b"lost")
            sites.clock.set(sites.clock.now_ms() - 1_000)
            final = sites["b"].save("k", b"1")
            assert taken(watch, 1) == [(final, {"b": [("k", b"1")]})]
            token = watch.token
    else:
        final = sites["b"].save("k", b"1")
        sites.later()
        sites["a"].save("k", b"lost")
        assert fleet.resolved() == final
        with fleet.watch() as watch:
            assert watch.next(0.05) is None
            token = watch.token
    assert watch.timestamp == final
    check_set_back(sites, servers, kept, final, token)


@pytest.mark.parametrize("begins", [True, False])
def test_a_watch_after_a_moment_that_lost_what_made_it_final(sites, servers, begins):
    """Also where the member had no commit yet at that moment."""
    sites.add("a", "b")
    kept = sites["a"].save("k", b"0") if begins else sites["a"].at().timestamp
    sites.later()
    final = sites["b"].save("k", b"1")
    sites.later()
    sites["a"].save("k", b"lost")
    fleet = sites.fleet()
    moment = fleet.at(final)
    assert moment.final
    token = moment.token
    check_set_back(sites, servers, kept, final, token)


def test_another_prefix_than_that_of_the_token(sites):
    """Changes of the other prefix would be missing, without a word."""
    (a,) = sites.add("a")
    a.save("a/k", b"1")
    with sites.fleet().watch("b/", since=0) as watch:
        token = watch.token
    for prefix in (None, "a/", "b"):
        with pytest.raises(InvalidOptionError, match="of the prefix 'b/'"):
            sites.fleet().watch(prefix, resume=token)
    with sites.fleet().watch("b/", resume=token, timeout=0) as watch:
        assert drained(watch) == []
    with sites.fleet().watch("a/", resume=sites.fleet().at().token, timeout=0) as watch:
        assert drained(watch) == []


@pytest.mark.parametrize("behind", ["stale", "leave out"])
def test_a_moment_that_shows_nothing_of_a_member(sites, servers, behind):
    """What that member has at or below the moment would be missing."""
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet(timeout=0.1)
    servers.set(sites.urls["b"], "away")
    sites.later()
    sites["b"].save("k", b"missed")
    ts = sites["a"].save("k", b"1")
    token = fleet.at(ts, behind=behind).token
    servers.set(sites.urls["b"], "here")
    with pytest.raises(MembersBehindError, match="b: the token shows nothing of it"):
        sites.fleet().watch(resume=token)
    with sites.fleet().watch(resume=token, members="a", timeout=0) as watch:
        assert drained(watch) == []


def test_a_watch_after_a_moment_that_an_archive_made_final(sites, servers):
    """The engine is restored to before the newest commit that the archive has."""
    sites.add("a", "b")
    kept = sites["a"].save("k", b"0")
    sites.later()
    final = sites["b"].save("k", b"1")
    sites.later()
    sites["a"].save("k", b"lost")
    folder = sites.archive("a")
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder), "b": sites.urls["b"]})
    servers.set(sites.urls["a"], "away")
    moment = fleet.at(final)
    assert (moment.final, moment.members["a"].state) == (True, "archive")
    token = moment.token
    check_set_back(sites, servers, kept, final, token)
