"""Holes of simpler protocols: conflicts, and groups whose outcome is unknown.

The numbers are those of DESIGN.md. A and B are two processes; timestamps are their clocks'
milliseconds. Each trace is the shortest in which a simpler protocol returned a wrong outcome.
"""

import pytest
from protocol_commits import never, once, unknown_commit
from protocol_remote import (
    WAIT_S,
    Gate,
    Network,
    delay,
    lose_answer,
    meanwhile,
)
from protocol_threads import Caller, until

from snapkv import Absent, AtRevision, CommitUnknownError, ConflictError
from snapkv.times import physical_ms

pytestmark = pytest.mark.usefixtures("time")


# --- H1: a conflict is told only of a request that is dead ----------------------------------


def test_h1_no_conflict_while_the_first_copy_may_land(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", delay, meanwhile(lambda: b.save("k", b"b")))
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert caught.value.failed == ((Absent("k"), once(network, "k")),)
    b.remove("k")
    assert [answer.succeeded for answer in network.arrive()] == [False]
    never(network, "a")
    # B's write came before the fence, A's second attempt after it.
    assert [physical_ms(s.ts) for s in network.journal.stamps[1:3]] == [5, 10]
    assert network.journal.stamps[2].fence_of is not None


def test_h1_two_commits_of_the_other_first(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)

    def put_and_remove() -> None:
        b.save("k", b"b")
        b.remove("k")

    network.plan("A", delay, meanwhile(put_and_remove))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "a") == committed.revision


def test_h1_the_copy_lands_before_the_fence(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)
    network.plan("A", delay, meanwhile(network.arrive))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert (physical_ms(committed.ts), committed.revision) == (30, once(network, "a"))
    assert b.load("a") == b"1"


# --- H2: a guard does not trip over our own write -------------------------------------------


def test_h2_no_conflict_with_ourselves(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", lose_answer)
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    assert (physical_ms(committed.ts), committed.revision) == (1, once(network, "a"))
    with pytest.raises(ConflictError):
        a.commit(puts={"a": b"2"}, guards=[Absent("a")])


def test_h2_the_guard_was_false_and_the_answer_lost(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    b.save("k", b"b")
    network.plan("A", lose_answer)
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert caught.value.failed == ((Absent("k"), once(network, "k")),)
    never(network, "a")


@pytest.mark.parametrize("others", [0, 1, 3])
def test_h2_found_below_newer_commits(network: Network, others: int) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    a.save("before", b"")

    def more() -> None:
        for i in range(others):
            b.save("k", b"%d" % i)

    network.plan("A", lose_answer, meanwhile(more))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a"), AtRevision("before", 3)])
    assert committed.revision == once(network, "a")
    assert network.journal.found(committed.ts).revision == committed.revision


@pytest.mark.parametrize("landed", [False, True])
def test_h2_another_process_resolves(network: Network, landed: bool) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(
        network, a, lose_answer if landed else delay, puts={"a": b"1"}, guards=[Absent("a")]
    )
    found = b.resolve(error.timestamp, error.nonce, guards=error.guards)
    if landed:
        assert (found.ts, found.revision) == (error.timestamp, once(network, "a"))
        assert found.writer == "A"
    else:
        assert found is None
        never(network, "a")
    # It is settled once and for all, for everybody.
    assert a.resolve(error.timestamp, error.nonce, guards=error.guards) == found


def test_h2_resolving_a_lone_part_that_was_skipped(network: Network) -> None:
    """Nothing was written, and nothing ever will be."""
    a, b = network.open("A", 10), network.open("B", 5)
    b.save("k", b"b")
    error = unknown_commit(network, a, lose_answer, puts={"a": b"1"}, guards=[Absent("k")])
    assert (error.timestamp, "A") in network.journal.arrivals
    assert b.resolve(error.timestamp, error.nonce, guards=error.guards) is None
    b.remove("k")
    never(network, "a")


def test_h2_a_skipped_lone_part_leaves_no_trace(network: Network) -> None:
    a = network.open("A", 10)
    a.save("k", b"1")
    head, log = network.base.info()["revision"], list(a.commits())
    with pytest.raises(ConflictError):
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    assert network.base.info()["revision"] == head
    assert list(a.commits()) == log
    assert a.save("a", b"2") > log[-1].ts


def test_h2_resolving_a_part_with_guards_in_a_space(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    space = a.space("s")
    network.plan("A", lose_answer)
    network.cut("A")
    with pytest.raises(CommitUnknownError) as caught:
        space.commit(puts={b"\xff": b"1"}, guards=[Absent(b"\xff")], timeout=1)
    network.mend("A")
    error = caught.value
    found = b.resolve(error.timestamp, error.nonce, guards=error.guards)
    assert found is not None
    assert found.ts == error.timestamp


# --- H3: a group with an unknown outcome is never split -------------------------------------


def test_h3_a_member_is_never_applied_twice(network: Network) -> None:
    a, b = network.open("A", 30), network.open("B", 10)
    gate = Gate()
    network.plan("A", gate, delay, meanwhile(lambda: b.save("k", b"b")))
    first = Caller(lambda: a.save("first", b""))
    assert gate.reached.wait(WAIT_S)
    m1 = Caller(lambda: a.commit(puts={"m1": b"1"}, guards=[Absent("k")]))
    until(lambda: a._core.committer._queue.waiting)
    m2 = Caller(lambda: a.commit(puts={"m2": b"1"}))
    until(lambda: len(a._core.committer._queue.waiting) == 2)
    a._core.clock.wall.set(50)
    b._core.clock.wall.set(40)
    gate.open()
    first.value()
    assert isinstance(m1.error(), ConflictError)
    committed = m2.value()
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "m2") == committed.revision
    never(network, "m1")
