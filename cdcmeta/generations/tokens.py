"""Tokens: the positions of keys on the ring, and the shard of a node that owns each.

A token is a signed integer of 64 bits. The ring begins at `TOKEN_MIN`; -2^63 is not the token of a
key and means "before all". The arithmetic is Cassandra's (murmur3) and ScyllaDB's (shards),
so that ids and mappings agree with theirs bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cdcmeta.argument_checks import listed
from cdcmeta.errors import InvalidArgumentError

TOKEN_MIN, TOKEN_MAX = -(2**63) + 1, 2**63 - 1
IGNORE_MSB = 12
IGNORE_MSB_MAX = 31
SHARDS_MAX = 2**22
BIAS = 2**63
MASK = 2**64 - 1
C1, C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
"""Murmur3's multipliers."""


class Sharding(NamedTuple):
    """How a node spreads tokens over its shards.

    The ring is 2^`ignore_msb` slices, and each slice is split evenly among the `shards`.
    """

    shards: int
    ignore_msb: int = IGNORE_MSB

    def shard_of(self, token: int) -> int:
        """Return the shard that owns a token; O(1).

        >>> Sharding(12).shard_of(8833996863197925870)
        6
        """
        return (((token + BIAS) << self.ignore_msb) & MASK) * self.shards >> 64

    def token_for_next_shard(self, token: int, shard: int, spans: int = 1) -> int | None:
        """Return the first token of a shard's next span after a token; None past the ring's end.

        The next span of the token's own shard is in the next slice. With `spans` it is `spans` - 1
        slices later.

        >>> Sharding(2, 0).token_for_next_shard(-5, 1)
        0

        Raises `InvalidArgumentError` for an invalid shard.
        """
        if not 0 <= shard < self.shards or spans < 1:
            raise InvalidArgumentError(
                f"shard {shard} of {self.shards}, {spans} spans on, does not exist"
            )
        behind = shard > self.shard_of(token)
        start = shard_starts(self)[shard]
        if self.shards == 1 or self.ignore_msb == 0:
            return start - BIAS if behind and spans == 1 else None
        piece = ((token + BIAS) >> (64 - self.ignore_msb)) + spans - behind
        if piece >> self.ignore_msb:
            return None
        return (piece << (64 - self.ignore_msb) | start) - BIAS

    def first_token_for_shard(self, start: int, end: int, shard: int) -> int:
        """Return the first token of a shard in (start, end], which may cross the ring's end.

        It crosses the end if `start` >= `end`. If the shard owns no token in it, the result is
        `end`. Raises `InvalidArgumentError`.
        """
        if start >= end:
            if start != TOKEN_MAX and (found := self._from(start + 1, shard)) is not None:
                return found
            start = TOKEN_MIN - 1
        found = self._from(start + 1, shard)
        return end if found is None else min(found, end)

    def _from(self, token: int, shard: int) -> int | None:
        return token if self.shard_of(token) == shard else self.token_for_next_shard(token, shard)


@lru_cache(maxsize=256)
def shard_starts(sharding: Sharding) -> tuple[int, ...]:
    """Return each shard's smallest position in the first slice, counted from 0.

    >>> [hex(start) for start in shard_starts(Sharding(3, 12))]
    ['0x0', '0x5555555555556', '0xaaaaaaaaaaaab']
    """
    shards, ignore_msb = sharding
    if shards == 1:
        return (0,)
    starts = []
    for shard in range(shards):
        place = (shard << 64) // shards >> ignore_msb
        while sharding.shard_of(place - BIAS) != shard:
            place += 1
        starts.append(place)
    return tuple(starts)


def checked_sharding(sharding: Sharding) -> Sharding:
    """Return a valid sharding, or raise `InvalidArgumentError`."""
    try:
        shards, ignore_msb = sharding = Sharding(*sharding)
    except TypeError as e:
        raise InvalidArgumentError(f"a sharding is (shards, ignore_msb), not {sharding!r}") from e
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise InvalidArgumentError(f"a node has 1 to {SHARDS_MAX} shards, not {shards!r}")
    if type(ignore_msb) is not int or not 0 <= ignore_msb <= IGNORE_MSB_MAX:
        raise InvalidArgumentError(f"ignore_msb is 0 to {IGNORE_MSB_MAX}, not {ignore_msb!r}")
    return sharding


def checked_token(token: int) -> int:
    """Return a valid token, or raise `InvalidArgumentError`."""
    if type(token) is not int or not TOKEN_MIN <= token <= TOKEN_MAX:
        raise InvalidArgumentError(
            f"a token is an integer from {TOKEN_MIN} to {TOKEN_MAX}, not {token!r}"
        )
    return token


def integer(what: str, value: object) -> int:
    """Return a Python integer for one of Python or NumPy, or raise `InvalidArgumentError`.

    NumPy's integers have 64 bits and wrap around; Python's grow.
    """
    if isinstance(value, bool):
        raise InvalidArgumentError(f"{what} is an integer, not {value}")
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as e:
        raise InvalidArgumentError(f"{what} is an integer, not {value!r}") from e


