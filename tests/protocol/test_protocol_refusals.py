"""Holes of simpler protocols: errors that do not show what was applied.

The numbers are those of DESIGN.md. A and B are two processes; timestamps are their clocks'
milliseconds. Each trace is the shortest in which a simpler protocol returned a wrong outcome.
"""

import pytest
from protocol_commits import never, once, recreate, unknown_commit
from protocol_remote import (
    Fate,
    Network,
    delay,
    give_up,
    lose,
    lose_answer,
    meanwhile,
    refuse,
)

import snapkv
from snapkv import Absent, CommitUnknownError
from snapkv.engine.contract import OutcomeUnknown
from snapkv.errors import NoSpaceError, StoreRecreatedError

pytestmark = pytest.mark.usefixtures("time")


# --- H4: a refusal of the fence says nothing of the commit ----------------------------------


@pytest.mark.parametrize("fate", [lose_answer, delay, lose])
def test_h4_a_refused_fence_is_no_answer(network: Network, fate: Fate) -> None:
    a = network.open("A", 1)
    network.plan("A", fate, refuse(NoSpaceError("quota")), refuse(NoSpaceError("quota")))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert once(network, "a") == committed.revision


@pytest.mark.parametrize("others", [0, 1, 3])
def test_h4_a_look_tells_where_fences_are_refused(network: Network, others: int) -> None:
    """What is stored is proof once it is not smaller than T; no fence is needed then."""
    a, b = network.open("A", 10), network.open("B", 20)
    denied = refuse(snapkv.errors.AccessDeniedError("no right to write"))

    def act(message):
        lost = None
        try:
            return lose_answer(message)
        except OutcomeUnknown as e:
            lost = e
        for n in range(others):
            b.save("b", b"%d" % n)
        raise lost

    network.plan("A", act, *[denied] * 100)
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")], timeout=1)
    assert committed.revision == once(network, "a")
    assert network.left("A") == 99, "one fence, one look"


