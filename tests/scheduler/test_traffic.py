"""However slowly tables start, and whatever is lost or doubled: few messages, and they go on."""

import random

import pytest
from simulated_captures import Durations, InProcessTransport

from cdcmeta.scheduler import AddRequest, Limits, Progress, RemoveRequest, Send, agent
from cdcmeta.scheduler.owner.coordinator import Outbox
from cdcmeta.scheduler.protocol.messages import Announce, DispatchTable, DispatchTableResponse

from .cluster import TICK_US, SimCluster
from .node import G1, G2, SLOW, Node
from .speaking import asks, commit, from_owner, prepare, remove

pytestmark = pytest.mark.slow

SECOND_TICKS = 1_000_000 // TICK_US
LIMITS = Limits()


def starting(tables, *, seconds, start_us=10**12, **network):
    """Return a cluster in which tables have been starting for some seconds."""
    sim = SimCluster(
        2,
        {f"t{n:03}": 1.0 for n in range(tables)},
        durations=lambda table: Durations(start_us=start_us),
        transport=InProcessTransport(rng=random.Random(7), **network),
    )
    for _ in range(seconds * SECOND_TICKS):
        sim.tick()
    return sim


# --- a slow start ---


@pytest.mark.long_after(3)
@pytest.mark.parametrize("doubling", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("tables", [1, 100])
def test_a_start_that_takes_long_costs_a_commit_now_and_then(tables, doubling):
    """One for each table when it is prepared, then after 0.1, 0.2, 0.4, 0.8, 1, 1, ... seconds."""
    before = starting(tables, seconds=5, doubling=doubling).traffic.sent
    after = starting(tables, seconds=30, doubling=doubling).traffic.sent
    commits = after["DispatchTable"] - before["DispatchTable"]
    assert 0 < commits <= 26 * tables
    answers = after["DispatchTableResponse"] - before["DispatchTableResponse"]
    assert answers == 0, "it has said all there is to say"


def test_a_commit_that_is_lost_is_repeated_until_the_table_replicates():
    sim = starting(20, seconds=0, start_us=0, loss=0.5)
    sim.run(sim.is_replicating, ticks_max=30 * SECOND_TICKS)


@pytest.mark.parametrize(("at_first", "seconds"), [(1, 1), (5, 3), (60, 62)])
def test_the_longest_pause_bounds_how_long_a_lost_commit_is_waited_for(at_first, seconds):
    """All messages are lost for some seconds; a second after that it is sent again."""
    sim = starting(5, seconds=0)
    sim.run(lambda: all(r.starting for r in sets(sim)) and sets(sim), ticks_max=SECOND_TICKS)
    sim.transport.loss = 1.0
    for _ in range(at_first * SECOND_TICKS):
        sim.tick()
    before = sim.traffic.sent["DispatchTable"]
    sim.transport.loss = 0.0
    pause_ticks = (LIMITS.repeat_max_us + 2 * LIMITS.heartbeat_every_us) // TICK_US
    sim.run(lambda: sim.traffic.sent["DispatchTable"] >= before + 5, ticks_max=pause_ticks)


def sets(sim):
    return list(sim.owner.coordinator.replication.sets.values())


# --- each of the rules is needed ---


def lets_all_through(self, key, send, now):
    return True


def keeps_all(self, sends):
    for send in sends:
        self._waiting[len(self._waiting)] = send


def tells_all(self, status):
    self._reports[len(self._reports)] = status


def is_too_much(sim_of):
    """Return whether a check complains, of a tick or of the sum."""
    try:
        sent = sim_of().traffic.sent
    except AssertionError:  # of `Traffic`
        return True
    return sent["DispatchTable"] > 100 or sent["DispatchTableResponse"] > 2 * 2


def doubled():
    return starting(2, seconds=20, doubling=0.3, delay_us=lambda rng: rng.randrange(5 * TICK_US))


def test_the_rules_keep_it_small():
    assert not is_too_much(doubled)


@pytest.mark.parametrize(
    ("where", "name", "instead"),
    [
        (Outbox, "_is_due", lets_all_through),
        (Outbox, "put", keeps_all),
        (agent.Agent, "_report", tells_all),
        (agent, "is_starting", lambda kept, request: False),
    ],
)
def test_without_one_of_the_rules_it_is_too_much(where, name, instead, monkeypatch):
    monkeypatch.setattr(where, name, instead)
    assert is_too_much(doubled)


# --- an agent ---


def test_an_agent_says_nothing_to_the_commit_under_which_it_is_starting():
    node = Node()
    node.tick(prepare("t", G1))
    node.tick(us=10)
    assert node.told(commit("t", G1)) == []
    for _ in range(10):
        assert node.told(commit("t", G1), commit("t", G1)) == []
    assert node.told(commit("t", G1), us=20) == [("t", G1, "REPLICATING")]
    assert node.told(commit("t", G1)) == [("t", G1, "REPLICATING")], "it may have been lost"


def test_many_questions_are_answered_once():
    node = Node().replicating()
    inbox = [asks(("t", G1)), from_owner(Announce("1")), asks(("t", G1), ("x", G2))] * 50
    names = [type(body).__name__ for _, body in node.tick(*inbox)]
    assert names == ["Sync", "HeartbeatResponse"]


def test_many_requests_are_answered_once_for_each_table():
    node = Node(SLOW._replace(prepare_us=0)).replicating()
    inbox = [remove("t", G1), commit("t", G1), commit("u", G2), prepare("v", G2)] * 50
    bodies = [body for _, body in node.tick(*inbox)]
    assert all(isinstance(body, DispatchTableResponse) for body in bodies)
    assert {body.status.table: body.status.state.name for body in bodies} == {
        "t": "STOPPING",
        "u": "ABSENT",
        "v": "PREPARED",
    }
    assert len(bodies) == 3


def test_of_two_answers_about_a_table_that_of_the_newer_assignment_counts():
    node = Node(SLOW._replace(stop_us=0)).replicating(G2)
    told = node.told(remove("t", G2), commit("t", G1))
    assert told == [("t", G2, "STOPPED")], "that it has nothing of the earlier one is no news"


def test_what_a_new_owner_asks_is_answered_and_not_what_the_one_before_asked():
    node = Node().replicating()
    sent = node.tick(asks(("t", G1)), from_owner(Announce("1"), name="new", revision=10))
    assert [(header.to, type(body).__name__) for header, body in sent] == [("new", "Sync")]


# --- an owner ---


def adds(token, *, is_prepare=False):
    return Send("c1", AddRequest("t", token, Progress(), is_prepare=is_prepare))


def removes(token):
    return Send("c1", RemoveRequest("t", token))


def test_a_request_is_repeated_after_pauses_that_grow():
    outbox, times = Outbox(LIMITS), []
    for now in range(0, 5_000_000, 50_000):
        outbox.put([adds(G1)] * 20)
        times += [now] * len(outbox.take(now))
    tenths = [0, 1, 3, 7, 15, 25, 35, 45]
    assert times == [each * 100_000 for each in tenths]


def test_a_request_that_nobody_asks_for_is_not_repeated_and_forgotten():
    outbox = Outbox(LIMITS)
    outbox.put([adds(G1)])
    assert outbox.take(0) == [adds(G1)]
    for now in (50_000, 5_000_000, 10_000_000):
        assert outbox.take(now) == []
    assert not outbox._sent


@pytest.mark.parametrize(
    ("requests", "sent"),
    [
        ([adds(G1), removes(G1)], removes(G1)),
        ([removes(G1), adds(G2, is_prepare=True)], adds(G2, is_prepare=True)),
        ([adds(G2), removes(G1)], adds(G2)),
    ],
)
def test_of_several_requests_about_a_table_the_newest_is_sent(requests, sent):
    outbox = Outbox(LIMITS)
    outbox.put(requests)
    assert outbox.take(0) == [sent]


def test_another_request_is_sent_at_once():
    outbox = Outbox(LIMITS)
    for now, each in enumerate([adds(G1, is_prepare=True), adds(G1), removes(G1), adds(G2)]):
        outbox.put([each])
        assert outbox.take(now) == [each]


def test_each_tick_of_an_owner_has_one_request_for_a_table():
    """A capture that says the same a hundred times is told the same once."""
    sim = starting(1, seconds=2, delay_us=lambda rng: TICK_US)
    said = 0
    for _ in range(3 * SECOND_TICKS):
        inbox = sim.transport.receive(sim.owner.name, sim.now + TICK_US)
        said += len(inbox)
        sim.transport.send(inbox * 100, sim.now)
        sim.tick()
        requests = [b for _, b in sim.owner.last.messages if isinstance(b, DispatchTable)]
        assert len(requests) <= 1
    assert said > 50
