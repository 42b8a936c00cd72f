"""Lost rounds and fences, as hooks, logs and counts report them."""

import logging

import pytest
from protocol_remote import Fate, Network, VirtualTime, delay, lose, lose_answer, meanwhile
from store.noting import Noting

import snapkv
from snapkv.hooks import CommitEvent, FenceEvent, LostRoundEvent

pytestmark = pytest.mark.usefixtures("time")


def test_a_lost_round(network: Network) -> None:
    noting = Noting()
    a, b = network.open("A", 1, hooks=noting), network.open("B", 5)
    b.save("b", b"1")
    a.save("a", b"1")
    lost = noting.the(LostRoundEvent)
    assert (lost.lost, lost.members) == (1, 1)
    assert noting.the(CommitEvent).lost_rounds == 1
    assert (a.stats().lost_rounds, a.stats().commits, b.stats().lost_rounds) == (1, 1, 0)


@pytest.mark.parametrize(("fate", "outcome"), [(lose_answer, "landed"), (lose, "dead")])
def test_a_fence_is_logged_once(
    network: Network, fate: Fate, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting()
    a = network.open("A", 1, hooks=noting)
    network.plan("A", fate)
    with caplog.at_level(logging.WARNING, "snapkv"):
        a.save("secret-key", b"secret-value")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "got no answer" in caplog.text
    assert "secret" not in caplog.text
    assert noting.the(FenceEvent).outcome == outcome
    assert noting.the(CommitEvent).outcome == "committed"
    found = a.stats()
    assert (found.fences, found.commits, found.unknown_outcomes) == (1, 1, 0)


def test_an_outcome_that_stays_unknown(
    network: Network, time: VirtualTime, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting()
    a = network.open("A", 1, hooks=noting)
    network.plan("A", delay)
    network.cut("A")
    with caplog.at_level(logging.WARNING, "snapkv"), pytest.raises(snapkv.CommitUnknownError) as e:
        a.commit(puts={"a": b"1"}, timeout=2)
    assert noting.the(FenceEvent).outcome == "open"
    assert noting.the(CommitEvent).outcome == "unknown"
    assert (a.stats().fences, a.stats().unknown_outcomes) == (1, 1)
    network.mend("A")
    network.arrive()
    assert a.resolve(e.value.timestamp, e.value.nonce) is not None
    assert [event.outcome for event in noting.of(FenceEvent)] == ["open", "landed"]
    assert len(caplog.records) == 1, "one commit, one fence"


def test_a_failing_hook_decides_no_outcome(network: Network) -> None:
    class Broken(snapkv.Hooks):
        def on_lost_round(self, event: LostRoundEvent) -> None:
            raise ValueError

        def on_fence(self, event: FenceEvent) -> None:
            raise ValueError

    a, b = network.open("A", 10, hooks=Broken()), network.open("B", 20)
    network.plan("A", lose, meanwhile(lambda: b.save("b", b"1"), lose))
    committed = a.commit(puts={"a": b"1"})
    assert a.load("a", committed.ts) == b"1"
    assert a.stats().hook_errors > 0
