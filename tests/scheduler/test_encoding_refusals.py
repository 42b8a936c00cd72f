"""What is not encoded, and not decoded: the same on both sides, told in little space."""

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import InvalidMessageError
from cdcmeta.scheduler.core import states
from cdcmeta.scheduler.protocol import encoding, messages

from .wire import (
    HEADER,
    asked,
    barriers,
    bodies,
    envelope_of,
    headers,
    names,
    numbers,
    requests,
    statuses,
    tokens,
)

# --- what cannot be encoded ---

GOOD = states.TableStatus(
    "t", states.Token(9, 2), states.TableState.REPLICATING, states.Progress(1, 2, 3)
)
TOKEN, PROGRESS = GOOD.token, GOOD.progress


def is_not_encoded(envelope):
    with pytest.raises(InvalidMessageError) as caught:
        encoding.encode(envelope)
    assert type(caught.value) is InvalidMessageError
    assert len(str(caught.value)) < 200


BAD_NAMES = ["", "\ud800", None, 5, b"t", ("t",), ["t"], type("Text", (str,), {})("t")]
BAD_NUMBERS = [-1, 1 << 63, 1 << 64, 10**5000, 1.0, float("nan"), True, None, "1", (1,), [1]]


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names_that_are_none(name):
    announce = messages.Announce("1")
    is_not_encoded(envelope_of(announce, sender=name))
    is_not_encoded(envelope_of(announce, to=name))
    status = GOOD._replace(table=name)
    is_not_encoded(envelope_of(messages.Sync("1", (GOOD, status))))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((status, GOOD))))
    is_not_encoded(envelope_of(messages.DispatchTableResponse(status)))
    is_not_encoded(envelope_of(messages.Heartbeat(((name, TOKEN),))))
    is_not_encoded(envelope_of(messages.Heartbeat((), messages.Barrier(1, ((name, 1),)))))
    is_not_encoded(envelope_of(messages.DispatchTable(states.RemoveRequest(name, TOKEN))))
    add = states.AddRequest(name, TOKEN, PROGRESS, True)
    is_not_encoded(envelope_of(messages.DispatchTable(add)))


@pytest.mark.parametrize(
    "number", BAD_NUMBERS, ids=lambda number: str(number)[:9] if number != 10**5000 else "huge"
)
def test_numbers_that_are_none(number):
    for part in ("owner_revision", "capture_epoch", "changefeed_epoch"):
        is_not_encoded(envelope_of(messages.Announce("1"), **{part: number}))
    for token in (TOKEN._replace(owner=number), TOKEN._replace(number=number)):
        is_not_encoded(envelope_of(messages.HeartbeatResponse((GOOD._replace(token=token),))))
        is_not_encoded(envelope_of(messages.Heartbeat((("t", token),))))
        is_not_encoded(envelope_of(messages.DispatchTable(states.RemoveRequest("t", token))))
    for part in states.Progress._fields:
        progress = PROGRESS._replace(**{part: number})
        is_not_encoded(envelope_of(messages.Sync("1", (GOOD._replace(progress=progress),))))
        add = states.AddRequest("t", TOKEN, progress, True)
        is_not_encoded(envelope_of(messages.DispatchTable(add)))
    for barrier in (messages.Barrier(number), messages.Barrier(1, (("t", number),))):
        is_not_encoded(envelope_of(messages.Heartbeat((), barrier)))
    is_not_encoded(envelope_of(messages.Heartbeat((), number=number)))


@pytest.mark.parametrize("version", [5, None, b"1", object, "\ud800", ("1",)], ids=repr)
def test_versions_that_are_no_text(version):
    is_not_encoded(envelope_of(messages.Announce(version)))
    is_not_encoded(envelope_of(messages.Sync(version, ())))


@pytest.mark.parametrize(
    "state", [4, 9, None, "REPLICATING", states.SetState.REPLICATING, states.Role.PRIMARY]
)
def test_states_that_are_none(state):
    """Also those that are equal to one: `SetState.REPLICATING == 4 == TableState.REPLICATING`."""
    status = GOOD._replace(state=state)
    is_not_encoded(envelope_of(messages.DispatchTableResponse(status)))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((status,))))


