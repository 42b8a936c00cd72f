"""The newest time that is final on so many members."""

import random
from math import ceil

import pytest
from store.wrapping import backup

import snapkv
from snapkv import MembersBehindError
from snapkv.errors import InvalidOptionError, InvalidTypeError, StoreRestoredError
from snapkv.fleet.members import FinalSpan, newest_final
from snapkv.times import TIMESTAMP_MAX

from .histories import PREFIX
from .sites import eventually


def stepped(sites, *names):
    """Commit to one member after the other; return their timestamps, rising."""
    stamps = []
    for name in names:
        sites.later()
        stamps.append(sites[name].save("k", b"1"))
    return stamps


# --- policies ---


def test_policies(sites):
    names = [f"m{n}" for n in range(10)]
    sites.add(*names)
    stamps = stepped(sites, *names)
    fleet = sites.fleet()
    assert fleet.resolved() == fleet.resolved("all") == fleet.resolved("100%") == stamps[0]
    wanted = {10: 0, 9: 1, 1: 9, "90%": 1, "89%": 1, "91%": 0, "50%": 5, "1%": 9, "10%": 9}
    for of, at in wanted.items():
        assert fleet.resolved(of) == stamps[at], of
    assert fleet.resolved(members="m3,m7") == stamps[3]
    assert fleet.resolved(1, members="m3,m7") == stamps[7]
    assert fleet.at().timestamp == stamps[0]
    assert fleet.at(members="m8,m9").timestamp == stamps[8]


@pytest.mark.parametrize(
    ("of", "error"),
    [
        *((bad, InvalidOptionError) for bad in ("", "any", "0%", "101%", "-1%", "1.5%", "%", "٣%")),
        *((bad, InvalidOptionError) for bad in ("9" * 5_000 + "%", "00990%", "99", 0, -1, 3)),
        *((bad, InvalidTypeError) for bad in (True, None, 1.5, b"all", [])),
    ],
    ids=lambda each: repr(each)[:12],
)
def test_policies_that_are_none(sites, of, error):
    sites.add("a", "b")
    fleet = sites.fleet()
    for _ in range(2):  # also when nothing else is known
        with pytest.raises(error):
            fleet.resolved(of)
        sites.tick()


def test_no_members_are_no_minimum(sites):
    """Trap 3: the minimum over nothing is not the end of time."""
    sites.add("a")
    sites.tick()
    for members in ([], "", "b*", ["b"]):
        with pytest.raises(InvalidOptionError):
            sites.fleet().resolved(members=members)
    with pytest.raises(InvalidOptionError):
        sites.fleet({})


def naive(spans, of, times):
    """The newest time at which so many members are final, by looking at all times."""

    def is_good(time):
        belong = [span for span in spans if span.joined <= time <= span.left]
        final = sum(span.final >= time for span in belong)
        share = of if isinstance(of, int) else 100 if of == "all" else int(of[:-1])
        wanted = of if isinstance(of, int) else ceil(len(belong) * share / 100)
        return final > 0 and final >= wanted

    return max((time for time in times if is_good(time)), default=0)


