"""Histories and commits of all members, in one order."""

import random
import threading
from datetime import UTC, datetime
from functools import partial

import pytest

from snapkv import CompactedError, MembersBehindError
from snapkv.errors import (
    InvalidKeyError,
    InvalidOptionError,
    InvalidTypeError,
    StoreClosedError,
)
from snapkv.fleet import MemberCommit, MemberVersion
from snapkv.fleet.members import span_of
from snapkv.fleet.merged_logs import logs
from snapkv.fleet.open_member import OpenMember
from snapkv.reading import history
from snapkv.times import physical_ms

from .histories import KEYS, PREFIX, Writing
from .sites import WAIT_S, eventually


def commits_of(sites, *names):
    """All commits by their own stores, in the order of times, then of names."""
    found = [
        MemberCommit(name, commit)
        for name in names or sites.stores
        for commit in sites[name].commits()
    ]
    return sorted(found, key=lambda each: (each.commit.ts, each.member))


def versions_of(sites, key, *names):
    found = [
        MemberVersion(name, version)
        for name in names or sites.stores
        for version in sites[name].history(key)
    ]
    return sorted(found, key=lambda each: (each.version.ts, each.member))


@pytest.mark.parametrize("seed", range(3))
def test_all_of_them_in_one_order(sites, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("m1", "m2")
    sites.add("disk", kind="lmdb")
    writing = Writing(sites, rng)
    writing.steps(10, "m1")
    writing.steps(80)
    sites.tick()
    fleet = sites.fleet()
    newest = fleet.resolved()
    everything = [each for each in commits_of(sites) if each.commit.ts <= newest]
    assert list(fleet.commits()) == everything
    stamps = [each.commit.ts for each in everything]
    assert len(set(stamps)) < len(stamps), "some have the same time"
    for key in KEYS:
        versions = [each for each in versions_of(sites, key) if each.version.ts <= newest]
        assert list(fleet.history(key)) == versions
        of_m2 = [each for each in versions if each.member == "m2"]
        assert list(fleet.history(("m2", key), until=newest)) == of_m2
    for since, until in [rng.sample([*stamps, 0], 2) for _ in range(20)]:
        inside = [each for each in everything if since < each.commit.ts <= until]
        assert list(fleet.commits(since, until)) == inside
        assert list(fleet.commits(since, until, members="m*")) == [
            each for each in inside if each.member != "disk"
        ]
        key = rng.choice(KEYS)
        assert list(fleet.history(key, since=since, until=until)) == [
            each for each in versions_of(sites, key) if since < each.version.ts <= until
        ]


def test_equal_times_are_in_the_order_of_names(sites):
    names = ["b", "a", "c"]
    sites.add(*names)
    stamps = {sites[name].save("k", name.encode()) for name in names}
    assert len(stamps) == 1
    fleet = sites.fleet()
    assert [each.member for each in fleet.commits()] == ["a", "b", "c"]
    assert [each.version.value for each in fleet.history("k")] == [b"a", b"b", b"c"]
    assert list(fleet.commits(stamps.pop())) == []


def test_they_end_where_all_members_are_final(sites):
    sites.add("a", "b")
    first = min(store.save("k", b"1") for store in sites.stores.values())
    sites.later()
    late = sites["a"].save("k", b"2")
    fleet = sites.fleet()
    assert [each.commit.ts for each in fleet.commits()] == [first, first]
    assert [each.version.ts for each in fleet.history("k")] == [first, first]
    assert [each.commit.ts for each in fleet.commits(members="a")] == [first, late]


def test_a_member_that_is_behind_is_named(sites):
    sites.add("a", "b")
    first = min(store.save("k", b"1") for store in sites.stores.values())
    sites.later()
    late = sites["a"].save("k", b"2")
    fleet = sites.fleet()
    calls = (
        lambda **options: fleet.commits(first - 1, late, **options),
        lambda **options: fleet.history("k", since=first - 1, until=late, **options),
    )
    for call in calls:
        with pytest.raises(MembersBehindError) as e:
            call()
        assert [*e.value.members] == ["b"]
        stale = call(behind="stale")
        assert [each.member for each in stale] == ["a", "b", "a"]
        assert stale.until == late
        assert {name: (seen.state, seen.newest) for name, seen in stale.late.items()} == {
            "b": ("behind", first)
        }
        left_out = call(behind="leave out")
        assert [each.member for each in left_out] == ["a", "a"]
        assert [*left_out.late] == ["b"]
        with pytest.raises(InvalidOptionError, match="behind must be one of"):
            call(behind="later")
    sites.tick("b")
    assert [each.member for each in fleet.history("k", until=late)] == ["a", "b", "a"]
    assert not fleet.commits(until=late, behind="stale").late


def test_a_date_ends_where_the_moment_of_it_does(sites):
    sites.add("a", "b")
    for store in sites.stores.values():
        store.save("k", b"1")
    late = sites["a"].save("k", b"2")
    fleet, shown = sites.fleet(), datetime.fromtimestamp(physical_ms(late) / 1_000, UTC)
    assert fleet.at(shown).timestamp < late
    found = fleet.history("k", until=shown)
    assert found.until == fleet.at(shown).timestamp
    assert [each.member for each in found] == ["a", "b"]


def test_a_member_that_left_and_is_away_is_named(sites, servers):
    sites.add("a", "b")
    for store in sites.stores.values():
        store.save("k", b"1")
    left = sites.later()
    sites["b"].tick()
    sites.later()
    sites["a"].save("k", b"2")
    servers.set(sites.urls["b"], "away")
    fleet = sites.fleet({"a": sites.urls["a"], "b": sites.described_as("b", left=left)})
    with pytest.raises(MembersBehindError) as e:
        fleet.commits()
    assert [*e.value.members] == ["b"]
    for behind in ("stale", "leave out"):
        found = fleet.commits(behind=behind)
        assert list(found) == commits_of(sites, "a")
        assert {name: seen.state for name, seen in found.late.items()} == {"b": "missing"}
    assert not fleet.commits(left, behind="stale").late


def test_a_removal_and_a_key_of_one_member(sites):
    sites.add("a", "b")
    sites["a"].save("k", b"1")
    sites["b"].save("other", b"1")
    sites.later()
    sites["a"].commit(deletes=["k"])
    sites.tick("b")
    found = [(each.member, each.version.value) for each in sites.fleet().history("k")]
    assert found == [("a", b"1"), ("a", None)]


def test_observed_members(sites):
    sites.add("a", "b")
    sites.write_raw("a", f"{PREFIX}k", b"1")
    sites.write_raw("a", f"{PREFIX}k", b"2")
    tick = sites["a"].tick()
    sites.later()
    sites["b"].save(f"{PREFIX}k", b"3")
    sites.tick()
    fleet = sites.fleet({"a": sites.described_as("a", prefix=PREFIX), "b": sites.urls["b"]})
    found = list(fleet.history(f"{PREFIX}k"))
    assert [(each.member, each.version.value) for each in found] == [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"3"),
    ]
    assert [each.version.ts for each in found[:2]] == [tick.ts] * 2
    assert [each.member for each in fleet.commits()] == ["a", "a", "b"]
    assert list(fleet.history("elsewhere")) == [], "one cannot have it, and the other has not"