@pytest.mark.parametrize("flag", [0, 1, None, "yes"])
def test_flags_that_are_none(flag):
    is_not_encoded(envelope_of(messages.Sync("1", (), flag)))
    is_not_encoded(envelope_of(messages.Heartbeat((), is_stopping=flag)))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((), flag)))
    add = states.AddRequest("t", TOKEN, PROGRESS, flag)
    is_not_encoded(envelope_of(messages.DispatchTable(add)))


@pytest.mark.parametrize("part", [None, 5, "xy", {}, {1: 2, 3: 4}, [9, 2], (9,), (1, 2, 3, 4)])
def test_parts_that_are_none(part):
    is_not_encoded(messages.Envelope(part, messages.Announce("1")))
    is_not_encoded(envelope_of(messages.Sync("1", part)))
    is_not_encoded(envelope_of(messages.HeartbeatResponse(part)))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((part,))))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((GOOD._replace(token=part),))))
    is_not_encoded(envelope_of(messages.HeartbeatResponse((GOOD._replace(progress=part),))))
    is_not_encoded(envelope_of(messages.Heartbeat(part)))
    is_not_encoded(envelope_of(messages.Heartbeat((part,))))
    is_not_encoded(envelope_of(messages.Heartbeat((), part)))
    is_not_encoded(envelope_of(messages.Heartbeat((), messages.Barrier(1, part))))
    is_not_encoded(envelope_of(messages.Heartbeat((), messages.Barrier(1, (part,)))))
    is_not_encoded(envelope_of(messages.DispatchTable(part)))
    is_not_encoded(envelope_of(messages.DispatchTable(states.RemoveRequest("t", part))))
    is_not_encoded(envelope_of(messages.DispatchTable(states.AddRequest("t", TOKEN, part, True))))
    is_not_encoded(envelope_of(messages.DispatchTableResponse(part)))


def test_members_do_not_slip_into_the_next_part():
    """Of the right number in all, but not in each."""
    status = GOOD._replace(token=(9, 2, 4), progress=(2, 3))
    is_not_encoded(envelope_of(messages.DispatchTableResponse(status)))
    removal = states.RemoveRequest("t", (9, 2, PROGRESS, True))
    is_not_encoded(envelope_of(messages.DispatchTable(removal)))


@pytest.mark.parametrize("body", [5, None, GOOD, messages.Announce, states.AddTable("t", "c")])
def test_what_is_no_body(body):
    with pytest.raises(InvalidMessageError, match="is not a message"):
        encoding.encode(envelope_of(body))


@pytest.mark.parametrize("request_", [5, None, GOOD, states.AddTable("t", "c")])
def test_what_is_no_request(request_):
    with pytest.raises(InvalidMessageError, match="is not a request"):
        encoding.encode(envelope_of(messages.DispatchTable(request_)))


@pytest.mark.parametrize("envelope", [5, None, (), messages.Announce("1"), "xy"])
def test_what_is_no_envelope(envelope):
    is_not_encoded(envelope)


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=3),
    st.sampled_from([*states.SetState, *states.TableState]),
    st.tuples(numbers, numbers),
    st.lists(statuses, max_size=2),
    st.just({}),
)
odd_tokens = st.builds(states.Token, numbers | junk, numbers | junk) | junk
odd_progress = st.builds(states.Progress, numbers, numbers | junk, numbers) | junk
odd_states = st.sampled_from(states.TableState) | junk
odd_statuses = st.builds(states.TableStatus, names, tokens | odd_tokens, odd_states, odd_progress)
odd_many = st.lists(statuses | odd_statuses, max_size=3).map(tuple) | junk
odd_bodies = st.one_of(
    st.builds(messages.Sync, st.text(max_size=2) | junk, odd_many, st.booleans() | junk),
    st.builds(messages.Heartbeat, asked | odd_many, barriers | junk, st.booleans(), numbers | junk),
    st.builds(messages.HeartbeatResponse, odd_many, st.booleans()),
    st.builds(messages.DispatchTable, requests | junk),
    st.builds(messages.DispatchTableResponse, odd_statuses | junk),
)


