"""Stream ids: 16 bytes that name a stream of log rows, and where on the ring it lives."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cdcmeta.errors import InvalidArgumentError, InvalidStreamIdError
from cdcmeta.generations.model.tokens import BIAS, MASK, TOKEN_MAX, TOKEN_MIN, checked_token

STREAM_BYTES = 16
VERSION = 1
INDEX_BITS, RANDOM_BITS = 22, 38
INDEX_SHIFT, RANDOM_SHIFT = 4, 26
INDEX_MAX, RANDOM_MAX = (1 << INDEX_BITS) - 1, (1 << RANDOM_BITS) - 1
_WORDS = struct.Struct(">qQ")


@dataclass(frozen=True, order=True, slots=True)
class StreamId:
    """The id of a stream: token (64 bits), random (38), index of its range (22), version (4).

    Ids compare as their 16 bytes do: negative tokens come last. `ring_key` compares in the order
    of the ring.

    >>> stream = StreamId.fromhex("7ffe0c687fcce86e0783343730000001")
    >>> stream.index, stream.version
    (0, 1)

    Raises `InvalidStreamIdError` for what is none, ids from before there was a version included.
    """

    raw: bytes

    def __post_init__(self) -> None:
        raw = self.raw
        if not isinstance(raw, bytes) or len(raw) != STREAM_BYTES:
            told = f"{len(raw)} bytes" if isinstance(raw, bytes) else type(raw).__name__
            raise InvalidStreamIdError(f"a stream id has {STREAM_BYTES} bytes, not {told}")
        if self.version != VERSION:
            raise InvalidStreamIdError(f"stream id {self} is of version {self.version}, not 1")

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
        """Return the id of 32 hexadecimal digits, `0x` before them or not.

        Raises `InvalidStreamIdError`.
        """
        try:
            digits = text.removeprefix("0x")
            raw = bytes.fromhex(digits)
            if len(digits) != 2 * len(raw):
                raise ValueError("there are spaces")
        except (ValueError, AttributeError, TypeError) as e:
            raise InvalidStreamIdError(f"no stream id: {text!r}") from e
        return cls(raw)

    @classmethod
    def of_ring_key(cls, key: bytes) -> StreamId:
        """Return the id of which `ring_key` made a key. Raises `InvalidStreamIdError`."""
        return cls(bytes([key[0] ^ 0x80]) + key[1:] if isinstance(key, bytes) and key else key)

    @property
    def token(self) -> int:
        """Where the stream's rows live on the ring; the least integer stands for the largest."""
        found = int.from_bytes(self.raw[:8], "big", signed=True)
        return found if found >= TOKEN_MIN else TOKEN_MAX

    @property
    def index(self) -> int:
        """The range that it belongs to, counted in its generation."""
        return self._low >> INDEX_SHIFT & INDEX_MAX

    @property
    def random(self) -> int:
        """What keeps apart streams of the same token and range."""
        return self._low >> RANDOM_SHIFT

    @property
    def version(self) -> int:
        """The version of the layout."""
        return self._low & 0xF

    @property
    def ring_key(self) -> bytes:
        """Sixteen bytes that sort as the ring goes, for stores that order by bytes."""
        return bytes([self.raw[0] ^ 0x80]) + self.raw[1:]

    @property
    def _low(self) -> int:
        return int.from_bytes(self.raw[8:], "big")


def ring_bytes(token: int) -> bytes:
    """Return a token as eight bytes that sort as the ring goes."""
    return ((token + BIAS) & MASK).to_bytes(8, "big")


def token_of_ring_bytes(raw: bytes) -> int:
    """Return the token of such bytes."""
    return int.from_bytes(raw, "big") - BIAS