def test_a_member_without_a_commit(sites):
    sites.add("a", "b")
    ts = sites["a"].save("k", b"1")
    fleet = sites.fleet()
    with pytest.raises(MembersBehindError):
        fleet.commits()
    with pytest.raises(MembersBehindError):
        fleet.commits(until=ts)
    found = fleet.commits(until=ts, behind="stale")
    assert [each.member for each in found] == ["a"]
    assert [*found.late] == ["b"]
    observed = sites.fleet({"a": sites.urls["a"], "b": sites.described_as("b", prefix=PREFIX)})
    with pytest.raises(MembersBehindError) as e:
        observed.history(f"{PREFIX}k", until=ts)
    assert [*e.value.members] == ["b"]


# --- archives ---


def test_archives_and_engines_together(sites):
    sites.add("a", "b")
    for n in range(5):
        sites.later()
        for store in sites.stores.values():
            store.save("k", b"%d" % n)
    everything = commits_of(sites)
    versions = versions_of(sites, "k")
    fleet = sites.fleet({"a": sites.urls["a"], "b": f"archive:{sites.archive('b')}"})
    assert list(fleet.commits()) == everything
    assert list(fleet.history("k")) == versions
    middle = everything[5].commit.ts
    assert list(fleet.commits(middle)) == [e for e in everything if e.commit.ts > middle]


@pytest.fixture
def compacted(sites):
    """A store that lost what its archive has, and all of its commits and versions of "k"."""
    (a,) = sites.add("a")
    for n in range(4):
        sites.later(400_000)
        a.save("k", b"%d" % n)
    folder = sites.archive("a")
    for n in range(4, 7):
        sites.later(400_000)
        a.save("k", b"%d" % n)
    commits, versions = commits_of(sites), versions_of(sites, "k")
    sites.later(2_000_000)
    a.compact(commits[2].commit.ts, past_recordings=True)
    return sites.fleet({"a": sites.described_as("a", archive=folder)}), commits, versions


