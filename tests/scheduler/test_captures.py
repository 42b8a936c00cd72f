"""Facts 2.1 and 8.4: captures come, tell what they hold, fall silent, leave."""

import pytest

from cdcmeta.scheduler import Limits, TableState, Token
from cdcmeta.scheduler.owner.cluster import CaptureManager, CaptureState, is_settled
from cdcmeta.scheduler.protocol.messages import Announce, Heartbeat, MessageVerdict

from .speaking import Owner, announced, beat, from_capture, requests, says, sync

MUTE_US = 1_000
STOP_US = 5_000
OLD = Token(8, 1)


def manager(**epochs):
    made = CaptureManager(9, MUTE_US, STOP_US)
    made.update(epochs, 0)
    return made


# --- captures that do not stop a table ---


def test_captures_that_do_not_stop_a_table_are_evicted_one_at_a_time():
    captures = manager(a=3, b=4)
    assert captures.broken(["b", "a"], 100) == ["b"]
    assert captures.broken(["a", "b"], 200) == ["b"], "until it is gone"
    captures.update({"a": 3, "b": 9}, 300)
    assert captures.broken(["a"], 100 + STOP_US - 1) == []
    assert captures.broken(["a"], 100 + STOP_US) == ["a"]


def test_a_capture_that_stops_its_table_late_is_evicted_no_more():
    captures = manager(a=3)
    assert captures.broken(["a"], 100) == ["a"]
    assert captures.broken([], 200) == []
    assert captures.broken(["a"], 300) == ["a"], "it is still the last one"


def test_only_registered_captures_are_evicted():
    assert manager(a=3).broken(["x"], 100) == []


# --- the manager alone ---


def test_a_capture_that_registers_has_told_nothing():
    captures = manager(a=3)
    assert captures.known["a"].state is CaptureState.UNINITIALIZED
    assert not captures.has_synced("a")
    assert captures.targets() == []


def test_a_capture_that_has_told_what_it_holds_can_take_tables():
    captures = manager(b=4, a=3, c=5)
    captures.heard("b", is_stopping=False)
    captures.heard("a", is_stopping=False)
    assert captures.known["a"].state is CaptureState.INITIALIZED
    assert captures.targets() == ["a", "b"]


@pytest.mark.parametrize("has_told_before", [False, True])
def test_there_is_no_way_back_from_stopping(has_told_before):
    captures = manager(a=3)
    if has_told_before:
        captures.heard("a", is_stopping=False)
    captures.heard("a", is_stopping=True)
    captures.heard("a", is_stopping=False)
    assert captures.known["a"].state is CaptureState.STOPPING
    assert captures.has_synced("a"), "one that stops has told, too"
    assert captures.targets() == []


def test_only_a_new_registration_begins_anew():
    captures = manager(a=3, b=4)
    captures.heard("a", is_stopping=True)
    assert captures.update({"a": 3, "b": 4}, 2) == []
    assert captures.known["a"].state is CaptureState.STOPPING
    assert captures.update({"a": 12, "b": 4}, 3) == ["a"]
    assert captures.known["a"].state is CaptureState.UNINITIALIZED
    assert captures.known["a"].epoch == 12


def test_a_capture_that_is_not_registered_any_more_is_forgotten():
    captures = manager(a=3, b=4)
    assert captures.update({"b": 4}, 1) == ["a"]
    assert list(captures.known) == ["b"]
    assert captures.update({"b": 4}, 2) == []


def test_all_must_tell_before_anything_is_scheduled():
    captures = manager(a=3, b=4)
    assert not captures.may_initialize(0)
    captures.heard("a", is_stopping=False)
    assert not captures.may_initialize(1)
    captures.heard("b", is_stopping=True)
    assert captures.may_initialize(2)


def test_without_captures_nothing_is_scheduled():
    captures = manager()
    assert not captures.may_initialize(10 * MUTE_US)


def test_one_that_says_nothing_is_not_waited_for_beyond_its_time():
    """v3 waits for ever: #7766."""
    captures = manager(a=3, b=4)
    captures.heard("a", is_stopping=False)
    assert not captures.may_initialize(MUTE_US - 1)
    assert captures.may_initialize(MUTE_US)
    assert captures.mute(MUTE_US) == ["b"]


def test_one_that_registers_late_has_its_time_too():
    captures = manager(a=3)
    captures.update({"a": 3, "b": 4}, 700)
    captures.heard("a", is_stopping=False)
    assert not captures.may_initialize(MUTE_US + 699)
    assert captures.may_initialize(MUTE_US + 700)


