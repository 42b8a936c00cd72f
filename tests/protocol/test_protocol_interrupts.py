"""Ctrl-C at every place of the committer where Python takes one.

CPython hands signals to Python code when a function begins and when a call has returned (and when
a loop goes round). Whoever rides along with the interrupted caller is still told the truth, and
those who come later find a store that works.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from protocol_remote import WAIT_S, Gate, Network, delay, deliver, lose_answer, remote_scheme
from protocol_threads import Caller, until

import snapkv
from snapkv import CommitTimeoutError, CommitUnknownError, ConflictError

pytestmark = pytest.mark.slow

PLACES_MAX = 2_000
TIMEOUT_S = 2 * WAIT_S
"""Longer than a test waits for a caller: one that only its deadline wakes hangs."""


def interrupted_at(place: int, run: Callable[[], Any]) -> tuple[bool, Any]:
    """Run a function, interrupted at the `place`-th place inside the committer.

    Return whether it ended before that, and its outcome.
    """
    left = [place]

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return"):
            return
        if "/snapkv/committer/" not in frame.f_code.co_filename:
            return
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
            raise KeyboardInterrupt(f"{where} {frame.f_code.co_name}, {event} {argument!r}")

    sys.setprofile(profile)
    try:
        outcome = run()
    except (KeyboardInterrupt, CommitUnknownError) as e:
        outcome = e
    finally:
        sys.setprofile(None)
    return left[0] > 0, outcome


class Ride:
    """A leader that is interrupted, and a rider in the same transaction."""

    def __init__(self, place: int, *fates) -> None:
        self.network = network = Network()
        self.store = store = network.open("A", 1)
        gate = Gate()
        network.plan("A", gate, *fates)
        first = Caller(lambda: store.save("first", b""))
        until(lambda: gate.reached.is_set())
        leader = Caller(
            lambda: interrupted_at(
                place, lambda: store.commit(puts={"leader": b""}, timeout=TIMEOUT_S)
            )
        )
        until(lambda: leader_waits(store, leader))
        rider = Caller(lambda: store.commit(puts={"rider": b""}, timeout=TIMEOUT_S))
        until(lambda: len(store._core.committer._queue.waiting) >= 1 + leader.is_alive())
        gate.open()
        first.value()
        self.finished, self.leader = leader.value()
        self.rider = rider.outcome()
        self.after = Caller(lambda: store.commit(puts={"after": b""}, timeout=TIMEOUT_S)).outcome()

    def judge(self) -> None:
        network = self.network
        network.arrive()
        where = repr(self.leader)
        written = network.journal.written("rider")
        if isinstance(self.rider, snapkv.Commit):
            assert [revision for revision, _ in written] == [self.rider.revision], where
        elif isinstance(self.rider, CommitTimeoutError | ConflictError):
            assert written == [], f"{where}: the rider was told {self.rider!r}"
        else:
            raise AssertionError(f"{where}: the rider was told {self.rider!r}")
        assert len(network.journal.written("leader")) <= 1, where
        assert isinstance(self.after, snapkv.Commit), f"{where}: then {self.after!r}"
        assert isinstance(self.rider, snapkv.Commit), f"{where}: nobody settled for the rider"


def leader_waits(store: snapkv.SnapshotKV, leader: Caller) -> bool:
    return bool(store._core.committer._queue.waiting) or not leader.is_alive()


@pytest.mark.long_after(1)
@pytest.mark.parametrize(
    "fates", [(deliver,), (lose_answer,), (delay, delay)], ids=["answered", "unknown", "dead"]
)
def test_interrupted_anywhere(fates) -> None:
    wrong = []
    with remote_scheme():
        for place in range(1, PLACES_MAX):
            ride = Ride(place, *fates)
            try:
                ride.judge()
            except AssertionError as e:
                wrong.append(f"{place}: {str(e).splitlines()[0]}")
            if ride.finished:
                break
        else:
            pytest.fail("it never came to an end")
    assert not wrong, "\n".join(wrong)
    assert place > 20
