"""Trees: what structured values are made of, whatever format they were stored in.

A tree is a dict with text keys, a list, or a scalar: text, int, float, bool, None, bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from snapkv.base.text import escaped, quoted, stored_text

Tree = Any
"""A dict with text keys, a list of trees, text, int, float, bool, None or bytes."""

DEPTH_MAX = 100
"""The depth of the deepest tree; a deeper value is shown as text."""
NODES_MAX = 250_000
"""The most dicts, lists and scalars of a tree; a larger value is shown as text."""


class NotThisKindError(ValueError):
    """The value is not of this kind; the message completes "the value ..."."""


class OtherText(str):
    """The text of a scalar that trees do not have, such as a time; it differs from the same str."""

    __slots__ = ()


class WrittenFloat(float):
    """A number with more digits than a float keeps; `written` has them all."""

    __slots__ = ("exact", "written")
    exact: Decimal | str
    written: str

    def __new__(cls, written: str, exact: Decimal | str) -> WrittenFloat:
        """Make the float nearest to `exact`, which is equal for all spellings of one number."""
        number = super().__new__(cls, written)
        number.written, number.exact = written, exact
        return number

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return what copies are made of."""
        return self.written, self.exact


def float_of(written: str) -> float:
    """Return a number with a fraction or exponent: a `WrittenFloat` if a float is another number.

    >>> float_of("1.50"), float_of("0.1000000000000000055").written
    (1.5, '0.1000000000000000055')

    Raises `NotThisKindError` for a number that is too large for a float.
    """
    number = float(written)
    if number in (float("inf"), float("-inf")):
        raise NotThisKindError("has a number that is too large")
    try:
        exact: Decimal | str = Decimal(written)
    except InvalidOperation:  # an exponent of twenty digits
        exact = written
    return number if exact == Decimal(repr(number)) else WrittenFloat(written, exact)


def checked(tree: Tree) -> Tree:
    """Return a tree that keeps the bounds; raise `NotThisKindError` for another.

    A part that is in the tree twice (an alias of YAML) counts twice.
    """
    waiting: list[tuple[Tree, int]] = [(tree, 0)]
    nodes = 0
    while waiting:
        node, depth = waiting.pop()
        nodes += 1
        if isinstance(node, dict | list):
            if depth > DEPTH_MAX:
                raise NotThisKindError(f"is nested deeper than {DEPTH_MAX} levels")
            if nodes + len(waiting) + len(node) > NODES_MAX:
                raise NotThisKindError(f"has more than {NODES_MAX:,} parts")
            parts: Iterable[Tree] = node.values() if isinstance(node, dict) else node
            waiting += [(part, depth + 1) for part in parts]
    return tree


def unique(pairs: Iterable[tuple[Any, Tree]]) -> dict[str, Tree]:
    """Return pairs as a dict with text keys; raise `NotThisKindError` if a key comes twice."""
    found: dict[str, Tree] = {}
    for key, part in pairs:
        name = key if isinstance(key, str) else scalar_text(key)
        if name in found:
            raise NotThisKindError(f"has the key {quoted(name)} twice in one object")
        found[name] = part
    return found


def as_tree(found: object, depth: int = 0) -> Tree:
    """Return what a decoder made as a tree: tuples as lists, keys and unknown objects as text."""
    if depth > DEPTH_MAX:
        raise NotThisKindError(f"is nested deeper than {DEPTH_MAX} levels")
    if isinstance(found, Mapping):
        return unique((key, as_tree(part, depth + 1)) for key, part in found.items())
    if isinstance(found, list | tuple | set | frozenset):
        return [as_tree(part, depth + 1) for part in found]
    if isinstance(found, bytearray | memoryview):
        return bytes(found)
    if found is None or isinstance(found, str | bytes | bool | int | float):
        return found
    return OtherText(found)


def _scalar_id(scalar: Tree) -> object:
    if isinstance(scalar, WrittenFloat):
        return scalar.exact
    return repr(scalar) if isinstance(scalar, float) else scalar  # NaN is equal to itself