@pytest.mark.long_after(2)
@pytest.mark.parametrize("seed", range(5))
def test_the_newest_final_time_of_random_members(seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        spans = []
        for _ in range(rng.randrange(1, 6)):
            joined = rng.choice([0, 0, rng.randrange(20)])
            left = rng.choice([TIMESTAMP_MAX, TIMESTAMP_MAX, joined + rng.randrange(20)])
            spans.append(FinalSpan(rng.randrange(40), joined, left))
        for of in ("all", "99%", "50%", "1%", *range(1, len(spans) + 1)):
            found = newest_final(spans, of)
            assert found == naive(spans, of, range(1, 60)), (spans, of)


# --- nothing known ---


def test_a_member_without_a_tick_does_not_pull_it_to_the_beginning(sites):
    """Trap 5: what was never ticked is named; it is not final at 0."""
    sites.add("a", "b")
    ts = sites.tick("a")["a"]
    fleet = sites.fleet(sites.described() | {"seen": sites.described_as("b", prefix=PREFIX)})
    for call in (fleet.resolved, fleet.at, fleet.watch, lambda: fleet.diff(None, None)):
        with pytest.raises(MembersBehindError, match="no moment is known to be final") as e:
            call()
        assert list(e.value.members) == ["b", "seen"]
        assert all("snapkv fleet tick" in why for why in e.value.members.values())
    assert fleet.resolved(1) == ts
    assert fleet.resolved("33%") == ts
    joined = sites.later()
    members = sites.described() | {"b": sites.described_as("b", joined=joined)}
    assert sites.fleet(members).resolved() == ts, "until it joins, it holds nothing back"
    sites.later()
    sites.tick("a")
    assert sites.fleet(members).resolved() == joined - 1


# --- members that joined later, or left ---


def test_members_that_left_hold_back_only_what_they_were_in(sites):
    names = ["a", "b", "c"]
    sites.add(*names)
    b, a, c = stepped(sites, "b", "a", "c")

    def resolved(of="all", **left):
        members = {
            name: sites.described_as(name, **({"left": left[name]} if name in left else {}))
            for name in names
        }
        fleet = sites.fleet(members)
        found = fleet.resolved(of)
        if of == "all":
            assert fleet.at().timestamp == found
            assert fleet.at().final
        return found

    assert resolved() == b
    assert resolved(b=b) == a, "it has left at its last timestamp"
    assert resolved(b=b - 1) == a
    assert resolved(b=a - 1) == a, "it belonged to the fleet without a tick, but no longer"
    assert resolved(b=a) == b, "at this time it still belongs to the fleet"
    assert resolved(b=c + (1 << 40)) == b, "it is going to leave"
    assert resolved(a=b, b=b) == c
    assert resolved(1, a=b) == c, "those that left are not counted"
    assert resolved(2, a=b) == b
    assert resolved(3, a=b) == b
    assert resolved(3, a=b - 1) == b - 1
    assert resolved(a=b, b=b, c=a) == a, "all have left, and this was final before"


def test_members_that_left_are_not_asked(sites, servers):
    sites.add("a", "b")
    left = sites.tick("b")["b"]
    sites.later()
    ts = sites.tick("a")["a"]
    fleet = sites.fleet(sites.described() | {"b": sites.described_as("b", left=left)})
    assert fleet.resolved() == ts
    assert not servers.calls[sites.urls["b"]]


# --- away ---


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_member_that_is_away_stays_where_it_was_seen(sites, servers, mode):
    sites.add("a", "b", "c")
    _, b = stepped(sites, "a", "b")
    fleet = sites.fleet(members=sites.described("a", "b"), timeout=0.2)
    servers.set(sites.urls["b"], mode)
    a = sites.tick("a")["a"]
    assert fleet.resolved() == b, "as far as it was known when it was opened"
    servers.set(sites.urls["b"], "here")
    sites.later()
    stamps = sites.tick("a", "b")
    eventually(lambda: fleet.resolved() == min(stamps.values()))
    servers.set(sites.urls["b"], mode)
    sites.later()
    a = sites.tick("a")["a"]
    assert fleet.resolved() == stamps["b"]
    assert fleet.resolved("50%") == a
    with pytest.raises(MembersBehindError):
        fleet.at(a)


def test_a_member_that_was_never_there(sites, servers):
    sites.add("a", "b")
    a = sites.tick("a")["a"]
    servers.set(sites.urls["b"], "away")
    fleet = sites.fleet(sites.described() | {"none": "memory:site-none"})
    with pytest.raises(MembersBehindError) as e:
        fleet.resolved()
    assert e.value.members["b"] == "connection refused"
    assert set(e.value.members) == {"b", "none"}
    assert fleet.resolved(1) == a


def test_the_archive_of_a_member_that_is_away_goes_on(sites, servers):
    sites.add("a", "b")
    (kept,) = stepped(sites, "b")
    folder = sites.archive("b")
    servers.set(sites.urls["b"], "away")
    a = sites.tick("a")["a"]
    fleet = sites.fleet(sites.described("a") | {"b": sites.described_as("b", archive=folder)})
    assert fleet.resolved() == kept
    (kept,) = stepped(sites, "b")
    sites.archive("b")
    stepped(sites, "b")
    stepped(sites, "a")
    assert fleet.resolved() == kept, "the recorder goes on"
    servers.set(f"archive:{folder}", "away")
    assert fleet.resolved() == kept
    assert fleet.resolved(1) > a


def test_a_store_that_was_restored_is_an_error(sites, servers):
    a, _ = sites.add("a", "b")
    for n in range(5):
        sites.later()
        a.save("k", b"%d" % n)
    sites.tick()
    fleet = sites.fleet()
    fleet.resolved()
    (engine,) = servers.of[sites.urls["a"]]
    revision = a.at(a.resolved()).revision
    engine.inner = sites.keep(backup(engine.inner, revision - 2, same_cluster=True))
    for _ in range(2):
        for call in (fleet.resolved, lambda: fleet.resolved(1), fleet.at):
            with pytest.raises(StoreRestoredError) as e:
                call()
            assert e.value.member == "a"
    assert fleet.resolved(members="b")
    assert sites.fleet(members={"b": sites.urls["b"]}).resolved()


def test_it_never_goes_back(sites):
    rng = random.Random(5)
    sites.add("a", "b", "c")
    sites.tick()
    fleet, last = sites.fleet(), 0
    for _ in range(60):
        sites.clock.advance(rng.choice([0, 1, 500]))
        sites.tick(rng.choice("abc"))
        found = fleet.resolved()
        assert found == min(store.resolved() for store in sites.stores.values()) >= last
        last = found
    assert isinstance(found, int)
    assert snapkv.to_datetime(found)
