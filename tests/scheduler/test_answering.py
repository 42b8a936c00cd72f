"""Facts 4: what an agent tells owners: heartbeats, leaving, new owners."""

import pytest
from simulated_captures import Durations, SimulatedExecutor

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Agent, Barrier, ExecutorStatus, KnownOwner, Progress, Token
from cdcmeta.scheduler.protocol.messages import Announce, Heartbeat, HeartbeatResponse, Sync

from .node import G1, G2, G3, SLOW, Node
from .speaking import asks, commit, from_owner, prepare, remove

# --- heartbeats ---


def test_all_tables_are_listed_and_those_asked_about_too():
    node = Node(SLOW._replace(stop_us=99))
    for table in ("held", "other", "stopping"):
        node.tick(prepare(table, G1))
    node.tick(us=10)
    node.tick(remove("stopping", G1))
    body = node.listed(("held", G1), ("asked", G2))
    states = {(each.table, each.token): each.state.name for each in body.tables}
    assert states == {
        ("held", G1): "PREPARED",
        ("asked", G2): "ABSENT",
        ("other", G1): "PREPARED",
        ("stopping", G1): "STOPPING",
    }
    assert len(body.tables) == 4


def test_who_is_asked_about_an_assignment_that_has_not_come_will_not_start_it():
    """Else "absent" would be taken for an answer, and turn false later."""
    node = Node(Durations())
    node.listed(("t", G1))
    assert node.told(prepare("t", G1)) == [("t", G1, "ABSENT")]
    assert node.told(prepare("t", G2)) == [("t", G2, "PREPARED")]


def test_who_is_asked_about_another_assignment_tells_of_the_one_that_is():
    node = Node().replicating(G2)
    for asked in (G1, G3):
        (status,) = node.listed(("t", asked)).tables
        assert (status.token, status.state.name) == (G2, "REPLICATING")


def test_a_heartbeat_tells_how_far_the_tables_are():
    node = Node().replicating()
    node.data = 333
    (status,) = node.listed(("t", G1)).tables
    assert status.progress == Progress(333, 333)


class Forgetful(SimulatedExecutor):
    """Begins to tell of its tables what it knew long ago."""

    forgets = False

    def status(self, table):
        state, progress = super().status(table)
        return ExecutorStatus(state, Progress(5, 5) if self.forgets else progress)


def test_progress_does_not_go_backwards():
    node = Node(executor=Forgetful).replicating()
    node.data = 333
    for node.executor.forgets in (False, True):
        (status,) = node.listed(("t", G1)).tables
        assert status.progress == Progress(333, 333)


@pytest.mark.parametrize("is_asked_first", [True, False])
def test_the_answer_is_of_after_the_requests_that_come_with_the_heartbeat(is_asked_first):
    """v3 answers before: then what it was asked about and is told a moment later never starts."""
    node = Node(Durations())
    inbox = [asks(("t", G1)), prepare("t", G1)]
    ((_, body),) = node.tick(*(inbox if is_asked_first else inbox[::-1]))
    assert [(each.token, each.state.name) for each in body.tables] == [(G1, "PREPARED")]


def test_the_answer_to_a_heartbeat_has_what_a_message_of_its_own_would_tell():
    node = Node(SLOW._replace(stop_us=0)).replicating()
    ((_, body),) = node.tick(remove("t", G1), asks(("t", G1)))
    assert [(each.token, each.state.name) for each in body.tables] == [(G1, "STOPPED")]


def test_the_barrier_is_kept():
    node = Node()
    node.tick(from_owner(Heartbeat((), Barrier(9, (("t", 5),)))))
    assert node.agent.barrier == Barrier(9, (("t", 5),))


# --- leaving ---


def test_a_capture_leaves_when_the_owner_says_so_and_there_is_no_way_back():
    node = Node()
    assert not node.listed().is_stopping
    node.tick(from_owner(Heartbeat((), is_stopping=True)))
    assert node.agent.is_stopping
    node.tick(from_owner(Heartbeat((), is_stopping=False)))
    assert node.listed().is_stopping


def test_a_capture_that_leaves_says_so_to_a_new_owner():
    node = Node()
    node.agent.stop()
    ((_, body),) = node.tick(from_owner(Announce("1"), name="new", revision=10))
    assert body == Sync("7", (), is_stopping=True)


def test_a_capture_that_leaves_still_takes_over_what_it_is_told_to():
    """It was told before the owner knew."""
    node = Node()
    node.agent.stop()
    node.replicating()


# --- new owners ---


def test_a_new_owner_is_told_all():
    node = Node(SLOW._replace(stop_us=99))
    for table in ("prepared", "replicating", "stopping"):
        node.tick(prepare(table, G1))
    node.tick(us=10)
    node.tick(commit("replicating", G1))
    node.tick(us=20)
    node.tick(remove("stopping", G1), prepare("preparing", G2))
    sent = node.tick(from_owner(Announce("1"), name="new", revision=10))
    ((header, body),) = sent
    assert (header.to, header.owner_revision, header.capture_epoch) == ("new", 10, 3)
    assert isinstance(body, Sync)
    assert body.version == "7"
    assert sorted((each.table, each.state.name.lower()) for each in body.tables) == [
        *(("prepared", "prepared"), ("preparing", "preparing")),
        *(("replicating", "replicating"), ("stopping", "stopping")),
    ]
    assert {each.token for each in body.tables} == {G1, G2}


def test_what_ended_is_not_told_to_a_new_owner():
    node = Node(Durations()).replicating()
    node.tick(remove("t", G1))
    ((_, body),) = node.tick(from_owner(Announce("1"), name="new", revision=10))
    assert body.tables == ()


def test_what_a_new_owner_assigns_is_newer_than_what_ended_before():
    node = Node(Durations()).replicating(G3)
    node.tick(remove("t", G3))
    node.tick(from_owner(Announce("1"), name="new", revision=10))
    new = prepare("t", Token(10, 1))
    new = new._replace(header=new.header._replace(sender="new", owner_revision=10))
    assert node.told(new) == [("t", Token(10, 1), "PREPARED")]


def test_what_comes_of_an_earlier_owners_request_is_told_to_the_new_one():
    node = Node()
    node.tick(prepare("t", G1))
    node.tick(from_owner(Announce("1"), name="new", revision=10))
    ((header, body),) = node.tick(us=10)
    assert header.to == "new"
    assert (body.status.token, body.status.state.name) == (G1, "PREPARED")


def test_an_agent_begins_with_an_executor_that_has_no_tables():
    executor = SimulatedExecutor()
    executor.add_table("t", 1, Token(1, 1), is_prepare=True)
    with pytest.raises(InvalidArgumentError, match="no tables"):
        Agent("c1", executor, epoch=3, owner=KnownOwner())


@pytest.mark.parametrize("body", [Sync("1", ()), HeartbeatResponse(())])
def test_what_is_not_for_agents_changes_nothing(body):
    assert Node().tick(from_owner(body)) == []
