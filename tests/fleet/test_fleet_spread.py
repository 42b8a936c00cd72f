"""Moments of observed members: at the newest round at or below a time, with its spread."""

import random
import threading
import time

import pytest

import snapkv
from snapkv import MembersBehindError
from snapkv.fleet import tick_rounds as rounds

from .histories import PREFIX
from .sites import WAIT_S, eventually


class Observed:
    """A fleet of observed members, and what ticks them."""

    def __init__(self, sites, *names, **fleet_options) -> None:
        self.sites = sites
        sites.add(*names)
        self.fleet = sites.fleet(sites.described(prefix=PREFIX), **fleet_options)
        self.ticker = sites.keep(self.fleet.ticker())
        self.number = 0

    def round(self, **options) -> snapkv.fleet.Round:
        """Write to each member, then tick all of them."""
        self.number += 1
        for name in self.sites.stores:
            self.sites.write_raw(name, f"{PREFIX}k", b"%d" % self.number)
        self.sites.later()
        return self.ticker.tick(**options)

    def shows(self, when, *, at=None, number=None, **options):
        """Assert that a moment is that of a round, with its bounds."""
        moment = self.fleet.at(when, **options)
        assert moment.timestamp == at.timestamp
        assert moment.spread == pytest.approx(at.spread, abs=1e-6)
        assert self.fleet.at(token=moment.token).spread == moment.spread
        assert moment.final
        if number is not None:
            names = [name for name, seen in moment.members.items() if seen.final]
            assert set(moment.everywhere(f"{PREFIX}k").values()) == {b"%d" % number}, names
        return moment


@pytest.fixture
def observed(sites):
    return Observed(sites, "a", "b", "c")


# --- which round ---


def test_a_moment_is_that_of_the_newest_round_that_is_confirmed(sites, observed):
    made = [observed.round() for _ in range(4)]
    for n in range(3):
        for when in (made[n].timestamp, made[n].timestamp + 1, made[n + 1].timestamp - 1):
            observed.shows(when, at=made[n], number=n + 1)
    observed.shows(made[3].timestamp, at=made[2], number=3)
    observed.shows(None, at=made[2], number=3)
    observed.round()
    observed.shows(made[3].timestamp, at=made[3], number=4)


def test_the_last_round_of_a_ticker_that_died_is_not_confirmed(sites, observed):
    """Trap 8."""
    made = [observed.round() for _ in range(3)]
    observed.ticker.close()
    observed.shows(None, at=made[1], number=2)
    with observed.fleet.ticker() as again:
        observed.ticker = again
        first = observed.round()
        observed.shows(None, at=made[1], number=2)
        observed.round()
        observed.shows(None, at=first, number=4)
    observed.shows(made[2].timestamp, at=made[1], number=2)


def test_one_round_alone_is_none(sites, observed):
    made = observed.round()
    moment = observed.fleet.at()
    assert (moment.timestamp, moment.spread) == (made.timestamp, None)
    assert moment.final
    assert set(moment.everywhere(f"{PREFIX}k").values()) == {b"1"}


def test_ticks_of_others_in_between(sites, observed):
    made = []
    for n in range(5):
        made.append(observed.round())
        for name in "abc"[: n % 3 + 1]:
            sites.clock.advance(10)
            sites[name].tick()
    for n in range(4):
        observed.shows(made[n].timestamp + (500 << 18), at=made[n], number=n + 1)
        observed.shows(made[n].timestamp, at=made[n], number=n + 1)


def test_tickers_of_their_own_have_no_spread(sites, observed):
    stamps = []
    for n in range(5):
        for name, store in sites.stores.items():
            sites.write_raw(name, f"{PREFIX}k", b"%d" % n)
            sites.clock.advance(7)
            stamps.append(store.tick().ts)
    final = min(store.resolved() for store in sites.stores.values())
    for ts in stamps[5:]:
        if ts <= final:
            moment = observed.fleet.at(ts)
            assert (moment.timestamp, moment.spread) == (ts, None)
            for name, seen in moment.members.items():
                assert seen.timestamp == max(s for s in stamps if s <= ts and s in own(sites, name))


def own(sites, name):
    return {commit.ts for commit in sites[name].commits()}


def test_a_round_long_ago_is_looked_for_in_some_ticks_only(sites, observed):
    made = [observed.round() for _ in range(2)]
    for _ in range(rounds.LOOKS_MAX - 2):
        sites.later()
        sites.tick()
    observed.shows(None, at=made[0])
    for _ in range(5):
        sites.later()
        sites.tick()
    assert observed.fleet.at().spread is None


