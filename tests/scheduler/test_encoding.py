"""Messages as bytes: the vectors, what is refused, and that all others come back as they were."""

import contextlib
import json
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import InvalidMessageError, UnsupportedMessageError
from cdcmeta.scheduler import encoding, messages, states, tasks

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "scheduler.json").read_text())
NAMES = {
    name: part
    for module in (messages, states, tasks)
    for name, part in vars(module).items()
    if isinstance(part, type)
}


def message_of(text: str) -> messages.Envelope:
    """Return the message that a vector tells in words."""
    for state in states.TableState:
        text = text.replace(repr(state), f"TableState.{state.name}")
    return eval(text, {"__builtins__": {}}, NAMES)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector):
    message = message_of(vector["message"])
    assert encoding.encode(message).hex() == vector["hex"]
    assert encoding.decode(bytes.fromhex(vector["hex"])) == message


def test_the_vectors_cover_all_kinds():
    kinds = {msgpack.unpackb(bytes.fromhex(vector["hex"]))[1] for vector in VECTORS}
    assert kinds == {1, 2, 3, 4, 5, 6}


def test_bytes_by_hand():
    """A commit of table t, token (9, 2), from 100: every byte written down."""
    raw = (
        b"\x94\x01\x05"  # four members; version 1, kind 5
        b"\x95\xa1o\xa1c\x09\x03\x07"  # header: o to c, revision 9, epochs 3 and 7
        b"\x95\xa1t\x09\x02\x93\x64\x64\x00\xc2"  # t, token, progress, not a preparation
    )
    expected = messages.Envelope(
        messages.Header("o", "c", 9, 3, 7),
        messages.DispatchTable(
            tasks.AddRequest("t", states.Token(9, 2), states.Progress(100, 100, 0), False)
        ),
    )
    assert encoding.decode(raw) == expected
    assert encoding.encode(expected) == raw


numbers = st.integers(0, encoding.INTEGER_MAX)
names = st.text(min_size=1, max_size=8)
tokens = st.builds(states.Token, numbers, numbers)
progress = st.builds(states.Progress, numbers, numbers, numbers)
statuses = st.builds(
    states.TableStatus, names, tokens, st.sampled_from(states.TableState), progress
)
many = st.lists(statuses, max_size=4).map(tuple)
barriers = st.builds(
    messages.Barrier, numbers, st.lists(st.tuples(names, numbers), max_size=3).map(tuple)
)
requests = st.one_of(
    st.builds(tasks.AddRequest, names, tokens, progress, st.booleans()),
    st.builds(tasks.RemoveRequest, names, tokens),
)
asked = st.lists(st.tuples(names, tokens), max_size=4).map(tuple)
bodies = st.one_of(
    st.builds(messages.Announce, st.text(max_size=5)),
    st.builds(messages.Sync, st.text(max_size=5), many, st.booleans()),
    st.builds(messages.Heartbeat, asked, barriers, st.booleans(), numbers),
    st.builds(messages.HeartbeatResponse, many, st.booleans()),
    st.builds(messages.DispatchTable, requests),
    st.builds(messages.DispatchTableResponse, statuses),
)
headers = st.builds(messages.Header, names, names, numbers, numbers, numbers)
envelopes = st.builds(messages.Envelope, headers, bodies)


@given(envelopes)
def test_what_is_sent_is_what_comes(envelope):
    come = encoding.decode(encoding.encode(envelope))
    assert come == envelope
    assert type(come.body) is type(envelope.body)


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_decode_or_be_refused(raw):
    with contextlib.suppress(InvalidMessageError):
        encoding.decode(raw)


@given(envelopes, st.data())
def test_a_message_with_a_byte_changed_decodes_or_is_refused(envelope, data):
    raw = bytearray(encoding.encode(envelope))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(InvalidMessageError):
        encoding.decode(bytes(raw))


HEADER = ["o", "c", 1, 1, 1]


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (5, "begins with a version"),
        ([], "begins with a version"),
        (["1", 1, HEADER, "x"], "begins with a version"),
        ([1, 1, HEADER], "a message is an array of 4"),
        ([1, 1, HEADER, "x", 1], "a message is an array of 4"),
        ([1, 1, HEADER[:4], "x"], "a header is an array of 5"),
        ([1, 1, ["", "c", 1, 1, 1], "x"], "a sender is empty"),
        ([1, 1, ["o", "c", -1, 1, 1], "x"], "from 0 to"),
        ([1, 1, ["o", "c", True, 1, 1], "x"], "from 0 to"),
        ([1, 1, ["o", "c", 1 << 63, 1, 1], "x"], "from 0 to"),
        ([1, 1, HEADER, b"x"], "a version is a text"),
        ([1, 2, HEADER, ["1", [], 0]], "is_stopping is true or false"),
        ([1, 2, HEADER, ["1", {}, False]], "tables is an array"),
        ([1, 4, HEADER, [[["t", 1, 1, 9, 0, 0, 0]], False]], "no state"),
        ([1, 4, HEADER, [[["t", 1, 1, True, 0, 0, 0]], False]], "no state"),
        ([1, 5, HEADER, ["t", 1, 1, [0, 0, 0], 1]], "is_prepare is true or false"),
        ([1, 5, HEADER, ["", 1, 1]], "a table is empty"),
        ([1, 6, HEADER, ["t", 1, 1, 1]], "a status is an array of 7"),
    ],
)
def test_what_is_no_message(whole, said):
    with pytest.raises(InvalidMessageError, match=said) as caught:
        encoding.decode(msgpack.packb(whole))
    assert type(caught.value) is InvalidMessageError


@pytest.mark.parametrize(
    "whole", [[2, 1, HEADER, "x"], [0, "?"], [1, 7, HEADER, 0], [1, {}, HEADER, 0]]
)
def test_messages_of_newer_versions_are_told_apart(whole):
    with pytest.raises(UnsupportedMessageError):
        encoding.decode(msgpack.packb(whole))


def test_a_message_that_is_too_large(monkeypatch):
    announced = messages.Envelope(messages.Header(*HEADER), messages.Announce("x" * 200))
    raw = encoding.encode(announced)
    monkeypatch.setattr(encoding, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(InvalidMessageError, match="more than 100"):
        encoding.encode(announced)
    with pytest.raises(InvalidMessageError, match="more than 100"):
        encoding.decode(raw)


@pytest.mark.parametrize("version", [object(), "\ud800"])
def test_what_has_no_bytes(version):
    announced = messages.Envelope(messages.Header(*HEADER), messages.Announce(version))
    with pytest.raises(InvalidMessageError):
        encoding.encode(announced)


def test_what_is_no_body():
    with pytest.raises(InvalidMessageError, match="no message"):
        encoding.encode(messages.Envelope(messages.Header(*HEADER), 5))
