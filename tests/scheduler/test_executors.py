"""An agent and executors that cannot now, fail, end tables by themselves, or have a barrier."""

import pytest
from simulated_captures import Durations, SimulatedExecutor

from cdcmeta.scheduler import (
    Agent,
    Barrier,
    ExecutorStatus,
    KnownOwner,
    Progress,
    TableState,
    Token,
)
from cdcmeta.scheduler.protocol.messages import Announce, Heartbeat, Sync

from .node import G1, G2, LATER, SLOW, Node
from .speaking import asks, commit, from_owner, prepare, remove


class Busy(SimulatedExecutor):
    """Cannot begin anything while it is busy."""

    is_busy = False

    def add_table(self, table, start_ts, token, *, is_prepare):
        return not self.is_busy and super().add_table(table, start_ts, token, is_prepare=is_prepare)

    def remove_table(self, table):
        return not self.is_busy and super().remove_table(table)


class Broken(SimulatedExecutor):
    """Fails in some of its methods, for some of its tables."""

    broken = ("", "")

    def _check(self, method, table):
        if self.broken == (method, table):
            raise OSError(f"{method} {table}")

    def add_table(self, table, start_ts, token, *, is_prepare):
        self._check("prepare" if is_prepare else "replicate", table)
        return super().add_table(table, start_ts, token, is_prepare=is_prepare)

    def is_add_finished(self, table, *, is_prepare):
        self._check("is_prepared" if is_prepare else "is_replicating", table)
        return super().is_add_finished(table, is_prepare=is_prepare)

    def remove_table(self, table):
        self._check("remove", table)
        return super().remove_table(table)

    def is_remove_finished(self, table):
        self._check("is_removed", table)
        return super().is_remove_finished(table)

    def status(self, table):
        self._check("status", table)
        return super().status(table)


# --- "not now" ---


def test_a_preparation_that_cannot_begin_is_tried_again():
    node = Node(executor=Busy)
    node.executor.is_busy = True
    assert node.told(prepare("t", G1)) == []
    assert node.told(us=100) == []
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["PREPARING"]
    node.executor.is_busy = False
    node.tick()
    assert node.told(us=10) == [("t", G1, "PREPARED")]


def test_a_commit_that_cannot_begin_is_tried_again():
    node = Node(executor=Busy)
    node.tick(prepare("t", G1))
    node.tick(us=10)
    node.executor.is_busy = True
    assert node.told(commit("t", G1, LATER)) == []
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["PREPARED"]
    node.executor.is_busy = False
    node.tick()
    assert node.told(us=20) == [("t", G1, "REPLICATING")]


def test_a_removal_that_cannot_begin_is_tried_again():
    """It is stopping for whoever asks: nobody else may write."""
    node = Node(executor=Busy).replicating()
    node.executor.is_busy = True
    assert node.told(remove("t", G1)) == [("t", G1, "STOPPING")]
    assert node.told(us=100) == []
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["STOPPING"]
    assert node.executor.writing() == {"t"}
    node.executor.is_busy = False
    node.tick()
    assert node.told(us=30) == [("t", G1, "STOPPED")]


def test_a_removal_comes_before_an_addition_that_cannot_begin():
    node = Node(executor=Busy)
    node.executor.is_busy = True
    node.tick(prepare("t", G1))
    node.tick(remove("t", G1))
    node.executor.is_busy = False
    assert ("t", G1, "STOPPED") in node.told(us=100) + node.told(us=100)
    assert node.executor.all_tables() == set()


# --- failures ---


@pytest.mark.parametrize("method", ["prepare", "is_prepared"])
def test_a_preparation_that_fails_is_ended_and_told_of(method):
    node = Node(executor=Broken)
    node.executor.broken = (method, "t")
    told = node.told(prepare("t", G1)) + node.told(us=10) + node.told(us=30)
    assert told == [("t", G1, "STOPPED")]
    assert node.executor.all_tables() == set()
    assert str(node.agent.failures["t"]) == f"{method} t"
    node.executor.broken = ("", "")
    assert node.told(prepare("t", G1)) == [("t", G1, "ABSENT")], "it has ended"
    node.tick(prepare("t", G2))
    assert node.told(us=10) == [("t", G2, "PREPARED")]


