"""msgpack to trees."""

from __future__ import annotations

import re
from typing import Any

from snapkv.base.text import escaped, quoted
from snapkv.rendering.tree import (
    NotThisKindError,
    OtherText,
    Tree,
    as_tree,
    checked,
    scalar_text,
    unique,
)

_LOOKS_TYPED = re.compile(r'"|(?:int|float|bool|bytes|nil|ext|Timestamp)\(')


def looks_like_msgpack(value: bytes) -> bool:
    """Check whether a value begins as a map or an array with at least one item."""
    first = value[0] if value else 0
    return 0x81 <= first <= 0x8F or 0x91 <= first <= 0x9F or 0xDC <= first <= 0xDF


def load(value: bytes) -> Tree:
    """Return the tree of a value that is one whole msgpack object; raise `NotThisKindError`.

    Keys become text that says their type, but for texts: `int(3)`, `bytes(0xff)`. Extension types
    (`ext(5) 0x00ff`) and timestamps are `OtherText`.
    """
    import msgpack

    try:
        found: Any = msgpack.unpackb(
            value,
            strict_map_key=False,
            object_pairs_hook=_pairs,
            ext_hook=lambda code, data: OtherText(f"ext({code}) 0x{data.hex()}"),
        )
    except NotThisKindError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as e:
        reason = escaped(str(e)) or type(e).__name__
        raise NotThisKindError(f"breaks a rule of msgpack: {reason}") from e
    return checked(as_tree(found))


def _pairs(pairs: list[tuple[Any, Any]]) -> dict[str, Tree]:
    if any(isinstance(key, list | dict) for key, _ in pairs):
        raise NotThisKindError("has a key that is a list or a map")
    return unique((_key_text(key), part) for key, part in pairs)


def _key_text(key: Any) -> str:
    """Return a key as text; two keys of different types never have the same."""
    if isinstance(key, OtherText):
        return str(key)
    if isinstance(key, str):
        return quoted(key) if _LOOKS_TYPED.match(key) else key
    if key is None:
        return "nil()"
    if isinstance(key, bool | int | float | bytes):
        return f"{type(key).__name__}({scalar_text(key)})"
    return str(key)