def test_what_is_compacted_comes_from_the_archive_and_the_rest_from_the_engine(compacted):
    fleet, commits, versions = compacted
    for since in (None, 0, commits[0].commit.ts, commits[1].commit.ts, commits[5].commit.ts):
        wanted = [each for each in commits if each.commit.ts > (since or 0)]
        assert list(fleet.commits(since)) == wanted
        wanted = [each for each in versions if each.version.ts > (since or 0)]
        assert list(fleet.history("k", since=since)) == wanted
    for until in (commits[1].commit.ts, commits[3].commit.ts, commits[4].commit.ts):
        assert list(fleet.commits(0, until)) == [e for e in commits if e.commit.ts <= until]
        assert list(fleet.history("k", until=until)) == [
            each for each in versions if each.version.ts <= until
        ]


@pytest.mark.parametrize("since", [None, 0])
def test_recording_and_compacting_while_both_are_joined(sites, compacted, since, monkeypatch):
    fleet, commits, _ = compacted
    begun, overtaken = OpenMember._begun, []

    def slow(self, read, low, high):
        if low == commits[3].commit.ts and not overtaken:
            overtaken.append(sites.archive("a"))
            sites["a"].compact(commits[5].commit.ts, past_recordings=True)
        return begun(self, read, low, high)

    monkeypatch.setattr(OpenMember, "_begun", slow)
    assert list(fleet.commits(since)) == commits
    assert overtaken


@pytest.mark.parametrize("newest_first", [True, False])
def test_logs_over_the_end_of_an_archive(compacted, newest_first):
    fleet, commits, _ = compacted
    stamps = [each.commit.ts for each in commits]
    for since in (None, 0, stamps[0], stamps[4]):
        span = span_of(fleet._members, ["a"], since, stamps[-1], "error")
        found = logs(fleet._members, span, newest_first=newest_first)
        wanted = [ts for ts in stamps if ts > (since or 0)]
        assert [each.logged.commit.ts for each in found] == wanted[:: -1 if newest_first else 1]


def test_a_commit_that_is_compacted_meanwhile_ends_it(sites, compacted, monkeypatch):
    """Steps that were returned are not returned again from the archive."""
    _, commits, _ = compacted
    fleet = sites.fleet({"a": sites.described_as("a", archive=f"{sites.folder}/archives/a")})

    def compacts(core, *args, **options):
        yield commits[3].commit
        raise CompactedError(1, None)

    monkeypatch.setattr(history, "commits", compacts)
    found = fleet.commits(commits[2].commit.ts)
    assert next(found) == commits[3]
    with pytest.raises(CompactedError) as e:
        next(found)
    assert e.value.member == "a"


def test_without_an_archive_what_is_compacted_is_an_error(sites, compacted):
    _, commits, _ = compacted
    fleet = sites.fleet()
    for call in (lambda: fleet.commits(0), lambda: fleet.history("k", since=0)):
        with pytest.raises(CompactedError) as e:
            list(call())
        assert e.value.member == "a"
    assert [e.commit.ts for e in fleet.commits()] == [e.commit.ts for e in commits[2:]]


def test_an_archive_that_ends_before_the_compaction_hides_nothing(sites):
    (a,) = sites.add("a")
    stamps = []
    for n in range(6):
        sites.later(400_000)
        stamps.append(a.save("k", b"%d" % n))
        if n == 1:
            folder = sites.archive("a")
    sites.later(2_000_000)
    a.compact(stamps[4], past_recordings=True)
    fleet = sites.fleet({"a": sites.described_as("a", archive=folder)})
    found = []
    with pytest.raises(CompactedError) as e:
        found.extend(each.commit.ts for each in fleet.commits(0))
    assert e.value.member == "a"
    with sites.open("a", archive=folder) as one:  # without a beginning: what is left, as of this
        assert [each.commit for each in fleet.commits()] == list(one.commits())
        assert [each.version for each in fleet.history("k")] == list(one.history("k"))
    span = span_of(fleet._members, ["a"], None, stamps[5], "error")
    assert [each.logged.commit.ts for each in logs(fleet._members, span)] == stamps[5:3:-1]


