"""Group commit with real threads: which calls share a transaction, and what each returns."""

import threading
import time
from itertools import pairwise

import pytest
from protocol_line import Line, transactions
from protocol_remote import (
    WAIT_S,
    Gate,
    Network,
    delay,
    deliver,
    lose,
    lose_answer,
    meanwhile,
    remote_scheme,
)
from protocol_threads import Caller, until

import snapkv
from snapkv import (
    Absent,
    AtRevision,
    ConflictError,
    HeadAt,
    Ops,
    SnapshotKV,
    SpaceOps,
    Stamp,
)
from snapkv.clock import SharedFloor
from snapkv.engine.contract import EngineLimits
from snapkv.errors import (
    NotSupportedError,
)

pytestmark = pytest.mark.slow

# --- riding together ------------------------------------------------------------------------


def test_those_who_come_meanwhile_share_the_next_transaction(line: Line) -> None:
    callers = [line.save(f"k{i}") for i in range(20)]
    line.go()
    commits = [caller.value() for caller in callers]
    assert [commit.batch for commit in commits] == list(range(20))
    assert len({(commit.ts, commit.revision) for commit in commits}) == 1
    assert transactions(line.network) == 2
    assert line.first.value().batch == 0
    log = list(line.store.commits())
    assert [(c.ts, c.batch) for c in log] == [(line.first.value().ts, 0), (commits[0].ts, 0)]


def test_a_group_is_one_change_for_a_watcher(line: Line) -> None:
    with line.store.watch(since=0) as watch:
        callers = [line.save(f"k{i}") for i in range(3)]
        line.go()
        assert [c.value().batch for c in callers] == [0, 1, 2]
        first, group = watch.next(1), watch.next(1)
        assert [change.key for change in first] == ["a/x", "b", "first"]
        assert [change.key for change in group] == ["k0", "k1", "k2"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"puts": {"k": b"1"}}, {"puts": {"k": b"2"}}),
        ({"deletes": ["k"]}, {"puts": {"k": b"2"}}),
        ({"deletes": ["b"]}, {"deletes": ["b"]}),
        ({"delete_prefixes": ["a/"]}, {"puts": {"a/y": b"2"}}),
        ({"delete_prefixes": ["a/"]}, {"puts": {"z": b"2"}, "guards": [Absent("a/y")]}),
        ({"delete_prefixes": ["a/"]}, {"deletes": ["a/x"]}),
        ({"delete_prefixes": ["a/"]}, {"delete_prefixes": ["a/x"]}),
        ({"delete_prefixes": [""]}, {"puts": {"z": b"2"}}),
        ({"puts": {"k": b"1"}}, {"puts": {"z": b"2"}, "guards": [Absent("k")]}),
        ({"deletes": ["b"]}, {"puts": {"z": b"2"}, "guards": [AtRevision("b", 3)]}),
        ({"puts": {"k": b"1"}, "note": "n"}, {"puts": {"z": b"2"}, "note": "m"}),
        ({"puts": {"k": b"1"}, "note": "n"}, {"puts": {"z": b"2"}}),
        ({"puts": {"k": b"1"}}, {"puts": {"z": b"2"}, "note": ""}),
        ({"puts": {"k": b"1"}, "writer": "ann"}, {"puts": {"z": b"2"}, "writer": "bob"}),
        ({"puts": {"k": b"1"}, "writer": "ann"}, {"puts": {"z": b"2"}}),
        ({"puts": {"k": b"1"}, "meta": {"r": 1}}, {"puts": {"z": b"2"}, "meta": {"r": 2}}),
        ({"puts": {"k": b"1"}, "meta": {"r": 1}}, {"puts": {"z": b"2"}}),
        ({"puts": {"k": b"1"}, "meta": {"r": 1}}, {"puts": {"z": b"2"}, "meta": {"r": True}}),
        ({"puts": {"k": b"1"}, "meta": {"r": 1}}, {"puts": {"z": b"2"}, "meta": {"r": 1.0}}),
        ({"puts": {"k": b"1"}, "meta": {"r": 0.0}}, {"puts": {"z": b"2"}, "meta": {"r": -0.0}}),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_who_disturbs_another_waits_for_the_next(line: Line, one, other, swap: bool) -> None:
    if swap:
        one, other = other, one
    first = line.commit(**one)
    second = line.commit(**other)
    third = line.save("neighbour")
    fourth = line.save("another")
    line.go()
    outcomes = [first.value(), second.outcome(), third.value(), fourth.value()]
    says_more = any(one.get(name) is not None for name in ("note", "writer", "meta"))
    if says_more or one.get("delete_prefixes") == [""]:
        assert outcomes[2].ts > outcomes[0].ts, "the neighbours do not go with the first"
    else:
        assert (outcomes[2].ts, outcomes[2].batch) == (outcomes[0].ts, 1)
        assert (outcomes[3].ts, outcomes[3].batch) == (outcomes[0].ts, 2)
    if isinstance(outcomes[1], snapkv.Commit):
        assert outcomes[1].ts > outcomes[0].ts
    else:
        assert isinstance(outcomes[1], ConflictError)
    assert not line.store.check().problems


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"puts": {"k": b"1"}}, {"puts": {"l": b"2"}}),
        ({"delete_prefixes": ["a/"]}, {"puts": {"ab": b"2", "a": b"2", "a0": b"2"}}),
        ({"delete_prefixes": ["a/"]}, {"delete_prefixes": ["a0", "a."]}),
        ({"guards": [Absent("k")]}, {"guards": [Absent("k")], "puts": {"z": b"1"}}),
        ({"puts": {"k": b"1"}, "guards": [Absent("k")]}, {"guards": [Absent("l")]}),
        ({"puts": {"k": b"1"}, "note": "n"}, {"puts": {"z": b"2"}, "note": "n"}),
        ({"puts": {"k": b"1"}, "writer": "ann"}, {"puts": {"z": b"2"}, "writer": "ann"}),
        ({"puts": {"k": b"1"}, "writer": "A"}, {"puts": {"z": b"2"}}),  # the store's own writer
        ({"puts": {"k": b"1"}, "meta": {}}, {"puts": {"z": b"2"}}),
        (
            {"puts": {"k": b"1"}, "meta": {"r": 1, "s": "x"}, "note": "n", "writer": "ann"},
            {"puts": {"z": b"2"}, "meta": {"s": "x", "r": 1}, "note": "n", "writer": "ann"},
        ),
        ({"deletes": ["k"]}, {"deletes": ["k2"]}),
    ],
)
def test_who_does_not_disturb_rides_along(line: Line, one, other) -> None:
    first, second = line.commit(**one), line.commit(**other)
    line.go()
    assert (first.value().ts, first.value().batch) == (second.value().ts, 0)
    assert second.value().batch == 1


