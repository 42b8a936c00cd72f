"""FoundationDB's tuple encoding: tuples as bytes that sort as the tuples do.

A packed tuple is its elements' encodings, one after the other, each after a type code. So all keys
that begin with one tuple are adjacent, and in order. The format is FoundationDB's (its
`design/tuple.md`), byte for byte, without the type codes that were never in use there.

| code | element | encoding |
|---|---|---|
| 00 | None | nothing; 00 ff inside a nested tuple |
| 01, 02 | bytes, str (UTF-8) | the bytes, each 00 as 00 ff, then 00 |
| 05 | tuple | its elements, then 00 |
| 0b | int below -(2^64 - 1) | its length inverted, then one's complement, big-endian |
| 0c to 13 | negative int of 8 to 1 bytes | one's complement, big-endian |
| 14 | 0 | nothing |
| 15 to 1c | positive int of 1 to 8 bytes | big-endian |
| 1d | int above 2^64 - 1 | its length, then big-endian |
| 20, 21 | Single, float | IEEE 754, big-endian; all bits flipped if negative, else the sign |
| 26, 27 | False, True | nothing |
| 30 | UUID | 16 bytes |
| 33 | Versionstamp | 12 bytes |
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

from snapkv.base.arguments import check_bytes, wrong_type
from snapkv.errors import InvalidTupleError, InvalidTypeError

INT_BYTES_MAX = 255
NESTED_MAX = 100
"""The depth of the deepest nested tuple; a deeper one is rejected as an attack or a mistake."""

NULL, BYTES, TEXT, NESTED = 0x00, 0x01, 0x02, 0x05
NEGATIVE, ZERO, POSITIVE = 0x0B, 0x14, 0x1D
SINGLE, DOUBLE, FALSE, TRUE, UUID_CODE, STAMP = 0x20, 0x21, 0x26, 0x27, 0x30, 0x33

_STAMP = struct.Struct(">QHH")


class Single(float):
    """A float of 32 bits; a type of its own, because its encoding is not that of a `float`."""

    def __repr__(self) -> str:
        return f"Single({float(self)!r})"


class Versionstamp(NamedTuple):
    """A position in the order of all commits: 12 bytes that sort in commit order.

    `version` is the commit's timestamp (64 bits), `batch` its index in the group, `user` counts
    within the batch (16 bits each).
    """

    version: int
    batch: int = 0
    user: int = 0

    def __bytes__(self) -> bytes:
        try:
            return _STAMP.pack(*self)
        except struct.error as e:
            raise InvalidTupleError(f"not a valid versionstamp: {tuple(self)}") from e

    @classmethod
    def from_bytes(cls, raw: bytes) -> Versionstamp:
        """Return the versionstamp of 12 bytes. Raises `InvalidTupleError`."""
        try:
            return cls._make(_STAMP.unpack(raw))
        except struct.error:
            message = f"a versionstamp has {_STAMP.size} bytes, not {len(raw)}"
            raise InvalidTupleError(message) from None


Element = Any
"""None, bytes, str, int, float, Single, bool, UUID, Versionstamp, or a tuple of such."""


def pack(elements: tuple[Element, ...]) -> bytes:
    """Return the bytes of a tuple; O(bytes).

    >>> pack(("changes", 0, Versionstamp(1, 0, 7))).hex()
    '026368616e676573001433000000000000000100000007'

    Raises `InvalidTypeError` for an element of another type, `InvalidTupleError` for one that has
    no encoding.
    """
    if not isinstance(elements, tuple) or isinstance(elements, Versionstamp):
        raise wrong_type("the argument of pack", "a tuple", elements)
    packed = []
    for element in elements:
        kind = type(element)
        if kind is int and 0 <= element < 256:  # what keys are mostly made of, here without calls
            packed.append(_SMALL[element])
        elif kind is bytes:
            raw = element.replace(b"\x00", b"\x00\xff") if 0 in element else element
            packed.append(b"\x01%b\x00" % raw)
        elif (encode := _ENCODERS.get(kind)) is not None:
            packed.append(encode(element))
        else:
            packed.append(_encode(element, 0))
    return b"".join(packed)


def unpack(packed: bytes) -> tuple[Element, ...]:
    """Return the tuple of some bytes; strict: raises for bytes that `pack` would not write.

    It also takes the longer form of 2^64 - 1 and its negative, as FoundationDB's Python writes it.

    >>> unpack(bytes.fromhex("0261001501"))
    ('a', 1)

    Raises `InvalidTupleError`, with the byte's position.
    """
    check_bytes("the argument of unpack", packed)
    found: list[Element] = []
    at, end = 0, len(packed)
    while at < end:
        code = packed[at]
        if code in (BYTES, TEXT):  # what keys are mostly made of, here without calls
            stop = packed.find(0, at + 1)
            if stop > 0 and packed[stop + 1 : stop + 2] != b"\xff":
                raw = packed[at + 1 : stop]
                found.append(raw if code == BYTES else _utf8(raw, at))
                at = stop + 1
                continue
        elif ZERO < code < POSITIVE and packed[at + 1 : at + 2] > b"\x00":
            behind = at + 1 + code - ZERO
            if behind <= end:
                found.append(int.from_bytes(packed[at + 1 : behind], "big"))
                at = behind
                continue
        elif code in _CONSTANTS:
            found.append(_CONSTANTS[code])
            at += 1
            continue
        element, at = _decode(packed, at, 0)
        found.append(element)
    return tuple(found)


def range_of(prefix: tuple[Element, ...]) -> tuple[bytes, bytes]:
    """Return [start, end) of all packed tuples that are longer than `prefix` and begin with it.

    >>> [edge.hex() for edge in range_of(("a",))]
    ['02610000', '026100ff']
    """
    packed = pack(prefix)
    return packed + b"\x00", packed + b"\xff"


# --- encoding ---


def _encode(element: Element, depth: int) -> bytes:
    encode = _ENCODERS.get(type(element))
    if encode is not None:
        return encode(element)
    if isinstance(element, tuple) and not isinstance(element, Versionstamp):
        return _nested(element, depth)
    for kind, encode in _ENCODERS.items():  # subclasses; bool before int, which it is one of
        if isinstance(element, kind):
            return encode(element)
    raise InvalidTypeError(f"a tuple cannot hold a {type(element).__name__}")


def _nested(elements: tuple[Element, ...], depth: int) -> bytes:
    if depth == NESTED_MAX:
        raise InvalidTupleError(f"tuples are nested more than {NESTED_MAX} deep")
    inner = (b"\x00\xff" if each is None else _encode(each, depth + 1) for each in elements)
    return bytes([NESTED]) + b"".join(inner) + b"\x00"


def _terminated(code: bytes, raw: bytes) -> bytes:
    if 0 in raw:
        raw = raw.replace(b"\x00", b"\x00\xff")
    return code + raw + b"\x00"


def _text(text: str) -> bytes:
    try:
        raw = text.encode()
        return _terminated(b"\x02", raw) if 0 in raw else b"\x02%b\x00" % raw
    except UnicodeEncodeError as e:
        raise InvalidTupleError(f"{text!r} is not valid UTF-8") from e


def _integer(number: int) -> bytes:
    if 0 <= number < len(_SMALL):
        return _SMALL[number]
    size = (abs(number).bit_length() + 7) // 8
    if size > INT_BYTES_MAX:
        raise InvalidTupleError(f"an int of more than {INT_BYTES_MAX} bytes")
    shown = number if number >= 0 else number + (1 << 8 * size) - 1
    raw = shown.to_bytes(size, "big")
    if size <= 8:
        return bytes([ZERO + size if number >= 0 else ZERO - size]) + raw
    return (bytes([POSITIVE, size]) if number > 0 else bytes([NEGATIVE, size ^ 0xFF])) + raw


def _floating(code: int, form: str, number: float) -> bytes:
    try:
        raw = struct.pack(form, number)
    except OverflowError as e:
        raise InvalidTupleError(f"{number!r} does not fit 32 bits") from e
    return bytes([code]) + _flipped(raw, negative=bool(raw[0] & 0x80))


def _flipped(raw: bytes, *, negative: bool) -> bytes:
    """Return the bits of a float such that they sort, or sorted ones as they were."""
    if negative:
        return bytes(byte ^ 0xFF for byte in raw)
    return bytes([raw[0] ^ 0x80]) + raw[1:]


_SMALL = [bytes([ZERO]), *(bytes([ZERO + 1, number]) for number in range(1, 256))]
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"\x00",
    bytes: lambda raw: _terminated(b"\x01", raw),
    str: _text,
    bool: lambda value: b"\x27" if value else b"\x26",
    int: _integer,
    Single: lambda number: _floating(SINGLE, ">f", number),
    float: lambda number: _floating(DOUBLE, ">d", number),
    UUID: lambda uuid: bytes([UUID_CODE]) + uuid.bytes,
    Versionstamp: lambda stamp: b"\x33" + bytes(stamp),
}


# --- decoding ---


def _decode(packed: bytes, at: int, depth: int) -> tuple[Element, int]:
    """Return the element at a byte, and where the next one is."""
    code = packed[at]
    if code in _CONSTANTS:
        return _CONSTANTS[code], at + 1
    if code in (BYTES, TEXT):
        raw, behind = _until_zero(packed, at + 1)
        return (raw if code == BYTES else _utf8(raw, at)), behind
    if code == NESTED:
        return _decode_nested(packed, at, depth)
    if NEGATIVE <= code <= POSITIVE:
        return _decode_integer(packed, at)
    if code in _FIXED:
        size, decode = _FIXED[code]
        return decode(_taken(packed, at + 1, size)), at + 1 + size
    raise InvalidTupleError(f"unknown type code {code:02x} at byte {at}")


def _decode_nested(packed: bytes, at: int, depth: int) -> tuple[Element, int]:
    if depth == NESTED_MAX:
        raise InvalidTupleError(f"tuples are nested more than {NESTED_MAX} deep")
    found: list[Element] = []
    start, at = at, at + 1
    while at < len(packed):
        if packed[at] != NULL:
            element, at = _decode(packed, at, depth + 1)
            found.append(element)
        elif packed[at + 1 : at + 2] == b"\xff":
            found.append(None)
            at += 2
        else:
            return tuple(found), at + 1
    raise InvalidTupleError(f"the tuple at byte {start} does not end")


def _until_zero(packed: bytes, start: int) -> tuple[bytes, int]:
    at = packed.find(b"\x00", start)
    while at >= 0 and packed[at + 1 : at + 2] == b"\xff":
        at = packed.find(b"\x00", at + 2)
    if at < 0:
        raise InvalidTupleError(f"the string at byte {start - 1} does not end")
    return packed[start:at].replace(b"\x00\xff", b"\x00"), at + 1


def _utf8(raw: bytes, at: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        raise InvalidTupleError(f"the text at byte {at} is not valid UTF-8: {e}") from e


def _decode_integer(packed: bytes, at: int) -> tuple[int, int]:
    code = packed[at]
    start, size, negative = at + 1, abs(code - ZERO), code < ZERO
    if code in (NEGATIVE, POSITIVE):
        (size,) = _taken(packed, start, 1)
        size, start = (size ^ 0xFF if negative else size), start + 1
    shown = int.from_bytes(_taken(packed, start, size), "big")
    number = shown - (1 << 8 * size) + 1 if negative else shown
    behind = start + size
    if packed[at:behind] not in (_integer(number), _LONGER.get(number)):
        raise InvalidTupleError(f"the int at byte {at} is not in its shortest form")
    return number, behind


def _decode_float(form: str, kind: type[float], raw: bytes) -> float:
    bits = _flipped(raw, negative=not raw[0] & 0x80)
    (number,) = struct.unpack(form, bits)
    if struct.pack(form, number) != bits:  # 64 bits keep not every NaN of 32
        raise InvalidTupleError(f"{raw.hex()} is not the encoding of a float")
    return kind(number)


def _taken(packed: bytes, start: int, size: int) -> bytes:
    raw = packed[start : start + size]
    if len(raw) < size:
        raise InvalidTupleError(f"the tuple ends within the element before byte {len(packed)}")
    return raw


_LONGER = {
    2**64 - 1: bytes([POSITIVE, 8]) + b"\xff" * 8,
    1 - 2**64: bytes([NEGATIVE, 8 ^ 0xFF]) + bytes(8),
}
"""The form in which FoundationDB's Python binding writes two integers (its issue 1296): read, never
written."""
_CONSTANTS: dict[int, Element] = {NULL: None, ZERO: 0, FALSE: False, TRUE: True}
_FIXED: dict[int, tuple[int, Callable[[bytes], Element]]] = {
    SINGLE: (4, lambda raw: _decode_float(">f", Single, raw)),
    DOUBLE: (8, lambda raw: _decode_float(">d", float, raw)),
    UUID_CODE: (16, lambda raw: UUID(bytes=raw)),
    STAMP: (_STAMP.size, Versionstamp.from_bytes),
}
