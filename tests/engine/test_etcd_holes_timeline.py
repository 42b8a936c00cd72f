"""The holes H10 and H11 on a real server: the ring, foreign writes, and what a lookup costs."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
from collections.abc import Iterator

import pytest
from etcd_protocol import Two
from etcd_raw import RawClient
from etcd_server import EtcdProxy, eventually

from snapkv import CompactedError, SnapshotKV
from snapkv.engine.etcd.cluster_client import ClusterClient
from snapkv.errors import NotObservedError
from snapkv.layout import Mark
from snapkv.store.open import observe

pytestmark = pytest.mark.slow

RING = 16
SLOW_S, SLOW_LOOKUPS = 0.04, 25


class Calls:
    """Counts the calls of engines in this thread that can be repeated: all but commits.

    Threads of stores look at their servers once in a while.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read, thread = ClusterClient.read, threading.get_ident()

        def counting(connection: ClusterClient, *arguments, **options):
            self.count += threading.get_ident() == thread
            return read(connection, *arguments, **options)

        monkeypatch.setattr(ClusterClient, "read", counting)

    def during(self, act) -> int:
        """Return how many calls something needs."""
        before = self.count
        act()
        return self.count - before


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def two(proxy: EtcdProxy) -> Iterator[Two]:
    with Two(proxy) as two:
        yield two


class Foreign:
    """Writes that go past snapkv, by the hundreds: puts over gRPC that the proxy plays again."""

    def __init__(self, two: Two, *sizes: int) -> None:
        self._two, self._recorded = two, {}
        for size in sizes:
            client = RawClient(two.proxy.endpoint)
            needle = b"foreign-%d-last" % size
            recorded = two.proxy.record(needle)
            before = [client.begin(b"foreign/%d" % n, b"") for n in range(size - 1)]
            for call in before:
                call.result()
            client.put(b"foreign/last", needle)
            client.close()
            self._recorded[size] = recorded

    def write(self, size: int) -> None:
        """Write about `size` revisions; a replay ends with its last put, which others overtake."""
        until = self._two.gateway.revision() + size // 2

        def written() -> bool:
            self._recorded[size].replay()
            return self._two.gateway.revision() >= until

        eventually(written, "foreign writes")


