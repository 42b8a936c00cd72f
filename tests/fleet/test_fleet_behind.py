"""Members that have no final state at a time: behind, missing, absent, and what is done then."""

import pytest
from store.wrapping import Wrapped

import snapkv
from snapkv import KeyNotFoundError, MembersBehindError
from snapkv.errors import (
    AccessDeniedError,
)
from snapkv.fleet.pin import ABSENT

from .histories import PREFIX
from .sites import eventually

POLICIES = ["error", "stale", "leave out"]


# --- behind ---


def test_a_member_that_is_behind_is_an_error(sites, late):
    fleet, ts = late
    with pytest.raises(MembersBehindError, match="is not final on 1 of the fleet's members: us: "):
        fleet.at(ts)
    with pytest.raises(MembersBehindError) as e:
        fleet.at(ts)
    assert e.value.timestamp == ts
    assert "final up to" in e.value.members["us"]
    assert isinstance(e.value, LookupError)
    assert fleet.at(ts, members="eu").final


def test_a_member_that_is_behind_is_shown_as_stale(sites, late):
    fleet, ts = late
    moment = fleet.at(ts, behind="stale")
    assert (moment.timestamp, moment.final) == (ts, False)
    assert dict(moment) == {("eu", "k"): b"new", ("us", "k"): b"old"}
    stamp = sites["us"].resolved()
    revision = sites["us"].at(stamp).revision
    assert moment.members["us"] == snapkv.fleet.Seen("behind", stamp, revision, stamp, False)
    assert moment.members["eu"].state == "live"
    assert moment.of("us")["k"] == b"old"


def test_a_member_that_is_behind_is_left_out(sites, late):
    fleet, ts = late
    moment = fleet.at(ts, behind="leave out")
    assert not moment.final
    assert dict(moment) == {("eu", "k"): b"new"}
    stamp = sites["us"].resolved()
    assert moment.members["us"] == snapkv.fleet.Seen("behind", 0, 0, stamp, False)
    assert ("us", "k") not in moment
    assert moment.everywhere("k") == {"eu": b"new"}
    assert moment.count(members="us") == 0
    for read in (lambda: moment.of("us"), lambda: moment["us", "k"]):
        with pytest.raises(KeyNotFoundError, match=r"us(.*)behind") as e:
            read()
        assert e.value.timestamp == ts


@pytest.mark.parametrize("behind", POLICIES)
def test_when_it_has_caught_up_the_moment_is_final(sites, late, behind):
    fleet, ts = late
    sites.tick("us")
    moment = fleet.at(ts, behind=behind)
    assert moment.final
    assert dict(moment) == {("eu", "k"): b"new", ("us", "k"): b"old"}


def test_many_members_that_are_behind(sites):
    sites.add(*(f"m{n:02}" for n in range(15)))
    ts = sites["m03"].save("k", b"1")
    for name in sites.stores:
        if name != "m03":
            sites[name].save("k", b"0")
    fleet, later = sites.fleet(), ts + (1 << 20)
    with pytest.raises(MembersBehindError) as e:
        fleet.at(later)
    assert set(e.value.members) == set(sites.stores)
    assert "on 15 of the fleet's members" in str(e.value)
    assert "m09: " in str(e.value)
    assert "m10: " not in str(e.value)
    assert str(e.value).endswith("; and 5 more")


# --- absent ---


@pytest.mark.parametrize("behind", POLICIES)
def test_before_its_first_commit_a_member_is_absent(sites, behind):
    eu, us = sites.add("eu", "us")
    ts = eu.save("k", b"1")
    sites.later()
    us.save("k", b"2")
    fleet = sites.fleet()
    moment = fleet.at(ts, behind=behind)
    assert moment.final
    assert moment.members["us"] == ABSENT
    assert dict(moment) == {("eu", "k"): b"1"}
    with pytest.raises(KeyNotFoundError, match="us is absent"):
        moment.of("us")


@pytest.mark.parametrize("behind", POLICIES)
def test_members_that_joined_later_or_left(sites, behind):
    eu, us = sites.add("eu", "us")
    us.save("k", b"0")
    first = sites.later()
    stamps = [eu.save("k", b"1"), us.save("k", b"2")]
    last = sites.later()
    sites.tick()
    joined, left = stamps[1], last - 1
    options = {"joined": joined, "left": left}
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": sites.described_as("us", **options)})
    for ts in (first - 1, joined - 1, left + 1):
        moment = fleet.at(ts, behind="stale")
        assert moment.members["us"] == ABSENT
        assert list(moment.items(members="us")) == []
    for ts in (joined, left):
        moment = fleet.at(ts, behind=behind)
        assert moment.final
        assert moment["us", "k"] == b"2"
    beyond = last + (5 << 18)
    with pytest.raises(MembersBehindError) as e:
        fleet.at(beyond)
    assert list(e.value.members) == ["eu"], "who has left holds nothing back"


