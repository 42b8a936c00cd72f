"""Watching members whose next changes were compacted: they come from the archive beside them."""

import random
from collections import Counter

import pytest
from store.wrapping import backup

import snapkv
from snapkv.engine import memory
from snapkv.errors import (
    CompactedError,
    EngineUnavailableError,
    HistoryGapError,
    StoreRestoredError,
)
from snapkv.fleet.open_member import OpenMember

from .following import drained, own, taken
from .sites import WAIT_S, eventually

COMMITS = 8


@pytest.fixture
def stamps(sites):
    """Two stores: "a" has an archive of six commits, and compacted four; "b" commits with it."""
    sites.add("a", "b")
    found = []
    for n in range(COMMITS):
        sites.later(400_000)
        found.append(sites["a"].save("k", b"%d" % n))
        sites["b"].save("k", b"%d" % n)
        if n == 5:
            sites.archive("a")
    sites.later()
    sites.tick()
    return found


@pytest.fixture
def everything(sites, stamps):
    return own(sites, since=0)


def compact(sites, stamps, to=4):
    sites.later(2_000_000)
    sites["a"].compact(stamps[to], past_recordings=True)


def archived(sites, **options):
    folder = f"{sites.folder}/archives/a"
    return sites.fleet({"a": sites.described_as("a", archive=folder), "b": sites.urls["b"]})


def test_it_goes_on_in_the_engine_where_the_archive_ends(sites, stamps, everything):
    compact(sites, stamps)
    fleet = archived(sites)
    for since in [0, *stamps]:
        with fleet.watch(since=since, timeout=0) as watch:
            assert drained(watch) == [item for item in everything if item[0] > since]
    with pytest.raises(CompactedError), sites.fleet().watch(since=stamps[0]) as watch:
        watch.next(WAIT_S)


def test_a_token_goes_on_after_each_item(sites, stamps, everything):
    compact(sites, stamps)
    fleet, token = archived(sites), None
    found = []
    while len(found) < len(everything):
        with fleet.watch(since=0) if token is None else fleet.watch(resume=token) as watch:
            found += taken(watch, 1)
            token = watch.token
    assert found == everything


def test_a_token_is_of_what_was_taken_not_of_what_was_read(sites, stamps):
    """The follower has read the whole archive and opened the engine's watch; nothing was taken."""
    compact(sites, stamps)
    fleet = archived(sites)
    with fleet.watch(since=stamps[1]) as watch:
        eventually(lambda: all(each.progress >= stamps[-1] for each in watch._followers))
        moment = fleet.at(token=watch.token)
        assert (moment.timestamp, moment["a", "k"]) == (stamps[1], b"1")


def test_compaction_overtakes_a_watch(sites, stamps, everything):
    """It reads no further than it has room for."""
    fleet = archived(sites)
    with fleet.watch(since=0, hold_bytes=1, timeout=0) as watch:
        found = taken(watch, 2)
        compact(sites, stamps)
        assert found + drained(watch) == everything


def test_new_commits_follow(sites, stamps, everything):
    compact(sites, stamps)
    with archived(sites).watch(since=0) as watch:
        assert taken(watch, len(everything)) == everything
        sites.later()
        ts = sites["a"].save("k", b"new")
        sites["b"].tick()
        assert taken(watch, 1) == [(ts, {"a": [("k", b"new")]})]


def test_an_archive_that_ends_before_the_compaction_hides_nothing(sites, stamps, everything):
    compact(sites, stamps, to=7)
    with archived(sites).watch(since=0) as watch:
        with pytest.raises(CompactedError) as e:
            taken(watch, len(everything))
        assert e.value.member == "a"
        assert watch.timestamp <= stamps[5]


def test_a_gap_of_the_archive_ends_it(sites, stamps, everything):
    compact(sites, stamps, to=7)
    sites.archive("a")
    sites.later()
    last = sites["a"].save("k", b"last")
    sites["b"].tick()
    fleet = archived(sites)
    with fleet.watch(since=0) as watch:
        found = taken(watch, 6)
        with pytest.raises(HistoryGapError) as e:
            watch.next(WAIT_S)
        assert (e.value.member, e.value.after) == ("a", stamps[5])
    assert found == everything[:6]
    with fleet.watch(since=e.value.before, timeout=0) as watch:
        assert drained(watch)[-1] == (last, {"a": [("k", b"last")]})


