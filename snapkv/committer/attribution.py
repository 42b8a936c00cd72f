"""Attribution of a commit: the checks of its writer, its note and its meta."""

from __future__ import annotations

import math
from collections.abc import Mapping

from snapkv.base.arguments import wrong_type
from snapkv.errors import CommitTooLargeError, InvalidKeyError, InvalidOptionError
from snapkv.layout import (
    META_BYTES_MAX,
    NOTE_BYTES_MAX,
    WRITER_BYTES_MAX,
    encode_text,
    pack_meta,
    unpack_meta,
)
from snapkv.model import Meta

META_FACTS_MAX = 64
INT_MIN, INT_MAX = -(1 << 63), (1 << 64) - 1
"""The integers that msgpack has."""


def check_note(note: object) -> None:
    """Raise a typed error for a note that is not text or is too long."""
    size = len(encode_text(note, "note"))
    if size > NOTE_BYTES_MAX:
        raise CommitTooLargeError("the note in bytes", size, NOTE_BYTES_MAX)


def check_writer(writer: object, *, may_be_empty: bool = False) -> None:
    """Raise a typed error for a writer that is not text, is empty or is too long."""
    size = len(encode_text(writer, "writer"))
    if size > WRITER_BYTES_MAX:
        raise InvalidOptionError(f"writer has more than {WRITER_BYTES_MAX} bytes")
    if not size and not may_be_empty:
        raise InvalidOptionError(
            "writer is empty: pass a name, or leave it out for the writer of the store"
        )


def checked_meta(meta: object) -> Meta | None:
    """Return a meta as it is stored, None for an empty one; raise a typed error for a wrong one.

    >>> checked_meta({"request": "r-17", "ticket": 4})
    Meta({'request': 'r-17', 'ticket': 4})
    >>> checked_meta({"request": b"r-17"})
    Traceback (most recent call last):
    snapkv.errors.InvalidTypeError: meta 'request' must be a scalar of JSON, not bytes
    """
    if not isinstance(meta, Mapping):
        raise wrong_type("meta", "a mapping of names to scalars of JSON", meta)
    facts = dict(meta)
    if len(facts) > META_FACTS_MAX:
        raise CommitTooLargeError("the number of facts in meta", len(facts), META_FACTS_MAX)
    for name, value in facts.items():
        _check_fact(name, value)
    packed = pack_meta(facts)
    if len(packed) > META_BYTES_MAX:
        raise CommitTooLargeError("meta in bytes", len(packed), META_BYTES_MAX)
    return unpack_meta(packed) if facts else None


def _check_fact(name: object, value: object) -> None:
    if not encode_text(name, "a name in meta"):
        raise InvalidKeyError("a name in meta is not empty", name)
    what = f"meta {name!r}"
    match value:
        case str():
            encode_text(value, what)
        case bool() | None:
            pass
        case int():
            if not INT_MIN <= value <= INT_MAX:
                raise InvalidOptionError(f"{what} does not fit into 64 bits; pass it as text")
        case float():
            if not math.isfinite(value):
                raise InvalidOptionError(f"{what} is {value}, which JSON does not have")
        case _:
            raise wrong_type(what, "a scalar of JSON", value)