def marks_of(two: Two, *, first: int = 1) -> list[Mark]:
    """Return the marks that really stand in the history."""
    stamps = two.history(first=first).stamps
    return [
        Mark(stamp.record.timestamp, stamp.revision, ordinal)
        for ordinal, stamp in enumerate(stamps, start=1)
    ]


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.long
def test_h10_lookups_below_the_ring_are_few_round_trips(two: Two, calls: Calls) -> None:
    """Over 30,000 revisions, most of them foreign; 3 on average, 6 at most, without anchors."""
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    foreign = Foreign(two, 20, 500, 2_000)
    b = two.b(max_clock_skew=1e8)
    commits = []
    while two.gateway.revision() < 30_000:
        for _ in range(rng.choice([1, 1, 10, 60])):
            commits.append(b.commit(puts={"k": b""}))
            b._core.clock.wall.advance(rng.choice([0, 1, 10, 1_000, 60_000]))
        foreign.write(rng.choice([20, 500, 500, 2_000]))
    for _ in range(RING):
        commits.append(b.commit(puts={"k": b""}))
    a = two.open(two.proxy.url, 0, ring_slots=RING, max_clock_skew=1e8)
    calls.count = 0
    a.at(commits[0].ts)  # the first one starts the feed
    assert calls.count <= 12
    costs = []
    for at in rng.sample(range(len(commits) - RING), min(150, len(commits) - RING)):
        wanted = commits[at]
        when = wanted.ts + rng.choice([0, (commits[at + 1].ts - wanted.ts) // 2])
        a._core.timeline.tracker.lookup.clear()
        found: list[int] = []
        costs.append(calls.during(lambda when=when, to=found: to.append(a.at(when).revision)))
        assert found == [wanted.revision], f"seed {seed}: {when}"
    assert len(costs) >= 50
    assert 1 <= max(costs) <= 6, f"seed {seed}: {costs}"
    assert statistics.mean(costs) <= 3, f"seed {seed}: {statistics.mean(costs)}"
    two.proxy.latency_s = SLOW_S  # where the engine may be exchanged between any two answers
    slow = []
    for wanted in rng.sample(commits[:-RING], SLOW_LOOKUPS):
        a._core.timeline.tracker.lookup.clear()
        slow.append(calls.during(lambda when=wanted.ts: a.load("k", when)))
    two.proxy.latency_s = 0
    assert max(slow) <= 7, f"seed {seed}: {slow}"  # the last one reads the value
    assert statistics.mean(slow) <= 4, f"seed {seed}: {statistics.mean(slow)}"
    again = [calls.during(lambda c=commit: a.at(c.ts)) for commit in commits[:-RING:7]]
    assert statistics.mean(again) <= 3, f"seed {seed}: anchors cost {again}"


def test_h10_opening_reads_once_however_long_the_history(two: Two, calls: Calls) -> None:
    b = two.b()
    for n in range(300):
        b.save("k", b"%d" % n)
    before = two.proxy.requests
    assert calls.during(two.a) == 1
    assert two.proxy.requests - before == 1


def test_h10_the_ring_answers_without_a_round_trip(two: Two, calls: Calls) -> None:
    a = two.a()
    commits = [a.commit(puts={"k": b"%d" % n}) for n in range(20)]

    def look() -> None:
        for commit in commits:
            assert a.at(commit.ts).revision == commit.revision

    assert calls.during(look) == 0


# --- the ring is one contiguous run, whoever fills it -------------------------------------------


def look_everywhere(two: Two, store: SnapshotKV) -> None:
    """Every lookup tells the true revision; twice, for what the first leaves behind."""
    marks = marks_of(two)
    for _ in range(2):
        stamps = [mark.timestamp for mark in marks if mark.timestamp]  # 1 would be no timestamp
        for ts in {0, *(stamp + d for stamp in stamps for d in (-1, 0, 1))}:
            assert store.at(ts).revision == max(m.revision for m in marks if m.timestamp <= ts)
        store._core.timeline.tracker.check()
    ring = store._core.timeline.tracker.ring
    held = [ring.newest] if ring.newest else []
    while held and (newer := ring.after(held[-1])):
        held.append(newer)
    assert set(held) <= set(marks)


@pytest.mark.parametrize("slots", [1, 3, 1_024])
def test_h10_two_writers_leave_no_gap(two: Two, slots: int) -> None:
    a, b = two.a(0, ring_slots=slots), two.b(0, ring_slots=slots)
    rng = random.Random(slots)
    for _ in range(6):
        for store in rng.choices([a, b], k=rng.randint(1, 5)):
            store.save("k", b"")
            two.gateway.put(b"foreign", b"")
        look_everywhere(two, rng.choice([a, b]))
    look_everywhere(two, a)
    look_everywhere(two, b)


def test_h10_the_watch_fills_the_ring_of_who_only_reads(two: Two, calls: Calls) -> None:
    a, b = two.a(), two.b()
    first = b.save("k", b"0")
    a.at(first - 1)  # starts the feed
    commits = [b.commit(puts={"k": b"%d" % n}) for n in range(50)]
    timeline = a._core.timeline

    def caught_up() -> bool:
        timeline.tracker.follow()
        newest = timeline.tracker.ring.newest
        return newest is not None and newest.timestamp == commits[-1].ts

    eventually(caught_up, "the watch to bring everything")

    def look() -> None:
        for commit in commits:
            assert a.at(commit.ts).revision == commit.revision

    assert calls.during(look) == 0


def test_h10_a_watch_that_compaction_overtakes(two: Two) -> None:
    a, b = two.a(0), two.b(0)
    a.save("a", b"1")
    a.at(0)
    commits = [b.commit(puts={"b": b"%d" % n}) for n in range(5)]
    two.gateway.compact(commits[3].revision)
    own = a.commit(puts={"a": b"2"})
    for commit in (*commits[3:], own):
        assert a.at(commit.ts).revision == commit.revision
    for commit in commits[:2]:
        with pytest.raises(CompactedError):
            a.at(commit.ts)["b"]
    a._core.timeline.tracker.check()


# --- compaction at every boundary ---------------------------------------------------------------


def test_h10_compaction_at_every_boundary(two: Two) -> None:
    """With foreign writes between: a state is left until the revision before the next commit."""
    b = two.b(ring_slots=2)
    b.at(0)
    commits = []
    for n in range(5):
        commits.append(b.commit(puts={"k": b"%d" % n}))
        for _ in range(n % 3):
            two.gateway.put(b"foreign", b"")
    head = two.gateway.revision()
    ends = [following.revision - 1 for _, following in itertools.pairwise(commits)] + [head]
    for compacted in range(1, head + 1):
        two.gateway.compact(compacted)
        earliest = next(c.ts for c, end in zip(commits, ends, strict=True) if compacted <= end)
        new = two.b(ring_slots=1)
        for store in (b, new):
            if compacted < commits[0].revision:
                assert dict(store.at(commits[0].ts - 1)) == {}
            else:
                with pytest.raises(CompactedError):
                    dict(store.at(commits[0].ts - 1))
            for n, (commit, end) in enumerate(zip(commits, ends, strict=True)):
                if compacted <= end:
                    assert store.at(commit.ts)["k"] == b"%d" % n
                    assert store.load("k", commit.ts) == b"%d" % n
                    continue
                with pytest.raises(CompactedError) as caught:
                    store.load("k", commit.ts)
                assert caught.value.unit == "timestamp"
                assert caught.value.earliest == earliest
        new.close()


# --- H11: prefixes that others write ------------------------------------------------------------


def test_h11_foreign_writes_belong_to_the_tick_after_them(two: Two) -> None:
    two.a()  # makes the store that ticks
    with observe(two.proxy.url, prefix="foreign/") as observed:
        two.gateway.put(b"foreign/k", b"0")
        with pytest.raises(NotObservedError):
            observed.load("foreign/k")
        a = two.a()
        ticks = []
        for n in range(1, 4):
            two.gateway.put(b"foreign/k", b"%d" % n)
            two.gateway.put(b"foreign/k", b"%d+" % n)
            ticks.append(a.tick())
            two.gateway.put(b"foreign/k", b"between")
        for n, tick in enumerate(ticks, start=1):
            assert observed.load("foreign/k", tick.ts) == b"%d+" % n
            assert observed.at(tick.ts).revision == tick.revision
        for n, (tick, following) in enumerate(itertools.pairwise(ticks), start=1):
            assert observed.load("foreign/k", following.ts - 1) == b"%d+" % n
            assert tick.revision + 1 < following.revision - 1
        assert observed.load("foreign/k") == b"3+", "what no tick has stamped is not seen"
        with pytest.raises(NotObservedError):
            observed.load("foreign/k", ticks[0].ts - 1)
