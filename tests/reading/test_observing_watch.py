"""Watching an observed prefix: changes wait for their tick, none twice, none missing."""

import random
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
from store.engines import EMBEDDED, write_raw
from store.observed import WAIT_S, Cluster, drained, hold, listed, values

from snapkv import Change, Commit, CompactedError, pack
from snapkv.engine.contract import Put
from snapkv.errors import (
    InvalidOptionError,
    InvalidTypeError,
    StoreClosedError,
)


@pytest.fixture
def written(cluster):
    """Forty steps of writing, noise and ticking."""
    rng = random.Random(5)
    for n in range(40):
        step = rng.choice(("write", "write", "noise", "tick", "remove"))
        if step == "write":
            cluster.write(**{rng.choice("abc"): b"%d" % n, rng.choice("de"): b"%d" % n})
        elif step == "remove":
            cluster.write(**{rng.choice("abc"): None})
        elif step == "noise":
            cluster.noise()
        else:
            cluster.tick(rng.choice((0, 1, 1_000)))
    cluster.tick()
    cluster.write(a=b"unseen")
    return cluster


@pytest.mark.long_on("etcd")
def test_from_any_point_on(written):
    observed = written.observe()
    times = [0, *(mark.ts + d for mark in written.model.marks for d in (-1, 0, 1))]
    for since in times:
        with ExitStack() as open_ones:  # together, for a server brings each after 100 ms
            watches = [
                (prefix, open_ones.enter_context(observed.watch(prefix, since)))
                for prefix in ("/r/", "/r/a", "/r/zz")
            ]
            for prefix, watch in watches:
                assert drained(watch, written.newest()) == written.model.since(since, prefix)
                assert watch.timestamp == max(since, written.newest())
                assert watch.next(0) is None


def test_resuming_from_each_timestamp_seen_misses_and_repeats_nothing(written):
    everything, seen, since = written.model.since(0), [], 0
    while since < everything[-1][0]:
        observed = written.observe(ring_slots=2)
        with observed.watch(since=since) as watch:
            found = watch.next(WAIT_S)
            assert watch.timestamp == found.commit.ts
            seen.append(listed(found))
            since = watch.timestamp
        observed.close()
    assert seen == everything


def test_what_is_watched_builds_what_is_read(written):
    observed, state = written.observe(), {}
    with observed.watch(since=0) as watch:
        for ts, changes in drained(watch, written.newest()):
            state.update({key: value for _, key, value, _ in changes})
            now = {key: value for key, value in state.items() if value is not None}
            assert dict(observed.at(ts).items()) == now


def test_an_iteration_does_not_end_before_what_was_there(cluster):
    for n in range(20):
        cluster.write(a=b"%d" % n)
        cluster.tick()
    found = list(cluster.observe().watch(since=0, timeout=0))
    values = [change.value for changes in found for change in changes.changes]
    assert values == [b"%d" % n for n in range(20)]


def test_changes_wait_for_their_tick(cluster):
    observed = cluster.observe()
    with observed.watch(timeout=0) as watch:
        first = cluster.write(a=b"1", b=b"1")
        second = cluster.write(b=b"2", c=b"2")
        third = cluster.write(c=None)
        assert watch.next(0) is None
        assert watch.timestamp == 0
        tick = cluster.tick()
        changes = watch.next(WAIT_S)
        at_first, at_second, at_third = (
            Commit(tick.ts, 0, revision, None) for revision in (first, second, third)
        )
        assert changes.commit == at_third
        assert changes.changes == (
            Change("/r/a", b"1", at_first),
            Change("/r/b", b"1", at_first),
            Change("/r/b", b"2", at_second),
            Change("/r/c", b"2", at_second),
            Change("/r/c", None, at_third),
        )
        assert (watch.timestamp, watch.next(0)) == (tick.ts, None)
        tick = cluster.tick()
        assert drained(watch, tick.ts) == [], "a tick that stamps nothing"
        assert watch.timestamp == tick.ts