def test_if_none_tells_anything_nothing_is_scheduled():
    captures = manager(a=3, b=4)
    assert not captures.may_initialize(10 * MUTE_US)
    assert captures.mute(10 * MUTE_US) == ["a", "b"]


def test_the_time_of_each_begins_when_it_is_first_seen():
    captures = manager(a=3)
    captures.heard("a", is_stopping=False)
    captures.asked("a", 0)
    captures.asked("a", 300)  # and has not answered the first time
    captures.update({"a": 3, "b": 12}, 700)
    assert captures.mute(MUTE_US + 699) == ["a"]
    assert captures.mute(MUTE_US + 700) == ["a", "b"]
    captures.heard("a", is_stopping=False)
    assert captures.mute(MUTE_US + 700) == ["b"], "nobody asks a any more"


@pytest.mark.parametrize(
    ("epochs", "heard", "settled"),
    [
        ({}, [], True),
        ({"a": 3}, [], False),
        ({"a": 3}, ["a"], True),
        ({"a": 3, "b": 4}, ["a"], False),
        ({"a": 3, "b": 10}, ["a"], True),  # b knew of the owner (9) when it began
        ({"b": 10}, [], True),
        ({"a": 9}, [], False),  # the election's own revision is not after it
    ],
)
def test_who_could_hold_what_an_owner_does_not_know_of(epochs, heard, settled):
    assert is_settled(epochs, heard, revision=9) is settled
    captures = manager(**epochs)
    for name in heard:
        captures.heard(name, is_stopping=False)
    assert captures.is_settled is settled


# --- an owner and its captures ---