def test_h4_a_look_tells_that_a_request_is_dead(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    denied = refuse(snapkv.errors.AccessDeniedError("no right to write"))
    network.plan("A", delay, meanwhile(lambda: b.save("b", b"1"), denied))
    committed = a.commit(puts={"a": b"1"}, timeout=1)
    assert [answer.succeeded for answer in network.arrive()] == [False]
    assert committed.revision == once(network, "a")


@pytest.mark.parametrize("failures", [1, 5])
def test_h4_a_look_that_fails_is_taken_again(network: Network, failures: int) -> None:
    a = network.open("A", 10)
    network.plan("A", lose_answer, *[refuse(NoSpaceError("quota"))] * 100)
    network.unreadable["A"] = failures
    committed = a.commit(puts={"a": b"1"}, timeout=10)
    assert committed.revision == once(network, "a")
    assert network.left("A") == 99 - failures


def test_h4_a_look_that_shows_less_is_no_proof(network: Network) -> None:
    """The request is still on its way, so nobody is told that it failed."""
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", delay, *[refuse(NoSpaceError("quota"))] * 200)
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"}, timeout=1)
    network.arrive()
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_h4_resolving_where_only_reading_is_allowed(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    error = unknown_commit(network, a, lose_answer, puts={"a": b"1"})
    network.plan("B", *[refuse(snapkv.errors.AccessDeniedError("no right to write"))] * 100)
    found = b.resolve(error.timestamp, error.nonce)
    assert found.revision == once(network, "a")


@pytest.mark.parametrize("fate", [lose_answer, delay])
def test_h4_no_space_until_the_deadline_is_unknown(network: Network, fate: Fate) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    full = [refuse(NoSpaceError("quota"))] * 100
    error = unknown_commit(network, a, fate, *full, puts={"a": b"1"})
    network.arrive()  # space is back
    found = b.resolve(error.timestamp, error.nonce)
    assert (found.ts, found.revision) == (error.timestamp, once(network, "a"))


def test_h4_a_definite_refusal_is_told(network: Network) -> None:
    a = network.open("A", 1)
    network.plan("A", refuse(NoSpaceError("quota")))
    with pytest.raises(NoSpaceError, match="quota"):
        a.save("a", b"1")
    assert len(network.seen) == 2, "one message to make the store, one commit, no fence"
    never(network, "a")


@pytest.mark.parametrize("applied", [True, False])
def test_h4_an_answer_too_large_to_receive(network: Network, applied: bool) -> None:
    a = network.open("A", 1)
    cause = snapkv.CommitTooLargeError("the answer in bytes", 5, 4)
    network.plan("A", give_up(cause, applied=applied))
    if applied:
        assert a.save("a", b"1") == network.journal.found(a.resolved()).ts
        assert once(network, "a")
    else:
        with pytest.raises(snapkv.CommitTooLargeError):
            a.save("a", b"1")
        never(network, "a")


# --- H14: an error that does not say whether the request was applied -------------------------

QUOTA = NoSpaceError("quota")


@pytest.mark.parametrize("others", [0, 1, 3])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_a_look_tells_what_was_refused_and_applied(
    network: Network, applied: bool, others: int
) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    fate = give_up(QUOTA, applied=applied, answered=True)

    def others_too(message):
        try:
            return fate(message)
        finally:
            for n in range(others):
                b.save("b", b"%d" % n)

    before = len(network.seen)
    network.plan("A", others_too)
    if applied:
        committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
        assert committed.revision == once(network, "a")
    else:
        with pytest.raises(NoSpaceError):
            a.commit(puts={"a": b"1"}, guards=[Absent("a")])
        never(network, "a")
    assert [client for client, _ in network.seen[before:]].count("A") == 1, "no fence was sent"


def test_h14_a_guard_that_did_not_hold_when_it_was_applied(network: Network) -> None:
    a = network.open("A", 10)
    a.save("k", b"1")
    network.plan("A", give_up(QUOTA, applied=True, answered=True))
    with pytest.raises(NoSpaceError):  # nothing was written: the guards of one alone go with it
        a.commit(puts={"a": b"1"}, guards=[Absent("k")])
    never(network, "a")


@pytest.mark.parametrize("fate", [delay, lose, lose_answer])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_a_fence_that_was_refused_and_applied(
    network: Network, fate: Fate, applied: bool
) -> None:
    """The look after it finds the fence, or the commit, or nothing yet: then it goes again."""
    a = network.open("A", 10)
    network.plan("A", fate, give_up(QUOTA, applied=applied, answered=True))
    committed = a.commit(puts={"a": b"1"}, guards=[Absent("a")])
    network.arrive()
    assert committed.revision == once(network, "a")


@pytest.mark.parametrize("failures", [1, 5])
@pytest.mark.parametrize("applied", [True, False])
def test_h14_looks_that_fail_are_repeated(network: Network, applied: bool, failures: int) -> None:
    a = network.open("A", 10)
    network.plan("A", give_up(QUOTA, applied=applied, answered=True))
    network.unreadable["A"] = failures
    if applied:
        assert a.commit(puts={"a": b"1"}).revision == once(network, "a")
    else:
        with pytest.raises(NoSpaceError):
            a.save("a", b"1")
        never(network, "a")


@pytest.mark.parametrize("applied", [True, False])
def test_h14_nobody_can_look_until_the_deadline(network: Network, applied: bool) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    fate = give_up(QUOTA, applied=applied, answered=True)
    error = unknown_commit(network, a, fate, puts={"a": b"1"})
    found = b.resolve(error.timestamp, error.nonce)
    if applied:
        assert found.revision == once(network, "a")
    else:
        assert found is None
        never(network, "a")


def test_h14_a_key_made_anew_is_no_answer(network: Network) -> None:
    a = network.open("A", 10)
    fate = give_up(QUOTA, applied=True, answered=True)

    def recreated(message):
        try:
            return fate(message)
        finally:
            recreate(network)

    network.plan("A", recreated)
    with pytest.raises(StoreRecreatedError):
        a.save("a", b"1")