@pytest.mark.parametrize("prefix", [None, "other/"])
def test_a_gap_of_an_archive_alone_ends_it(sites, stamps, everything, prefix):
    compact(sites, stamps, to=7)
    folder = sites.archive("a")
    sites["b"].tick()
    members = {"a": f"archive:{folder}", "b": sites.urls["b"]}
    for since, given in ((0, 6), (stamps[5], 0), (stamps[6], 0)):
        with sites.fleet(members).watch(prefix, since=since) as watch:
            found = taken(watch, given) if prefix is None else []
            with pytest.raises(HistoryGapError) as e:
                drained(watch)  # what "b" changed while the gap lasted
            assert (e.value.member, e.value.after) == ("a", stamps[5])
        assert found == [item for item in everything[:given] if prefix is None]
    with sites.fleet(members).watch(since=e.value.before, timeout=0) as watch:
        assert drained(watch) == []
    left = {**members, "a": {"url": members["a"], "left": stamps[5]}}
    with sites.fleet(left).watch(since=0, timeout=0) as watch:
        assert len(drained(watch)) >= 8, "it left before the gap"
    left["a"]["left"] = stamps[6]
    with pytest.raises(HistoryGapError), sites.fleet(left).watch(since=0, timeout=WAIT_S) as watch:
        drained(watch)


@pytest.mark.parametrize("new", [1, 6])
def test_an_archive_with_commits_that_the_engine_has_lost_is_refused(sites, servers, stamps, new):
    """The engine was restored since they were recorded, and compacted after that."""
    fleet = archived(sites)  # opened before
    (engine,) = servers.of[sites.urls["a"]]
    engine.inner = backup(engine.inner, sites["a"].at(stamps[3]).revision, same_cluster=True)
    restored = sites.keep(snapkv.store.open.open_on(engine.inner, clock=sites.clock))
    sites.later(2_000_000)
    first, *_ = [restored.save("k", b"other") for _ in range(new)]
    sites.later(2_000_000)
    restored.compact(first, past_recordings=True)
    memory._shared[sites.urls["a"]] = engine.inner
    for each in (fleet, archived(sites)):
        with each.watch(since=0, members="a") as watch, pytest.raises(StoreRestoredError) as e:
            watch.next(WAIT_S)
        assert e.value.member == "a"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_recording_and_compacting_while_it_is_read(sites, seed):
    print(f"seed {seed}")
    rng = random.Random(seed)
    sites.add("a", "b")
    first = sites["a"].save("k", b"")
    sites["b"].tick()
    wanted, found = [], []
    sites.archive("a")
    fleet = archived(sites)
    with fleet.watch(since=first, hold_bytes=rng.choice([1, 500, 1 << 20])) as watch:
        for n in range(40):
            sites.later(rng.choice([1, 400_000]))
            step = rng.choice(["save", "save", "tick", "record", "compact", "take"])
            if step == "save":
                wanted.append((sites["a"].save("k", b"%d" % n), {"a": [("k", b"%d" % n)]}))
            elif step == "tick":
                sites["b"].tick()
            elif step == "record":
                sites.archive("a")
            elif step == "compact":  # no further than it was recorded
                sites.later(2_000_000)
                sites.archive("a")
                sites["a"].compact(sites["a"].resolved())
            elif (item := watch.next(0)) is not None:
                found.append((item.timestamp, {"a": [("k", item.members["a"].changes[0].value)]}))
        sites.later()
        sites.tick()
        found += taken(watch, len(wanted) - len(found))
        assert found == wanted
        eventually(lambda: watch.next(0) is None and watch.timestamp >= sites["a"].resolved())


def test_a_member_that_goes_away_while_a_commit_is_taken_loses_none(
    sites, stamps, everything, monkeypatch
):
    """After the archive has answered, the engine is asked to confirm that, which may fail."""
    saw, failures = OpenMember.saw, {1: 2, 3: 1, 8: 1}
    calls = Counter()

    def flaky(connection, mark):
        calls[mark.ordinal] += 1
        if failures.get(mark.ordinal, 0) >= calls[mark.ordinal]:
            raise EngineUnavailableError("it went away")
        saw(connection, mark)

    monkeypatch.setattr(OpenMember, "saw", flaky)
    compact(sites, stamps)
    with archived(sites).watch(since=0) as watch:
        assert taken(watch, len(everything)) == everything
    assert all(calls[ordinal] > failures[ordinal] for ordinal in failures if ordinal in calls)
    assert max(calls.values()) > 1
