"""Generations at a moment, and the ring of one: what pages show is what the log says."""

import random
from itertools import islice

import pytest

from cdcmeta.errors import GenerationNotFoundError
from cdcmeta.generations import (
    CdcLog,
    ConsumerId,
    GenerationLog,
    Sharding,
    StreamConsumer,
    murmur3_token,
)
from cdcmeta.generations import generation_layout as layout
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN
from cdcmeta.ui import GENERATIONS, has_generations
from cdcmeta.ui.generation_logs import ARCS_MAX, RING, list_logs, log_at, ring_at
from snapkv import pack

SMALL = {-(1 << 62): Sharding(2), 0: Sharding(3, 0), 1 << 62: Sharding(1)}
DELAY_S, LEEWAY_S = 10.0, 5.0
LATER = 1 << 63


def log_of(store, name="default"):
    return GenerationLog(
        store,
        name,
        propagation_delay=DELAY_S,
        leeway=LEEWAY_S,
        random_bytes=random.Random(7).randbytes,
    )


@pytest.fixture
def log(store):
    return log_of(store)


def large_ring(seed, ranges, bound=TOKEN_MAX):
    rng = random.Random(seed)
    tokens = {rng.randint(-bound, bound) for _ in range(ranges)}
    return {token: Sharding(rng.choice((1, 2, 4))) for token in tokens}


def test_what_operates_at_each_moment(store, log, clock):
    assert log.space == GENERATIONS + "default"
    assert not has_generations(store)
    assert list_logs(store, time=LATER).rows == []
    first = log.make(SMALL)
    clock.advance(3_600_000)
    before = store.resolved()
    second = log.make(SMALL | {5: Sharding(2)})
    made = store.resolved()
    clock.advance(3_600_000)
    log.expire(7 * 86_400.0)
    marked = store.tick().ts
    assert [has_generations(store, when) for when in (0, before, None)] == [False, True, True]

    def phases(when, time):
        found = log_at(store, "default", when, time=time)
        assert found.total == len(found.rows)
        return [(row.time, row.until, row.phase) for row in found.rows]

    assert phases(before, before) == [(first.time, None, "operates")]
    assert phases(made, made) == [
        (second.time, None, "to come"),
        (first.time, second.time, "operates"),
    ]
    assert phases(made, second.time) == [
        (second.time, None, "operates"),
        (first.time, second.time, "superseded"),
    ]
    assert phases(None, marked)[1] == (first.time, second.time, "expired")
    (row,) = [row for row in log_at(store, "default", time=marked).rows if row.time == second.time]
    assert (row.id, row.ranges, row.streams) == (second.id.hex(), 4, second.streams)
    assert (row.made, row.expired, row.refines) == (second.made, None, True)


def test_a_switch_under_way_and_one_that_was_aborted(store, log, clock):
    first = log.make(SMALL)
    clock.advance(3_600_000)
    second = log.make({0: Sharding(1)})
    steps = [
        log_at(store, "default", commit.ts, time=commit.ts)
        for commit in store.commits(since=first.made, until=second.made)
    ]
    shown = [(each.switch and each.switch.phase, each.total) for each in steps]
    assert shown[0] == ("storing", 1)
    assert ("prepared", 1) in shown
    assert shown[-1] == (None, 2)
    switch = next(each.switch for each in steps if each.switch.phase == "prepared")
    assert (switch.id, switch.ranges, switch.streams) == (second.id.hex(), 1, 1)
    assert (switch.answers, switch.refusals) == (0, [])
    assert switch.not_before > first.made

    aborted = layout.encode(layout.Aborted(second.id, "<b>why</b>"))
    store.space("generations/default").commit(puts={layout.ABORTED: aborted})
    assert log_at(store, "default", time=LATER).aborted == "<b>why</b>"


def test_the_tables_and_consumers_of_a_log(store, log):
    with log.member("node-1") as member:
        log.make(SMALL)
        until(lambda: member.generations.times)
        table = CdcLog(store, member, "<i>users</i>")
        table.write(b"k", b"v")
        StreamConsumer(log, table, "reader", part=1, parts=2)
    found = log_at(store, "default", time=LATER)
    assert found.tables == ["<i>users</i>"]
    assert sorted((row.table, row.name, row.part, row.parts) for row in found.consumers) == sorted(
        tuple(id) for id in log.consumers()
    )
    assert ConsumerId("<i>users</i>", "reader", 1, 2) in log.consumers()
    assert not found.more


def until(condition):
    from etcd_server import eventually

    eventually(condition, "the condition", wait_s=20)


def test_pages_of_logs(store):
    names = ["a", "a/b", "b%", "<script>", "z"]
    for name in names:
        log_of(store, name).make({0: Sharding(1)})
    found, start = [], ""
    while start is not None:
        page = list_logs(store, time=LATER, start=start, limit=2)
        found += [row.name for row in page.rows]
        start = page.start
    assert sorted(found) == sorted(names)
    with pytest.raises(GenerationNotFoundError):
        log_at(store, "none", time=LATER)


