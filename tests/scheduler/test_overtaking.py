"""Requests that heartbeats overtake, and answers that never come: tables are replicated after all.

A heartbeat that comes before the request that it asks about is answered with a promise never to
start that one, so the owner has to wait longer the next time.
"""

import pytest
from sampling import SOAK
from simulated_captures import InProcessTransport

from cdcmeta.scheduler import AddRequest
from cdcmeta.scheduler.core.failures import LOST_MAX
from cdcmeta.scheduler.protocol.messages import DispatchTable, DispatchTableResponse

from .cluster import SimCluster

pytestmark = pytest.mark.slow

TICK_US = 10_000
SECOND_TICKS = 1_000_000 // TICK_US
TABLES = 20


class ByKind:
    """A transport on which requests take their own time, and answers to them may be lost."""

    def __init__(self, requests_us, *, loses_answers=False):
        self._requests = InProcessTransport(delay_us=lambda rng: requests_us)
        self._others = InProcessTransport(delay_us=lambda rng: TICK_US)
        self._loses_answers = loses_answers
        self.tokens = set()
        """All under which something was to be prepared, with the table."""

    def send(self, envelopes, now):
        for envelope in envelopes:
            body = envelope.body
            if isinstance(body, DispatchTable):
                if isinstance(body.request, AddRequest) and body.request.is_prepare:
                    self.tokens.add((body.request.table, body.request.token))
                self._requests.send([envelope], now)
            elif not (self._loses_answers and isinstance(body, DispatchTableResponse)):
                self._others.send([envelope], now)

    def receive(self, name, now):
        return self._others.receive(name, now) + self._requests.receive(name, now)

    def forget(self, name):
        self._requests.forget(name)
        self._others.forget(name)


def cluster(transport, **options):
    tables = {f"t{n:02}": 1.0 for n in range(TABLES)}
    return SimCluster(3, tables, transport=transport, **options)


@pytest.mark.parametrize("loses_answers", [False, True])
@pytest.mark.parametrize(
    ("requests_us", "seconds", "tokens"),
    [(10_000, 1, 1), (120_000, 2, 2), (1_000_000, 8, 5), (5_000_000, 40, 8)],
)
def test_requests_that_are_overtaken_arrive_in_the_end(requests_us, seconds, tokens, loses_answers):
    """The owner waits twice as long each time: `tokens` is how often for each table."""
    transport = ByKind(requests_us, loses_answers=loses_answers)
    sim = cluster(transport)
    sim.run(sim.is_replicating, ticks_max=seconds * SECOND_TICKS, us=TICK_US)
    assert len(transport.tokens) <= tokens * TABLES


def test_a_table_that_moves_is_overtaken_too():
    transport = ByKind(120_000)
    sim = cluster(transport)
    sim.run(sim.is_replicating, ticks_max=2 * SECOND_TICKS, us=TICK_US)
    before = len(transport.tokens)
    moved = len(sim.owner.coordinator.replication.held["c1"])
    assert sim.owner.coordinator.drain("c1") == moved
    drained = lambda: sim.owner.coordinator.drain("c1") == 0  # noqa: E731
    sim.run(drained, ticks_max=4 * SECOND_TICKS, us=TICK_US)
    assert len(transport.tokens) - before <= 2 * moved


def test_who_refuses_everything_while_answers_are_lost_is_passed_over_in_the_end():
    sim = cluster(ByKind(TICK_US, loses_answers=True))
    sim.nodes["c1"].executor.refuses = lambda table: True
    sim.run(sim.is_replicating, ticks_max=120 * SECOND_TICKS, us=TICK_US)


@pytest.mark.long
@pytest.mark.parametrize("loses_answers", [False, True])
def test_a_table_that_fails_each_time_is_tried_ever_more_rarely(loses_answers):
    """Without the answers, "absent" is all that the owner hears of it.

    It then takes it for lost messages, some times in a row, before it is a failure.
    """
    sim = cluster(ByKind(TICK_US, loses_answers=loses_answers))
    for node in sim.nodes.values():
        node.executor.refuses = lambda table: table == "t07"
    counts = []
    for _ in range(6 if SOAK else 4):
        before = sum(node.executor.tries for node in sim.nodes.values())
        for _ in range(60 * SECOND_TICKS):
            sim.tick(TICK_US)
        counts.append(sum(node.executor.tries for node in sim.nodes.values()) - before)
    in_a_row = LOST_MAX + 1 if loses_answers else 1
    assert counts[0] <= 8 * in_a_row, counts
    assert 1 <= counts[-1] <= 2 * in_a_row, counts
    assert set(sim.owner.coordinator.replication.unsettled) == {"t07"}