def test_spaces_do_not_disturb_each_other(line: Line) -> None:
    ops = [
        Ops({"k": b"1"}),
        Ops(spaces={"s": SpaceOps({b"k": b"1"})}),
        Ops(spaces={"t": SpaceOps(delete_prefixes=[b""])}),
        Ops(spaces={"s": SpaceOps(delete_prefixes=[b"k"])}),
    ]
    callers = [line.join(lambda store, o=o: store.commit(lambda _: o)) for o in ops]
    line.go()
    assert [caller.value().batch for caller in callers] == [0, 1, 2, 0]
    assert callers[3].value().ts > callers[0].value().ts


def test_two_head_guards_do_not_both_hold(line: Line) -> None:
    """Whoever goes first moves the head; so only one of two can find it unmoved."""
    line.go()
    head = line.store.at().revision
    line.gate = Gate()
    line.network.plan("A", line.gate)
    line.first = Caller(lambda: line.store.commit())
    assert line.gate.reached.wait(WAIT_S)
    guard = HeadAt(head + 1)  # what the commit at the gate will make of it
    one = line.commit(puts={"one": b"1"}, guards=[guard])
    two = line.commit(puts={"two": b"1"}, guards=[guard])
    line.go()
    assert line.first.value().revision == head + 1
    told = [type(caller.outcome()).__name__ for caller in (one, two)]
    assert sorted(told) == ["Commit", "ConflictError"]


def test_a_head_guard_does_not_hold_beside_writes(line: Line) -> None:
    line.go()
    head = line.store.at().revision
    line.gate = Gate()
    line.network.plan("A", line.gate)
    line.first = Caller(lambda: line.store.commit())
    assert line.gate.reached.wait(WAIT_S)
    one = line.commit(puts={"one": b"1"})
    two = line.commit(puts={"two": b"1"}, guards=[HeadAt(head + 1)])
    line.go()
    assert line.first.value().revision == head + 1
    assert one.value().revision == head + 2
    assert isinstance(two.error(), ConflictError)


# --- outcomes of parts ----------------------------------------------------------------------


