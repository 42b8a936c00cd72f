"""Facts 2.3: who is listened to, on both sides.

Ours is stricter than TiCDC's: versions do not count (no older peer is let through); the epoch of a
capture is the revision of its registration, so heartbeats are checked, too; two owners with one
revision are refused, not a panic.
"""

import pytest
from simulated_captures import SimulatedExecutor

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.scheduler import Agent, Coordinator, KnownOwner, TableState, Token
from cdcmeta.scheduler.core.states import AddRequest
from cdcmeta.scheduler.protocol.messages import (
    Announce,
    DispatchTable,
    DispatchTableResponse,
    Header,
    Heartbeat,
    MessageVerdict,
    Sync,
    agent_accepts,
    owner_accepts,
)

from .speaking import (
    OWNER,
    REVISION,
    START,
    Owner,
    beat,
    from_capture,
    from_owner,
    prepare,
    remove,
    requests,
    says,
    sync,
)

GOOD_FROM_CAPTURE = Header("c1", "owner", owner_revision=9, capture_epoch=3, changefeed_epoch=7)
GOOD_FROM_OWNER = Header("owner", "c1", owner_revision=9, capture_epoch=3, changefeed_epoch=7)
KNOWN = KnownOwner("owner", 9)

# --- the owner's side ---


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, MessageVerdict.ACCEPTED),
        ({"sender": "c2", "capture_epoch": 5}, MessageVerdict.ACCEPTED),
        ({"to": "other"}, MessageVerdict.NOT_FOR_US),
        ({"to": ""}, MessageVerdict.NOT_FOR_US),
        ({"owner_revision": 8}, MessageVerdict.OTHER_OWNER),
        ({"owner_revision": 10}, MessageVerdict.OTHER_OWNER),
        ({"changefeed_epoch": 6}, MessageVerdict.OTHER_CHANGEFEED_EPOCH),
        ({"changefeed_epoch": 8}, MessageVerdict.OTHER_CHANGEFEED_EPOCH),
        ({"sender": "c3"}, MessageVerdict.UNKNOWN_CAPTURE),
        ({"capture_epoch": 2}, MessageVerdict.OTHER_CAPTURE_EPOCH),
        ({"capture_epoch": 4}, MessageVerdict.OTHER_CAPTURE_EPOCH),
        ({"sender": "c2"}, MessageVerdict.OTHER_CAPTURE_EPOCH),
    ],
)
def test_whom_an_owner_listens_to(changed, verdict):
    header = GOOD_FROM_CAPTURE._replace(**changed)
    assert owner_accepts(header, KNOWN, 7, {"c1": 3, "c2": 5}) is verdict


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        ({"to": "another"}, MessageVerdict.NOT_FOR_US),
        ({"revision": REVISION - 1}, MessageVerdict.OTHER_OWNER),
        ({"changefeed": 1}, MessageVerdict.OTHER_CHANGEFEED_EPOCH),
        ({"epoch": 2}, MessageVerdict.OTHER_CAPTURE_EPOCH),
    ],
)
def test_what_an_owner_refuses_changes_nothing(wrong, verdict):
    """All kinds of messages: v3 checks the epoch of responses only."""
    owner = Owner({"c1": 3}, ["t"])
    owner.tick()
    owner.tick(from_capture("c1", sync(), **wrong))
    assert not owner.coordinator.captures.has_synced("c1")
    ((_, request),) = requests(owner.tick(from_capture("c1", sync())))
    prepared = says("t", TableState.PREPARED, request.token)
    for body in (DispatchTableResponse(prepared), beat(prepared, is_stopping=True)):
        assert requests(owner.tick(from_capture("c1", body, **wrong))) == []
    assert owner.coordinator.captures.targets() == ["c1"]
    assert owner.coordinator.refused == {verdict: 3}
    ((_, committed),) = requests(owner.tick(from_capture("c1", beat(prepared))))
    assert not committed.is_prepare


