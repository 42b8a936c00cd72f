"""Facts 2.4: somebody asks for a capture to be emptied, or a capture is about to leave."""

import pytest

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import AddRequest, Limits, RemoveRequest, TableState, Token
from cdcmeta.scheduler.protocol.messages import Heartbeat

from .cluster import SimCluster
from .speaking import Owner, beat, from_capture, requests, says, sync

EPOCHS = {"c0": 3, "c1": 4, "c2": 5}


def owner_of(held: dict[str, list[str]], **options) -> Owner:
    """Return an owner whose captures replicate tables; c0 is on its own process."""
    tables = [table for tables in held.values() for table in tables]
    epochs = {name: EPOCHS[name] for name in held}
    owner = Owner(epochs, tables, **options)
    told = [
        from_capture(
            name,
            sync(*(says(table, TableState.REPLICATING, Token(8, 1)) for table in tables)),
            epoch=EPOCHS[name],
        )
        for name, tables in held.items()
    ]
    owner.tick(*told)
    return owner


def prepared_on(sent) -> dict[str, str]:
    return {request.table: to for to, request in sent if isinstance(request, AddRequest)}


def heartbeats(tick) -> dict[str, bool]:
    """Return whom the owner tells to leave."""
    return {h.to: body.is_stopping for h, body in tick.messages if isinstance(body, Heartbeat)}


def test_a_capture_is_emptied():
    owner = owner_of({"c0": ["a", "d"], "c1": ["b", "c"], "c2": ["e"]})
    assert owner.coordinator.drain("c1") == 2
    assert prepared_on(requests(owner.tick())) == {"b": "c2", "c": "c0"}
    assert owner.coordinator.drain("c1") == 2, "it replicates them until others are prepared"


def test_before_the_captures_have_told_there_is_no_count():
    owner = Owner(EPOCHS, [])
    owner.tick()
    assert owner.coordinator.drain("c1") == 1
    assert owner.coordinator.drain("c9") == 1, "who there is is not known for sure yet"


def test_an_empty_capture_is_done_at_once_and_gets_nothing():
    """In TiCDC it is as if nobody had asked, and it may be given tables the moment after."""
    owner = owner_of({"c0": ["a"], "c1": []})
    assert owner.coordinator.drain("c1") == 0
    assert heartbeats(owner.tick(us=200_000)) == {"c0": False, "c1": True}
    owner.tables = {**owner.tables, "new": 1.0}
    assert prepared_on(requests(owner.tick())) == {"new": "c0"}


def test_a_capture_that_is_not_there_is_not_emptied():
    owner = owner_of({"c0": ["a"], "c1": ["b"]})
    with pytest.raises(InvalidArgumentError, match="c9"):
        owner.coordinator.drain("c9")


def test_the_last_capture_is_not_emptied():
    owner = owner_of({"c1": ["a", "b"]})
    with pytest.raises(InvalidArgumentError, match="last"):
        owner.coordinator.drain("c1")
    tick = owner.tick(us=200_000)
    assert requests(tick) == []
    assert heartbeats(tick) == {"c1": False}


def test_the_owners_own_capture_is_not_emptied():
    owner = owner_of({"c0": ["a", "b"], "c1": ["c"]})
    with pytest.raises(InvalidArgumentError, match="owner's own"):
        owner.coordinator.drain("c0")
    tick = owner.tick(us=200_000)
    assert requests(tick) == []
    assert heartbeats(tick) == {"c0": False, "c1": False}


def test_one_capture_is_emptied_at_a_time():
    owner = owner_of({"c0": ["a"], "c1": ["b"], "c2": ["c"]})
    assert owner.coordinator.drain("c1") == 1
    assert owner.coordinator.drain("c2") == 1
    tick = owner.tick(us=200_000)
    assert set(prepared_on(requests(tick))) == {"b"}
    assert heartbeats(tick) == {"c0": False, "c1": True, "c2": False}


def test_a_capture_that_is_emptied_gets_nothing_new():
    owner = owner_of({"c0": ["a", "d"], "c1": ["b"], "c2": ["e", "f"]})
    owner.coordinator.drain("c1")
    owner.tables = {**owner.tables, "new": 1.0}
    assert prepared_on(requests(owner.tick()))["new"] == "c0"


def test_a_capture_that_is_about_to_leave_is_emptied_without_being_asked():
    owner = owner_of({"c0": ["a"], "c1": ["b"], "c2": []})
    told = beat(says("b", TableState.REPLICATING, Token(8, 1)), is_stopping=True)
    assert prepared_on(requests(owner.tick(from_capture("c1", told, epoch=4)))) == {"b": "c2"}


def test_as_many_tables_move_at_a_time_as_may():
    held = {name: [f"{name}-t{n}" for n in range(7)] for name in EPOCHS}
    owner = owner_of(held, limits=Limits(moves_in_flight=3))
    owner.coordinator.drain("c1")
    assert prepared_on(requests(owner.tick())) == {
        "c1-t0": "c0",
        "c1-t1": "c2",
        "c1-t2": "c0",
    }
    assert requests(owner.tick()) == []


def test_nothing_is_removed_before_another_has_prepared():
    owner = owner_of({"c0": ["a"], "c1": ["b"]})
    owner.coordinator.drain("c1")
    assert [to for to, _ in requests(owner.tick())] == ["c0"]
    token = owner.coordinator.replication.held["c0"]["b"]
    prepared = says("b", TableState.PREPARED, token)
    ((to, request),) = requests(owner.tick(from_capture("c0", beat(prepared))))
    assert (to, request) == ("c1", RemoveRequest("b", Token(8, 1)))


def test_a_capture_empties_to_the_last_table_and_gets_none_back():
    cluster = SimCluster(3, {f"t{n}": 1.0 for n in range(30)})
    cluster.run(cluster.is_replicating, ticks_max=40)
    coordinator = cluster.owner.coordinator
    assert coordinator.drain("c1") == 10
    cluster.run(lambda: coordinator.drain("c1") == 0, ticks_max=100)
    cluster.run(lambda: not cluster.nodes["c1"].agent.tables(), ticks_max=20)
    assert cluster.nodes["c1"].agent.is_stopping
    for _ in range(50):
        cluster.tick()
    assert cluster.is_replicating()
    assert cluster.nodes["c1"].agent.tables() == []
    assert [len(cluster.nodes[name].agent.tables()) for name in ("c0", "c2")] == [15, 15]


def test_another_capture_can_be_emptied_after_the_first():
    cluster = SimCluster(3, {f"t{n}": 1.0 for n in range(9)})
    cluster.run(cluster.is_replicating, ticks_max=40)
    coordinator = cluster.owner.coordinator
    for name in ("c1", "c2"):
        assert coordinator.drain(name) > 0
        cluster.run(lambda name=name: coordinator.drain(name) == 0, ticks_max=100)
    assert len(cluster.nodes["c0"].agent.tables()) == 9
