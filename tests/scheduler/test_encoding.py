"""Messages as bytes: the vectors, what is refused, and that all others come back as they were."""

import array
import json
import random
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import InvalidMessageError
from cdcmeta.scheduler.core import states
from cdcmeta.scheduler.protocol import encoding, messages

from .wire import HEADER, envelope_of, envelopes

pytestmark = pytest.mark.slow

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "scheduler.json").read_text())
NAMES = {
    name: part
    for module in (messages, states)
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
            states.AddRequest("t", states.Token(9, 2), states.Progress(100, 100, 0), False)
        ),
    )
    assert encoding.decode(raw) == expected
    assert encoding.encode(expected) == raw


@given(envelopes)
def test_what_is_sent_is_what_comes(envelope):
    come = encoding.decode(encoding.encode(envelope))
    assert come == envelope
    assert type(come.body) is type(envelope.body)


def is_refused(raw):
    """Return whether bytes are refused; if not, they must be what their message is encoded as."""
    try:
        message = encoding.decode(raw)
    except InvalidMessageError:
        return True
    assert encoding.encode(message) == raw
    return False


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_decode_or_be_refused(raw):
    is_refused(raw)


@given(envelopes, st.data())
def test_a_message_with_a_byte_changed_decodes_or_is_refused(envelope, data):
    raw = bytearray(encoding.encode(envelope))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    is_refused(bytes(raw))


TYPE_BYTES = b"\x80\x90\xa0\xc0\xc2\xc3\xc4\xca\xcc\xcd\xce\xcf\xd0\xd3\xd4\xd9\xda\xdc\xdd\xde\xff"
"""Bytes that say of which type the next value is, or how long."""


def mutated(raw, rng):
    """Return a message's bytes with a stretch replaced, removed, doubled, or made another value."""
    at, to = sorted(rng.choices(range(len(raw) + 1), k=2))
    to = min(to, at + rng.choice((0, 1, 1, 2, 8, 100)))
    new = rng.choice(
        (
            b"",
            raw[at:to] * 2,
            rng.randbytes(to - at),
            bytes([rng.choice(TYPE_BYTES)]),
            bytes([rng.choice(TYPE_BYTES)]) + raw[at:to],
            rng.choice((b"\xcc", b"\xd0", b"\xcd\0", b"\xd9", b"\xdc\0", b"\xda\0")) + raw[at:to],
        )
    )
    return raw[:at] + new + raw[to:]


def test_mutants_are_refused_or_encoded_as_the_very_same_bytes():
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    good = [bytes.fromhex(vector["hex"]) for vector in VECTORS]
    refused = []
    for _ in range(40_000):
        raw = rng.choice(good)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            raw = mutated(raw, rng)
        try:
            refused.append(is_refused(raw))
        except Exception as e:
            raise AssertionError(f"seed {seed}: {raw.hex()}: {e!r}") from e
    counted = f"seed {seed}: {sum(refused)} of {len(refused)} are refused"
    assert 0.5 < sum(refused) / len(refused) < 0.97, counted


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
        ([1, 2, HEADER, ["1", {}, False]], "tables are an array"),
        ([1, 4, HEADER, [[["t", 1, 1, 9, 0, 0, 0]], False, None]], "not a state"),
        ([1, 4, HEADER, [[["t", 1, 1, True, 0, 0, 0]], False, None]], "a state is an integer"),
        ([1, 4, HEADER, [[["t", 1, 1, 4, 0, 0.0, 0]], False, None]], "a timestamp is an integer"),
        (
            [1, 4, HEADER, [[["t", 1, -1, 4, 0, 0, 0]], False, None]],
            "a token's number is an integer",
        ),
        ([1, 4, HEADER, [[["t", 1, 1, 4, 0, 0, 0], 5], False, None]], "a status is an array of 7"),
        ([1, 4, HEADER, [[], False, 5]], "a rest is an array of 3"),
        ([1, 4, HEADER, [[], False, [[0, 0, 0], -1, 0]]], "a size is an integer"),
        ([1, 3, HEADER, [[], [0, []], False, 0, None]], "is_full is true or false"),
        ([1, 3, HEADER, [[], [0, [["", 1]]], False, 0, True]], "a table is empty"),
        ([1, 3, HEADER, [[], [0, [["t", 1.0]]], False, 0, True]], "a barrier is an integer"),
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
    with pytest.raises(InvalidMessageError, check=lambda e: e.reason == "unsupported"):
        encoding.decode(msgpack.packb(whole))


def test_a_message_that_is_too_large(monkeypatch):
    announced = messages.Envelope(messages.Header(*HEADER), messages.Announce("x" * 200))
    raw = encoding.encode(announced)
    monkeypatch.setattr(encoding, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(InvalidMessageError, match="the limit is 100"):
        encoding.encode(announced)
    with pytest.raises(InvalidMessageError, match="the limit is 100"):
        encoding.decode(raw)


@pytest.mark.parametrize("raw", [None, 5, "text", [1], array.array("B", b"x"), object()])
def test_what_is_no_bytes(raw):
    with pytest.raises(InvalidMessageError, match="a message is bytes, not"):
        encoding.decode(raw)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_kinds_of_bytes(kind, monkeypatch):
    raw = bytes.fromhex(VECTORS[0]["hex"])
    assert encoding.decode(kind(raw)) == message_of(VECTORS[0]["message"])
    monkeypatch.setattr(encoding, "MESSAGE_BYTES_MAX", len(raw) - 1)
    with pytest.raises(InvalidMessageError, match=f"the message has {len(raw)} bytes"):
        encoding.decode(kind(raw))


def test_views_of_other_forms_are_the_bytes_they_show():
    announced = envelope_of(messages.Announce("1.2.3-rc.4+5"))
    raw = encoding.encode(announced)
    assert len(raw) % 8 == 0
    assert encoding.decode(memoryview(raw).cast("Q")) == announced
    spread = bytearray(2 * len(raw))
    spread[::2] = raw
    assert encoding.decode(memoryview(spread)[::2]) == announced


def test_a_view_of_wider_items_is_measured_in_bytes(monkeypatch):
    monkeypatch.setattr(encoding, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(InvalidMessageError, match="the message has 16 bytes"):
        encoding.decode(memoryview(bytes(16)).cast("Q"))


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("9401", "94d001"),  # the version
        ("9401", "94cc01"),
        ("9401", "94cf0000000000000001"),
        ("9401", "dc000401"),  # the array
        ("940101", "9401d30000000000000001"),  # the kind
        ("a26331", "d9026331"),  # the name of a capture
        ("a26331", "db000000026331"),
        ("09", "d009"),  # the revision of an owner
        ("a3312e32", "d903312e32"),  # the version of the software
    ],
)
def test_bytes_that_are_longer_than_needed(short, long):
    raw = VECTORS[0]["hex"]
    assert raw.count(short) == 1
    with pytest.raises(InvalidMessageError, match="another encoding than"):
        encoding.decode(bytes.fromhex(raw.replace(short, long)))