class Numbers:
    """Numbers trees so that two have the same number exactly if they are equal, types and all.

    1, 1.0 and True differ. Keep the trees while this is in use. Costs one pass over each tree,
    whatever is asked.
    """

    def __init__(self) -> None:
        self._by_id: dict[int, int] = {}
        self._by_content: dict[object, int] = {}

    def of(self, tree: Tree) -> int:
        """Return the number of a tree."""
        if not isinstance(tree, dict | list):
            return self._number((type(tree), _scalar_id(tree)))
        number = self._by_id.get(id(tree))
        if number is None:
            if isinstance(tree, dict):
                content: object = frozenset((key, self.of(part)) for key, part in tree.items())
            else:
                content = tuple(map(self.of, tree))
            number = self._by_id[id(tree)] = self._number(content)
        return number

    def _number(self, content: object) -> int:
        return self._by_content.setdefault(content, len(self._by_content))


def leaves(tree: Tree) -> int:
    """Return how many scalars and empty containers a tree has."""
    count, waiting = 0, [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list) and node:
            waiting += node.values() if isinstance(node, dict) else node
        else:
            count += 1
    return count


def bytes_text(value: bytes) -> str:
    r"""Return bytes inside a tree as text: quoted if they are text, else hexadecimal.

    >>> print(bytes_text(b"hunter2"), bytes_text(b"\xff"))
    b"hunter2" 0xff
    """
    text = stored_text(value)
    return "0x" + value.hex() if text is None else "b" + quoted(text)


def scalar_text(scalar: Tree) -> str:
    """Return a scalar as text; text only in quotes where it could be read as something else.

    >>> print(*map(scalar_text, ["nginx:1.25", "1", " x", 1, None, True, 1.5, b"k"]))
    nginx:1.25 "1" " x" 1 null true 1.5 b"k"
    """
    if isinstance(scalar, OtherText):
        return escaped(scalar)
    if isinstance(scalar, str):
        return scalar if _is_plain(scalar) else quoted(scalar)
    if isinstance(scalar, bytes):
        return bytes_text(scalar)
    return scalar.written if isinstance(scalar, WrittenFloat) else json.dumps(scalar)


def _is_plain(text: str) -> bool:
    if not text or text[0] in "\"'{[(<0123456789+-. " or text[-1] == " ":
        return text[:1].isdigit() and not _reads_as_number(text) and escaped(text) == text
    if text in ("null", "true", "false", "NaN", "Infinity") or " -> " in text:
        return False
    return escaped(text) == text and not text.startswith(('b"', "...", "ext(", "Timestamp("))


def _reads_as_number(text: str) -> bool:
    if text[-1] == " " or " -> " in text or text[:2].lower() == "0x":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def compact(tree: Tree) -> str:
    """Return a tree on one line: a scalar as `scalar_text`, else JSON.

    >>> print(compact({"a": [1, None]}))
    {"a": [1, null]}
    """
    if not isinstance(tree, dict | list):
        return scalar_text(tree)
    return escaped(_json(tree, None))


def json_text(tree: Tree) -> str:
    """Return a tree as indented JSON that shows every character; bytes as `bytes_text`."""
    return escaped(_json(tree, "\n"), keep="\n")


def _json(tree: Tree, line: str | None) -> str:
    """Return JSON with the digits of numbers as written; `line` begins a line, None is one line."""
    if isinstance(tree, WrittenFloat):
        return tree.written
    if not isinstance(tree, dict | list) or not tree:
        return json.dumps(tree, ensure_ascii=False, default=bytes_text)
    inner = None if line is None else line + "  "
    if isinstance(tree, dict):
        signs = "{}"
        parts = [f"{_json(str(key), None)}: {_json(part, inner)}" for key, part in tree.items()]
    else:
        signs = "[]"
        parts = [_json(part, inner) for part in tree]
    if line is None or inner is None:
        return ", ".join(parts).join(signs)
    return f"{signs[0]}{inner}{f',{inner}'.join(parts)}{line}{signs[1]}"
