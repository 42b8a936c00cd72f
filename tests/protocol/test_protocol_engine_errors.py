"""Holes of simpler protocols: errors of the engine, lost rounds, head guards, opening.

The numbers are those of DESIGN.md. A and B are two processes; timestamps are their clocks'
milliseconds. Each trace is the shortest in which a simpler protocol returned a wrong outcome.
"""

import pytest
from protocol_commits import never, once
from protocol_remote import (
    Fate,
    Network,
    VirtualTime,
    delay,
    give_up,
    lose,
    lose_answer,
    meanwhile,
    refuse,
)

import snapkv
from snapkv import CommitUnknownError, ConflictError, HeadAt
from snapkv.errors import (
    EngineUnavailableError,
    NoSpaceError,
)
from snapkv.times import physical_ms

pytestmark = pytest.mark.usefixtures("time")


# --- H12: an embedded engine whose failed commit surfaces later -----------------------------


def test_h12_a_failed_commit_that_surfaces_is_dead(network: Network) -> None:
    """As lmdb with an I/O error: others go on, a later opener would have seen it."""
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan(
        "A", delay, delay, refuse(NoSpaceError("disk")), meanwhile(lambda: b.save("b", b"1"))
    )
    cause = NoSpaceError("disk")
    network.plan("B", give_up(cause, applied=False))
    with pytest.raises(NoSpaceError):
        b.save("b0", b"")
    committed = a.commit(puts={"a": b"1"})
    assert [answer.succeeded for answer in network.arrive()] == [False, False]
    assert once(network, "a") == committed.revision


# --- whatever else an engine raises ---------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), OSError(5, "I/O"), EngineUnavailableError("down")]
)
def test_any_error_after_sending_is_settled_first(
    network: Network, error: Exception, applied: bool
) -> None:
    a = network.open("A", 1)

    def fate(message):
        if applied:
            message.deliver()
        raise error

    network.plan("A", fate)
    if applied:
        assert a.commit(puts={"a": b"1"}).revision == once(network, "a")
    else:
        with pytest.raises(type(error)):
            a.commit(puts={"a": b"1"})
        never(network, "a")


@pytest.mark.parametrize("error", [NoSpaceError("disk"), snapkv.errors.CorruptStoreError("file")])
def test_an_error_of_the_fence_is_not_an_error_of_the_commit(
    network: Network, error: Exception
) -> None:
    """An engine that must be mended first may raise anything: the commit's outcome stays open."""
    a, b = network.open("A", 10), network.open("B", 5)

    def fate(message):
        raise error

    network.plan("A", lose_answer, *[fate] * 200)
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"}, timeout=1)
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_closing_in_flight_is_unknown(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    network.plan("A", meanwhile(a.close, lose_answer))
    with pytest.raises(CommitUnknownError) as caught:
        a.commit(puts={"a": b"1"})
    found = b.resolve(caught.value.timestamp, caught.value.nonce)
    assert found.revision == once(network, "a")


def test_closing_before_sending_is_closed(network: Network) -> None:
    a = network.open("A", 10)
    a.close()
    with pytest.raises(snapkv.errors.StoreClosedError):
        a.save("a", b"1")
    never(network, "a")


# --- lost rounds, timestamps ----------------------------------------------------------------


def test_a_lost_round_builds_again_for_the_new_timestamp(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 20)
    built: list[snapkv.Stamp] = []

    def build(stamp: snapkv.Stamp) -> snapkv.Ops:
        built.append(stamp)
        return snapkv.Ops({"a": b"%d" % stamp.ts})

    network.plan("A", meanwhile(lambda: b.save("b", b"1")))
    committed = a.commit(build)
    assert [physical_ms(stamp.ts) for stamp in built] == [10, 20]
    assert built[1].ts == b.resolved() == committed.ts
    assert a.load("a") == b"%d" % committed.ts


def test_deadline_after_lost_rounds_never_lands(network: Network, time: VirtualTime) -> None:
    a, b = network.open("A", 10), network.open("B", 20)

    def overtake() -> None:
        b._core.clock.wall.advance(100)
        b.save("b", b"")

    network.plan("A", *[meanwhile(overtake)] * 10_000)
    started = time.now
    with pytest.raises(snapkv.CommitTimeoutError):
        a.commit(puts={"a": b"1"}, timeout=1)
    assert time.now - started <= 1.001
    never(network, "a")


def test_claiming_ahead_wins_against_a_steady_writer(network: Network) -> None:
    """The other one commits each time that A has sent, and its clock is ahead by 8 ms."""
    a, b = network.open("A", 100), network.open("B", 108)
    network.plan("A", *[meanwhile(lambda: b.save("b", b""))] * 200)
    committed = a.commit(puts={"a": b"1"})
    assert 200 - network.left("A") <= 20
    assert physical_ms(committed.ts) <= 108 + 16


def test_a_settled_refusal_is_merged(network: Network) -> None:
    """What the refused fence tells spares the next attempt a lost round."""
    a, b = network.open("A", 10), network.open("B", 1_000)
    network.plan("A", delay, meanwhile(lambda: b.save("b", b"1")))
    sent_before = len(network.seen)
    a.save("a", b"1")
    mine = [txn for client, txn in network.seen[sent_before:] if client == "A"]
    assert len(mine) == 3, "the lost one, its fence, and the one that made it"


# --- guards on the head ---------------------------------------------------------------------


def test_head_guard_after_a_fence_of_our_own(network: Network) -> None:
    a = network.open("A", 10)
    head = a.at().revision
    network.plan("A", delay)
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[HeadAt(head)])
    assert caught.value.failed == ((HeadAt(head), head + 1),), "the fence, not our own transaction"
    never(network, "a")


def test_head_guard_on_a_revision_to_come(network: Network) -> None:
    """The guard is false when it is looked at, though it names the revision of our own refusal."""
    a = network.open("A", 10)
    head = a.at().revision
    with pytest.raises(ConflictError) as caught:
        a.commit(puts={"a": b"1"}, guards=[HeadAt(head + 1)])
    assert caught.value.failed == ((HeadAt(head + 1), head),)
    never(network, "a")


def test_head_guard_with_a_lost_answer(network: Network) -> None:
    a, b = network.open("A", 10), network.open("B", 5)
    head = a.at().revision
    network.plan("A", lose_answer, meanwhile(lambda: b.tick()))
    assert a.commit(puts={"a": b"1"}, guards=[HeadAt(head)]).revision == once(network, "a")
    network.plan("A", lose_answer)
    with pytest.raises(ConflictError):
        a.commit(puts={"c": b"1"}, guards=[HeadAt(head)])
    never(network, "c")


# --- opening --------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", [lose, lose_answer, delay])
def test_opening_survives_an_unknown_outcome(network: Network, fate: Fate) -> None:
    network.plan("A", fate)
    a = network.open("A", 1)
    network.arrive()
    a.save("a", b"1")
    assert network.open("B", 1, create=False).load("a") == b"1"
    assert len({stamp.revision for stamp in network.journal.stamps if stamp.ts == 0}) == 1


def test_two_openers_make_one_store(network: Network) -> None:
    network.plan("A", meanwhile(lambda: network.open("B").save("b", b"1")))
    a = network.open("A")
    assert a.load("b") == b"1"
