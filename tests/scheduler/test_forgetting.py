"""An agent remembers some tables that ended one by one, and of the others the newest token."""

import pytest
from simulated_captures import Durations

from cdcmeta.scheduler import Progress, Token, agent
from cdcmeta.scheduler.protocol.messages import DispatchTableResponse

from .node import Node
from .speaking import asks, commit, prepare, remove, statuses

KEPT = 4


@pytest.fixture
def node(monkeypatch):
    monkeypatch.setattr(agent, "ENDED_MAX", KEPT)
    return Node(Durations())


def lived(node, first, last):
    """Let a table live and end for each number."""
    for number in range(first, last + 1):
        table, token = f"t{number}", Token(9, number)
        node.tick(prepare(table, token))
        node.tick(commit(table, token))
        assert statuses(node.tick(remove(table, token)))[-1] == (table, token, "STOPPED")


def test_it_keeps_a_bounded_number_of_tables(node):
    for number in range(1, 200):
        lived(node, number, number)
        node.tick(asks())
        assert len(node.agent._kept) <= KEPT


def test_nothing_starts_that_could_have_ended(node):
    lived(node, 1, 5)
    node.tick(asks())
    for table in ("t1", "t3", "never heard of"):
        assert node.told(prepare(table, Token(9, 3))) == [(table, Token(9, 3), "ABSENT")]
        assert node.told(commit(table, Token(9, 3))) == [(table, Token(9, 3), "ABSENT")]
    assert node.told(prepare("t5", Token(9, 5))) == [("t5", Token(9, 5), "ABSENT")]
    assert list(node.executor.all_tables()) == []


def test_later_tokens_start(node):
    lived(node, 1, 5)
    node.tick(asks())
    assert node.told(prepare("t1", Token(9, 4))) == [("t1", Token(9, 4), "PREPARED")]
    assert node.told(prepare("new", Token(9, 6))) == [("new", Token(9, 6), "PREPARED")]


def test_what_is_here_goes_on(node):
    node.tick(prepare("old", Token(9, 1)))
    lived(node, 2, 7)
    node.tick(asks())
    assert node.told(commit("old", Token(9, 1))) == [("old", Token(9, 1), "REPLICATING")]


def test_a_table_that_outlived_later_ones_is_remembered_by_its_own_token(node):
    node.tick(prepare("old", Token(9, 1)))
    lived(node, 2, 7)
    node.tick(asks())
    node.tick(remove("old", Token(9, 1)))
    assert node.told(prepare("old", Token(9, 1))) == [("old", Token(9, 1), "ABSENT")]
    assert node.told(prepare("old", Token(9, 2))) == [("old", Token(9, 2), "PREPARED")]


def test_asking_about_what_is_forgotten_says_absent(node):
    lived(node, 1, 5)
    node.tick(asks())
    ((table, token, state, progress),) = node.listed(("t1", Token(9, 1))).tables
    assert (table, token, state.name, progress) == ("t1", Token(9, 1), "ABSENT", Progress())


def test_errors_are_forgotten_with_the_table(node, monkeypatch):
    def failing(*arguments, **options):
        raise OSError("disk")

    monkeypatch.setattr(node.executor, "add_table", failing)
    for number in range(1, 6):
        sent = node.tick(prepare(f"t{number}", Token(9, number)))
        assert isinstance(sent[-1].body, DispatchTableResponse)
    assert len(node.agent.failures) == 5
    node.tick(asks())
    assert set(node.agent.failures) == {"t4", "t5"}
