"""Differences: those of each member; who came, went or is unknown has removed nothing."""

import random

import pytest

import snapkv
from snapkv import MembersBehindError
from snapkv.errors import InvalidKeyError, InvalidOptionError, InvalidTypeError, SnapKVError
from snapkv.fleet import FleetDifference

from .histories import PREFIX, PREFIXES, Writing, own


def told(found):
    return [(each.key, each.before, each.after) for each in found]


def expected(reads, a, b, prefix=None):
    """The differences of members that are there at both times, by their own snapshots."""
    rows = []
    for name, each in sorted(reads.items()):
        before, after = own(each, a), own(each, b)
        if before is not None and after is not None:
            rows += [
                ((name, found.key), found.before, found.after)
                for found in before.diff(after)
                if found.key.startswith(prefix or "")
            ]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("archives", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_they_are_those_of_each_member(sites, seed, archives):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("m1", "m2", "m3")
    writing = Writing(sites, rng)
    writing.steps(15, "m1")
    writing.steps(60)
    sites.tick()
    if archives:
        members = {name: f"archive:{sites.archive(name)}" for name in sites.stores}
        reads = {n: sites.keep(snapkv.open(u, clock=sites.clock)) for n, u in members.items()}
    else:
        members = sites.described() | {"seen": sites.described_as("m2", prefix=PREFIX)}
        seen = snapkv.observe(sites.urls["m2"], prefix=PREFIX, clock=sites.clock)
        reads = {**sites.stores, "seen": sites.keep(seen)}
    fleet = sites.fleet(members)
    newest = fleet.resolved()
    times = [ts for ts in writing.times() if ts <= newest]
    for a, b in [rng.sample(times, 2) for _ in range(5 if archives else 30)]:
        prefix = rng.choice([None, *PREFIXES])
        found = fleet.diff(a, b, prefix)
        assert told(found) == expected(reads, a, b, prefix)
        assert told(found) == told(found), "it may be read again"
        assert (found.since, found.until) == (a, b)
        before, after = ({n for n in reads if own(reads[n], ts) is not None} for ts in (a, b))
        assert found.joined == sorted(after - before)
        assert found.left == sorted(before - after)
        assert found.unknown == {}
        assert told(fleet.at(a).diff(fleet.at(b), prefix)) == told(found)
        back = [(key, after, before) for key, before, after in told(found)]
        assert told(fleet.diff(b, a, prefix)) == back


@pytest.fixture
def changed(sites):
    """Three members with changes, and the times before and after these."""
    sites.add("a", "b", "c")
    for store in sites.stores.values():
        store.commit(puts={"gone": b"1", "kept": b"1", "new/x": b"0"})
    first = sites.later()
    sites.tick()
    sites.later()
    for store in sites.stores.values():
        store.commit(puts={"kept": b"2", "new/y": b"1"}, deletes=["gone"])
    sites.later()
    return first, min(sites.tick().values())


def changes_of(*names):
    return [
        ((name, key), before, after)
        for name in names
        for key, before, after in (
            ("gone", b"1", None),
            ("kept", b"1", b"2"),
            ("new/y", None, b"1"),
        )
    ]


def test_differences_of_some_members_and_keys(sites, changed):
    a, b = changed
    fleet = sites.fleet()
    assert told(fleet.diff(a, b)) == changes_of("a", "b", "c")
    assert told(fleet.diff(a)) == changes_of("a", "b", "c"), "up to the newest final moment"
    assert told(fleet.diff(a, b, members="b,c")) == changes_of("b", "c")
    assert told(fleet.diff(a, b, members=iter(["b", "c"]))) == changes_of("b", "c")
    assert told(fleet.diff(a, b, "new/", members="b")) == [(("b", "new/y"), None, b"1")]
    (found,) = fleet.diff(a, b, "kept", members="a")
    assert found == FleetDifference(("a", "kept"), b"1", b"2")
    assert told(fleet.diff(b, b)) == []
    assert repr(fleet.diff(a, b)) == "<FleetDiff of 3 members, joined=[] left=[] unknown=[]>"


def test_members_that_came_and_went(sites, changed):
    a, b = changed
    members = sites.described("a") | {
        "b": sites.described_as("b", joined=a + 1),
        "c": sites.described_as("c", left=b - 1),
    }
    found = sites.fleet(members).diff(a, b)
    assert (found.joined, found.left, found.unknown) == (["b"], ["c"], {})
    assert told(found) == changes_of("a"), "no key of theirs was made or removed"
    back = sites.fleet(members).diff(b, a)
    assert (back.joined, back.left) == (["c"], ["b"])
    never = members | {"d": {"url": sites.urls["a"], "name": "other", "left": a - 1}}
    found = sites.fleet(never).diff(a, b)
    assert "d" not in [*found.joined, *found.left, *found.unknown]


def test_members_that_are_unknown_have_removed_nothing(sites, servers, changed):
    """Trap 12."""
    a, _ = changed
    fleet = sites.fleet()
    before = fleet.at(a)
    servers.set(sites.urls["b"], "away")
    late = sites.later()
    sites.tick("a", "c")
    for behind in ("stale", "leave out"):
        found = before.diff(fleet.at(late, behind=behind))
        assert list(found.unknown) == ["b"]
        assert "connection refused" in found.unknown["b"]
        assert (found.joined, found.left) == ([], [])
        assert told(found) == changes_of("a", "c")
        back = fleet.at(late, behind=behind).diff(before)
        assert list(back.unknown) == ["b"]
    with pytest.raises(MembersBehindError):
        fleet.diff(a, late)
    assert told(fleet.diff(a, late, behind="leave out")) == changes_of("a", "c")


def test_members_that_are_left_out_are_unknown(sites, changed):
    a, _ = changed
    late = sites.later()
    sites.tick("a", "c")
    fleet = sites.fleet()
    found = fleet.diff(a, late, behind="leave out")
    assert list(found.unknown) == ["b"]
    assert told(found) == changes_of("a", "c")
    assert found.late == {}, "it is not compared"
    stale = fleet.diff(a, late, behind="stale")
    assert stale.unknown == {}
    assert {name: seen.state for name, seen in stale.late.items()} == {"b": "behind"}
    assert fleet.diff(late, a, behind="stale").late.keys() == {"b"}
    assert fleet.diff(a).late == {}
    assert told(stale) == changes_of("a", "b", "c")


def test_members_of_one_moment_only_are_unknown(sites, changed):
    a, b = changed
    fleet = sites.fleet()
    found = fleet.at(a, members="a,b").diff(fleet.at(b, members="b,c"))
    assert found.unknown == dict.fromkeys(("a", "c"), "it is in one of the two moments only")
    assert told(found) == changes_of("b")


def test_from_the_archive_to_the_engine(sites, changed):
    a, b = changed
    folder = sites.archive("b")
    sites.later(1_000_000)
    newest = sites["b"].save("kept", b"3")
    sites.later(1_000_000)
    sites.tick()
    sites["b"].compact(newest, past_recordings=True)
    fleet = sites.fleet({"b": sites.described_as("b", archive=folder)})
    states = [fleet.at(ts).members["b"].state for ts in (a, b, newest)]
    assert states == ["archive", "archive", "live"]
    assert told(fleet.diff(a, b)) == changes_of("b")
    assert told(fleet.diff(b, newest)) == [(("b", "kept"), b"2", b"3")]
    assert told(fleet.diff(newest, a)) == [
        (("b", "gone"), None, b"1"),
        (("b", "kept"), b"3", b"1"),
        (("b", "new/y"), b"1", None),
    ]


def test_arguments_of_diff(sites, changed):
    a, b = changed
    fleet = sites.fleet()
    moment = fleet.at(a)
    for other in (None, a, {}, sites["a"].at(a)):
        with pytest.raises(InvalidTypeError, match="moment of a fleet"):
            moment.diff(other)
    for prefix in (5, b"x"):
        with pytest.raises(InvalidTypeError):
            list(fleet.diff(a, b, prefix))
    with pytest.raises(InvalidKeyError):
        list(fleet.diff(a, b, "\ud800"))
    with pytest.raises(InvalidOptionError):
        fleet.diff(a, b, members="x")
    with pytest.raises(InvalidOptionError, match="behind"):
        fleet.diff(a, b, behind="x")


def test_errors_name_the_member(sites, changed, monkeypatch):
    from snapkv.timeline.moment import Moment

    a, b = changed
    found = iter(sites.fleet().diff(a, b))
    next(found)

    def fails(*args):
        raise SnapKVError("broken")

    monkeypatch.setattr(Moment, "changed", fails)
    with pytest.raises(SnapKVError) as e:
        list(found)
    assert e.value.member == "b"
