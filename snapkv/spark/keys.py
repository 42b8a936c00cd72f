"""Which keys are read: prefix or range, as text or as bytes."""

from __future__ import annotations

from snapkv.errors import SnapKVError
from snapkv.layout import Keyspace
from snapkv.reading.tables import Span
from snapkv.spark import errors as codes
from snapkv.spark.errors import SourceError
from snapkv.spark.options import BINARY, TEXT, Options


def kinds(of_space: bool) -> tuple[str, str]:
    """Return the formats of keys, the usual one first: text, but for those of spaces."""
    return (BINARY, TEXT) if of_space else (TEXT, BINARY)


def is_text(options: Options) -> bool:
    """Return whether keys are text."""
    return options.choice("keyFormat", *kinds(options.place.space is not None)) == TEXT


def span_of(options: Options) -> Span:
    """Return the range of stored keys that options name.

    As bytes, keys are given in hexadecimal. Raises `SourceError`.
    """
    text = is_text(options)
    try:
        space = options.place.keyspace(text=text)
    except SnapKVError as e:
        raise SourceError(codes.INVALID_OPTION, str(e)) from e
    start, end = space.range_of(space.whole)
    prefix = _range_of(options, "keyPrefix", space)
    first, last = _range_of(options, "startKey", space), _range_of(options, "endKey", space)
    if prefix is not None:
        start, end = prefix
    if first is not None:
        start = first[0]
    if last is not None:
        end = last[0]
        if end < start:
            raise SourceError(codes.INVALID_RANGE, "endKey is before startKey")
    return Span(space, start, end, text)


def _range_of(options: Options, name: str, space: Keyspace) -> tuple[bytes, bytes] | None:
    """Return the range of stored keys that begin as an option says, None when it was not given."""
    given = options.text(name)
    if given is None:
        return None
    try:
        return space.range_of(given if space.text else bytes.fromhex(given))
    except SnapKVError as e:
        raise SourceError(codes.INVALID_OPTION, f"{name}: {e}") from e
    except ValueError as e:
        raise SourceError(
            codes.INVALID_OPTION, f"{name} is hexadecimal where keys are bytes, not {given!r}"
        ) from e
