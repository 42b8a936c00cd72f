"""Holes of simpler protocols: outcomes that compaction hides, a ring with a gap.

The numbers are those of DESIGN.md. A and B are two processes; timestamps are their clocks'
milliseconds. Each trace is the shortest in which a simpler protocol returned a wrong outcome.
"""

import pytest
from protocol_commits import once, unknown_commit
from protocol_remote import (
    Fate,
    Network,
    before_the_answer,
    delay,
    lose_answer,
    meanwhile,
)

import snapkv
from snapkv import Absent, CommitUnknownError
from snapkv.times import physical_ms

pytestmark = pytest.mark.usefixtures("time")


# --- H9: what ordinals decide is decided; `test_protocol_undecidable.py` has them all -------


@pytest.mark.parametrize(("others", "compacted"), [(1, 1), (2, 1), (2, 0), (3, 0)])
def test_h9_the_ordinal_tells(network: Network, others: int, compacted: int) -> None:
    """Compacted up to the first commit after what A knew: nothing can lie between."""
    a, b = network.open("A", 10), network.open("B", 20)

    def write_and_compact() -> None:
        revisions = [b.commit(puts={"b": b"%d" % i}).revision for i in range(others)]
        network.base.compact(revisions[0] - 1 + compacted)

    network.plan("A", delay, meanwhile(write_and_compact))
    committed = a.commit(puts={"a": b"1"})
    network.arrive()
    assert once(network, "a") == committed.revision
    assert physical_ms(committed.ts) == 20


@pytest.mark.parametrize("fate", [delay, lose_answer])
def test_h9_what_compaction_took_cannot_be_told(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 10), network.open("B", 20)

    def write_and_compact() -> None:
        b.save("b", b"1")
        network.base.compact(b.commit(puts={"b": b"2"}).revision)

    network.plan("A", fate, meanwhile(write_and_compact))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    error = caught.value
    assert not error.may_still_land
    with pytest.raises(CommitUnknownError) as caught:
        network.open("C", 10).resolve(error.timestamp, error.nonce)
    assert not caught.value.may_still_land
    if fate is delay:  # B has seen every commit, and remembers
        assert b.resolve(error.timestamp, error.nonce) is None
    assert all(not answer.succeeded for answer in network.arrive())


def test_h9_a_lone_commit_whose_guards_saw_what_compaction_took(network: Network) -> None:
    """It landed, and its timestamp with it: so its guards held."""
    a = network.open("A", 10)

    def compact() -> None:
        network.base.compact(network.journal.stamps[-1].revision)

    for key, guards in (("a", [Absent("a")]), ("b", [])):
        network.plan("A", lose_answer, meanwhile(compact))
        assert a.commit(puts={key: b"1"}, guards=guards).revision == once(network, key)


def test_h9_compaction_races_with_the_question(network: Network) -> None:
    """Compaction goes on between two reads of the settling: the outcome is not "failed"."""
    a, b = network.open("A", 10), network.open("B", 20)
    revisions: list[int] = []

    def write_and_compact() -> None:
        revisions.extend(b.commit(puts={"b": b"%d" % i}).revision for i in range(6))
        network.base.compact(revisions[1])

    asked = []

    def go_on(client: str, ranges) -> None:
        if client == "A" and revisions:
            asked.append(ranges)
            network.base.compact(revisions[min(len(asked) + 1, 5)])

    network.before_read = go_on
    network.plan("A", lose_answer, meanwhile(write_and_compact))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    assert not caught.value.may_still_land
    assert once(network, "a")
    assert asked


@pytest.mark.parametrize("failures", [1, 3])
def test_h9_reads_that_fail_are_asked_again(network: Network, failures: int) -> None:
    """A commit that landed has not failed because the engine could not be read for a while."""
    a, b = network.open("A", 10), network.open("B", 20)

    def write() -> None:
        b.save("b", b"1")
        b.save("b", b"2")
        network.unreadable["A"] = failures

    network.plan("A", lose_answer, meanwhile(write))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert committed.revision == once(network, "a")
    assert network.unreadable["A"] == 0


# --- H10: the ring is one contiguous run, whatever comes when ---------------------------------


def look_everywhere(network: Network, store: snapkv.SnapshotKV) -> None:
    """Every lookup tells the true revision, or that it was compacted; twice, for the caches."""
    stamps = network.journal.stamps
    for _ in range(2):
        for ts in {stamp.ts + d for stamp in stamps for d in (-1, 0, 1)} - {
            -1,
            1,
        }:  # 1 is not a time here
            true = max(stamp.revision for stamp in stamps if stamp.ts <= ts)
            try:
                assert store.at(ts).revision == true
            except snapkv.CompactedError:
                assert true < network.base.compacted_revision()
        store._core.timeline.tracker.check()
    ring = store._core.timeline.tracker.ring
    marks = [ring.newest] if ring.newest else []
    while marks and (newer := ring.after(marks[-1])):
        marks.append(newer)
    for mark in marks:
        assert network.journal.found(mark.timestamp).revision == mark.revision


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_watch_that_starts_after_a_gap(network: Network, slots: int) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")
    for i in range(3):
        b.save("b", b"%d" % i)
    look_everywhere(network, a)
    a.save("a", b"2")
    b.save("b", b"3")
    a.save("a", b"3")
    look_everywhere(network, a)


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
@pytest.mark.parametrize("others", [0, 1, 2])
def test_h10_an_answer_that_the_watch_has_overtaken(
    network: Network, slots: int, others: int
) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"0")
    look_everywhere(network, a)

    def overtake() -> None:
        for i in range(others):
            b.save("b", b"%d" % i)
        look_everywhere(network, a)

    for i in range(3):
        network.plan("A", before_the_answer(overtake))
        a.save("a", b"%d" % i)
        look_everywhere(network, a)


@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_watch_that_compaction_overtakes(network: Network, slots: int) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")
    look_everywhere(network, a)
    revisions = [b.commit(puts={"b": b"%d" % i}).revision for i in range(5)]
    network.base.compact(revisions[3])
    a.save("a", b"2")
    look_everywhere(network, a)
    b.save("b", b"6")
    network.base.compact(network.journal.stamps[-1].revision)
    look_everywhere(network, a)


@pytest.mark.parametrize("fate", [lose_answer, delay])
@pytest.mark.parametrize("slots", [1, 2, 3, 1_024])
def test_h10_a_settled_commit_without_its_predecessor(
    network: Network, slots: int, fate: Fate
) -> None:
    a, b = network.open("A", 10, ring_slots=slots), network.open("B", 20)
    a.save("a", b"1")

    def more() -> None:
        b.save("b", b"1")
        b.save("b", b"2")

    network.plan("A", meanwhile(more, fate), meanwhile(more))
    a.save("a", b"2")
    look_everywhere(network, a)
    error = unknown_commit(network, b, fate, puts={"b": b"3"})
    a.resolve(error.timestamp, error.nonce)
    look_everywhere(network, a)
    a.save("a", b"3")
    look_everywhere(network, a)
    look_everywhere(network, b)


@pytest.mark.parametrize("others", [1, 2])
def test_h10_while_another_thread_is_at_the_feed(network: Network, others: int) -> None:
    """Whoever finds the feed taken goes on without it, with what the head has told it."""
    a, b = network.open("A", 10), network.open("B", 20)
    a.save("a", b"1")
    snap = a.at()
    for i in range(others):
        b.save("b", b"%d" % i)
    network.base.compact(network.journal.stamps[-1].revision)
    with a._core.timeline.tracker._feed_lock, pytest.raises(snapkv.CompactedError):
        snap.get("a")
