"""What hooks are given, and that they change nothing."""

import logging
import threading

import pytest
from reading.test_short_way import calls_of

import snapkv
from snapkv.engine.contract import Put
from snapkv.errors import CompactedError, ConflictError, InvalidTypeError
from snapkv.hooks import (
    CloseEvent,
    CommitEvent,
    CompactionEvent,
    LookupEvent,
    OpenEvent,
    StoreLabel,
    TickEvent,
    WatchEvent,
)

from .engines import write_raw
from .noting import KINDS, METHODS, Noting

MINUTES = 60_000
only_memory = pytest.mark.parametrize("place", ["memory"], indirect=True)


@pytest.fixture
def noting() -> Noting:
    return Noting()


@pytest.fixture
def hooked(place, clock, noting):
    return place.open(clock=clock, hooks=noting, ring_slots=8)


def test_every_event_has_a_hook() -> None:
    assert sorted(kind.METHOD for kind in KINDS) == sorted(METHODS)
    assert len({kind.METHOD for kind in KINDS}) == len(KINDS)


# --- on each engine -----------------------------------------------------------------------


def test_a_life_with_hooks(place, clock, noting):
    store = place.open(clock=clock, hooks=noting, ring_slots=8)
    label = StoreLabel(place.url, "default")
    assert noting.the(OpenEvent) == OpenEvent(label, store)
    saved = store.save("a", b"1")
    committed = noting.the(CommitEvent)
    assert (committed.store, committed.outcome, committed.members) == (label, "committed", 1)
    assert (committed.timestamp, committed.error, committed.lost_rounds) == (saved, None, 0)
    assert 0 < committed.duration_s < 60
    clock.advance(2_500)
    (changes,) = store.watch(since=0, timeout=0)
    assert noting.the(WatchEvent) == WatchEvent(label, saved, len(changes.changes), 2.5)
    tick = store.tick()
    assert (noting.the(TickEvent).outcome, noting.the(TickEvent).timestamp) == (
        "committed",
        tick.ts,
    )
    assert store.load("a", saved) == b"1"
    assert noting.the(LookupEvent).path == "ring"
    store.close()
    store.close()
    assert noting.the(CloseEvent) == CloseEvent(label, store)
    assert [event.store for event in noting.events] == [label] * len(noting.events)


# --- lookups ------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["memory", "etcd"], indirect=True)
def test_the_path_of_each_lookup(place, clock, noting):
    store = place.open(clock=clock, hooks=noting, ring_slots=8)
    stamps = []
    for n in range(40):
        stamps.append(store.save("k", b"%d" % n))
        clock.advance(10)

    def paths(*reads) -> list[tuple[str, str]]:
        before = len(noting.of(LookupEvent))
        for read in reads:
            read()
        return [(event.operation, event.path) for event in noting.of(LookupEvent)[before:]]

    assert paths(lambda: store.load("k"), lambda: store.at()) == [("load", "head"), ("at", "head")]
    late = stamps[-1] + snapkv.pack(5)
    assert paths(lambda: store.load("k", late)) == [("load", "head")]
    assert paths(lambda: store.at(stamps[-2])) == [("at", "ring")]
    assert paths(lambda: store.load("k", stamps[-3])) == [("load", "ring")]
    assert paths(lambda: store.load("k", stamps[5])) == [("load", "search")]
    assert paths(lambda: store.load("k", stamps[5])) == [("load", "block")]
    assert paths(lambda: store.at(stamps[5])) == [("at", "block")]
    assert paths(lambda: store.at(revision=store.at().revision)) == [("at", "head")]
    found = store.stats().lookups
    assert (found.head, found.ring, found.block, found.search) == (4, 2, 2, 1)
    assert found.ring_hit_rate == 0.4


@only_memory
def test_a_lookup_that_fails_is_reported_and_not_counted(hooked, clock, noting):
    first = hooked.save("k", b"1")
    clock.advance(10 * MINUTES)
    hooked.save("k", b"2")
    clock.advance(10 * MINUTES)
    hooked.compact("-5m")
    for _ in range(10):
        hooked.save("k", b"3")
    before = hooked.stats().lookups
    with pytest.raises(CompactedError):
        hooked.load("k", first)
    assert isinstance(noting.of(LookupEvent)[-1].error, CompactedError)
    assert hooked.stats().lookups == before


@only_memory
def test_loads_are_not_reported_to_hooks_that_do_not_want_them(place, clock):
    class Commits(snapkv.Hooks):
        def on_commit(self, event):
            assert event.outcome == "committed"

    plain, hooked = place.open(clock=clock), place.open(clock=clock, hooks=Commits())
    calls = []
    for store in (plain, hooked):
        saved = store.save("k", b"1")
        store.load("k")
        calls.append(calls_of(lambda store=store, saved=saved: store.load("k", saved)))
    assert not [name for name in calls[0] if name.startswith("Meter")]
    assert calls[0] == calls[1]
    assert hooked.stats().lookups is plain.stats().lookups is None

    class Counted(Commits):
        def counts_lookups(self):
            return True

    counted = place.open(clock=clock, hooks=Counted())
    counted.save("k", b"1")
    counted.load("k")
    names = calls_of(lambda: counted.load("k"))
    assert not [name for name in names if name.startswith("Notifier")]
    assert counted.stats().lookups.head == 2