def test_a_member_has_what_it_had_before_it_joined(sites):
    _, us = sites.add("eu", "us")
    us.save("k", b"0")
    joined = sites.later()
    sites.later()
    sites.tick()
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": sites.described_as("us", joined=joined)})
    moment = fleet.at(joined)
    assert moment["us", "k"] == b"0"
    assert moment.members["us"].timestamp < joined


# --- missing ---


def test_a_store_without_a_commit_is_missing(sites):
    eu, _ = sites.add("eu", "us")
    ts = eu.save("k", b"1")
    fleet = sites.fleet()
    with pytest.raises(MembersBehindError) as e:
        fleet.at(ts)
    assert e.value.members == {"us": "it has no commit yet"}
    for behind in ("stale", "leave out"):
        moment = fleet.at(ts, behind=behind)
        seen = moment.members["us"]
        assert (seen.state, seen.final, seen.error) == ("missing", False, "it has no commit yet")
        assert not moment.final
        assert dict(moment) == {("eu", "k"): b"1"}
        with pytest.raises(KeyNotFoundError, match="us is missing: it has no commit yet"):
            moment.of("us")


def test_observed_keys_without_a_tick_are_missing_then_absent(sites):
    """Trap 5: without a tick nothing is known; before the first one, nothing was there."""
    (eu,) = sites.add("eu")
    sites.write_raw("eu", f"{PREFIX}k", b"1")
    fleet = sites.fleet({"eu": sites.described_as("eu", prefix=PREFIX)})
    ts = sites.now
    with pytest.raises(MembersBehindError, match="no tick had been committed yet"):
        fleet.at(ts)
    assert fleet.at(ts, behind="stale").members["eu"].state == "missing"
    sites.later()
    tick = eu.tick().ts
    assert fleet.at(ts).members["eu"] == ABSENT
    assert dict(fleet.at(tick)) == {("eu", f"{PREFIX}k"): b"1"}


def test_what_is_compacted_is_missing_or_in_the_archive(sites):
    eu, us = sites.add("eu", "us")
    first = min([store.save("k", b"1") for store in (eu, us)])
    sites.later()
    second = min([store.save("k", b"2") for store in (eu, us)])
    folder = sites.archive("us")
    sites.later(1_000_000)
    newest = [store.save("k", b"3") for store in (eu, us)][1]
    sites.tick()
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": sites.described_as("us")})
    kept = sites.fleet({"eu": sites.urls["eu"], "us": sites.described_as("us", archive=folder)})
    sites.later(1_000_000)
    assert us.compact(newest, past_recordings=True).earliest == newest
    with pytest.raises(MembersBehindError, match="compacted") as e:
        fleet.at(first)
    assert list(e.value.members) == ["us"]
    assert fleet.at(newest).members["us"].state == "live"
    for ts, value in ((first, b"1"), (second, b"2")):
        moment = kept.at(ts)
        assert moment.final
        assert moment.members["us"].state == "archive"
        assert dict(moment) == {("eu", "k"): value, ("us", "k"): value}
    between = second + (1 << 20)  # neither in the archive nor left in the engine
    with pytest.raises(MembersBehindError):
        kept.at(between)
    assert kept.at(newest).members["us"].state == "live"


@pytest.mark.parametrize("with_engine", [True, False])
def test_a_gap_of_an_archive_is_missing(sites, with_engine):
    """Of a member with an engine, too, which has compacted that time; opened archives as well."""
    eu, us = sites.add("eu", "us")
    stamps, folder = [], ""
    for n in range(8):
        sites.later(400_000)
        stamps.append(us.save("k", b"%d" % n))
        eu.save("k", b"%d" % n)
        if n in (1, 7):
            if n == 7:
                sites.later(2_000_000)
                us.compact(stamps[5], past_recordings=True)
            folder = sites.archive("us")
    sites.tick()
    us = {"url": sites.urls["us"], "archive": folder} if with_engine else f"archive:{folder}"
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": us})
    lost = stamps[3]
    for _ in range(2):
        with pytest.raises(MembersBehindError, match="gap"):
            fleet.at(lost)
        for behind in ("stale", "leave out"):
            moment = fleet.at(lost, behind=behind)
            assert (moment.members["us"].state, moment.final) == ("missing", False)
            assert dict(moment) == {("eu", "k"): b"3"}
        assert fleet.at(stamps[1])["us", "k"] == b"1"
        assert list(fleet.commits(members="us"))  # an archive alone is open from here on


def test_an_archive_that_begins_later_is_missing_before(sites):
    eu, us = sites.add("eu", "us")
    first = eu.save("k", b"1")
    us.save("k", b"0")
    sites.later(1_000_000)
    second = us.save("k", b"1")
    sites.later(1_000_000)
    sites.tick()
    us.compact(second)
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": f"archive:{sites.archive('us')}"})
    with pytest.raises(MembersBehindError, match=r"archive begins|compacted") as e:
        fleet.at(first)
    assert list(e.value.members) == ["us"]
    assert fleet.at(second).members["us"].state == "archive"
    assert fleet.at(second)["us", "k"] == b"1"


