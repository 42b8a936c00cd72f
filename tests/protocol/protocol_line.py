"""Callers that wait in the queue behind a commit that is held."""

from collections.abc import Callable

from protocol_remote import (
    WAIT_S,
    Gate,
    Network,
    deliver,
)
from protocol_threads import Caller, until

from snapkv import (
    SnapshotKV,
)

FIRST = {"a/x": b"1", "b": b"1", "first": b"1"}


class Line:
    """A store whose first commit is held at a gate, and callers that queue up behind it."""

    def __init__(self, network: Network, then=deliver, **options) -> None:
        self.network, self.store = network, network.open("A", 1, **options)
        self.gate = Gate(then)
        network.plan("A", self.gate)
        self.first = Caller(lambda: self.store.commit(puts=FIRST))
        assert self.gate.reached.wait(WAIT_S)

    @property
    def queue(self):
        return self.store._core.committer._queue

    def join(self, run: Callable[[SnapshotKV], object]) -> Caller:
        """Queue up one more caller, behind all that did."""
        before = len(self.queue.waiting)
        caller = Caller(lambda: run(self.store))
        until(lambda: len(self.queue.waiting) > before, "a caller to queue up")
        return caller

    def commit(self, **commit) -> Caller:
        return self.join(lambda store: store.commit(**commit))

    def save(self, key: str) -> Caller:
        return self.commit(puts={key: b"1"})

    def go(self) -> None:
        self.gate.open()
        self.first.outcome()


def transactions(network: Network) -> int:
    return len(network.journal.revisions) - 1  # without the one that made the store
