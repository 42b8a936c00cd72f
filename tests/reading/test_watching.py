"""Watching: commits in order with their changes, none twice, none missing."""

import random
import threading
from contextlib import ExitStack

import pytest
from store.engines import write_raw
from store.plain import Plain

from snapkv import Change, CompactedError, Ops, SpaceOps, pack
from snapkv.base.waiting import monotonic
from snapkv.engine.contract import Delete, Put
from snapkv.errors import InvalidTypeError, StoreClosedError

pytestmark = pytest.mark.slow

WAIT_S = 20


def drained(watch):
    """What was committed until now and not yet taken: (ts, [(key, value)]) of each commit."""
    until, deadline = watch._core.timeline.head().timestamp, monotonic() + WAIT_S
    found, wait = [], 0
    while True:
        changes = watch.next(wait)  # what has come already takes no time
        if changes is not None:
            found.append((changes.commit.ts, [(x.key, x.value) for x in changes]))
        elif watch.timestamp >= until:
            return found
        wait = 0.02 if changes is None else 0
        assert monotonic() < deadline, "what was committed does not come"


@pytest.fixture
def written(store, clock):
    """A store with a random history, and the plain one of it."""
    rng, plain = random.Random(3), Plain()
    for n in range(40):
        clock.advance(rng.choice((0, 0, 1, 1_000)))
        puts = {
            f"{rng.choice('ab')}/{rng.randrange(3)}": b"%d" % n for _ in range(rng.randrange(3))
        }
        prefixes = rng.choice([(), (), ("a/",), ("b/1",)])
        changes = plain.effect(puts, (), prefixes)
        commit = store.commit(puts=puts, delete_prefixes=prefixes)
        plain.add(commit.ts, commit.revision, changes)
    return plain


@pytest.mark.long_on("etcd")
def test_from_any_point_on(store, written):
    for row in [None, *written.rows]:
        sinces = (0,) if row is None else (row.ts - 1, row.ts, row.ts + 1)
        with ExitStack() as open_ones:  # together, for a server brings each after 100 ms
            watches = [
                (since, prefix, open_ones.enter_context(store.watch(prefix, since, timeout=0)))
                for since in sinces
                for prefix in ("", "a/", "b/1", "zz")
            ]
            for since, prefix, watch in watches:
                assert drained(watch) == written.since(since, prefix)


def test_resuming_from_each_timestamp_seen_misses_and_repeats_nothing(store, place, written):
    for prefix in ("", "a/"):
        everything = written.since(0, prefix)
        seen, since = [], 0
        while True:
            # a new watch for each commit, as after a crash; also by another opening of the store
            asked = store if len(seen) % 2 else place.open()
            with asked.watch(prefix, since, timeout=0) as watch:
                found = next(watch, None)
                if found is None:
                    break
                assert watch.timestamp == found.commit.ts
                seen.append((found.commit.ts, [(x.key, x.value) for x in found]))
                since = watch.timestamp
        assert seen == everything


def test_the_timestamp_moves_with_what_does_not_match(store):
    store.save("a", b"1")
    with store.watch("b", since=0, timeout=0) as watch:
        assert watch.timestamp == 0
        assert list(watch) == []
        assert watch.timestamp == store.resolved()
        tick = store.tick()
        assert drained(watch) == []
        assert watch.timestamp == tick.ts


def test_a_commit_with_its_changes(store):
    store.save("gone", b"1")
    with store.watch(timeout=0) as watch:
        commit = store.commit(puts={"b": b"2", "a": b"1"}, deletes=["gone"], note="why")
        changes = watch.next(WAIT_S)
        assert changes.commit == commit
        assert changes.changes == (
            Change("a", b"1", commit),
            Change("b", b"2", commit),
            Change("gone", None, commit),
        )
        assert list(changes) == list(changes.changes)


def test_without_since_it_begins_after_now(store):
    store.save("a", b"1")
    with store.watch() as watch:
        assert watch.timestamp == store.resolved()
        assert watch.next(0) is None
        ts = store.save("a", b"2")
        assert watch.next(WAIT_S).commit.ts == ts


def test_since_a_time_to_come(store, clock):
    store.save("a", b"1")
    since = pack(clock.now_ms() + 2_000)
    with store.watch(since=since, timeout=0) as watch:
        clock.advance(1_000)
        store.save("a", b"2")
        assert watch.next(0) is None
        assert watch.timestamp == since
        clock.advance(1_001)
        ts = store.save("a", b"3")
        assert drained(watch) == [(ts, [("a", b"3")])]


def test_spaces_and_data_are_watched_apart(store):
    with store.watch(timeout=0) as data, store.space("s").watch(b"\xff", timeout=0) as space:
        commit = store.commit(
            lambda stamp: Ops(
                puts={"k": b"1"}, spaces={"s": SpaceOps(puts={b"\xff\xff": b"2", b"a": b"3"})}
            )
        )
        assert drained(data) == [(commit.ts, [("k", b"1")])]
        assert drained(space) == [(commit.ts, [(b"\xff\xff", b"2")])]


def test_following_another_opening_while_it_writes(store, place, clock):
    seen, failed = [], []
    started = threading.Event()

    def follow():
        try:
            with place.open(clock=clock).watch(since=0) as watch:
                started.set()
                while len(seen) < 200:
                    changes = watch.next(WAIT_S)
                    if changes is None:
                        return
                    seen.append((changes.commit.ts, changes.changes[0].value))
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=follow)
    thread.start()
    assert started.wait(WAIT_S)
    expected = []
    for n in range(200):
        expected.append((store.save("k", b"%d" % n), b"%d" % n))
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert failed == []
    assert seen == expected


