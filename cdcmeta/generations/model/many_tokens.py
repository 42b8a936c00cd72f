"""Many keys and tokens at once, in NumPy: `murmur3_tokens`, `shards_of`, `first_tokens`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.model.tokens import C1, C2, TOKEN_MAX, TOKEN_MIN, Sharding, shard_starts

Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Tokens: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = "Sequence[bytes] | Bytes"

CHUNK_KEYS = 16_384
"""Keys that are hashed together: few enough for the processor's cache."""
_U = np.uint64
_HALF = _U(32)
_LOW_HALF = _U(0xFFFFFFFF)
_BIAS = _U(1 << 63)


def murmur3_tokens(keys: Keys) -> Tokens:
    """Return the tokens of many keys, the same as `murmur3_token` of each.

    `keys` are bytes of any lengths, or an array of shape (keys, bytes of each) and type uint8.
    O(bytes), some 30 operations of NumPy for each 16 bytes of the longest.

    >>> murmur3_tokens([b"123", b"test"]).tolist()
    [-7468325962851647638, -6017608668500074083]

    Raises `InvalidArgumentError`.
    """
    found: Tokens
    if isinstance(keys, np.ndarray):
        if keys.ndim != 2 or keys.dtype != np.uint8:
            raise InvalidArgumentError(
                "an array of keys has the shape (keys, bytes) and the type uint8"
            )
        found = np.empty(len(keys), np.int64)
        for at in range(0, len(keys), CHUNK_KEYS):
            found[at : at + CHUNK_KEYS] = _hashed(keys[at : at + CHUNK_KEYS])
        return found
    try:
        data = np.frombuffer(b"".join(keys), np.uint8)
        offsets: Tokens = np.zeros(len(keys) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)), out=offsets[1:])
    except TypeError as e:
        raise InvalidArgumentError(f"keys are bytes: {e}") from e
    if offsets[-1] != len(data):
        raise InvalidArgumentError("keys are bytes, not arrays of something longer")
    return murmur3_tokens_of(data, offsets)


def murmur3_tokens_of(data: Bytes, offsets: Tokens) -> Tokens:
    """Return the tokens of keys in one buffer, as in Arrow.

    The n-th key is the bytes from `offsets[n]` to `offsets[n + 1]`.
    """
    count = len(offsets) - 1
    found: Tokens = np.empty(count, np.int64)
    for at in range(0, count, CHUNK_KEYS):
        edges = offsets[at : at + CHUNK_KEYS + 1]
        for where, rows in _by_length(data, edges[:-1], np.diff(edges)):
            found[at : at + CHUNK_KEYS][where] = _hashed(rows)
    return found


def shards_of(tokens: Tokens, shards: Words | int, ignore_msb: Words | int) -> npt.NDArray[np.intp]:
    """Return the shards that own tokens; `shards` and `ignore_msb` are numbers, or arrays."""
    place = (tokens.view(_U) ^ _BIAS) << _U(ignore_msb)
    count = _U(shards)
    low = (place & _LOW_HALF) * count >> _HALF  # a product of 128 bits, in two halves
    return (((place >> _HALF) * count + low) >> _HALF).astype(np.intp)


def first_tokens(starts: Tokens, ends: Tokens, sharding: Sharding) -> Tokens:
    """Return `Sharding.first_token_for_shard` of ranges and all shards; shape (ranges, shards)."""
    starts, ends = starts[:, None], ends[:, None]
    wraps = starts >= ends
    direct = _from(starts, sharding)
    # the shard's next token is past the ring's end
    missed = (direct < starts) | (starts == TOKEN_MAX)
    again = _from(np.full_like(starts, TOKEN_MIN - 1), sharding)
    forwards = np.where(missed | (direct > ends), ends, direct)
    return np.where(wraps, np.where(missed, np.minimum(again, ends), direct), forwards)


def _from(starts: Tokens, sharding: Sharding) -> Tokens:
    """Return each shard's first token after each start; below the start: past the ring's end."""
    shards, ignore_msb = sharding
    with np.errstate(over="ignore"):
        next_ones = starts + np.int64(1)
    own = shards_of(next_ones, shards, ignore_msb)
    each = np.arange(shards)
    first = np.array(shard_starts(sharding), _U)[None, :]
    lowest = np.full((len(starts), shards), TOKEN_MIN - 1)
    if ignore_msb == 0 or shards == 1:
        later = np.where(each > own, (first ^ _BIAS).view(np.int64), lowest)
    else:
        shift = _U(64 - ignore_msb)
        piece = ((next_ones.view(_U) ^ _BIAS) >> shift) + np.where(each > own, _U(0), _U(1))
        place = ((piece << shift | first) ^ _BIAS).view(np.int64)
        later = np.where(piece >> _U(ignore_msb) != 0, lowest, place)
    return np.where(each == own, next_ones, later)


# --- murmur3 ---


def _by_length(
    data: Bytes, starts: Tokens, lengths: Tokens
) -> Iterator[tuple[slice | npt.NDArray[np.intp], Bytes]]:
    """Yield the keys of each length as one array, with their positions."""
    if (lengths == lengths[0]).all():
        length = int(lengths[0])
        first = int(starts[0])
        rows = data[first : first + len(starts) * length]
        yield slice(None), rows.reshape(len(starts), length)
        return
    for length in np.unique(lengths):
        where = np.flatnonzero(lengths == length)
        yield where, data[starts[where][:, None] + np.arange(length)]


def _hashed(keys: Bytes) -> Tokens:
    """Return the tokens of keys of one length."""
    count, length = keys.shape
    whole = length & ~15
    words = np.ascontiguousarray(keys[:, :whole]).view("<u8").astype(_U, copy=False)
    words = words.reshape(count, whole // 8)
    h1, h2 = np.zeros(count, _U), np.zeros(count, _U)
    for at in range(0, whole // 8, 2):
        h1 ^= _mixed(words[:, at], C1, C2, 31)
        h1 = (_rotated(h1, 27) + h2) * _U(5) + _U(0x52DCE729)
        h2 ^= _mixed(words[:, at + 1], C2, C1, 33)
        h2 = (_rotated(h2, 31) + h1) * _U(5) + _U(0x38495AB5)
    if whole < length:
        h2 ^= _mixed(_signed_tail(keys[:, whole + 8 :]), C2, C1, 33)
        h1 ^= _mixed(_signed_tail(keys[:, whole : whole + 8]), C1, C2, 31)
    h1 ^= _U(length)
    h2 ^= _U(length)
    h1 += h2
    h2 += h1
    found = (_finished(h1) + _finished(h2)).view(np.int64)
    found[found < TOKEN_MIN] = TOKEN_MAX
    return found


def _signed_tail(tail: Bytes) -> Words:
    found: Words = np.zeros(len(tail), _U)
    for n in range(tail.shape[1]):
        found ^= tail[:, n].view(np.int8).astype(np.int64).view(_U) << _U(8 * n)
    return found


def _mixed(words: Words, first: int, second: int, bits: int) -> Words:
    return _rotated(words * _U(first), bits) * _U(second)


def _rotated(words: Words, bits: int) -> Words:
    return words << _U(bits) | words >> _U(64 - bits)


def _finished(words: Words) -> Words:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = (words ^ words >> _U(33)) * _U(factor)
    return words ^ words >> _U(33)