@pytest.mark.slow
@given(st.builds(messages.Envelope, headers | junk, bodies | odd_bodies | junk))
def test_odd_values_are_refused_or_come_as_they_are(envelope):
    try:
        raw = encoding.encode(envelope)
    except InvalidMessageError:
        return
    assert encoding.decode(raw) == envelope


# --- the same table twice ---

TWICE = [
    messages.Sync("1", (GOOD, GOOD._replace(table="u"), GOOD)),
    messages.HeartbeatResponse((GOOD, GOOD._replace(state=states.TableState.STOPPED))),
    messages.Heartbeat((("u", TOKEN), ("t", TOKEN), ("t", states.Token(10, 1)))),
    messages.Heartbeat((), messages.Barrier(9, (("t", 5), ("u", 5), ("t", 6)))),
]


@pytest.mark.parametrize("body", TWICE, ids=lambda body: type(body).__name__)
def test_the_same_table_twice_is_not_encoded(body):
    with pytest.raises(InvalidMessageError, match="the table 't' occurs twice"):
        encoding.encode(envelope_of(body))


ROW = ["t", 1, 1, 4, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (2, ["1", [ROW, ["u", *ROW[1:]], ROW], False]),
        (4, [[ROW, ["t", 2, 1, 6, 0, 0, 0]], False, None]),
        (3, [[["u", 1, 1], ["t", 1, 1], ["t", 1, 2]], [0, []], False, 1, True]),
        (3, [[], [9, [["t", 5], ["u", 5], ["t", 6]]], False, 1, True]),
    ],
)
def test_the_same_table_twice_is_not_decoded(kind, body):
    with pytest.raises(InvalidMessageError, match="the table 't' occurs twice"):
        encoding.decode(msgpack.packb([1, kind, HEADER, body]))


def test_a_table_may_be_asked_about_and_have_a_barrier():
    body = messages.Heartbeat((("t", TOKEN),), messages.Barrier(9, (("t", 5),)))
    assert encoding.decode(encoding.encode(envelope_of(body))).body == body


# --- what is told of large values ---


class Unspeakable:
    def __repr__(self):
        raise AssertionError("asked for its repr")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((None,) * (1 << 20), "not a tuple of 1,048,576"),
        ([Unspeakable()], "not a list of 1"),
        ({1: Unspeakable()}, "not a dict of 1"),
        (Unspeakable(), "not a value of type Unspeakable"),
        (b"x" * (1 << 20), "not b'xxx"),
        ("x" * (1 << 20), "not 'xxx"),
        (1 << (1 << 20), "not a value of type int"),
    ],
    ids=["tuple", "list", "dict", "object", "bytes", "text", "int"],
)
def test_large_values_are_told_in_little_space(value, said):
    envelope = envelope_of(messages.Announce("1"), owner_revision=value)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessageError, match=said) as caught:
            encoding.encode(envelope)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 150
    assert peak < 1 << 18


MANY = (None,) * (1 << 20)


@pytest.mark.parametrize(
    "whole",
    [
        (1, 1, tuple(HEADER), MANY),
        (1, MANY, tuple(HEADER), "x"),
        (1, 1, MANY, "x"),
        (1, 1, tuple(HEADER), {"x": MANY}),
        (1, 4, tuple(HEADER), (MANY, False, None)),
        MANY,
    ],
    ids=["body", "kind", "header", "map", "statuses", "all"],
)
def test_large_values_that_come_are_told_in_little_space(whole, monkeypatch):
    raw = msgpack.packb(whole)
    assert msgpack.unpackb(raw, use_list=False) == whole
    monkeypatch.setattr(msgpack, "unpackb", lambda *_, **__: whole)  # only what comes after counts
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessageError) as caught:
            encoding.decode(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 150
    assert peak < 1 << 18
