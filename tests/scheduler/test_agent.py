"""Facts 4: an agent over the simulated executor."""

import pytest
from simulated_captures import Durations

from cdcmeta.scheduler import Progress, TableState, TableStatus

from .node import G1, G2, G3, LATER, SLOW, Node
from .speaking import START, commit, prepare, remove

# --- adding ---


def test_a_table_is_prepared_and_told_of_when_it_is():
    """Nothing is said while it prepares."""
    node = Node()
    assert node.told(prepare("t", G1)) == []
    assert node.state() == "PREPARING"
    assert node.told(us=9) == []
    assert node.told(us=1) == [("t", G1, "PREPARED")]
    assert node.told(us=100) == [], "once"
    assert node.executor.writing() == set()


def test_what_is_prepared_at_once_is_told_of_at_once():
    node = Node(Durations())
    assert node.told(prepare("t", G1)) == [("t", G1, "PREPARED")]


def test_a_prepared_table_replicates_from_where_the_commit_says():
    node = Node()
    node.tick(prepare("t", G1, START))
    node.tick(us=10)
    assert node.told(commit("t", G1, LATER)) == []
    assert node.state() == "PREPARED"
    ((_, body),) = node.tick(us=20)
    assert body.status == TableStatus("t", G1, TableState.REPLICATING, LATER)
    assert node.executor.writing() == {"t"}


def test_until_it_replicates_it_is_prepared():
    node = Node()
    node.tick(prepare("t", G1))
    node.tick(us=10)
    node.tick(commit("t", G1))
    (status,) = node.listed(("t", G1)).tables
    assert status.state is TableState.PREPARED


@pytest.mark.parametrize("again", [prepare, commit])
def test_a_request_that_comes_again_is_answered_and_changes_nothing(again):
    node = Node().replicating()
    node.data = 500
    assert node.told(again("t", G1, START)) == [("t", G1, "REPLICATING")]
    assert node.executor.status("t").progress.checkpoint == 500


def test_a_second_request_while_one_is_under_way_is_not_obeyed():
    """It is answered with what is; v3 says nothing."""
    node = Node()
    node.tick(prepare("t", G1))
    assert node.told(prepare("t", G2)) == [("t", G1, "PREPARING")]
    assert node.told(commit("t", G1)) == [("t", G1, "PREPARING")]
    assert node.told(us=10) == [("t", G1, "PREPARED")]
    assert node.told(us=100) == [], "the commit came too early, and is not kept"


def test_a_commit_on_an_absent_table_starts_nothing():
    """v3 runs the whole lifecycle."""
    node = Node(Durations())
    assert node.told(commit("t", G1)) == [("t", G1, "ABSENT")]
    assert node.told(prepare("t", G1)) == [("t", G1, "ABSENT")], "it has said that it will not"
    assert node.state() == "ABSENT"


def test_a_commit_of_another_assignment_starts_nothing():
    node = Node(Durations())
    node.tick(prepare("t", G2))
    assert node.told(commit("t", G1)) == [("t", G2, "PREPARED")]
    assert node.told(commit("t", G3)) == [("t", G2, "PREPARED")]
    assert node.executor.writing() == set()


# --- removing ---


def test_a_table_is_stopping_until_it_has_stopped():
    node = Node().replicating()
    node.data = 700
    node.tick()
    assert node.told(remove("t", G1)) == [("t", G1, "STOPPING")]
    assert node.executor.writing() == {"t"}, "it is still flushing"
    assert node.told(us=29) == []
    ((_, body),) = node.tick(us=1)
    assert body.status == TableStatus("t", G1, TableState.STOPPED, Progress(700, 700))
    assert node.executor.all_tables() == set()
    assert node.agent.tables() == []


@pytest.mark.parametrize("us", [0, 10])
def test_a_table_that_was_never_committed_is_removed(us):
    node = Node(SLOW._replace(stop_us=0))
    node.tick(prepare("t", G1))
    node.tick(us=us)
    assert ("t", G1, "STOPPED") in node.told(remove("t", G1))
    assert node.executor.all_tables() == set()


def test_a_removal_that_comes_again_is_answered():
    node = Node().replicating()
    node.tick(remove("t", G1))
    assert node.told(remove("t", G1)) == [("t", G1, "STOPPING")]
    assert node.told(us=30) == [("t", G1, "STOPPED")]
    assert node.told(remove("t", G1)) == [("t", G1, "ABSENT")]


def test_the_removal_of_an_earlier_assignment_ends_nothing():
    node = Node().replicating(G2)
    assert node.told(remove("t", G1)) == [("t", G2, "REPLICATING")]
    assert node.told(remove("t", G3)) == [("t", G2, "STOPPING")]


def test_a_removal_that_overtakes_the_preparation_keeps_it_from_starting():
    """v3 drops it, and then the table runs where nobody wants it."""
    node = Node(Durations())
    assert node.told(remove("t", G1)) == [("t", G1, "ABSENT")]
    assert node.told(prepare("t", G1)) == [("t", G1, "ABSENT")]
    assert node.told(prepare("t", G2)) == [("t", G2, "PREPARED")]


def test_what_is_stopping_is_not_added_again():
    node = Node().replicating()
    node.tick(remove("t", G1))
    assert node.told(prepare("t", G2)) == [("t", G1, "STOPPING")]
    assert node.told(commit("t", G1)) == [("t", G1, "STOPPING")]
    node.tick(us=30)
    node.tick(prepare("t", G2))
    assert node.told(us=10) == [("t", G2, "PREPARED")]


def test_the_answer_that_it_has_stopped_can_be_lost():
    """v3 sends its last progress once; here whoever asks hears it."""
    node = Node().replicating()
    node.data = 700
    node.tick()
    node.tick(remove("t", G1))
    node.tick(us=30)  # and nobody heard that it has stopped
    (status,) = node.listed(("t", G1)).tables
    assert status == TableStatus("t", G1, TableState.ABSENT, Progress(700, 700))