def test_without_since_it_begins_after_the_newest_tick(cluster):
    cluster.write(a=b"1")
    cluster.tick()
    cluster.write(a=b"2")
    with cluster.observe().watch(timeout=0) as watch:
        assert watch.timestamp == cluster.model.marks[-1].ts
        assert watch.next(0.1) is None
        tick = cluster.tick()
        assert values(drained(watch, tick.ts)) == [(tick.ts, [("/r/a", b"2")])]


def test_what_stood_before_the_time_line_was_made(place, clock):
    write_raw(place.engine(), Put(b"/r/old", b"1"))
    cluster = Cluster(place, clock)
    observed = cluster.observe()
    with observed.watch(since=0, timeout=0) as whole, observed.watch(timeout=0) as new:
        cluster.write(a=b"2")
        tick = cluster.tick()
        assert values(drained(whole, tick.ts)) == [(tick.ts, [("/r/old", b"1"), ("/r/a", b"2")])]
        assert values(drained(new, tick.ts)) == [(tick.ts, [("/r/a", b"2")])]


def test_since_a_time_to_come(cluster, clock):
    cluster.tick()
    since = pack(clock.now_ms() + 2_000)
    with cluster.observe().watch(since=since) as watch:
        cluster.write(a=b"1")
        cluster.tick(1_000)
        assert (watch.next(0.1), watch.timestamp) == (None, since)
        cluster.write(b=b"2")
        tick = cluster.tick(1_001)
        assert values(drained(watch, tick.ts)) == [(tick.ts, [("/r/b", b"2")])]


def test_commits_of_the_store_that_change_the_prefix_themselves(place, clock):
    cluster = Cluster(place, clock, prefix="default/data/")
    with cluster.observe().watch(since=0, timeout=0) as watch:
        foreign = cluster.write(k=b"foreign", other=b"foreign")
        commit = cluster.commit("k", b"own", note="why")
        changes = watch.next(WAIT_S)
        assert changes.commit == replace(commit, writer=None, note=None), "several wrote"
        by_others = Commit(commit.ts, 0, foreign, None)
        assert changes.changes == (
            Change("default/data/k", b"foreign", by_others),
            Change("default/data/other", b"foreign", by_others),
            Change("default/data/k", b"own", commit),
        )
        commit = cluster.commit("k", b"own again", note="why")
        assert watch.next(WAIT_S).commit == commit


def test_everything_the_time_line_included(cluster):
    with cluster.observe(prefix=b"").watch(timeout=0) as watch:
        cluster.write(a=b"1")
        tick = cluster.tick()
        changes = watch.next(WAIT_S)
        assert [(c.key, c.commit.writer) for c in changes] == [
            (b"/r/a", None),
            (b"default/sys/ts", "ticker"),
        ]
        assert changes.commit == replace(tick, writer=None)


def test_while_others_write_and_tick(cluster):
    """A writer, a ticker and a watch run at once; the watch is told what the model says."""
    watch = cluster.observe().watch(since=0)
    done, failed = threading.Event(), []

    def write():
        try:
            for n in range(300):
                cluster.write(**{"abcdef"[n % 6]: b"%d" % n})
                if n % 7 == 0:
                    cluster.tick(1)
            cluster.tick(1)
        except BaseException as e:
            failed.append(e)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while (found := watch.next(0.05)) is not None or not done.is_set():
        if found is not None:
            seen.append(listed(found))
    writer.join(WAIT_S)
    assert not failed
    seen += drained(watch, cluster.newest())
    assert seen == cluster.model.since(0)
    assert len(seen) > 40


def test_a_waiting_watch_is_told_and_ends_with_the_observed(cluster):
    observed = cluster.observe()
    watch, told = observed.watch(since=0), []

    def follow():
        try:
            for changes in watch:
                told.append(changes.commit.ts)
        except StoreClosedError as e:
            told.append(type(e))

    follower = threading.Thread(target=follow)
    follower.start()
    cluster.write(a=b"1")
    tick = cluster.tick()
    waiting = threading.Event()
    for _ in range(400):
        if told or waiting.wait(0.05):
            break
    observed.close()
    follower.join(WAIT_S)
    assert told == [tick.ts, StoreClosedError]


