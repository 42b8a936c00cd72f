"""The wire format of Protocol Buffers: a message as (field number, raw content) pairs."""

from __future__ import annotations

from typing import Any

from snapkv.rendering.tree import DEPTH_MAX, NotThisKindError, Tree

Field = tuple[int, int, Any]
"""Number, wire type, content: an unsigned int, bytes, or the fields of a group."""

VARINT, FIXED64, BYTES, GROUP, FIXED32 = 0, 1, 2, 3, 5


def fields_of(message: bytes) -> list[Field]:
    """Return the fields of a message in their order; raise `NotThisKindError`."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    empty = Empty()
    try:
        empty.ParseFromString(message)
    except DecodeError as e:
        raise NotThisKindError("is not a whole message of protobuf") from e
    return _fields(UnknownFieldSet(empty))


def _fields(found: Any) -> list[Field]:
    return [
        (field.field_number, field.wire_type, _content(field.wire_type, field.data))
        for field in found
    ]


def _content(wire_type: int, data: Any) -> Any:
    if wire_type == GROUP:
        return _fields(data)
    return bytes(data) if wire_type == BYTES else data


def raw_tree(message: bytes, depth: int = 0) -> dict[str, Tree]:
    """Return a message of an unknown type: fields by number, repeated ones as lists.

    Bytes are shown as text if they are printable text, else as a message if they parse as one
    with at least one field, else as bytes. Raises `NotThisKindError`.
    """
    return _raw(fields_of(message), depth)


def _raw(fields: list[Field], depth: int) -> dict[str, Tree]:
    found: dict[str, list[Tree]] = {}
    for number, wire_type, content in fields:
        found.setdefault(str(number), []).append(raw_value(wire_type, content, depth))
    return {number: parts[0] if len(parts) == 1 else parts for number, parts in found.items()}


def raw_value(wire_type: int, content: Any, depth: int = 0) -> Tree:
    """Return what one field of an unknown type most likely is."""
    if depth >= DEPTH_MAX:
        raise NotThisKindError(f"is nested deeper than {DEPTH_MAX} levels")
    if wire_type == GROUP:
        return _raw(content, depth + 1)
    if wire_type != BYTES:
        return signed(content) if wire_type == VARINT else content
    text = _printable(content)
    if text is not None:
        return text
    try:
        return raw_tree(content, depth + 1)
    except NotThisKindError:
        return content


def signed(number: int) -> int:
    """Return the int64 that a varint holds.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return number - (1 << 64) if number >> 63 else number


def _printable(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if all(char.isprintable() or char in "\n\t" for char in text) else None