# --- members that missed it ---


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_round_without_a_member_is_none_of_its_moments(sites, servers, mode):
    observed = Observed(sites, "a", "b", "c", timeout=0.2)
    made = [observed.round() for _ in range(2)]
    servers.set(sites.urls["b"], mode)
    made += [observed.round(timeout=0.2) for _ in range(2)]
    assert list(made[-1].failed) == ["b"]
    servers.set(sites.urls["b"], "here")

    def answers():
        made.append(observed.round())
        return made[-1].ticked == ("a", "b", "c")

    eventually(answers)
    made.append(observed.round())
    eventually(lambda: observed.fleet.at(behind="stale").timestamp == made[-2].timestamp)
    observed.shows(made[-2].timestamp, at=made[-2])
    for late in made[2:4]:
        if not late.failed:
            continue
        observed.shows(late.timestamp, at=made[1], number=2)
        observed.shows(late.timestamp, at=late, members="a,c")


def test_a_tick_whose_answer_comes_after_the_round_is_not_within_its_bounds(sites, servers):
    """When it was committed is not known; that it was is seen by all."""
    observed = Observed(sites, "a", "b", timeout=0.2)
    made = [observed.round() for _ in range(2)]
    engine = servers.of[sites.urls["b"]][-1]  # that of the ticker
    held = threading.Event()

    def late(*args, **options):
        answer = engine.inner.transact(*args, **options)
        assert held.wait(WAIT_S)
        return answer

    engine.transact = late
    missed = observed.round(timeout=0.1)
    assert list(missed.failed) == ["b"]
    after = observed.round(timeout=0.1)
    assert list(after.failed) == ["b"]
    assert sites["b"].resolved() == missed.timestamp
    observed.shows(missed.timestamp, at=made[1], number=2)
    del engine.transact
    held.set()
    made = []

    def answers():
        made.append(observed.round())
        return made[-1].ticked == ("a", "b")

    eventually(answers)
    observed.round()
    observed.shows(None, at=made[-1])


def test_a_member_that_was_refused(sites, observed):
    made = [observed.round() for _ in range(2)]
    sites.later()
    sites["b"].tick()
    sites.clock.advance(-1_500)
    refused = observed.round()
    assert list(refused.refused) == ["b"]
    made.append(observed.round())
    made.append(observed.round())
    observed.shows(refused.timestamp, at=made[1], number=2)
    observed.shows(None, at=made[2], number=4)


# --- two tickers ---


def test_two_tickers(sites, observed):
    with observed.fleet.ticker() as second:
        tickers, made = [observed.ticker, second], []
        for n in range(8):
            observed.ticker = tickers[n % 2]
            made.append(observed.round())
        for n in range(6):
            observed.shows(made[n].timestamp, at=made[n], number=n + 1)


def test_rounds_of_two_tickers_at_one_time_are_not_one_round(sites):
    """Each has ticked some members at the same millisecond; nothing bounds them together."""
    observed = Observed(sites, "a", "b", "c")
    with observed.fleet.ticker(members="a") as one:
        other_fleet = sites.fleet(sites.described(prefix=PREFIX))  # with a clock of its own
        with other_fleet.ticker(members="b,c") as other:
            for _ in range(4):
                sites.later()
                stamps = {one.tick().timestamp, other.tick().timestamp}
                assert len(stamps) == 1
    moment = observed.fleet.at(stamps.pop() - 1)
    assert moment.spread is None
    assert observed.fleet.at(moment.timestamp, members="b,c").spread is not None


def test_the_bounds_are_those_of_the_ticker_that_made_the_round(sites):
    """The tick that follows first may be of another one, whose round at that time failed there."""
    observed = Observed(sites, "a", "b", "c")
    other_fleet = sites.fleet(sites.described(prefix=PREFIX))  # with a clock of its own
    with observed.fleet.ticker(members="a,b") as one, other_fleet.ticker(members="a,c") as other:
        sites.later()
        made = one.tick()
        assert list(other.tick().refused) == ["a"]
        sites.later()
        assert other.tick().ticked == ("a", "c")
        assert one.tick().ticked == ("b",)
    observed.shows(made.timestamp, at=made, members="a,b")


# --- other members ---