@pytest.mark.parametrize("who", ["watch", "store", "watch of a space", "both"])
def test_closing_from_another_thread_ends_the_waiting(place, clock, who):
    store = place.open(clock=clock)
    ended, begun = [], threading.Event()
    watch = (store.space("s") if "space" in who else store).watch()

    def follow():
        begun.set()
        try:
            for _ in watch:
                ended.append("a commit")
            ended.append("the end")
        except StoreClosedError:
            ended.append("closed")

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(WAIT_S)
    if who != "store":
        watch.close()
    if who in ("store", "both"):
        store.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert ended == (["closed"] if who == "store" else ["the end"])
    watch.close()
    if who != "store":
        assert list(watch) == [], "it stays at its end"
    with pytest.raises(StoreClosedError):
        watch.next(0)


def test_a_timeout_ends_the_iteration_and_it_can_go_on(store):
    with store.watch(timeout=0.01) as watch:
        assert list(watch) == []
        ts = store.save("a", b"1")
        assert drained(watch) == [(ts, [("a", b"1")])]
        assert watch.next(timeout=0.01) is None


def test_foreign_changes_belong_to_the_next_commit(place, clock):
    store, raw = place.open(clock=clock), place.engine()
    store.multi_save({"a": b"1", "b": b"1"})
    with store.watch(timeout=0) as watch, store.watch("b", timeout=0) as other:
        write_raw(raw, Put(b"default/data/x", b"raw"), Put(b"default/data/a", b"raw"))
        write_raw(raw, Delete(b"default/data/b"))
        assert watch.next(0) is None
        ts = store.save("a", b"2")
        assert drained(watch) == [(ts, [("a", b"2"), ("b", None), ("x", b"raw")])]
        assert drained(other) == [(ts, [("b", None)])]
        write_raw(raw, Put(b"default/data/x", b"again"))
        tick = store.tick()
        assert drained(watch) == [(tick.ts, [("x", b"again")])]


def test_other_stores_in_the_engine_are_not_seen(store, place, clock):
    with store.watch(timeout=0) as watch:
        place.open(name="other", clock=clock).save("k", b"1")
        place.open(name="default/sub", clock=clock).save("k", b"1")
        ts = store.save("k", b"2")
        assert drained(watch) == [(ts, [("k", b"2")])]


# --- compaction ---


@pytest.fixture
def compacted(store, clock):
    stamps = []
    for n in range(10):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(1_000)
    clock.advance(200_000)
    assert store.compact(stamps[4]).earliest == stamps[4]
    return stamps


@pytest.mark.parametrize("slots", [1, 1_024])
def test_since_the_compaction_point_and_after(place, clock, compacted, slots):
    asked = place.open(clock=clock, ring_slots=slots)
    for n in range(4, 10):
        with asked.watch(since=compacted[n], timeout=0) as watch:
            assert [x[1] for x in drained(watch)] == [[("k", b"%d" % m)] for m in range(n + 1, 10)]


def test_since_what_was_compacted(place, store, clock, compacted):
    for asked in (store, place.open(clock=clock)):
        for since in (0, compacted[0], compacted[3] - 1):
            with pytest.raises(CompactedError) as caught, asked.watch(since=since) as watch:
                watch.next(0)
            assert caught.value.earliest == compacted[4]
            assert caught.value.unit == "timestamp"


def test_a_watch_that_was_overtaken_says_so(store, clock):
    stamps = [store.save("k", b"%d" % n) for n in range(5)]
    with store.watch(since=stamps[0], timeout=0) as watch:
        clock.advance(200_000)
        last = store.save("k", b"last")
        store.compact("-0s")
        clock.advance(200_000)
        later = store.save("k", b"later")
        store.compact(last)
        clock.advance(200_000)
        store.compact("-80s")
        told, error = [], None
        try:
            told += [changes.commit.ts for changes in watch]
        except CompactedError as e:
            error = e
        if error is None:  # a server may have sent it all before it was compacted
            assert store._core.engine.remote
            assert told == [*stamps[1:], last, later]
        else:
            assert (told, error.requested) == ([], stamps[0])
            assert error.earliest == store.info()["earliest_timestamp"]


def test_a_watch_that_kept_up_does_not_mind_compaction(store, clock):
    with store.watch(timeout=0) as watch:
        for n in range(5):
            ts = store.save("k", b"%d" % n)
            assert drained(watch) == [(ts, [("k", b"%d" % n)])]
            clock.advance(200_000)
            store.compact("-0s")


def test_a_neighbour_may_compact_past_a_watch_that_misses_nothing_by_it(store, place, clock):
    other = place.open(name="other", clock=clock)
    ts = store.save("k", b"1")
    with store.watch(timeout=0) as seen_all, store.watch(since=0, timeout=0) as behind:
        for _ in range(3):
            other.save("k", b"foreign")
        clock.advance(200_000)
        assert other.compact("-0s").earliest == other.resolved()
        # the newest commit of this store is still in force: whoever saw it goes on from there
        assert list(seen_all) == []
        found = gone = None
        try:
            found = drained(behind)
        except CompactedError as e:
            gone = e.requested, e.earliest
        if gone is None:  # a server sends what a watch asked for at once: it may be here already
            assert place.url.startswith("etcd:")
            assert found == [(ts, [("k", b"1")])]
        else:
            assert gone == (0, ts)
        late = store.save("k", b"2")
        assert drained(seen_all) == [(late, [("k", b"2")])]


# --- what cannot be watched ---


def test_bad_prefixes(store):
    for wrong in (b"a", 5, ["a"]):
        with pytest.raises(InvalidTypeError):
            store.watch(wrong)
    with pytest.raises(InvalidTypeError):
        store.space("s").watch("a")
