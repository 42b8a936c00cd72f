"""Holes of simpler protocols: a timestamp key made anew, interrupts, copies.

The numbers are those of DESIGN.md. A and B are two processes; timestamps are their clocks'
milliseconds. Each trace is the shortest in which a simpler protocol returned a wrong outcome.
"""

import pytest
from protocol_commits import never, once, recreate, unknown_commit
from protocol_remote import (
    TS_KEY,
    Fate,
    Network,
    delay,
    deliver,
    interrupt_after,
    interrupt_before,
    lose,
    lose_answer,
    meanwhile,
    twice,
    twice_and_late,
)

from snapkv import Absent
from snapkv.engine.contract import Delete, Txn
from snapkv.errors import (
    StoreRecreatedError,
)
from snapkv.times import physical_ms

pytestmark = pytest.mark.usefixtures("time")


# --- H5: a timestamp key that was deleted and made again ------------------------------------


def test_h5_the_same_request_does_not_commit_twice(network: Network) -> None:
    b = network.open("B", 1)
    network.plan("B", twice_and_late)
    b.save("b", b"1")
    recreate(network)
    assert [answer.succeeded for answer in network.arrive()] == [False]
    once(network, "b")
    with pytest.raises(StoreRecreatedError):
        b.save("c", b"1")
    never(network, "c")


@pytest.mark.parametrize("fate", [lose_answer, delay, lose])
def test_h5_nobody_is_told_failed_or_conflict(network: Network, fate: Fate) -> None:
    a = network.open("A", 1)
    network.plan("A", fate, meanwhile(lambda: recreate(network)))
    with pytest.raises(StoreRecreatedError):
        a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert len(network.journal.written("a")) == (fate is lose_answer)


def test_h5_a_deleted_key(network: Network) -> None:
    a = network.open("A", 1)
    network.apply(Txn(success=(Delete(TS_KEY),)))
    with pytest.raises(StoreRecreatedError):
        a.save("a", b"1")
    never(network, "a")


# --- H6: an issued timestamp counts for ever ------------------------------------------------


@pytest.mark.parametrize("fate", [interrupt_before, delay])
def test_h6_what_was_given_up_does_not_land_over_later_commits(
    network: Network, fate: Fate
) -> None:
    a = network.open("A", 20)
    if fate is delay:
        unknown_commit(network, a, fate, puts={"a1": b"1"})
    else:
        network.plan("A", fate)
        with pytest.raises(KeyboardInterrupt) as caught:
            a.save("a1", b"1")
        assert "outcome unknown" in caught.value.__notes__[0]
    a._core.clock.wall.set(10)
    committed = a.commit(puts={"a2": b"1"})
    assert physical_ms(committed.ts) == 20, "the clock went back, timestamps do not"
    assert [answer.succeeded for answer in network.arrive()] == [False]
    never(network, "a1")
    assert once(network, "a2") == committed.revision


def test_h6_an_interrupt_after_it_was_applied(network: Network) -> None:
    a, b = network.open("A", 20), network.open("B", 10)
    network.plan("A", interrupt_after)
    with pytest.raises(KeyboardInterrupt) as caught:
        a.save("a1", b"1")
    (note,) = caught.value.__notes__
    stamp = network.journal.stamps[-1]
    assert str(stamp.ts) in note
    assert stamp.nonce.hex() in note
    assert b.resolve(stamp.ts, stamp.nonce).revision == once(network, "a1")
    assert a.commit(puts={"a2": b"1"}).ts > stamp.ts


def test_h6_an_interrupt_while_fencing_names_the_commit_too(network: Network) -> None:
    a, b = network.open("A", 20), network.open("B", 10)
    network.plan("A", lose_answer, interrupt_before)
    with pytest.raises(KeyboardInterrupt) as caught:
        a.save("a1", b"1")
    stamp = network.journal.stamps[-1]
    assert any(stamp.nonce.hex() in note for note in getattr(caught.value, "__notes__", []))
    assert b.resolve(stamp.ts, stamp.nonce).revision == once(network, "a1")


# --- H7: copies of a request change nothing -------------------------------------------------


@pytest.mark.parametrize("fate", [twice, twice_and_late])
def test_h7_copies_of_a_request_are_refused(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 1), network.open("B", 1)
    network.plan("A", fate)
    committed = a.commit(puts={"a": b"1"})
    b.remove("a")
    assert all(not answer.succeeded for answer in network.arrive())
    ((revision, _), (_, removed)) = network.journal.written("a")
    assert (revision, removed) == (committed.revision, None)


# --- H8: a fence is never taken for the commit ----------------------------------------------


def test_h8_our_own_fence_is_not_our_commit(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", delay, lose_answer, deliver)
    committed = a.commit(puts={"a": b"1"})
    fence = network.journal.stamps[1]
    assert fence.fence_of is not None
    assert committed.ts > fence.ts
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert once(network, "a") == committed.revision


def test_h8_another_process_resolves_after_the_fence(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(network, a, delay, lose_answer, puts={"a": b"1"})
    assert network.journal.stamps[-1].fence_of == error.nonce
    assert b.resolve(error.timestamp, error.nonce) is None
    assert a.resolve(error.timestamp, error.nonce) is None
    b.save("more", b"")
    assert b.resolve(error.timestamp, error.nonce) is None
    never(network, "a")


def test_h8_a_fence_of_another_commit_with_the_same_timestamp(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 10)
    ours = unknown_commit(network, a, delay, puts={"a": b"1"})
    theirs = unknown_commit(network, b, delay, puts={"b": b"1"})
    assert ours.timestamp == theirs.timestamp
    assert a.resolve(ours.timestamp, ours.nonce) is None  # fences the other one too
    assert a.resolve(theirs.timestamp, theirs.nonce) is None
    assert [answer.succeeded for answer in network.arrive()] == [False, False]