def test_a_log_without_generations_is_listed(store):
    store.space("generations/new").commit(puts={layout.table_key("users"): b""})
    (row,) = list_logs(store, time=LATER).rows
    assert (row.name, row.rows, row.total, row.tables) == ("new", [], 0, ["users"])


def test_the_ring_of_a_small_generation(store, log):
    made = log.make(SMALL)
    topology = log.topology(made)
    ring = ring_at(store, "default", made.time, time=LATER)
    assert [(arc.start, arc.end, arc.ranges, arc.streams) for arc in ring.arcs] == [
        (each.start, each.end, 1, len(each.streams)) for each in topology
    ]
    assert [(row.start, row.end, row.shards, row.ignore_msb, row.streams) for row in ring.rows] == [
        (each.start, each.end, len(each.streams), each.ignore_msb, [*map(str, each.streams)])
        for each in topology
    ]
    assert [row.share for row in ring.rows] == [0.5, 0.25, 0.25]
    assert (ring.generation.phase, ring.start, ring.key) == ("operates", None, None)
    lone = log_of(store, "lone").make({7: Sharding(1)})
    assert [row.share for row in ring_at(store, "lone", lone.time, time=LATER).rows] == [1.0]


@pytest.mark.parametrize("bound", [TOKEN_MAX, 1 << 40])
def test_the_ring_of_a_large_generation(store, log, bound):
    ring = large_ring(11, ARCS_MAX * 3, bound)
    ring |= {TOKEN_MIN: Sharding(2)} if bound == TOKEN_MAX else {}
    made = log.make(ring)
    topology = log.topology(made)
    found = ring_at(store, "default", made.time, time=LATER, limit=100)
    assert len(found.arcs) == ARCS_MAX
    assert sum(arc.ranges for arc in found.arcs) == made.ranges == len(ring)
    for arc in found.arcs:
        assert arc.ranges == sum(arc.start < end <= arc.end for end in topology.ends)
    assert sum(arc.end - arc.start for arc in found.arcs) == RING - 1
    rows, start = [*found.rows], found.start
    while start is not None:
        page = ring_at(store, "default", made.time, time=LATER, start=start, limit=100)
        rows, start = [*rows, *page.rows], page.start
    assert [(row.start, row.end, row.streams) for row in rows] == [
        (each.start, each.end, [*map(str, each.streams)]) for each in topology
    ]
    assert {row.shards for row in rows} == {1, 2, 4}


def test_streams_of_a_page_are_bounded(store, log):
    made = log.make({0: Sharding(2_000), 5: Sharding(2_000)})
    both = ring_at(store, "default", made.time, time=LATER, limit=50).rows
    assert [(row.shards, len(row.streams)) for row in both] == [(2_000, 20), (2_000, 20)]
    (one,) = ring_at(store, "default", made.time, time=LATER, start=5, limit=1).rows
    assert (one.end, len(one.streams)) == (5, 1_024)


@pytest.mark.parametrize("ranges", [3, ARCS_MAX * 2])
def test_the_stream_of_a_key(store, log, ranges):
    made = log.make(SMALL if ranges == 3 else large_ring(3, ranges, 1 << 62))
    topology = log.topology(made)
    seen = set()
    for key in ("users", "", "<script>", "\udcff", *(f"k{n}" for n in range(12))):
        if not key:
            continue
        found = ring_at(store, "default", made.time, time=LATER, key=key).key
        token = murmur3_token(key.encode(errors="surrogateescape"))
        owner = topology.range_of(token)
        assert (found.token, found.stream) == (token, str(topology.stream_for(token)))
        assert (found.range.start, found.range.end) == (owner.start, owner.end)
        assert str(owner.streams[found.shard]) == found.stream
        seen.add(found.range.end)
    assert min(topology.ends) in seen  # also of tokens behind the last range


def test_a_generation_that_was_removed(store, log, clock):
    first = log.make(SMALL)
    clock.advance(86_400_000)
    log.make({0: Sharding(1)})
    before = store.resolved()
    clock.advance(86_400_000)
    log.expire(1.0)
    with pytest.raises(GenerationNotFoundError):
        ring_at(store, "default", first.time, time=LATER)
    found = ring_at(store, "default", first.time, before, time=before)
    assert len(found.rows) == 3
    with pytest.raises(GenerationNotFoundError):
        ring_at(store, "default", 5, time=LATER)


def test_only_the_newest_generations_are_listed(store, log):
    made = [log.make({n: Sharding(1)}) for n in range(5)]
    found = log_at(store, "default", time=pack(1), limit=2)
    assert [row.time for row in found.rows] == [each.time for each in islice(reversed(made), 2)]
    assert (found.total, found.rows[1].until) == (5, found.rows[0].time)
