"""How a watch of a fleet ends: by errors of its members, or because something is closed."""

import threading

import pytest
from store.wrapping import backup

import snapkv
from snapkv import CompactedError
from snapkv.engine import memory
from snapkv.engine.memory import MemoryEngine
from snapkv.errors import SnapKVError, StoreClosedError, StoreRecreatedError, StoreRestoredError
from snapkv.fleet import fleet_watch

from .following import drained, of, taken
from .sites import WAIT_S, eventually


def test_changes_that_were_compacted(sites):
    sites.add("a", "b")
    first = sites["a"].save("k", b"1")
    stamps = []
    for _ in range(3):
        sites.later(400_000)
        stamps.append(sites["a"].save("k", b"2"))
        sites.tick("b")
    sites.later(2_000_000)
    sites["a"].compact(stamps[1])
    with sites.fleet().watch(since=first) as watch, pytest.raises(CompactedError) as e:
        watch.next(WAIT_S)
    assert e.value.member == "a"
    with sites.fleet().watch(since=stamps[1], timeout=0) as watch:
        assert [ts for ts, _ in drained(watch)] == stamps[2:]


@pytest.mark.parametrize("to", [1, 3])
def test_a_store_that_was_restored(sites, servers, to):
    sites.add("a", "b")
    stamps = []
    for n in range(5):
        sites.later()
        stamps.append(sites["a"].save("k", b"%d" % n))
        sites.tick("b")
    fleet = sites.fleet()
    with fleet.watch(since=0) as watch:
        assert [ts for ts, _ in taken(watch, 5)] == stamps
        (engine,) = servers.of[sites.urls["a"]]
        inner = backup(engine.inner, sites["a"].at(stamps[to]).revision, same_cluster=True)
        other = sites.keep(snapkv.store.open.open_on(inner, clock=sites.clock))
        sites.later()
        for _ in range(6):
            other.save("k", b"other")
        engine.inner = inner
        sites.tick("b")
        for _ in range(2):
            with pytest.raises(StoreRestoredError) as e:
                watch.next(WAIT_S)
            assert e.value.member == "a"


def test_a_store_that_was_created_again(sites):
    sites.add("a", "b")
    stamps = sites.tick()
    fleet = sites.fleet(sites.urls)
    with fleet.watch(since=0) as watch:
        eventually(lambda: watch.next(0) is None and watch.timestamp >= min(stamps.values()))
    token = watch.token
    memory._shared[sites.urls["a"]] = MemoryEngine(sites.urls["a"])
    sites.open("a").save("k", b"1")
    with sites.fleet().watch(resume=token) as watch, pytest.raises(StoreRecreatedError) as e:
        watch.next(WAIT_S)
    assert e.value.member == "a"


def test_items_that_are_complete_come_before_an_error(sites, monkeypatch):
    sites.add("a", "b")
    ts = min(store.save("k", b"1") for store in sites.stores.values())
    fleet = sites.fleet()
    with fleet.watch(since=0) as watch:
        eventually(lambda: watch.has_caught_up)
        (follower,) = [each for each in watch._followers if each.name == "a"]
        follower._end(SnapKVError("broken"))
        assert of(watch.next(0)) == (ts, {name: [("k", b"1")] for name in "ab"})
        for _ in range(2):
            with pytest.raises(SnapKVError, match="broken"):
                watch.next(0)


def test_a_fault_of_the_library_is_not_taken_for_a_member_that_is_away(sites, monkeypatch):
    sites.add("a")
    sites.tick()

    def broken(*args):
        raise ZeroDivisionError("a fault")

    fleet = sites.fleet()
    monkeypatch.setattr("snapkv.reading.watches.StoreWatch._take", broken)
    with fleet.watch(since=0) as watch, pytest.raises(SnapKVError, match="a fault") as e:
        watch.next(WAIT_S)
    assert e.value.member == "a"
    assert isinstance(e.value.__cause__, ZeroDivisionError)


# --- closing ---


def test_closing_from_another_thread_ends_the_iteration(sites):
    sites.add("a", "b")
    sites.tick()
    watch = sites.fleet().watch()
    timer = threading.Timer(0.05, watch.close)
    timer.start()
    assert list(watch) == []
    timer.join()
    watch.close()
    with pytest.raises(StoreClosedError, match="the watch was closed"):
        watch.next(0)
    assert list(watch) == []


def test_closing_the_fleet_ends_its_watches(sites, servers):
    sites.add("a", "b")
    sites.tick()
    servers.set(sites.urls["b"], "hung")
    fleet = sites.fleet(timeout=0.1)
    watches = [fleet.watch(since=0), fleet.watch(members="a")]
    timer = threading.Timer(0.05, fleet.close)
    timer.start()
    assert [list(watch) for watch in watches] == [[], []]
    timer.join()
    servers.set(sites.urls["b"], "here")
    for watch in watches:
        for each in watch._followers:
            each._thread.join(WAIT_S)
            assert not each._thread.is_alive()


def test_a_member_without_room_does_not_wait_in_a_closed_watch(sites):
    """It may look for room just after close() has woken all that waited for it."""
    sites.add("a", "b")
    sites.tick()
    sites.later()
    sites["a"].save("k", b"1")
    with sites.fleet().watch(since=0, hold_bytes=1) as watch:
        first = watch._followers[0]
        eventually(lambda: not watch.has_room(first))
    thread = threading.Thread(target=first.step, args=(3 * WAIT_S,), daemon=True)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_a_watch_that_nobody_reads_ends_its_threads(sites, monkeypatch):
    sites.add("a", "b")
    sites.tick()
    monkeypatch.setattr(fleet_watch, "LOOK_S", 0.05)
    watch = sites.fleet().watch(since=0, timeout=0)
    assert list(watch) == []
    followers = list(watch._followers)
    eventually(lambda: all(each._watch is not None for each in followers))
    assert all(each._thread.is_alive() for each in followers)
    del watch
    for each in followers:
        each._thread.join(WAIT_S)
        assert not each._thread.is_alive()
        assert not each._watch.is_open


def test_closing_a_store_that_was_given_open_is_an_error(sites):
    sites.add("a", "b")
    sites.tick()
    fleet = sites.fleet({"a": sites["a"], "b": sites.urls["b"]})
    with fleet.watch() as watch:
        timer = threading.Timer(0.05, sites["a"].close)
        timer.start()
        with pytest.raises(StoreClosedError) as e:
            list(watch)
        assert e.value.member == "a"
        timer.join()