@pytest.mark.parametrize("method", ["replicate", "is_replicating"])
def test_a_commit_that_fails_is_ended_and_told_of(method):
    """It may have begun to write: it is stopping until it has stopped."""
    node = Node(executor=Broken)
    node.tick(prepare("t", G1))
    node.tick(us=10)
    node.executor.broken = (method, "t")
    node.tick(commit("t", G1))
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["STOPPING"]
    assert node.told(us=30) + node.told(us=30) == [("t", G1, "STOPPED")]
    assert node.executor.all_tables() == set()


@pytest.mark.parametrize("method", ["remove", "is_removed"])
def test_a_removal_that_fails_is_tried_again(method):
    """Whether it still writes is not known, so nobody is told that it has ended."""
    node = Node(executor=Broken).replicating()
    node.executor.broken = (method, "t")
    assert node.told(remove("t", G1)) == [("t", G1, "STOPPING")]
    assert node.told(us=100) == []
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["STOPPING"]
    assert str(node.agent.failures["t"]) == f"{method} t"
    node.executor.broken = ("", "")
    assert node.told(us=30) + node.told(us=30) == [("t", G1, "STOPPED")]


@pytest.mark.parametrize("method", ["prepare", "is_prepared", "status"])
def test_a_table_that_fails_fails_no_other(method):
    node = Node(executor=Broken)
    node.executor.broken = (method, "bad")
    node.tick(prepare("bad", G1), prepare("good", G1))
    assert ("good", G1, "PREPARED") in node.told(us=10)
    told = {each.table: each.state.name for each in node.listed().tables}
    assert told["good"] == "PREPARED"


def test_a_table_of_which_nothing_can_be_learned_is_ended():
    """Its capture goes on answering: else the owner would take it for dead."""
    node = Node(executor=Broken).replicating()
    node.executor.broken = ("status", "t")
    assert [each.state.name for each in node.listed(("t", G1)).tables] == ["STOPPING"]
    assert node.told(us=30) + node.told(us=30) == [("t", G1, "STOPPED")]
    assert str(node.agent.failures["t"]) == "status t"


def test_a_new_owner_is_told_of_the_others_when_a_table_fails():
    node = Node(executor=Broken)
    node.tick(prepare("good", G1), prepare("bad", G1))
    node.tick(us=10)
    node.executor.broken = ("status", "bad")
    sent = node.tick(from_owner(Announce("1"), name="new", revision=10))
    (body,) = [each.body for each in sent if isinstance(each.body, Sync)]
    assert {each.table: each.state.name for each in body.tables} == {
        "good": "PREPARED",
        "bad": "STOPPING",
    }


# --- tables that end by themselves ---


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_table_that_is_gone_is_told_of_with_the_next_heartbeat(is_committed):
    node = Node()
    node.tick(prepare("t", G1))
    node.tick(us=10)
    if is_committed:
        node.tick(commit("t", G1, LATER))
        node.tick(us=20)
    node.executor.fail("t")
    ((_, told),) = node.tick(asks(("t", G1)))
    assert [(each.state.name, each.token) for each in told.tables] == [("STOPPED", G1)]
    (listed,) = node.listed(("t", G1)).tables
    assert listed == told.tables[0]._replace(state=TableState.ABSENT)
    assert node.agent.tables() == []
    assert node.told(prepare("t", G1)) == [("t", G1, "ABSENT")]


def test_a_table_that_is_gone_while_it_prepares_is_told_of():
    node = Node()
    node.tick(prepare("t", G1))
    node.executor.fail("t")
    (listed,) = node.listed(("t", G1)).tables
    assert listed.state is TableState.STOPPED
    assert node.told(us=100) == []
    node.tick(prepare("t", G2))
    assert node.told(us=10) == [("t", G2, "PREPARED")]


def test_a_table_that_is_gone_while_it_stops_has_stopped():
    node = Node().replicating()
    node.tick(remove("t", G1))
    node.executor.fail("t")
    assert node.told() == [("t", G1, "STOPPED")]


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_commit_of_what_is_gone_starts_nothing(is_busy):
    """Else it would be prepared anew, and nobody would ever commit that."""
    node = Node(executor=Busy)
    node.tick(prepare("t", G1))
    node.tick(us=10)
    node.executor.is_busy = is_busy
    if is_busy:
        assert node.told(commit("t", G1)) == []
        node.executor.is_busy = False
    node.executor.fail("t")
    assert node.told(commit("t", G1))[-1] == ("t", G1, "STOPPED")
    assert node.executor.all_tables() == set()
    assert node.told(commit("t", G1)) == [("t", G1, "ABSENT")]


