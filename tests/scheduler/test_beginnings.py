"""Where tables begin, who is an owner, and watermarks that are not stored yet."""

import pytest
from simulated_captures import Durations, SimulatedExecutor

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import CANNOT_PROCEED, Agent, Cluster, Coordinator, KnownOwner
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    Envelope,
    Header,
    MessageVerdict,
    Sync,
)

BOTH, ONE = {"t": 1.0, "u": 1.0}, {"u": 1.0}


class Pair:
    """An owner, an agent, and a store that never gets what the owner tells."""

    def __init__(self, stop_us=0):
        self.source = {"t": 100, "u": 100}
        self.executor = SimulatedExecutor(
            source=self.source.__getitem__, durations=lambda table: Durations(stop_us=stop_us)
        )
        self.agent = Agent("c1", self.executor, epoch=3, owner=KnownOwner("o", 9))
        self.owner = Coordinator("o", "c1", revision=9)
        self.now, self.inbox = 0, []

    def tick(self, tables, stored=10, **seen):
        """Let time pass for both; return what the owner wants done."""
        self.now += 50_000
        self.executor.now = self.now
        cluster = Cluster(self.now, {"c1": 3}, tables, stored, 9, **seen)
        said = self.owner.tick(self.inbox, cluster)
        self.inbox = self.agent.tick(said.messages)
        return said


def test_a_table_begins_once_all_that_was_told_is_stored():
    """Before, what is stored later would be beyond where it began.

    And a deposed owner stores nothing: what it began beyond would lack what is between.
    """
    pair = Pair()
    told = [pair.tick(ONE).watermarks.checkpoint for _ in range(12)]
    assert told[-1] == 100, "so far it is, and 10 is stored"
    both = dict(BOTH)
    for stored in (10, 10, 10, 99):
        assert pair.tick(both, stored).watermarks.checkpoint == 100, "told until it is stored"
        assert "t" not in pair.owner.replication.sets
    pair.tick(both, stored=100)
    assert pair.owner.replication.sets["t"].progress.checkpoint == 100


@pytest.mark.parametrize("is_later", [False, True])
def test_a_table_with_a_checkpoint_of_its_own_begins_there(is_later):
    """The stored one stays, and says nothing of that table until it has passed it."""
    pair, floors = Pair(), {"t": 40}
    pair.source["t"] = 60
    if is_later:
        for _ in range(12):
            pair.tick(ONE, stored=100)
    both = dict(BOTH)
    pair.tick(both, stored=100, floors=floors)
    told = [pair.tick(both, stored=100, floors=floors).watermarks.checkpoint for _ in range(12)]
    assert pair.owner.replication.sets["t"].progress.checkpoint == 60
    assert (told[-1], pair.owner.progress.behind) == (100, 60)
    pair.source.update(t=120, u=130)
    told = [pair.tick(both, stored=100, floors=floors).watermarks.checkpoint for _ in range(12)]
    assert (told[-1], pair.owner.progress.behind) == (120, 0)


@pytest.mark.parametrize(("table", "floor"), [("", 1), ("t", -1), ("t", 1.5)])
def test_a_floor_is_a_timestamp_of_a_table(table, floor):
    with pytest.raises(InvalidArgumentError, match=r"non-empty text|integer >= 0"):
        Pair().tick(BOTH, floors={table: floor})


@pytest.mark.parametrize("ticks", range(4))
def test_watermarks_do_not_go_back_while_a_store_is_late(ticks):
    """A table that is wanted again while it is being removed is where it was then."""
    pair = Pair(stop_us=2_000_000)
    both, one, again = dict(BOTH), dict(ONE), dict(BOTH)
    told = [pair.tick(both).watermarks for _ in range(12)]
    pair.source["u"] = 200
    told += [pair.tick(one).watermarks for _ in range(10 + ticks)]
    assert told[-1].checkpoint == 200
    told += [pair.tick(again).watermarks for _ in range(10)]
    assert told[-1].checkpoint == 200, "t is at 100, and 200 may be stored by now"
    known = [each.checkpoint for each in told if each != CANNOT_PROCEED]
    assert known == sorted(known)
    told = [pair.tick(again, stored=200).watermarks for _ in range(2)]
    assert told[-1].checkpoint == 200


def test_nobody_becomes_an_owner_by_what_captures_say():
    """A process may have one name for its owner and its capture: then each reads all."""
    agent = Agent("c2", SimulatedExecutor(), epoch=4, owner=KnownOwner("old", 5))
    assert agent.tick([Envelope(Header("c3", "c2", 9, 4, 0), Sync("1", ()))]) == []
    assert agent.owner == KnownOwner("old", 5)
    assert agent.refused == {MessageVerdict.NOT_FOR_US: 1}
    (answer,) = agent.tick([Envelope(Header("c2", "c2", 9, 4, 0), Announce("1"))])
    assert (answer.header.to, answer.body) == ("c2", Sync("1", ()))