# --- away ---


@pytest.mark.parametrize("mode", ["away", "hung"])
def test_a_member_that_is_away(sites, servers, mode):
    sites.add("eu", "us")
    stamps = sites.tick()
    at = min(stamps.values())
    fleet = sites.fleet(timeout=0.2)
    assert fleet.at(at).final
    servers.set(sites.urls["us"], mode)
    sites.later()
    ts = sites.tick("eu")["eu"]
    with pytest.raises(MembersBehindError) as e:
        fleet.at(ts)
    assert list(e.value.members) == ["us"]
    asked = servers.calls[sites.urls["us"]]
    for behind in ("stale", "leave out"):
        moment = fleet.at(ts, behind=behind)
        seen = moment.members["us"]
        assert (seen.state, seen.newest, seen.final) == ("missing", stamps["us"], False)
        assert seen.error
    assert servers.calls[sites.urls["us"]] == asked, "it counts as away for a second"
    servers.set(sites.urls["us"], "here")
    sites.tick("us")
    eventually(lambda: fleet.at(ts, behind="stale").final)
    assert dict(fleet.at(ts)) == {}


def test_a_member_that_is_away_from_the_beginning(sites, servers):
    sites.add("eu", "us")
    ts = sites["eu"].save("k", b"1")
    sites.later()
    sites.tick("us")
    servers.set(sites.urls["us"], "away")
    fleet = sites.fleet()
    moment = fleet.at(ts, behind="leave out")
    seen = moment.members["us"]
    assert (seen.state, seen.newest, seen.error) == ("missing", 0, "connection refused")
    assert dict(moment) == {("eu", "k"): b"1"}
    servers.set(sites.urls["us"], "here")
    eventually(lambda: fleet.at(ts, behind="stale").final)


@pytest.mark.parametrize("seen_before", [True, False])
def test_the_archive_of_a_member_that_is_away_answers(sites, servers, seen_before):
    eu, us = sites.add("eu", "us")
    ts = min([store.save("k", b"1") for store in (eu, us)])
    sites.later()
    sites.tick()
    folder = sites.archive("us")
    recorded = us.resolved()
    sites.later()
    newest = min([store.save("k", b"2") for store in (eu, us)])
    fleet = None
    described = {"eu": sites.urls["eu"], "us": sites.described_as("us", archive=folder)}
    if seen_before:
        fleet = sites.fleet(described)
        assert fleet.at(newest).members["us"].state == "live"
    servers.set(sites.urls["us"], "away")
    fleet = fleet or sites.fleet(described)
    sites.clock.advance(1)
    eventually(lambda: fleet.at(newest + 1, behind="stale").members["us"].state == "behind")
    if not seen_before:
        moment = fleet.at(ts)
        assert moment.members["us"].state == "archive"
        assert moment.final
        assert moment["us", "k"] == b"1"
        with pytest.raises(MembersBehindError, match="us: final up to"):
            fleet.at(newest)
    stale = fleet.at(newest + 1, behind="stale")
    assert stale["us", "k"] == b"1"
    assert stale.members["us"].newest == (newest if seen_before else recorded)


def test_an_archive_that_is_not_there_hides_nothing(sites, servers):
    eu, us = sites.add("eu", "us")
    ts = min([store.save("k", b"1") for store in (eu, us)])
    servers.set(sites.urls["us"], "away")
    none = f"{sites.folder}/none"
    fleet = sites.fleet({"eu": sites.urls["eu"], "us": sites.described_as("us", archive=none)})
    with pytest.raises(MembersBehindError, match=r"connection refused.*no archive") as e:
        fleet.at(ts)
    assert list(e.value.members) == ["us"]
    assert fleet.at(ts, behind="leave out")["eu", "k"] == b"1"


@pytest.mark.parametrize("behind", POLICIES)
def test_other_errors_are_raised_with_their_member(sites, monkeypatch, behind):
    sites.add("eu", "us")
    stamps = sites.tick()

    class Denying(Wrapped):
        remote = True

        def server_time_ms(self, *, fresh=False):
            return None

        def read(self, ranges, **rest):
            raise AccessDeniedError("permission denied")

    fleet = sites.fleet()
    reads = fleet._members.by_name["us"].reads()
    monkeypatch.setattr(reads.reader.timeline.tracker, "read", Denying(None).read)
    monkeypatch.setattr(reads.reader.timeline.tracker, "point", lambda *_: None)
    with pytest.raises(AccessDeniedError) as e:
        fleet.at(max(stamps.values()) + 1, behind=behind)
    assert e.value.member == "us"
    assert "'us'" in e.value.__notes__[0]