@pytest.mark.parametrize("fate", [deliver, lose_answer, delay, lose])
def test_a_skipped_part_is_told_and_its_neighbours_are_not_touched(line: Line, fate) -> None:
    line.network.plan("A", fate)
    good = [line.save("a")]
    bad = line.commit(puts={"bad": b"1"}, deletes=["first"], guards=[Absent("first"), Absent("q")])
    good.append(line.commit(puts={"c": b"1"}, guards=[Absent("c")]))
    line.go()
    assert [caller.value().batch for caller in good] == [0, 2]
    error = bad.error()
    assert isinstance(error, ConflictError)
    assert error.failed == ((Absent("first"), line.first.value().revision),)
    line.network.arrive()
    assert line.network.journal.written("bad") == []
    assert line.store.load("first") == b"1"
    assert [len(line.network.journal.written(key)) for key in "ac"] == [1, 1]


def test_another_process_resolves_a_skipped_rider(line: Line) -> None:
    line.network.plan("A", lose_answer)
    line.network.cut("A")
    callers = [
        line.join(lambda store, ops=ops: store.commit(**ops, timeout=0.2))
        for ops in (
            {"puts": {"a": b"1"}},
            {"puts": {"bad": b"1"}, "guards": [Absent("q"), Absent("first")]},
        )
    ]
    line.go()
    good, bad = [caller.error() for caller in callers]
    other = line.network.open("B", 1)
    found = other.resolve(good.timestamp, good.nonce, guards=good.guards)
    assert [found.revision] == [revision for revision, _ in line.network.journal.written("a")]
    with pytest.raises(ConflictError) as caught:
        other.resolve(bad.timestamp, bad.nonce, guards=bad.guards)
    assert caught.value.failed == ((Absent("first"), line.first.value().revision),)
    assert (bad.timestamp, bad.nonce, bad.batch) == (good.timestamp, good.nonce, 1)


def test_a_build_that_raises_stops_its_own_part(line: Line) -> None:
    def build(stamp: Stamp) -> Ops:
        raise ZeroDivisionError(f"at {stamp.batch}")

    one = line.save("one")
    bad = line.join(lambda store: store.commit(build))
    wrong = line.join(lambda store: store.commit(lambda _: "no ops"))
    invalid = line.commit(puts={"": b"1"})
    two = line.save("two")
    line.go()
    assert (one.value().batch, two.value().batch) == (0, 1)
    assert one.value().ts == two.value().ts
    assert str(bad.error()) == "at 1"
    assert isinstance(bad.error(), ZeroDivisionError)
    assert isinstance(wrong.error(), TypeError)
    assert isinstance(invalid.error(), ValueError)


