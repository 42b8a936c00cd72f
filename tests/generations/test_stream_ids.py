"""Stream ids: their parts, their order, and what is none."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.streams import (
    INDEX_MAX,
    RANDOM_MAX,
    StreamId,
    ring_bytes,
)
from cdcmeta.generations.tokens import TOKEN_MAX, TOKEN_MIN
from tests.generations.vectors import VECTORS, cases

tokens = st.integers(TOKEN_MIN, TOKEN_MAX)
ids = st.builds(StreamId.of, tokens, st.integers(0, INDEX_MAX), st.integers(0, RANDOM_MAX))


@pytest.mark.parametrize(
    ("token", "index", "random", "text"), cases("stream_id", "token", "index", "random", "hex")
)
def test_the_bytes_of_an_id(token, index, random, text):
    stream = StreamId.of(token, index, random)
    assert str(stream) == bytes(stream).hex() == text
    assert (stream.token, stream.index, stream.random, stream.version) == (token, index, random, 1)
    assert StreamId.fromhex(text) == StreamId.fromhex("0x" + text) == stream


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("7ffe0c687fcce86e0783343730000001", 0),
        ("807ae73e07dbd4122e32d36e08000011", 1),
        ("ced00000000000009663c8dc500005a1", 90),
        ("ffffffffffffffff50e84c99d4000001", 0),
    ],
)
def test_ids_that_scylla_s_documentation_shows(text, index):
    assert (StreamId.fromhex(text).index, str(StreamId.fromhex(text))) == (index, text)


@pytest.mark.parametrize("text", VECTORS["rejected_stream_ids"])
def test_ids_from_before_there_was_a_version(text):
    with pytest.raises(InvalidArgumentError, match="version"):
        StreamId.fromhex(text)


@pytest.mark.parametrize(
    "raw",
    [b"", bytes(15), bytes(17), bytes(16), bytes(15) + b"\x02", bytearray(16), "0" * 16, None],
)
def test_what_is_no_id(raw):
    with pytest.raises(InvalidArgumentError):
        StreamId(raw)


SPACED = "7ffe0c687fcce86e 0783343730000001"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "zz" * 16,
        "00" * 15,
        None,
        5,
        SPACED,
        f" {SPACED.replace(' ', '')}\n",
        "\u0663" * 32,
    ],
)
def test_what_is_no_text_of_an_id(text):
    with pytest.raises(InvalidArgumentError):
        StreamId.fromhex(text)


@pytest.mark.parametrize(
    "parts",
    [
        (TOKEN_MIN - 1, 0, 0),
        (TOKEN_MAX + 1, 0, 0),
        (0, INDEX_MAX + 1, 0),
        (0, 0, RANDOM_MAX + 1),
        (0, -1, 0),
        (0, 0, -1),
        (1.0, 0, 0),
        ("1", 0, 0),
        (None, 0, 0),
        (True, 0, 0),
        (0, 1.5, 0),
        (0, 0, "1"),
    ],
)
def test_parts_that_do_not_fit(parts):
    with pytest.raises(InvalidArgumentError):
        StreamId.of(*parts)


@given(st.lists(ids))
def test_ids_sort_by_bytes_and_their_ring_keys_as_the_ring(some):
    assert sorted(some) == sorted(some, key=bytes)
    around = sorted(some, key=lambda stream: stream.ring_key)
    assert [stream.token for stream in around] == sorted(stream.token for stream in some)


def test_negative_tokens_come_last_as_bytes():
    negative, positive = StreamId.of(-1, 0, 0), StreamId.of(1, 0, 0)
    assert positive < negative
    assert negative.ring_key < positive.ring_key


@given(ids)
def test_ids_are_values(stream):
    assert pickle.loads(pickle.dumps(stream)) == stream
    assert len({stream, StreamId(bytes(stream))}) == 1
    assert eval(repr(stream)) == stream


def test_the_least_integer_stands_for_the_largest_token():
    assert StreamId(b"\x80" + bytes(14) + b"\x01").token == TOKEN_MAX


@given(tokens)
def test_tokens_as_bytes_sort_as_the_ring_goes(token):
    assert int.from_bytes(ring_bytes(token), "big") == token - TOKEN_MIN + 1
    assert ring_bytes(TOKEN_MIN) <= ring_bytes(token) <= ring_bytes(TOKEN_MAX)
    assert token == TOKEN_MAX or ring_bytes(token) < ring_bytes(token + 1)