def test_stores_and_archives_are_shown_at_the_round(sites, observed):
    sites.add("store", "kept")
    made = []
    for n in range(4):
        for name in ("store", "kept"):
            sites[name].save("k", b"%d" % n)
        made.append(observed.round())
        sites.later()
        sites.tick("store", "kept")
    members = sites.described("a", "b", "c", prefix=PREFIX) | sites.described("store")
    fleet = sites.fleet(members | {"kept": f"archive:{sites.archive('kept')}"})
    moment = fleet.at()
    assert moment.timestamp == made[2].timestamp
    assert moment.everywhere("k") == {"store": b"2", "kept": b"2"}
    assert moment.spread == pytest.approx(made[2].spread, abs=1e-6)
    alone = fleet.at(members="a,store,kept")
    assert alone.spread is None
    assert alone.timestamp == fleet.resolved(members="a,store,kept")


def test_a_member_that_is_behind_has_no_part_in_it(sites, observed):
    made = [observed.round() for _ in range(3)]
    sites.later()
    sites.tick("a", "b")
    late = sites.later()
    sites.tick("a", "b")
    with pytest.raises(MembersBehindError) as e:
        observed.fleet.at(late)
    assert list(e.value.members) == ["c"]
    stale = observed.fleet.at(late, behind="stale")
    assert (stale.timestamp, stale.spread, stale.final) == (late, None, False)
    assert {name: seen.final for name, seen in stale.members.items()} == {
        **{"a": True, "b": True, "c": False}
    }
    out = observed.fleet.at(late, behind="leave out")
    assert out.timestamp == made[1].timestamp
    assert out.spread == pytest.approx(made[1].spread, abs=1e-6)
    assert not out.final
    assert set(out.everywhere(f"{PREFIX}k")) == {"a", "b"}


@pytest.mark.parametrize("end", ["joined", "left"])
def test_members_that_are_not_in_the_fleet_at_the_time_or_at_the_round(sites, observed, end):
    made = [observed.round() for _ in range(2)]
    sites.later()
    then = sites.now
    sites.later()
    sites.tick()
    options = {end: then}
    members = sites.described("a", "b", prefix=PREFIX) | {
        "c": sites.described_as("c", prefix=PREFIX, **options)
    }
    moment = sites.fleet(members).at(then + 1)
    assert moment.timestamp == made[0].timestamp
    assert moment.spread == pytest.approx(made[0].spread, abs=1e-6)
    assert moment.members["c"].state == ("absent" if end == "joined" else "live")
    assert list(moment.members) == ["a", "b", "c"]


def test_a_member_that_left_after_a_round_that_it_missed(sites, observed):
    made = [observed.round() for _ in range(2)]
    with observed.fleet.ticker(members="a,b") as without:
        for _ in range(2):
            sites.later()
            sites["c"].tick()
            sites.later()
            without.tick()
    then = sites.now + 1
    sites.later()
    sites.tick()
    left = sites.described("c", prefix=PREFIX, left=then)
    fleet = sites.fleet(sites.described("a", "b", prefix=PREFIX) | left)
    moment = fleet.at(then + 1)
    assert moment.timestamp == made[0].timestamp
    assert moment.members["c"].state == "live"


def test_a_token_of_an_aligned_moment(sites, observed):
    for _ in range(3):
        observed.round()
    moment = observed.fleet.at()
    again = sites.fleet(sites.described(prefix=PREFIX)).at(token=moment.token)
    assert again.timestamp == moment.timestamp
    assert dict(again) == dict(moment)


# --- what it promises ---


def test_no_effect_without_its_cause(sites):
    """Of writes that are further apart than the spread, a cut never shows the second alone."""
    seed = 1
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.clock.set(snapkv.SystemClock().now_ms())
    observed = Observed(sites, "a", "b")
    written, done = [], threading.Event()

    def write():
        n = 0
        while not done.is_set():
            first, second = rng.sample("ab", 2)
            sites.write_raw(first, f"{PREFIX}cause", b"%d" % n)
            caused = time.monotonic()
            done.wait(rng.choice([0, 0.0005, 0.002]))
            effected = time.monotonic()
            sites.write_raw(second, f"{PREFIX}effect", b"%d" % n)
            written.append((first, second, effected - caused))
            n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(60):
            sites.clock.set(snapkv.SystemClock().now_ms())
            observed.ticker.tick()
    finally:
        done.set()
        writer.join()
    made = sorted({c.ts for c in sites["a"].commits()} & {c.ts for c in sites["b"].commits()})
    checked = 0
    for ts in made:
        moment = observed.fleet.at(ts)
        if moment.spread is None:
            continue
        for n, (first, second, apart) in enumerate(written):
            effect = int(moment.get((second, f"{PREFIX}effect"), b"-1"))
            cause = int(moment.get((first, f"{PREFIX}cause"), b"-1"))
            if effect >= n and apart > moment.spread:
                assert cause >= n, (ts, n, moment.spread, apart)
                checked += 1
            if n > effect + 5:
                break
    assert checked > 0