def hears_only(owner, capture):
    """Let as much time pass as others may be silent; return what the owner wants at last."""
    for _ in range(3):
        assert owner.tick(from_capture(capture, beat()), us=MUTE_US // 4).evict == []
    return owner.tick(from_capture(capture, beat()), us=MUTE_US // 4)


def test_a_new_capture_is_asked_at_once():
    owner = Owner({"a": 3}, [])
    assert announced(owner.tick()) == ["a"]
    assert announced(owner.tick()) == []
    owner.alive["b"] = 4
    assert announced(owner.tick()) == ["b"]


def test_who_does_not_answer_is_asked_again_in_each_round():
    owner = Owner({"a": 3, "b": 4}, [], limits=Limits(heartbeat_every_us=5_000))
    assert announced(owner.tick()) == ["a", "b"]
    owner.tick(from_capture("a", sync()))
    rounds = [announced(owner.tick()) for _ in range(20)]
    assert [each for each in rounds if each] == [["b"]] * 4


def test_who_has_told_is_sent_heartbeats_whatever_its_state():
    owner = Owner({"a": 3, "b": 4}, [], limits=Limits(heartbeat_every_us=1))
    owner.tick(from_capture("a", sync(is_stopping=True)), from_capture("b", sync(), epoch=4))
    bodies = {header.to: body for header, body in owner.tick().messages}
    brief = Heartbeat((), number=2, is_full=False)
    assert bodies == {"a": brief, "b": brief}


def test_nothing_is_placed_before_all_have_told():
    owner = Owner({"a": 3, "b": 4}, ["t"])
    assert requests(owner.tick(from_capture("a", sync()))) == []
    assert not owner.coordinator.captures.is_initialized
    held = says("t", TableState.REPLICATING, OLD)
    assert requests(owner.tick(from_capture("b", sync(held), epoch=4))) == []
    assert owner.coordinator.captures.is_initialized
    assert owner.coordinator.replication.sets["t"].primary.capture == "b"


def test_what_was_told_is_forgotten_when_its_capture_ends_before_the_others_tell():
    owner = Owner({"a": 3, "b": 4}, ["t"])
    owner.tick(from_capture("b", sync(says("t", TableState.REPLICATING, OLD)), epoch=4))
    del owner.alive["b"]
    ((to, request),) = requests(owner.tick(from_capture("a", sync())))
    assert (to, request.is_prepare) == ("a", True)


def test_what_a_capture_says_before_it_told_all_does_not_count():
    owner = Owner({"a": 3}, ["t"])
    owner.tick()
    owner.tick(from_capture("a", beat(says("t", TableState.REPLICATING, OLD))))
    assert not owner.coordinator.captures.has_synced("a")
    assert not owner.coordinator.captures.is_initialized


def test_a_second_sync_does_not_count():
    """It was doubled, or late: the reports since then know more."""
    owner = Owner({"a": 3}, ["t"])
    ((_, request),) = requests(owner.tick(from_capture("a", sync())))
    held = says("t", TableState.PREPARED, request.token)
    requests(owner.tick(from_capture("a", beat(held))))
    before = owner.coordinator.replication.sets["t"]
    old = sync(says("t", TableState.REPLICATING, OLD))
    assert requests(owner.tick(from_capture("a", old))) == []
    assert owner.coordinator.replication.sets["t"] == before


def test_a_mute_capture_does_not_freeze_the_others():
    """v3: one node that holds its lease and says nothing stops scheduling and failover."""
    owner = Owner({"a": 3, "b": 4}, ["t"], limits=Limits(mute_us=MUTE_US))
    tick = owner.tick(from_capture("a", sync()), us=1)
    assert (requests(tick), tick.evict) == ([], [])
    tick = hears_only(owner, "a")
    assert tick.evict == [("b", 4)], "its registration is to be taken away, so that it ends"
    ((to, request),) = requests(tick)
    assert (to, request.is_prepare) == ("a", True)
    # it is of an earlier owner's time: until it has ended it may write the table
    prepared = beat(says("t", TableState.PREPARED, request.token))
    assert requests(owner.tick(from_capture("a", prepared))) == []
    del owner.alive["b"]
    owner.tick()
    ((to, request),) = requests(owner.tick(from_capture("a", prepared)))
    assert (to, request.is_prepare) == ("a", False)


def test_a_mute_capture_that_wakes_up_keeps_what_it_writes():
    owner = Owner({"a": 3, "b": 4}, ["t"], limits=Limits(mute_us=MUTE_US))
    owner.tick(from_capture("a", sync()), us=1)
    assert hears_only(owner, "a").evict == [("b", 4)]
    late = sync(says("t", TableState.REPLICATING, OLD))
    owner.tick(from_capture("b", late, epoch=4))
    assert owner.coordinator.replication.sets["t"].primary.capture == "b"


def test_a_capture_that_falls_silent_later_is_evicted_and_does_not_stop_the_others():
    owner = Owner({"a": 3, "b": 12}, ["t"], limits=Limits(mute_us=MUTE_US))
    owner.tick(from_capture("a", sync()), from_capture("b", sync(), epoch=12), us=1)
    owner.tables["u"] = 1.0
    owner.tables = dict(owner.tables)
    ((to, _),) = requests(owner.tick(from_capture("a", beat()), us=1))
    assert to in "ab"
    assert hears_only(owner, "a").evict == [("b", 12)]


def test_a_new_capture_that_says_nothing_does_not_stop_the_others():
    owner = Owner({"a": 3}, ["t"])
    owner.tick(from_capture("a", sync()))
    owner.alive["b"] = 12
    owner.tick()
    owner.tables = {"t": 1.0, "u": 1.0}
    ((to, _),) = requests(owner.tick())
    assert to == "a"


def test_a_capture_that_is_gone_loses_its_tables_at_once():
    """v3 looks at removals only while all captures have told what they hold."""
    owner = Owner({"a": 3, "b": 4}, ["t"])
    held = sync(says("t", TableState.REPLICATING, OLD))
    owner.tick(from_capture("a", held), from_capture("b", sync(), epoch=4))
    del owner.alive["a"]
    owner.alive["c"] = 12
    ((to, request),) = requests(owner.tick())
    assert (to, request.is_prepare) == ("b", True)


def test_a_capture_that_restarted_under_its_name_has_lost_its_tables():
    owner = Owner({"a": 3, "b": 4}, ["t"])
    held = sync(says("t", TableState.REPLICATING, OLD))
    owner.tick(from_capture("a", held), from_capture("b", sync(), epoch=4))
    owner.alive["a"] = 12
    tick = owner.tick(from_capture("a", beat(says("t", TableState.REPLICATING, OLD))))
    ((to, _),) = requests(tick)
    assert to == "b"
    assert owner.coordinator.refused == {MessageVerdict.OTHER_CAPTURE_EPOCH: 1}


def test_a_capture_that_restarted_is_asked_at_once():
    owner = Owner({"a": 3, "b": 4}, [])
    owner.tick(from_capture("a", sync()), from_capture("b", sync(), epoch=4))
    owner.alive["a"] = 12
    assert announced(owner.tick()) == ["a"]
    assert Announce("1") in [body for _, body in owner.tick(us=200_000).messages]


def test_a_capture_that_stops_gets_nothing_new():
    owner = Owner({"a": 3, "b": 4}, ["t0", "t1", "t2"])
    stopping = from_capture("a", sync(is_stopping=True))
    placed = requests(owner.tick(stopping, from_capture("b", sync(), epoch=4)))
    assert [to for to, _ in placed] == ["b"] * 3