def test_closing_a_watch_from_another_thread_ends_its_iteration(cluster):
    watch, told, begun = cluster.observe().watch(), [], threading.Event()

    def follow():
        begun.set()
        told.extend(watch)
        told.append("the end")

    follower = threading.Thread(target=follow)
    follower.start()
    assert begun.wait(WAIT_S)
    watch.close()
    follower.join(WAIT_S)
    assert told == ["the end"]


def test_a_closed_watch(cluster):
    with cluster.observe().watch() as watch:
        pass
    watch.close()
    with pytest.raises(StoreClosedError):
        watch.next(0)


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(-1, InvalidOptionError), ("1", InvalidTypeError), (True, InvalidTypeError)],
)
def test_waits_that_are_none(cluster, timeout, error):
    observed = cluster.observe()
    with pytest.raises(error):
        observed.watch(timeout=timeout)
    with pytest.raises(error):
        observed.watch().next(timeout)


# --- compaction ---


def test_from_any_point_after_compaction_at_any_point(cluster):
    for n in range(4):
        cluster.write(a=b"%d" % n)
        cluster.write(a=b"%d+" % n)
        cluster.tick()
    cluster.write(a=b"unseen")
    for revision in range(2, cluster.place.revision() + 1):
        cluster.compact(revision)
        for slots in (1, 1_024):
            assert_watched_since_each_tick(cluster, cluster.observe(ring_slots=slots))


def assert_watched_since_each_tick(cluster, observed):
    revision = cluster.model.compacted
    for mark in [None, *cluster.model.marks]:
        since, start = (0, 1) if mark is None else (mark.ts, mark.revision + 1)
        error, told = None, None
        try:
            with observed.watch(since=since) as watch:
                told = drained(watch, cluster.newest())
        except CompactedError as e:
            error = e
        if start > revision or (start == revision and error is None):
            assert (error, told) == (None, cluster.model.since(since))
        else:  # just behind a tick nothing is lost, but the tick may be on record no more
            assert error is not None
            assert (error.unit, error.earliest) == ("timestamp", cluster.model.earliest())


@pytest.mark.parametrize("place", EMBEDDED, indirect=True)  # a server's events come at once
def test_a_watch_that_compaction_overtakes(place, cluster):
    cluster.write(a=b"0")
    cluster.tick()
    observed = cluster.observe()
    with observed.watch() as watch:
        cluster.write(a=b"1")
        cluster.write(a=b"2")
        tick = cluster.tick()
        cluster.compact(tick.revision)
        for _ in range(2):
            with pytest.raises(CompactedError) as caught:
                watch.next(0)
            assert caught.value.unit == "timestamp"
            assert caught.value.requested == watch.timestamp
            assert caught.value.earliest == tick.ts
    with observed.watch(since=tick.ts) as watch:
        cluster.write(a=b"3")
        assert watch.next(0) is None
        tick = cluster.tick()
        assert values(drained(watch, tick.ts)) == [(tick.ts, [("/r/a", b"3")])]


def test_compaction_of_what_was_told_already_is_none_of_its_business(cluster):
    observed = cluster.observe()
    with observed.watch(since=0) as watch:
        for n in range(5):
            written = cluster.write(a=b"%d" % n)
            cluster.noise()
            hold(watch, written)
            cluster.compact(cluster.place.revision())
            tick = cluster.tick()
            cluster.compact(tick.revision)
            assert values(drained(watch, tick.ts)) == [(tick.ts, [("/r/a", b"%d" % n)])]


def test_now_is_gone_when_compaction_passed_the_newest_tick(cluster):
    cluster.tick()
    cluster.write(a=b"1")
    cluster.noise()
    cluster.compact(cluster.place.revision())
    observed = cluster.observe()
    with pytest.raises(CompactedError) as caught:
        observed.watch()
    assert caught.value.earliest is None
    tick = cluster.tick()
    with observed.watch(timeout=0) as watch:
        assert watch.timestamp == tick.ts