def test_an_owner_does_not_listen_to_a_capture_that_is_not_registered():
    owner = Owner({"c1": 3}, ["t"])
    owner.tick(from_capture("c9", sync()))
    assert owner.coordinator.refused == {MessageVerdict.UNKNOWN_CAPTURE: 1}
    assert list(owner.coordinator.captures.known) == ["c1"]


def test_an_owner_does_not_listen_to_a_capture_before_its_restart():
    owner = Owner({"c1": 3}, ["t"])
    owner.tick(from_capture("c1", sync()))
    owner.alive["c1"] = 12
    late = from_capture("c1", sync(says("t", TableState.REPLICATING, Token(8, 1))))
    tick = owner.tick(late)
    assert owner.coordinator.refused == {MessageVerdict.OTHER_CAPTURE_EPOCH: 1}
    assert not owner.coordinator.captures.has_synced("c1")
    assert {header.capture_epoch for header, _ in tick.messages} <= {12}


def test_an_owner_stamps_the_epoch_of_each_capture():
    """B8: in v3 the epoch is always empty, and fences nothing off."""
    owner = Owner({"c1": 3, "c2": 5}, ["t"], changefeed_epoch=7)
    tick = owner.tick()
    stamps = {header.to: header for header, _ in tick.messages}
    assert stamps == {
        "c1": Header(OWNER, "c1", REVISION, 3, 7),
        "c2": Header(OWNER, "c2", REVISION, 5, 7),
    }


@pytest.mark.parametrize("revision", [0, -1])
def test_an_owner_has_been_elected(revision):
    with pytest.raises(InvalidArgumentError, match="revision"):
        Coordinator(OWNER, "c0", revision=revision)


# --- the agent's side ---


@pytest.mark.parametrize(
    ("known", "changed", "verdict", "then"),
    [
        (KNOWN, {}, MessageVerdict.ACCEPTED, KNOWN),
        (KNOWN, {"to": "c2"}, MessageVerdict.NOT_FOR_US, KNOWN),
        (KNOWN, {"owner_revision": 8}, MessageVerdict.OTHER_OWNER, KNOWN),
        (KNOWN, {"owner_revision": 8, "sender": "old"}, MessageVerdict.OTHER_OWNER, KNOWN),
        # a panic in v3
        (KNOWN, {"sender": "other"}, MessageVerdict.OTHER_OWNER, KNOWN),
        # a newer owner is adopted
        (
            KNOWN,
            {"owner_revision": 10, "sender": "new"},
            MessageVerdict.ACCEPTED,
            KnownOwner("new", 10),
        ),
        (KnownOwner(), {}, MessageVerdict.ACCEPTED, KNOWN),
        # ... even when the message is for an earlier time of the capture or the changefeed
        (
            KNOWN,
            {"owner_revision": 10, "sender": "new", "capture_epoch": 2},
            MessageVerdict.OTHER_CAPTURE_EPOCH,
            KnownOwner("new", 10),
        ),
        (
            KNOWN,
            {"owner_revision": 10, "sender": "new", "changefeed_epoch": 8},
            MessageVerdict.OTHER_CHANGEFEED_EPOCH,
            KnownOwner("new", 10),
        ),
        # ... but not when it is for somebody else
        (KNOWN, {"owner_revision": 10, "to": "c2"}, MessageVerdict.NOT_FOR_US, KNOWN),
        (KNOWN, {"changefeed_epoch": 6}, MessageVerdict.OTHER_CHANGEFEED_EPOCH, KNOWN),
        (KNOWN, {"changefeed_epoch": 8}, MessageVerdict.OTHER_CHANGEFEED_EPOCH, KNOWN),
        # v3 never knows its epoch: B8
        (KNOWN, {"capture_epoch": 2}, MessageVerdict.OTHER_CAPTURE_EPOCH, KNOWN),
        (KNOWN, {"capture_epoch": 4}, MessageVerdict.OTHER_CAPTURE_EPOCH, KNOWN),
        # the revision was known and the name was not: who comes first is the owner
        (KnownOwner("", 9), {}, MessageVerdict.ACCEPTED, KNOWN),
        (KnownOwner("", 9), {"owner_revision": 8}, MessageVerdict.OTHER_OWNER, KnownOwner("", 9)),
    ],
)
def test_whom_an_agent_listens_to(known, changed, verdict, then):
    header = GOOD_FROM_OWNER._replace(**changed)
    assert agent_accepts(header, "c1", 3, 7, known) == (verdict, then)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [
        ({"to": "c2"}, MessageVerdict.NOT_FOR_US),
        ({"revision": REVISION - 1, "name": "old"}, MessageVerdict.OTHER_OWNER),
        ({"name": "other"}, MessageVerdict.OTHER_OWNER),
        ({"epoch": 2}, MessageVerdict.OTHER_CAPTURE_EPOCH),
        ({"changefeed": 1}, MessageVerdict.OTHER_CHANGEFEED_EPOCH),
    ],
)
def test_what_an_agent_refuses_changes_nothing(wrong, verdict):
    """Dispatches, and heartbeats and announcements too, which v3 does not check."""
    executor = SimulatedExecutor()
    agent = Agent("c1", executor, epoch=3, owner=KnownOwner(OWNER, REVISION))
    request = AddRequest("t", Token(9, 1), START, is_prepare=True)
    bodies = (
        DispatchTable(request),
        Heartbeat((("t", Token(9, 1)),), is_stopping=True),
        Announce("1"),
    )
    for body in bodies:
        assert agent.tick([from_owner(body, **wrong)]) == []
    assert agent.refused == {verdict: 3}
    assert (agent.tables(), agent.is_stopping) == ([], False)
    agent.tick([from_owner(DispatchTable(request))])
    assert agent.tables() == ["t"], "and nothing was promised"


