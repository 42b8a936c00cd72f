"""Tokens and shards: one by one, and many at once."""

from array import array

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.tokens import (
    CHUNK_KEYS,
    TOKEN_MAX,
    TOKEN_MIN,
    Sharding,
    checked_sharding,
    composite_key,
    first_tokens,
    murmur3_token,
    murmur3_tokens,
    shard_starts,
    shards_of,
)
from tests.generations.vectors import cases

LEAST = TOKEN_MIN - 1  # before all keys
tokens = st.integers(TOKEN_MIN, TOKEN_MAX) | st.sampled_from([TOKEN_MIN, -1, 0, 1, TOKEN_MAX])
shardings = st.builds(Sharding, st.integers(1, 70), st.sampled_from([0, 1, 2, 10, 12, 31]))

# --- murmur3 ---


@pytest.mark.parametrize(("name", "key", "token"), cases("murmur3", "name", "key_hex", "token"))
def test_the_token_of_a_key(name, key, token):
    assert murmur3_token(bytes.fromhex(key)) == token
    assert murmur3_tokens([bytes.fromhex(key)]).tolist() == [token]


@pytest.mark.parametrize(
    ("key", "token"),
    [
        ("ee961629b0b5ad1d319e18e83892dbed", TOKEN_MAX),  # its hash is -2^63, which is no token
        ("825e338005a83d5ce7ec3afc6a63448b", TOKEN_MAX),
        ("4adfb7bb7374c1d0ebaf77c8bf32658e", TOKEN_MIN),
    ],
)
def test_the_ends_of_the_ring(key, token):
    """Keys that were found by computing the hash backwards."""
    assert murmur3_token(bytes.fromhex(key)) == token
    assert murmur3_tokens([bytes.fromhex(key), b"123"]).tolist() == [token, -7468325962851647638]


@given(st.lists(st.binary(max_size=70), max_size=40))
@example([])
@example([b""])
@example([b"\xff" * n for n in range(33)])
def test_many_keys_have_the_tokens_that_each_has(keys):
    assert murmur3_tokens(keys).tolist() == [murmur3_token(key) for key in keys]


@pytest.mark.parametrize("size", [0, 3, 16, 37])
def test_arrays_of_keys_and_more_than_are_hashed_together(size):
    keys = np.random.default_rng(size).integers(0, 256, (CHUNK_KEYS + 9, size), np.uint8)
    found = murmur3_tokens(keys)
    assert found.dtype == np.int64
    assert (found == murmur3_tokens([key.tobytes() for key in keys])).all()
    assert found[-1] == murmur3_token(keys[-1].tobytes())
    assert (murmur3_tokens(keys[::2, ::-1]) == murmur3_tokens(keys[::2, ::-1].copy())).all()


@pytest.mark.parametrize(
    "keys",
    [
        ["text"],
        [1],
        [None],
        None,
        b"bytes",
        [array("i", [1, 2])],  # two numbers, eight bytes
        [b"k", np.array([1, 2], np.int32)],
        np.zeros(3, np.uint8),
        np.zeros((3, 2), np.int64),
        np.array([b"k"]),
    ],
)
def test_keys_are_bytes(keys):
    with pytest.raises(InvalidArgumentError):
        murmur3_tokens(keys)


@pytest.mark.parametrize("key", ["text", [1, 2, 300], None, 5, np.array([200], np.uint8)])
def test_a_key_is_bytes(key):
    with pytest.raises(InvalidArgumentError):
        murmur3_token(key)
    with pytest.raises(InvalidArgumentError):
        composite_key([b"k", key])


def test_a_key_of_several_columns():
    """scylla: test_decorated_key_is_compatible_with_origin."""
    columns = [number.to_bytes(4, "big") for number in (143, 234)]
    assert murmur3_token(composite_key(columns)) == 4958784316840156970
    assert murmur3_token(composite_key([b"hello", (42).to_bytes(4, "big")])) == 7666157718303755816
    assert composite_key([b"x" * 0xFFFF])[:2] == b"\xff\xff"
    with pytest.raises(InvalidArgumentError, match="65,535"):
        composite_key([b"x" * 0x10000])


# --- shards ---


@pytest.mark.parametrize(
    ("token", "shards", "ignore_msb", "shard"),
    cases("shard_of", "token", "shards", "ignore_msb", "shard"),
)
def test_the_shard_of_a_token(token, shards, ignore_msb, shard):
    assert Sharding(shards, ignore_msb).shard_of(token) == shard


@given(st.lists(tokens, min_size=1, max_size=20), shardings)
def test_many_tokens_have_the_shards_that_each_has(some, sharding):
    expected = [sharding.shard_of(token) for token in some]
    assert shards_of(np.array(some), *sharding).tolist() == expected
    arrays = [np.full(len(some), each, np.uint64) for each in sharding]
    assert shards_of(np.array(some), *arrays).tolist() == expected


def test_murmur3_sharding():
    """scylla: the first tokens of 7 shards; those just before belong to the shard before."""
    firsts = [-9223372036854775807, -6588122883467697005, -3952873730080618203]
    firsts += [-1317624576693539401, 1317624576693539402, 3952873730080618204, 6588122883467697006]
    seven = Sharding(7, 0)
    assert [seven.shard_of(token) for token in firsts] == list(range(7))
    assert [seven.shard_of(token - 1) for token in firsts] == [0, *range(6)]
    assert [seven.token_for_next_shard(LEAST, shard) for shard in range(1, 7)] == firsts[1:]