def checked_ring(ring: Mapping[int, Sharding]) -> dict[int, Sharding]:
    """Return a valid ring with ascending tokens, or raise `InvalidArgumentError`."""
    if not isinstance(ring, Mapping) or not ring:
        raise InvalidArgumentError("a ring has at least one token, each with a sharding")
    found: dict[int, Sharding] = {}
    known: dict[Sharding, Sharding] = {}  # a ring has few different ones
    for token in sorted(map(checked_token, ring)):
        sharding = ring[token]
        alike = None
        if type(sharding) is Sharding and type(sharding[0]) is type(sharding[1]) is int:
            alike = known.get(sharding)  # these types exactly: True equals 1
        if alike is None:
            alike = checked_sharding(sharding)
            known[alike] = alike
        found[token] = alike
    return found


# --- keys ---


def composite_key(components: Iterable[bytes]) -> bytes:
    """Return the key of a partition key with several columns; its token is theirs.

    >>> composite_key([b"hello", (42).to_bytes(2, "big")]).hex()
    '000568656c6c6f000002002a00'

    Raises `InvalidArgumentError` for a component that is not bytes or is longer than 65,535.
    """
    parts = []
    for each in listed(components, "components"):
        if not isinstance(each, bytes):
            raise InvalidArgumentError(f"a component is bytes, not {type(each).__name__}")
        if len(each) > 0xFFFF:
            raise InvalidArgumentError(f"a component has at most 65,535 bytes, not {len(each):,}")
        parts.append(len(each).to_bytes(2, "big") + each + b"\x00")
    return b"".join(parts)


def murmur3_token(key: bytes) -> int:
    """Return the token of a key; O(bytes). `murmur3_tokens` does many at once, in NumPy.

    The first half of Murmur3 x64 128, as in Cassandra: the last bytes count as signed. An
    empty key has the token 0, as in ScyllaDB.

    >>> murmur3_token(b"123")
    -7468325962851647638

    Raises `InvalidArgumentError` for a key that is not bytes.
    """
    if not isinstance(key, bytes):
        raise InvalidArgumentError(f"a key is bytes, not {type(key).__name__}")
    h1 = h2 = 0
    whole = len(key) & ~15
    for at in range(0, whole, 16):
        h1 ^= _mixed(int.from_bytes(key[at : at + 8], "little"), C1, C2, 31)
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & MASK
        h2 ^= _mixed(int.from_bytes(key[at + 8 : at + 16], "little"), C2, C1, 33)
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & MASK
    h2 ^= _mixed(_signed_tail(key[whole + 8 :]), C2, C1, 33)
    h1 ^= _mixed(_signed_tail(key[whole : whole + 8]), C1, C2, 31)
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = (h1 + h2) & MASK
    h2 = (h2 + h1) & MASK
    found = (_finished(h1) + _finished(h2)) & MASK
    return TOKEN_MAX if found == BIAS else found - ((found & BIAS) << 1)


def _signed_tail(tail: bytes) -> int:
    found = 0
    for n, byte in enumerate(tail):
        found ^= (byte - ((byte & 0x80) << 1)) << 8 * n
    return found & MASK


def _mixed(word: int, first: int, second: int, bits: int) -> int:
    return _rotated(word * first & MASK, bits) * second & MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & MASK


def _finished(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & MASK
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & MASK
    return word ^ word >> 33


# --- many keys and tokens at once, in NumPy ---

Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Tokens: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = "Sequence[bytes] | Bytes"

CHUNK_KEYS = 16_384
"""The keys that are hashed together: few enough for the processor's cache."""
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
        h1 ^= _mixed_words(words[:, at], C1, C2, 31)
        h1 = (_rotated_words(h1, 27) + h2) * _U(5) + _U(0x52DCE729)
        h2 ^= _mixed_words(words[:, at + 1], C2, C1, 33)
        h2 = (_rotated_words(h2, 31) + h1) * _U(5) + _U(0x38495AB5)
    if whole < length:
        h2 ^= _mixed_words(_signed_tails(keys[:, whole + 8 :]), C2, C1, 33)
        h1 ^= _mixed_words(_signed_tails(keys[:, whole : whole + 8]), C1, C2, 31)
    h1 ^= _U(length)
    h2 ^= _U(length)
    h1 += h2
    h2 += h1
    found = (_finished_words(h1) + _finished_words(h2)).view(np.int64)
    found[found < TOKEN_MIN] = TOKEN_MAX
    return found


def _signed_tails(tail: Bytes) -> Words:
    found: Words = np.zeros(len(tail), _U)
    for n in range(tail.shape[1]):
        found ^= tail[:, n].view(np.int8).astype(np.int64).view(_U) << _U(8 * n)
    return found


def _mixed_words(words: Words, first: int, second: int, bits: int) -> Words:
    return _rotated_words(words * _U(first), bits) * _U(second)


def _rotated_words(words: Words, bits: int) -> Words:
    return words << _U(bits) | words >> _U(64 - bits)


def _finished_words(words: Words) -> Words:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        words = (words ^ words >> _U(33)) * _U(factor)
    return words ^ words >> _U(33)