def test_an_agent_that_has_heard_of_a_newer_owner_refuses_the_one_before():
    agent = Agent("c1", SimulatedExecutor(), epoch=3, owner=KnownOwner(OWNER, REVISION))
    agent.tick([prepare("t", Token(9, 1))])
    ((header, body),) = agent.tick([from_owner(Announce("1"), name="new", revision=10)])
    assert header == Header("c1", "new", 10, 3, 0)
    assert isinstance(body, Sync)
    assert agent.tick([remove("t", Token(9, 1))]) == []
    assert agent.tables() == ["t"]
    assert agent.refused == {MessageVerdict.OTHER_OWNER: 1}


def test_an_agent_learns_of_a_newer_owner_even_by_a_message_of_another_time():
    agent = Agent("c1", SimulatedExecutor(), epoch=3, owner=KnownOwner(OWNER, REVISION))
    agent.tick([from_owner(Announce("1"), name="new", revision=10, epoch=1)])
    assert agent.tick([prepare("t", Token(9, 1))]) == []
    assert agent.tables() == []
    assert agent.refused == {MessageVerdict.OTHER_CAPTURE_EPOCH: 1, MessageVerdict.OTHER_OWNER: 1}


def test_an_agent_that_knows_the_election_refuses_a_deposed_owner_from_the_start():
    """It reads the owner after it has registered: the older protocol's second promise."""
    agent = Agent("c1", SimulatedExecutor(), epoch=12, owner=KnownOwner("new", 10))
    late = from_owner(Announce("1"), epoch=12)
    assert agent.tick([late]) == []
    assert agent.refused == {MessageVerdict.OTHER_OWNER: 1}


def test_an_agent_answers_the_owner_whose_name_it_did_not_know():
    agent = Agent("c1", SimulatedExecutor(), epoch=3, owner=KnownOwner("", REVISION))
    ((header, _),) = agent.tick([from_owner(Announce("1"))])
    assert header.to == OWNER
    assert agent.tick([from_owner(Announce("1"), name="other")]) == []
