"""What a coordinator makes of its parts: limits that are kept, wishes that are kept, who leaves."""

import pytest

from cdcmeta.scheduler import AddRequest, Limits, RemoveRequest, TableState, Token
from cdcmeta.scheduler.protocol.messages import Heartbeat

from .speaking import Owner, announced, beat, from_capture, requests, says, sync

EPOCHS = {"c0": 3, "c1": 4, "c2": 5}
OLD = Token(8, 1)
REPLICATING, PREPARED = TableState.REPLICATING, TableState.PREPARED


def owner_of(held: dict[str, str], **limits: int) -> Owner:
    """Return an owner whose captures replicate tables; c0 is on its own process."""
    epochs = {name: EPOCHS[name] for name in held}
    owner = Owner(epochs, "".join(held.values()), limits=Limits(**limits))
    assert requests(owner.tick(*(told(name, tables) for name, tables in held.items()))) == []
    return owner


def told(capture: str, tables: str = "", epoch: int | None = None):
    """Return all that a capture holds: it replicates each of the tables."""
    each = (says(table, REPLICATING, OLD) for table in tables)
    return from_capture(capture, sync(*each), epoch=epoch or EPOCHS[capture])


def prepared_on(tick) -> dict[str, str]:
    """Return which tables are to be prepared, and where; nothing else is asked."""
    sent = requests(tick)
    assert all(isinstance(each, AddRequest) and each.is_prepare for _, each in sent), sent
    return {request.table: to for to, request in sent}


def heartbeats(tick) -> dict[str, bool]:
    """Return whom the owner tells to leave."""
    return {h.to: body.is_stopping for h, body in tick.messages if isinstance(body, Heartbeat)}


def moved(owner: Owner, table: str, source: str, target: str) -> dict[str, str]:
    """Let a move come to its end; return what begins then."""
    token = owner.coordinator.replication.held[target][table]

    def hears(capture, state, token):
        told = beat(says(table, state, token))
        return owner.tick(from_capture(capture, told, epoch=EPOCHS[capture]))

    ((to, request),) = requests(hears(target, PREPARED, token))
    assert (to, request) == (source, RemoveRequest(table, OLD))
    ((to, request),) = requests(hears(source, TableState.STOPPED, OLD))
    assert (to, request.is_prepare) == (target, False)
    return prepared_on(hears(target, REPLICATING, token))


# --- limits ---


def test_as_many_tables_are_placed_at_a_time_as_may():
    """`add_batch` is what begins in a tick, `adds_in_flight` what is under way over all of them."""
    owner = Owner({"c0": 3}, "abcdefgh", limits=Limits(add_batch=2, adds_in_flight=3))
    placed = [list(prepared_on(owner.tick(told("c0"))))]
    placed += [list(prepared_on(owner.tick())) for _ in range(4)]
    assert placed == [["a", "b"], ["c"], [], [], []]
    token = owner.coordinator.replication.held["c0"]["b"]
    ((_, request),) = requests(owner.tick(from_capture("c0", beat(says("b", PREPARED, token)))))
    assert (request.table, request.is_prepare) == ("b", False), "it is still being placed"
    assert prepared_on(owner.tick()) == {}
    done = from_capture("c0", beat(says("b", REPLICATING, token)))
    assert [prepared_on(owner.tick(done)), prepared_on(owner.tick())] == [{"d": "c0"}, {}]


def test_as_many_tables_move_at_a_time_as_may_whoever_asked_for_it():
    owner = owner_of({"c0": "abcdef", "c1": "ghijkl"}, moves_in_flight=2)
    for table in "abcde":
        assert owner.coordinator.move(table, "c1")
    begun = [prepared_on(owner.tick()) for _ in range(4)]
    assert begun == [{"a": "c1", "b": "c1"}, {}, {}, {}]
    assert moved(owner, "b", "c0", "c1") == {"c": "c1"}, "one at a time from now on"
    assert moved(owner, "a", "c0", "c1") == {"d": "c1"}
    assert prepared_on(owner.tick()) == {}


def test_a_rebalance_begins_all_at_once():
    owner = owner_of({"c0": "abcdef", "c1": "ghijkl"}, moves_in_flight=1)
    owner.alive["c2"] = EPOCHS["c2"]
    assert prepared_on(owner.tick(told("c2"))) == {}
    owner.coordinator.rebalance()
    assert list(prepared_on(owner.tick()).values()) == ["c2"] * 4


# --- what was asked for while somebody has not told what it holds ---


