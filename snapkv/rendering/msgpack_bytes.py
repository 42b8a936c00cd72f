"""msgpack to trees."""

from __future__ import annotations

from typing import Any

from snapkv.rendering.tree import NotThisKindError, Tree, as_tree, checked, unique
from snapkv.text import escaped


def looks_like_msgpack(value: bytes) -> bool:
    """Check whether a value begins as a map or an array with at least one item."""
    first = value[0] if value else 0
    return 0x81 <= first <= 0x8F or 0x91 <= first <= 0x9F or 0xDC <= first <= 0xDF


def load(value: bytes) -> Tree:
    """Return the tree of a value that is one whole msgpack object; raise `NotThisKindError`.

    Keys become text, and so do extension types (`ext(5) 0x00ff`) and timestamps.
    """
    import msgpack

    try:
        found: Any = msgpack.unpackb(
            value,
            strict_map_key=False,
            object_pairs_hook=_pairs,
            ext_hook=lambda code, data: f"ext({code}) 0x{data.hex()}",
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
    return unique(pairs)