@pytest.mark.parametrize("durations", [SLOW, Durations()])
def test_a_table_that_stops_by_itself_is_freed_and_can_come_again(durations):
    """The executor still has it until it is asked whether it has ended."""
    node = Node(durations).replicating()
    node.data = 444
    node.tick()
    node.executor.status("t")
    node.executor.remove_table("t")  # nobody asked for it
    told = [each.state.name for each in node.listed(("t", G1)).tables]
    assert told == ["STOPPING" if durations is SLOW else "STOPPED"], "until then it may write"
    assert node.told(us=30) + node.told() == [("t", G1, "STOPPED")] * (durations is SLOW)
    assert node.executor.all_tables() == set()
    (status,) = node.listed(("t", G1)).tables
    assert (status.state.name, status.progress) == ("ABSENT", Progress(444, 444))
    assert [*node.told(prepare("t", G2)), *node.told(us=10)] == [("t", G2, "PREPARED")]


def test_a_status_is_what_the_executor_says():
    node = Node().replicating()
    assert node.executor.status("t") == ExecutorStatus(TableState.REPLICATING, LATER)
    assert node.executor.status("x") == ExecutorStatus(TableState.ABSENT, Progress())
    assert node.executor.checkpoint() == LATER


# --- barriers ---


class Bounded:
    """A simulated executor with two tables that replicate, and a barrier."""

    def __init__(self, barrier: Barrier) -> None:
        self.data, self.barrier = 100, barrier
        self.told: list[tuple[str, int]] = []
        self.executor = SimulatedExecutor(
            source=lambda table: self.data, barrier=lambda: self.barrier
        )
        self.executor.written = lambda table, checkpoint: self.told.append((table, checkpoint))
        for table in ("t", "u"):
            for is_prepare in (True, False):
                self.executor.add_table(table, 50, Token(1, 1), is_prepare=is_prepare)

    def at(self) -> list[int]:
        return [self.executor.status(table).progress.checkpoint for table in ("t", "u")]


@pytest.mark.parametrize(
    ("barrier", "at"),
    [
        (Barrier(), [100, 100]),
        (Barrier(70), [70, 70]),
        (Barrier(200), [100, 100]),
        (Barrier(0, (("t", 60),)), [60, 100]),
        (Barrier(70, (("t", 60), ("x", 1))), [60, 70]),
        (Barrier(70, (("t", 90),)), [70, 70]),
        (Barrier(70, (("t", 0),)), [70, 70]),
        (Barrier(40, (("t", 30),)), [50, 50]),
    ],
)
def test_nothing_goes_beyond_a_barrier(barrier, at):
    bounded = Bounded(barrier)
    assert bounded.at() == at
    assert bounded.at() == at


def test_a_barrier_that_moves_on_lets_tables_go_on_and_takes_nothing_back():
    bounded = Bounded(Barrier(70))
    assert bounded.at() == [70, 70]
    bounded.barrier = Barrier(80, (("t", 75),))
    assert bounded.at() == [75, 80]
    bounded.barrier = Barrier(60)
    assert bounded.at() == [75, 80]
    bounded.barrier = Barrier()
    assert bounded.at() == [100, 100]
    assert bounded.executor.checkpoint() == Progress(100, 100)
    written = [("t", 70), ("u", 70), ("t", 75), ("u", 80), ("t", 100), ("u", 100)]
    assert bounded.told == written, "each time that it came farther"


def test_a_table_that_stops_does_not_go_beyond_a_barrier_either():
    bounded = Bounded(Barrier(70))
    bounded.executor.remove_table("t")
    assert bounded.executor.is_remove_finished("t") == 70


def test_an_executor_follows_the_barrier_of_its_agent():
    executor = SimulatedExecutor(source=lambda table: 100, barrier=lambda: agent.barrier)
    agent = Agent("c1", executor, epoch=3, owner=KnownOwner("owner", 9))
    agent.tick([from_owner(Heartbeat((), Barrier(70)))])
    agent.tick([prepare("t", G1, Progress(50, 50)), commit("t", G1, Progress(50, 50))])
    assert executor.status("t").progress.checkpoint == 70
    agent.tick([from_owner(Heartbeat((), Barrier(), number=1))])
    assert executor.status("t").progress.checkpoint == 100
