"""Tokens: the positions of keys on the ring, and the shard of a node that owns each.

A token is a signed integer of 64 bits. The ring begins at `TOKEN_MIN`; -2^63 is not the token of a
key and means "before all". The arithmetic is Cassandra's (murmur3) and ScyllaDB's (shards),
so that ids and mappings agree with theirs bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import index
from typing import NamedTuple

from cdcmeta.arguments import listed
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