def test_times_that_no_archive_recorded_before_the_compaction_are_missing(sites):
    a, b = sites.add("a", "b")
    stamps = []
    for n in range(5):
        sites.later(400_000)
        stamps.append(a.save(f"k{n}", b"1"))
        if n == 1:
            folder = sites.archive("a")
    sites.later(2_000_000)
    a.compact(stamps[4], past_recordings=True)
    b.tick()
    members = {"a": sites.described_as("a", archive=folder), "b": sites.urls["b"]}
    fleet = sites.fleet(members)
    for ts in (stamps[2], stamps[3], stamps[1] + 1):
        with pytest.raises(MembersBehindError, match=r"is not kept.*its archive ends before") as e:
            fleet.at(ts)
        assert [*e.value.members] == ["a"]
        assert fleet.at(ts, behind="stale").members["a"].state == "missing"
        found = fleet.diff(stamps[1], ts, behind="stale")
        assert (found.compared, [*found.unknown]) == ([], ["a"])
        for call in (fleet.commits, partial(fleet.history, "k2")):
            assert [*call(until=ts, behind="stale").late] == ["a"]
    assert fleet.at(stamps[1]).members["a"].state == "archive"
    assert fleet.at(stamps[4]).members["a"].state == "live"
    found = fleet.diff(stamps[1], stamps[4])
    assert [each.key for each in found] == [("a", f"k{n}") for n in (2, 3, 4)]


def test_a_member_that_is_away_gives_what_its_archive_has(sites, servers):
    sites.add("a", "b")
    for n in range(3):
        sites.later()
        for store in sites.stores.values():
            store.save("k", b"%d" % n)
    folder = sites.archive("b")
    recorded = sites["b"].resolved()
    everything, versions = commits_of(sites), versions_of(sites, "k")
    sites.later()
    late = min(store.save("k", b"late") for store in sites.stores.values())
    servers.set(sites.urls["b"], "away")
    fleet = sites.fleet({"a": sites.urls["a"], "b": sites.described_as("b", archive=folder)})
    assert fleet.resolved() == recorded
    assert list(fleet.commits()) == everything
    assert list(fleet.history("k")) == versions
    for call in (fleet.commits, partial(fleet.history, "k")):
        with pytest.raises(MembersBehindError) as e:
            call(until=late)
        assert [*e.value.members] == ["b"]
        stale = call(until=late, behind="stale")
        assert len([each for each in stale if each.member == "b"]) == 3, "what was recorded"
        assert stale.late["b"].newest == recorded
        assert {each.member for each in call(until=late, behind="leave out")} == {"a"}
    servers.set(sites.urls["b"], "here")
    eventually(lambda: fleet.resolved() == late)
    assert list(fleet.commits()) == commits_of(sites)


# --- arguments ---


def test_arguments_of_histories(sites):
    sites.add("a")
    sites.tick()
    fleet = sites.fleet()
    for key in (("a",), ("a", "k", "x"), ()):
        with pytest.raises(InvalidTypeError, match="give \\(member, key\\)"):
            fleet.history(key)
    with pytest.raises(InvalidTypeError, match="alone"):
        fleet.history(("a", "k"), members="a")
    for key in (("b", "k"), ("*", "k")):
        with pytest.raises(InvalidOptionError):
            fleet.history(key)
    for key, error in ((5, InvalidTypeError), ("", InvalidKeyError), (b"k", InvalidTypeError)):
        with pytest.raises(error):
            list(fleet.history(key))
    for call in (fleet.commits, lambda **options: fleet.history("k", **options)):
        with pytest.raises(InvalidOptionError):
            call(members="x")


def test_closing_the_fleet_ends_them(sites):
    sites.add("a", kind="lmdb")
    for n in range(600):
        sites["a"].save("k", b"%d" % n)
    fleet = sites.fleet()
    found = fleet.commits()
    next(found)
    fleet.close()
    with pytest.raises(StoreClosedError) as e:
        list(found)
    assert e.value.member == "a"


@pytest.mark.parametrize("read", ["history", "commits"])
def test_members_are_asked_in_parallel(sites, servers, read):
    sites.add("a", "b")
    for store in sites.stores.values():
        store.save("k", b"1")
    ts = max(sites.tick().values())
    fleet, found = sites.fleet(timeout=WAIT_S), []
    urls = sites.urls.values()
    for url in urls:
        servers.set(url, "hung")
    calls = dict(servers.calls)

    def ask():
        found.extend(fleet.history("k", until=ts) if read == "history" else fleet.commits(until=ts))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        eventually(lambda: all(servers.calls[url] > calls[url] for url in urls))
    finally:
        for url in urls:
            servers.set(url, "here")
        thread.join(WAIT_S)
    assert [each.member for each in found[:2]] == ["a", "b"]