def test_a_move_to_a_capture_that_has_just_registered_is_done_once_it_has_told():
    owner = owner_of({"c0": "ab", "c1": "cd"})
    owner.alive["c2"] = EPOCHS["c2"]
    assert announced(owner.tick()) == ["c2"]
    assert owner.coordinator.move("a", "c2")
    assert [prepared_on(owner.tick()) for _ in range(3)] == [{}] * 3
    assert prepared_on(owner.tick(told("c2"))) == {"a": "c2"}


def test_a_rebalance_waits_for_a_capture_that_has_just_registered():
    owner = owner_of({"c0": "abc", "c1": "def"})
    owner.alive["c2"] = EPOCHS["c2"]
    owner.tick()
    owner.coordinator.rebalance()
    assert [prepared_on(owner.tick()) for _ in range(3)] == [{}] * 3, "these two are even"
    assert list(prepared_on(owner.tick(told("c2"))).values()) == ["c2", "c2"]


# --- who leaves ---


def test_the_owners_own_capture_is_not_emptied_though_it_says_that_it_leaves():
    """It leaves last: while its process is the owner's, nobody else would place its tables."""
    owner = owner_of({"c0": "ab", "c1": "cd"})
    stops = beat(*(says(table, REPLICATING, OLD) for table in "ab"), is_stopping=True)
    assert requests(owner.tick(from_capture("c0", stops))) == []
    assert [requests(owner.tick()) for _ in range(3)] == [[]] * 3
    owner.tables = {**owner.tables, "new": 1.0}
    assert prepared_on(owner.tick()) == {"new": "c1"}, "and it gets nothing more"


def test_nothing_is_moved_to_a_capture_that_is_being_emptied():
    owner = owner_of({"c0": "a", "c1": "b", "c2": "c"})
    assert owner.coordinator.drain("c1") == 1
    assert not owner.coordinator.move("a", "c1")
    assert prepared_on(owner.tick()) == {"b": "c0"}
    assert not owner.coordinator.move("a", "c1"), "nor while its tables move"
    assert owner.coordinator.move("a", "c2")
    assert prepared_on(owner.tick()) == {"a": "c2"}


def test_who_is_emptied_between_two_rounds_of_heartbeats_gets_nothing_either():
    """It is to leave also where all was over before it could be told."""
    owner = owner_of({"c0": "ab", "c1": "c"}, heartbeat_every_us=1_000_000)
    assert owner.coordinator.drain("c1") == 1
    assert prepared_on(owner.tick()) == {"c": "c0"}
    assert moved(owner, "c", "c1", "c0") == {}
    assert owner.coordinator.drain("c1") == 0
    owner.coordinator.rebalance()
    assert prepared_on(owner.tick()) == {}
    owner.tables = {**owner.tables, "new": 1.0}
    assert prepared_on(owner.tick()) == {"new": "c0"}
    assert not owner.coordinator.move("a", "c1")
    assert heartbeats(owner.tick(us=1_000_000)) == {"c0": False, "c1": True}


def test_who_comes_back_under_its_name_is_not_told_to_leave():
    """Also while the tables that it had are still being placed, two in each tick."""
    owner = owner_of(
        {"c0": "abcd", "c1": "efghi"}, add_batch=2, moves_in_flight=1, heartbeat_every_us=1
    )
    owner.coordinator.drain("c1")
    tick = owner.tick()
    assert (prepared_on(tick), heartbeats(tick)) == ({"e": "c0"}, {"c0": False, "c1": True})
    owner.alive["c1"] = 12
    tick = owner.tick()
    assert (prepared_on(tick), announced(tick)) == ({"f": "c0", "g": "c0"}, ["c1"])
    tick = owner.tick(told("c1", epoch=12))
    assert heartbeats(tick) == {"c0": False, "c1": False}
    assert prepared_on(tick) == {"h": "c1", "i": "c1"}, "it may have tables again"


# --- who was mute ---


@pytest.mark.parametrize("state", [REPLICATING, PREPARED, TableState.PREPARING])
def test_what_nobody_wants_is_removed_also_from_who_was_mute(state):
    """Nobody knew of the table when the tables were looked at last."""
    owner = Owner({"c0": 3, "c1": 4}, "t", limits=Limits(mute_us=1_000))
    owner.tick(told("c0"), us=1)
    for _ in range(4):
        tick = owner.tick(from_capture("c0", beat()), us=250)
    assert prepared_on(tick) == {"t": "c0"}, "the others go on without c1"
    late = from_capture("c1", sync(says("gone", state, OLD)), epoch=4)
    sent = [*requests(owner.tick(late)), *requests(owner.tick())]
    assert set(sent) == {("c1", RemoveRequest("gone", OLD))}
    ended = from_capture("c1", beat(says("gone", TableState.STOPPED, OLD)), epoch=4)
    assert requests(owner.tick(ended)) == []
    assert "gone" not in owner.coordinator.replication.sets
