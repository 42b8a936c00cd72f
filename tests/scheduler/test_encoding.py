"""Messages as bytes: the vectors, what is refused, and that all others come back as they were."""

import array
import json
import random
import tracemalloc
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


numbers = st.integers(0, states.INTEGER_MAX)
names = st.text(min_size=1, max_size=8)
tokens = st.builds(states.Token, numbers, numbers)
progress = st.builds(states.Progress, numbers, numbers, numbers)
statuses = st.builds(
    states.TableStatus, names, tokens, st.sampled_from(states.TableState), progress
)


def of_tables(each):
    """Return a strategy for a few of them, no two of the same table."""
    return st.lists(each, max_size=4, unique_by=lambda of_table: of_table[0]).map(tuple)


many = of_tables(statuses)
barriers = st.builds(messages.Barrier, numbers, of_tables(st.tuples(names, numbers)))
requests = st.one_of(
    st.builds(tasks.AddRequest, names, tokens, progress, st.booleans()),
    st.builds(tasks.RemoveRequest, names, tokens),
)
asked = of_tables(st.tuples(names, tokens))
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
        ([1, 4, HEADER, [[["t", 1, 1, True, 0, 0, 0]], False]], "a state is an integer"),
        ([1, 4, HEADER, [[["t", 1, 1, 4, 0, 0.0, 0]], False]], "a timestamp is an integer"),
        ([1, 4, HEADER, [[["t", 1, -1, 4, 0, 0, 0]], False]], "a token's number is an integer"),
        ([1, 4, HEADER, [[["t", 1, 1, 4, 0, 0, 0], 5], False]], "a status is an array of 7"),
        ([1, 3, HEADER, [[], [0, [["", 1]]], False, 0]], "a table is empty"),
        ([1, 3, HEADER, [[], [0, [["t", 1.0]]], False, 0]], "a barrier is an integer"),
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


@pytest.mark.parametrize("raw", [None, 5, "text", [1], array.array("B", b"x"), object()])
def test_what_is_no_bytes(raw):
    with pytest.raises(InvalidMessageError, match="a message is bytes, not"):
        encoding.decode(raw)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_all_kinds_of_bytes(kind, monkeypatch):
    raw = bytes.fromhex(VECTORS[0]["hex"])
    assert encoding.decode(kind(raw)) == message_of(VECTORS[0]["message"])
    monkeypatch.setattr(encoding, "MESSAGE_BYTES_MAX", len(raw) - 1)
    with pytest.raises(InvalidMessageError, match=f"a message of {len(raw)} bytes"):
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
    with pytest.raises(InvalidMessageError, match="a message of 16 bytes"):
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
    with pytest.raises(InvalidMessageError, match="in other bytes than its own"):
        encoding.decode(bytes.fromhex(raw.replace(short, long)))


# --- what cannot be encoded ---

GOOD = states.TableStatus(
    "t", states.Token(9, 2), states.TableState.REPLICATING, states.Progress(1, 2, 3)
)
TOKEN, PROGRESS = GOOD.token, GOOD.progress


def envelope_of(body, **header):
    return messages.Envelope(messages.Header(*HEADER)._replace(**header), body)


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
    is_not_encoded(envelope_of(messages.DispatchTable(tasks.RemoveRequest(name, TOKEN))))
    add = tasks.AddRequest(name, TOKEN, PROGRESS, True)
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
        is_not_encoded(envelope_of(messages.DispatchTable(tasks.RemoveRequest("t", token))))
    for part in states.Progress._fields:
        progress = PROGRESS._replace(**{part: number})
        is_not_encoded(envelope_of(messages.Sync("1", (GOOD._replace(progress=progress),))))
        add = tasks.AddRequest("t", TOKEN, progress, True)
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
    add = tasks.AddRequest("t", TOKEN, PROGRESS, flag)
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
    is_not_encoded(envelope_of(messages.DispatchTable(tasks.RemoveRequest("t", part))))
    is_not_encoded(envelope_of(messages.DispatchTable(tasks.AddRequest("t", TOKEN, part, True))))
    is_not_encoded(envelope_of(messages.DispatchTableResponse(part)))


def test_members_do_not_slip_into_the_next_part():
    """Of the right number in all, but not in each."""
    status = GOOD._replace(token=(9, 2, 4), progress=(2, 3))
    is_not_encoded(envelope_of(messages.DispatchTableResponse(status)))
    removal = tasks.RemoveRequest("t", (9, 2, PROGRESS, True))
    is_not_encoded(envelope_of(messages.DispatchTable(removal)))


@pytest.mark.parametrize("body", [5, None, GOOD, messages.Announce, tasks.AddTable("t", "c")])
def test_what_is_no_body(body):
    with pytest.raises(InvalidMessageError, match="is no message"):
        encoding.encode(envelope_of(body))


@pytest.mark.parametrize("request_", [5, None, GOOD, tasks.AddTable("t", "c")])
def test_what_is_no_request(request_):
    with pytest.raises(InvalidMessageError, match="is no request"):
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
    with pytest.raises(InvalidMessageError, match="the table 't' is there twice"):
        encoding.encode(envelope_of(body))


ROW = ["t", 1, 1, 4, 0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (2, ["1", [ROW, ["u", *ROW[1:]], ROW], False]),
        (4, [[ROW, ["t", 2, 1, 6, 0, 0, 0]], False]),
        (3, [[["u", 1, 1], ["t", 1, 1], ["t", 1, 2]], [0, []], False, 1]),
        (3, [[], [9, [["t", 5], ["u", 5], ["t", 6]]], False, 1]),
    ],
)
def test_the_same_table_twice_is_not_decoded(kind, body):
    with pytest.raises(InvalidMessageError, match="the table 't' is there twice"):
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
        (1, 4, tuple(HEADER), (MANY, False)),
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