@only_memory
def test_hooks_of_an_observed_prefix(place, clock, noting):
    ticker = place.open(clock=clock)
    write_raw(place.engine(), Put(b"/r/a", b"1"))
    tick = ticker.tick()
    with snapkv.observe(place.url, prefix="/r/", clock=clock, hooks=noting) as registry:
        assert registry.load("/r/a", tick.ts) == b"1"
        registry.at()
        clock.advance(1_000)
        assert len(list(registry.watch(since=0, timeout=0))) == 1
    lookups = [(event.operation, event.path) for event in noting.of(LookupEvent)]
    assert lookups == [("load", "ring"), ("at", "head")]
    assert noting.the(WatchEvent) == WatchEvent(StoreLabel(place.url, "default"), tick.ts, 1, 1.0)


# --- commits ------------------------------------------------------------------------------


@only_memory
def test_how_commits_end(hooked, noting):
    hooked.save("a", b"1")
    with pytest.raises(ConflictError):
        hooked.commit(puts={"a": b"2"}, guards=[snapkv.Absent("a")])
    with pytest.raises(ZeroDivisionError):
        hooked.commit(lambda stamp: 1 // 0)
    outcomes = [(e.outcome, type(e.error), e.members) for e in noting.of(CommitEvent)]
    assert outcomes == [
        ("committed", type(None), 1),
        ("conflict", ConflictError, 0),
        ("failed", ZeroDivisionError, 0),
    ]


@only_memory
def test_a_group_is_counted_as_one_transaction(hooked, noting):
    inside, go = threading.Event(), threading.Event()

    def slow(stamp):
        inside.set()
        assert go.wait(20)
        return snapkv.Ops(puts={"leader": b"1"})

    threads = [threading.Thread(target=hooked.commit, args=(slow,))]
    threads[0].start()
    assert inside.wait(20)
    for n in range(3):
        threads.append(threading.Thread(target=hooked.save, args=(f"k{n}", b"1")))
        threads[-1].start()
    while hooked.stats().waiting < 4:  # the leader's own call is still among them
        threading.Event().wait(0.001)
    go.set()
    for thread in threads:
        thread.join(20)
    assert sorted(event.members for event in noting.of(CommitEvent)) == [1, 3, 3, 3]
    stats = hooked.stats()
    assert (stats.commits, stats.transactions, stats.waiting) == (4, 2, 0)


@only_memory
def test_a_compaction(hooked, clock, noting):
    hooked.save("k", b"1")
    clock.advance(10 * MINUTES)
    second = hooked.save("k", b"2")
    clock.advance(10 * MINUTES)
    done = hooked.compact("-5m")
    event = noting.the(CompactionEvent)
    assert (event.revision, event.earliest, event.waits_for) == (done.revision, second, None)
    assert (hooked.stats().compactions, hooked.stats().earliest_timestamp) == (1, second)


# --- hooks that fail ----------------------------------------------------------------------


class Broken(snapkv.Hooks):
    def __init__(self) -> None:
        self.calls = 0

    def on_commit(self, event):
        self.calls += 1
        raise RuntimeError("of the hook")


@only_memory
def test_an_error_of_a_hook_changes_nothing_and_is_logged_once(place, caplog, noting):
    broken = Broken()
    store = place.open(hooks=[broken, noting])
    with caplog.at_level(logging.DEBUG, "snapkv"):
        for _ in range(3):
            store.save("a", b"1")
    assert [event.outcome for event in noting.of(CommitEvent)] == ["committed"] * 3
    assert (broken.calls, store.stats().hook_errors) == (3, 3)
    (logged,) = [record for record in caplog.records if record.name == "snapkv.hooks"]
    assert "Broken.on_commit" in logged.getMessage()
    assert "of the hook" in caplog.text


@only_memory
def test_a_hook_that_is_interrupted_interrupts(place):
    class Interrupted(snapkv.Hooks):
        def on_commit(self, event):
            raise KeyboardInterrupt

    store = place.open(hooks=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        store.save("a", b"1")
    assert store.load("a") == b"1"


@only_memory
@pytest.mark.parametrize("hooks", [3, "Hooks", snapkv.Hooks, [3], {"a": 1}])
def test_what_is_not_hooks(place, hooks):
    with pytest.raises(InvalidTypeError, match="hooks must"):
        place.open(hooks=hooks)


@only_memory
@pytest.mark.parametrize("hooks", [None, (), iter(())])
def test_no_hooks(place, hooks):
    store = place.open(hooks=hooks)
    store.save("a", b"1")
    assert store.stats().lookups is None