def test_when_every_build_raises_nothing_is_sent(line: Line) -> None:
    callers = [line.join(lambda store: store.commit(lambda _: 1 // 0)) for _ in range(3)]
    line.go()
    assert {type(caller.error()) for caller in callers} == {ZeroDivisionError}
    assert transactions(line.network) == 1
    assert line.store.save("again", b"1")


def test_build_gets_what_is_committed_and_again_for_a_new_timestamp(line: Line) -> None:
    network, other = line.network, line.network.open("B", 500)
    network.plan("A", meanwhile(lambda: other.save("other", b"")), delay, deliver)
    built: dict[int, list[Stamp]] = {i: [] for i in range(3)}

    def builder(i: int):
        def build(stamp: Stamp) -> Ops:
            built[i].append(stamp)
            return Ops({f"k{i}": b"%d/%d" % stamp})

        return build

    callers = [line.join(lambda store, i=i: store.commit(builder(i))) for i in range(3)]
    line.go()
    for i, caller in enumerate(callers):
        commit = caller.value()
        assert [stamp.batch for stamp in built[i]] == [i, i, i]
        timestamps = [stamp.ts for stamp in built[i]]
        assert timestamps == sorted(set(timestamps))
        assert built[i][-1] == (commit.ts, commit.batch)
        assert line.store.load(f"k{i}") == b"%d/%d" % (commit.ts, commit.batch)


def test_additions_get_the_timestamp_of_the_commit(line: Line) -> None:
    callers = [
        line.commit(puts={f"k{i}": b""}, additions=[lambda ts, i=i: (f"at{i}", b"%d" % ts)])
        for i in range(2)
    ]
    line.go()
    for i, caller in enumerate(callers):
        commit = caller.value()
        assert line.store.load(f"at{i}") == b"%d" % commit.ts


@pytest.mark.parametrize("via", ["commit", "save", "tick", "final"])
def test_a_commit_inside_a_build_is_refused(line: Line, via: str) -> None:
    store = line.store

    def build(stamp: Stamp) -> Ops:
        match via:
            case "commit":
                store.commit(puts={"inner": b"1"})
            case "save":
                store.save("inner", b"1")
            case "tick":
                store.tick()
            case "final":
                store.at(stamp.ts, final=True)
        return Ops()

    one = line.join(lambda store: store.commit(build))
    two = line.save("two")
    line.go()
    assert isinstance(one.error(), NotSupportedError)
    assert two.value()
    assert line.network.journal.written("inner") == []


def test_a_build_may_commit_to_another_store(network: Network) -> None:
    a, b = network.open("A", 1), network.open("B", 1, name="other")
    a.commit(lambda stamp: Ops({"copy": b"%d" % b.save("k", b"1")}))
    assert a.load("copy") == b"%d" % b.resolved()


def test_ticks_ride_along(line: Line) -> None:
    one, tick, two = line.save("one"), line.join(lambda store: store.tick()), line.save("two")
    line.go()
    assert one.value().ts == tick.value().ts == two.value().ts
    assert tick.value().batch == 1


def test_a_tick_that_is_overtaken_has_succeeded(line: Line) -> None:
    other = line.network.open("B", 500)
    line.network.plan("A", meanwhile(lambda: other.save("other", b"")))
    tick, save = line.join(lambda store: store.tick()), line.save("one")
    line.go()
    assert tick.value().ts == line.network.journal.stamps[2].ts
    assert tick.value().revision == line.network.journal.written("other")[0][0]
    assert save.value().ts > tick.value().ts


# --- sizes and fairness ---------------------------------------------------------------------


def test_members_that_make_it_too_large_wait() -> None:
    with remote_scheme():
        network = Network(EngineLimits(512, 1 << 20, request_bytes=200_000))
        line = Line(network)
        callers = [line.commit(puts={f"k{i}": bytes(70_000)}) for i in range(5)]
        small = line.save("small")
        line.go()
        commits = [caller.value() for caller in callers]
        assert [commit.batch for commit in commits] == [0, 1, 0, 1, 0]
        assert (small.value().ts, small.value().batch) == (commits[0].ts, 2)
        timestamps = [commit.ts for commit in commits]
        assert timestamps == sorted(timestamps)
        assert not line.store.check().problems


def test_a_limited_engine_takes_32_parts() -> None:
    with remote_scheme():
        network = Network(EngineLimits(512, 1 << 20, request_bytes=1_536 << 10, ops_per_list=128))
        line = Line(network)
        callers = [line.commit(puts={f"k{i}": b""}, guards=[Absent("z")]) for i in range(70)]
        line.go()
        batches = [caller.value().batch for caller in callers]
        assert batches == [*range(32), *range(32), *range(6)]


def test_who_waits_longest_leads_next(line: Line) -> None:
    """All write one key, so each needs a transaction of its own; they come in their order."""
    callers = [line.commit(puts={"k": b"%d" % i}) for i in range(12)]
    line.go()
    revisions = [caller.value().revision for caller in callers]
    assert revisions == sorted(revisions)
    assert line.store.load("k") == b"11"


@pytest.mark.parametrize("threads", [8])
def test_many_threads_and_stores_make_progress(network: Network, threads: int) -> None:
    """Two processes with many threads each, all wanting the same key: nobody starves or hangs."""
    stores = [network.open(name, 1, clock=snapkv.SystemClock()) for name in ("A", "B")]
    for store in stores:  # as processes, they do not know what the other one has issued
        store._core.clock._shared = SharedFloor()
    rounds = 10

    def work(store: SnapshotKV, i: int) -> list[snapkv.Commit]:
        commits = []
        for n in range(rounds):
            ops = {"k": b"%d" % i} if n % 2 else {f"k{i}": b"%d" % n}
            commits.append(store.commit(puts=ops, timeout=15))
        return commits

    started = time.monotonic()
    callers = [Caller(lambda s=s, i=i: work(s, i)) for s in stores for i in range(threads)]
    commits = [commit for caller in callers for commit in caller.value()]
    assert time.monotonic() - started < 15
    assert len(commits) == 2 * threads * rounds
    stamps = network.journal.stamps
    assert all(a.ts < b.ts and a.revision < b.revision for a, b in pairwise(stamps))
    by_ts = {stamp.ts: stamp.revision for stamp in stamps}
    assert all(by_ts[commit.ts] == commit.revision for commit in commits)
    assert len({(commit.ts, commit.batch) for commit in commits}) == len(commits)


def test_no_threads_are_left() -> None:
    def callers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if isinstance(thread, Caller)]

    until(lambda: not callers(), "all callers to end")