def test_murmur3_sharding_with_ignorebits():
    """scylla: each shard comes again in each slice of the ring."""
    seven = Sharding(7, 2)
    limits = [(n << 64) // 28 + (n % 7 > 0) - 2**63 for n in range(28)]
    assert [seven.shard_of(token) for token in limits] == [n % 7 for n in range(28)]
    for n, token in enumerate(limits):
        following = [seven.token_for_next_shard(token, (n + k) % 7) for k in range(1, 7)]
        assert following == [*limits[n + 1 : n + 7], *[None] * 6][:6]


def test_where_shards_start():
    assert shard_starts(Sharding(3)) == (0, 0x5555555555556, 0xAAAAAAAAAAAAB)
    assert shard_starts(Sharding(4)) == tuple(n * 0x4000000000000 for n in range(4))
    assert shard_starts(Sharding(1, 31)) == (0,)
    three = Sharding(3, 10)
    assert three.token_for_next_shard(LEAST, 1) == -9217367237351615146
    assert three.token_for_next_shard(LEAST, 2) == -9211362437848454485
    assert three.token_for_next_shard(LEAST, 0) == -9205357638345293824


@pytest.mark.parametrize(("shard", "spans"), [(-1, 1), (3, 1), (0, 0), (1, -5)])
def test_shards_that_there_are_not(shard, spans):
    three = Sharding(3)
    with pytest.raises(InvalidArgumentError):
        three.token_for_next_shard(0, shard, spans)
    if spans == 1:
        with pytest.raises(InvalidArgumentError):
            three.first_token_for_shard(0, 100, shard)


def test_the_streams_of_the_published_key():
    """pk int 0 is shard 0's; the documentation shows it in a stream at the start of a slice."""
    three, shown = Sharding(3), 0xCED0000000000000 - (1 << 64)
    token = murmur3_token(bytes(4))
    assert (token, three.shard_of(token)) == (-3485513579396041028, 0)
    assert three.first_token_for_shard(shown - 1, token, 0) == shown
    assert three.shard_of(shown - 1) == 2


@given(tokens, shardings, st.data())
def test_next_token_is_the_next_one_that_a_shard_gets(token, sharding, data):
    shard = data.draw(st.integers(0, sharding.shards - 1))
    found = sharding.token_for_next_shard(token, shard)
    if sharding.shards == 1:
        assert found is None
        return
    stretches = [sharding.token_for_next_shard(token, shard, spans) for spans in (1, 2, 3)]
    assert stretches[0] == found
    known = [each for each in stretches if each is not None]
    assert known == sorted(set(known))
    for each in known:
        assert each > token
        assert sharding.shard_of(each) == shard
        assert sharding.shard_of(each - 1) != shard


@given(tokens, tokens, shardings, st.data())
@example(TOKEN_MAX, TOKEN_MAX, Sharding(3, 10), None)
@example(42, 42, Sharding(3, 10), None)
def test_first_token_is_in_the_range_and_its_shard_s_or_the_end(start, end, sharding, data):
    for shard in range(min(sharding.shards, 5)):
        found = sharding.first_token_for_shard(start, end, shard)
        inside = start < found <= end if start < end else found > start or found <= end
        assert inside
        assert sharding.shard_of(found) == shard or found == end
        behind = start + 1 if start < TOKEN_MAX else TOKEN_MIN
        assert found == behind or sharding.shard_of(behind) != shard


def test_find_first_token_for_shard():
    """scylla: walks from the start, over the end of the ring, and ends at the end."""
    three = Sharding(3, 10)
    one = -9217367237351615146  # where shard 1 begins, the first time
    assert three.first_token_for_shard(LEAST, one - 1, 1) == one - 1  # owns nothing: the end
    assert three.first_token_for_shard(LEAST, one, 1) == one
    assert three.first_token_for_shard(one - 1, one, 1) == one
    assert three.first_token_for_shard(one, one + 1, 1) == one + 1
    assert three.first_token_for_shard(TOKEN_MAX - 1, TOKEN_MIN, 2) == TOKEN_MAX
    assert three.first_token_for_shard(TOKEN_MAX, TOKEN_MIN, 0) == TOKEN_MIN
    assert three.first_token_for_shard(TOKEN_MAX, one, 1) == one


@given(st.lists(tokens, min_size=1, max_size=6, unique=True), shardings)
def test_first_tokens_of_many_ranges(ring, sharding):
    ends = np.array(sorted(ring))
    found = first_tokens(np.roll(ends, 1), ends, sharding)
    assert found.tolist() == [
        [sharding.first_token_for_shard(start, end, shard) for shard in range(sharding.shards)]
        for start, end in zip(np.roll(ends, 1).tolist(), ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize(
    "sharding", [(0, 12), (-1, 12), (2**22 + 1, 12), (4, 32), (4, 63), (4, 64), (4, -1), (True, 1)]
)
def test_shardings_that_cannot_be(sharding):
    with pytest.raises(InvalidArgumentError):
        checked_sharding(Sharding(*sharding))


@pytest.mark.parametrize("wrong", [4, None, (), (1, 2, 3), "ab", (2.0, 1), (float("nan"), 1)])
def test_what_is_no_sharding(wrong):
    with pytest.raises(InvalidArgumentError):
        checked_sharding(wrong)
