"""Watching an observed prefix through an engine whose progress reports come late."""

import pytest
from store.engines import ENGINES, Place, write_raw
from store.observed import WAIT_S, Cluster, drained, hold, listed, values
from store.wrapping import Wrapped

import snapkv.reading.observed_prefix
import snapkv.store.open
from snapkv import CompactedError
from snapkv.engine.contract import Delete, Put
from snapkv.errors import (
    StoreRecreatedError,
)
from snapkv.store.location import open_engine

# --- engines whose words come late ---


class Late(Wrapped):
    """An engine that tells progress only to who waits, and of a key nothing while it holds it."""

    def __init__(self, inner) -> None:
        super().__init__(inner)
        self.hold = None
        self.waits = []
        self.compacted = 0
        self.overtaken = False

    def compacted_revision(self):
        return self.compacted or self.inner.compacted_revision()

    def watch(self, key, range_end, *, start_revision):
        watcher = self.inner.watch(key, range_end, start_revision=start_revision)
        return LateWatcher(self, watcher, key)


class LateWatcher(Wrapped):
    def __init__(self, engine, inner, key) -> None:
        super().__init__(inner)
        self.engine, self.key = engine, key
        self.progress = None

    def next(self, timeout):
        if self.key == self.engine.hold:
            return None
        if self.engine.overtaken and self.key == b"default/sys/ts":
            self.engine.overtaken = False
            raise CompactedError(1, self.engine.compacted, unit="revision")
        batch = self.inner.next(0)
        if batch is not None and batch.events:
            return batch
        self.progress = batch or self.progress
        if not timeout:
            return None
        self.engine.waits.append(timeout)
        batch, self.progress = self.progress, None
        return batch


@pytest.fixture
def late(clock, tmp_path, monkeypatch):
    engines = []

    def opened(url, **how):
        engines.append(Late(open_engine(url, **how)))
        return engines[-1]

    with Place(ENGINES["memory"], tmp_path) as place:
        cluster = Cluster(place, clock)
        monkeypatch.setattr(snapkv.store.open, "open_engine", opened)
        with cluster.observe().watch(since=0) as watch:
            yield cluster, engines[0], watch


def all_at_once(watch):
    """What a watch has without waiting for more than its word."""
    told = []
    while (changes := watch.next(0)) is not None:
        told.append(listed(changes))
    return told


def test_a_tick_waits_for_the_word_that_nothing_else_comes_before_it(late):
    cluster, engine, watch = late
    cluster.write(a=b"1")
    tick = cluster.tick()
    assert values(all_at_once(watch)) == [(tick.ts, [("/r/a", b"1")])]
    assert engine.waits, "it waited for progress although the timeout was 0"
    assert max(engine.waits) <= snapkv.reading.observed_prefix.PROGRESS_WAIT_S


def test_an_event_beyond_the_tick_is_word_enough(late):
    cluster, engine, watch = late
    cluster.write(a=b"1")
    first = cluster.tick()
    cluster.write(a=b"2")
    cluster.write(b=b"2")
    assert values(all_at_once(watch)) == [(first.ts, [("/r/a", b"1")])]
    assert engine.waits == []
    second = cluster.tick()
    assert values(all_at_once(watch)) == [(second.ts, [("/r/a", b"2"), ("/r/b", b"2")])]


@pytest.mark.parametrize("held", [b"/r/", b"default/sys/ts"])
def test_what_comes_late_keeps_the_rest_waiting(late, held, monkeypatch):
    monkeypatch.setattr(snapkv.reading.observed_prefix, "PROGRESS_WAIT_S", 0.01)
    cluster, engine, watch = late
    engine.hold = held
    cluster.write(a=b"1")
    first = cluster.tick()
    assert watch.next(0) is None
    cluster.write(a=b"2")
    second = cluster.tick()
    cluster.write(a=b"3")
    assert (watch.next(0), watch.timestamp) == (None, 0)
    engine.hold = None
    assert values(all_at_once(watch)) == [
        (first.ts, [("/r/a", b"1")]),
        (second.ts, [("/r/a", b"2")]),
    ]


def test_a_time_line_that_compaction_overtakes_where_no_tick_was(late):
    """A networked engine fetches the changes ahead: only the word of the ticks is missing."""
    cluster, engine, watch = late
    cluster.write(a=b"1")
    cluster.noise()
    tick = cluster.tick()
    engine.compacted, engine.overtaken = tick.revision, True
    assert values(all_at_once(watch)) == [(tick.ts, [("/r/a", b"1")])]
    assert not engine.overtaken


def test_a_time_line_of_which_compaction_took_a_tick(late):
    cluster, engine, watch = late
    cluster.write(a=b"1")
    cluster.tick()
    second = cluster.tick()
    for _ in range(2):
        engine.compacted, engine.overtaken = second.revision, True
        with pytest.raises(CompactedError) as caught:
            watch.next(0)
        assert (caught.value.requested, caught.value.earliest) == (0, second.ts)


def test_while_no_tick_comes_the_changes_are_fetched(place, cluster):
    """So the engine need not keep them, and compaction behind them loses nothing."""
    with cluster.observe().watch(since=0) as watch:
        for n in range(100):
            written = cluster.write(a=b"%d" % n)
        hold(watch, written)
        cluster.noise()
        cluster.compact(cluster.place.revision() - 1)
        tick = cluster.tick()
        assert values(drained(watch, tick.ts)) == [
            (tick.ts, [("/r/a", b"%d" % n) for n in range(100)])
        ]


# --- a time line that is not the same any more ---


def test_a_time_line_that_was_recreated(cluster):
    cluster.write(a=b"1")
    cluster.tick()
    observed = cluster.observe()
    with observed.watch(timeout=0) as watch:
        write_raw(cluster.engine, Delete(b"default/sys/ts"))
        with pytest.raises(StoreRecreatedError):
            watch.next(WAIT_S)
        for read in (observed.at, observed.resolved, lambda: observed.load("/r/a")):
            with pytest.raises(StoreRecreatedError):
                read()
        write_raw(cluster.engine, Put(b"default/sys/ts", (1 << 60).to_bytes(8, "big") + b"\x80"))
        with pytest.raises(StoreRecreatedError):
            watch.next(WAIT_S)
        with pytest.raises(StoreRecreatedError):
            observed.at()
