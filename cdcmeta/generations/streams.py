"""Stream ids: 16 bytes that name a stream of log rows and its token; new ids for a ring."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from cdcmeta.argument_checks import check_int
from cdcmeta.errors import InvalidArgumentError
from cdcmeta.generations.tokens import (
    BIAS,
    MASK,
    TOKEN_MAX,
    TOKEN_MIN,
    Sharding,
    Tokens,
    Words,
    checked_ring,
    checked_token,
    first_tokens,
)

STREAM_BYTES = 16
VERSION = 1
INDEX_BITS, RANDOM_BITS = 22, 38
INDEX_SHIFT, RANDOM_SHIFT = 4, 26
INDEX_MAX, RANDOM_MAX = (1 << INDEX_BITS) - 1, (1 << RANDOM_BITS) - 1
RandomBytes = Callable[[int], bytes]
"""Returns a number of random bytes: `os.urandom`, or `random.Random(seed).randbytes`."""
RANGES_MAX = INDEX_MAX + 1
DRAWS_MAX = 8
_WORDS = struct.Struct(">qQ")


@dataclass(frozen=True, order=True, slots=True)
class StreamId:
    """The id of a stream: token (64 bits), random (38), index of its range (22), version (4).

    Ids compare as their 16 bytes: negative tokens are last. `ring_key` compares in the order of the
    ring.

    >>> stream = StreamId.fromhex("7ffe0c687fcce86e0783343730000001")
    >>> stream.index, stream.version
    (0, 1)

    Raises `InvalidArgumentError` for any other value, also for old ids without a version.
    """

    raw: bytes

    def __post_init__(self) -> None:
        raw = self.raw
        if not isinstance(raw, bytes) or len(raw) != STREAM_BYTES:
            found = f"{len(raw)} bytes" if isinstance(raw, bytes) else type(raw).__name__
            raise InvalidArgumentError(f"a stream id has {STREAM_BYTES} bytes, not {found}")
        if self.version != VERSION:
            raise InvalidArgumentError(f"stream id {self} is of version {self.version}, not 1")

    def __bytes__(self) -> bytes:
        return self.raw

    def __str__(self) -> str:
        return self.raw.hex()

    def __repr__(self) -> str:
        return f"StreamId.fromhex({self.raw.hex()!r})"

    @classmethod
    def of(cls, token: int, index: int, random: int) -> StreamId:
        """Return the id with these parts. Raises `InvalidArgumentError`.

        >>> print(StreamId.of(-1, 1, 1))
        ffffffffffffffff0000000004000011
        """
        checked_token(token)
        for part, bits in ((index, INDEX_BITS), (random, RANDOM_BITS)):
            if type(part) is not int or not 0 <= part < 1 << bits:
                raise InvalidArgumentError(
                    f"an index has {INDEX_BITS} bits, a random part {RANDOM_BITS}: {part!r}"
                )
        low = random << RANDOM_SHIFT | index << INDEX_SHIFT | VERSION
        return cls(_WORDS.pack(token, low))

    @classmethod
    def fromhex(cls, text: str) -> StreamId:
        """Return the id of 32 hexadecimal digits, with or without `0x`.

        Raises `InvalidArgumentError`.
        """
        try:
            digits = text.removeprefix("0x")
            raw = bytes.fromhex(digits)
            if len(digits) != 2 * len(raw):
                raise ValueError("spaces in it")
        except (ValueError, AttributeError, TypeError) as e:
            raise InvalidArgumentError(f"a stream id is 32 hexadecimal digits, not {text!r}") from e
        return cls(raw)

    @classmethod
    def of_ring_key(cls, key: bytes) -> StreamId:
        """Return the id with this `ring_key`. Raises `InvalidArgumentError`."""
        return cls(bytes([key[0] ^ 0x80]) + key[1:] if isinstance(key, bytes) and key else key)

    @property
    def token(self) -> int:
        """The position of its rows on the ring; the least integer means the largest token."""
        found = int.from_bytes(self.raw[:8], "big", signed=True)
        return found if found >= TOKEN_MIN else TOKEN_MAX

    @property
    def index(self) -> int:
        """The index of its range in the generation."""
        return self._low >> INDEX_SHIFT & INDEX_MAX

    @property
    def random(self) -> int:
        """The part that differs for streams of the same token and range."""
        return self._low >> RANDOM_SHIFT

    @property
    def version(self) -> int:
        """The version of the layout."""
        return self._low & 0xF

    @property
    def ring_key(self) -> bytes:
        """Sixteen bytes that sort in the order of the ring, for stores that order by bytes."""
        return bytes([self.raw[0] ^ 0x80]) + self.raw[1:]

    @property
    def _low(self) -> int:
        return int.from_bytes(self.raw[8:], "big")


def ring_bytes(token: int) -> bytes:
    """Return a token as eight bytes that sort in the order of the ring."""
    return ((token + BIAS) & MASK).to_bytes(8, "big")


# --- making streams for a ring ---


def limited_ring(
    ring: Mapping[int, Sharding], streams_max: int | None = None, limit: bool = False
) -> dict[int, Sharding]:
    """Return a valid ring of at most `streams_max` streams, cut down if `limit`.

    Its tokens ascend. Raises `InvalidArgumentError`.
    """
    if isinstance(ring, Mapping) and len(ring) > RANGES_MAX:
        raise InvalidArgumentError(f"{len(ring):,} ranges, more than {RANGES_MAX:,}")
    checked = checked_ring(ring)
    if streams_max is None:
        return checked
    shardings = limited_shardings(list(checked.values()), streams_max, limit)
    return dict(zip(checked, shardings, strict=True))


def sharding_table(shardings: Sequence[Sharding]) -> Tokens:
    """Return shardings as an array of two columns: shards and ignored bits."""
    flat = chain.from_iterable(shardings)
    return np.fromiter(flat, np.int64, 2 * len(shardings)).reshape(-1, 2)


def new_stream_ids(ends: Tokens, shardings: Sequence[Sharding], random_bytes: RandomBytes) -> bytes:
    """Return new ids for the streams of ranges, concatenated; O(streams).

    Raises `InvalidArgumentError` if the random source repeats itself, or returns too few bytes.
    """
    kinds = sharding_table(shardings)
    counts = kinds[:, 0]
    offsets = np.cumsum(counts) - counts
    tokens: Tokens = np.empty(int(counts.sum()), np.int64)
    starts = np.roll(ends, 1)
    for kind in dict.fromkeys(shardings):
        where: Tokens = np.flatnonzero((kinds == kind).all(axis=1))
        found = first_tokens(starts[where], ends[where], kind)
        tokens[offsets[where][:, None] + np.arange(kind.shards)] = found
    index: Tokens = np.repeat(np.arange(len(ends)), counts)
    words: Words = np.empty((len(tokens), 2), ">u8")
    words[:, 0] = tokens.view(np.uint64)
    fixed = index.astype(np.uint64) << np.uint64(INDEX_SHIFT) | np.uint64(VERSION)
    at_end = tokens == ends[index]
    for _ in range(DRAWS_MAX):
        low = fixed | _drawn(len(tokens), random_bytes)
        if not has_duplicates(low, counts, at_end):
            words[:, 1] = low
            return bytes(words.tobytes())
    raise InvalidArgumentError("the source of random bytes repeats itself")


def has_duplicates(low: Words, counts: Tokens, at_end: npt.NDArray[np.bool_]) -> bool:
    """Return whether two streams at the end of their range have the same low word.

    `counts` has the number of streams of each range. All other streams differ: in the token, or in
    the index.
    """
    offsets = np.cumsum(counts) - counts
    different = np.unique(counts).tolist()
    for count in different:
        if len(different) == 1:
            rows = low.reshape(-1, count)
        else:
            rows = low[offsets[counts == count][:, None] + np.arange(count)]
        # sorting many short rows is faster than sorting all at once
        ordered = np.sort(rows, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any():
            break  # maybe of tokens before the end
    else:
        return False
    ordered = np.sort(low[at_end])
    return bool((ordered[1:] == ordered[:-1]).any())


def limited_shardings(shardings: Sequence[Sharding], streams_max: int, cut: bool) -> list[Sharding]:
    """Return shardings with at most `streams_max` streams, but at least one for each range.

    With `cut`, ranges with more than an equal share get that share: ScyllaDB's rule of 2021.
    Raises `InvalidArgumentError`.
    """
    check_int("streams_max", streams_max, 1)
    most = max(streams_max, len(shardings))
    total = sum(each.shards for each in shardings)
    if total <= most:
        return list(shardings)
    if not cut:
        raise InvalidArgumentError(
            f"{total:,} streams, more than {most:,}: limit=True gives large ranges fewer"
        )
    share = most // len(shardings)
    return [each._replace(shards=min(each.shards, share)) for each in shardings]


def _drawn(count: int, random_bytes: RandomBytes) -> Words:
    raw = random_bytes(8 * count)
    if len(raw) != 8 * count:
        raise InvalidArgumentError(f"random_bytes({8 * count}) returned {len(raw)} bytes")
    drawn = np.frombuffer(raw, np.uint64)
    shift = np.uint64(RANDOM_SHIFT)
    return drawn >> shift << shift
