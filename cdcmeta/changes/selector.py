"""Selectors: CouchDB's conditions on documents (Mango), for filtering the feed."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sized
from typing import Any, TypeAlias

from cdcmeta.errors import InvalidArgumentError

Condition: TypeAlias = Callable[[Any], bool]
DEPTH_MAX = 50
CONDITIONS_MAX = 10_000
"""The sum of all members, and of the items of $and, $or, $nor, $in, $nin and $all."""
MISSING = object()
"""The value of a path that the document does not have."""


class Selector:
    r"""A condition on documents, compiled once.

    >>> select = Selector({"kind": "table", "columns": {"$gt": 2}, "$not": {"hidden": True}})
    >>> select({"kind": "table", "columns": 3}), select({"kind": "view", "columns": 3})
    (True, False)

    Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists $type $size $mod $regex $beginsWith $all
    $elemMatch $allMatch $keyMapMatch $and $or $nor $not. Values of different kinds compare as
    CouchDB collates them: null, booleans, numbers, texts, lists, objects. `a.b` names a member of
    a member; `\.` is a dot in a name. `regex=False` rejects $regex, which can run for ever, in
    untrusted selectors. Raises `InvalidArgumentError`, also for more than `CONDITIONS_MAX`
    conditions.
    """

    def __init__(self, selector: Mapping[str, object], *, regex: bool = True) -> None:
        if not isinstance(selector, Mapping):
            raise InvalidArgumentError("Selector error: expected a JSON object")
        self._holds = _Compiler(frozenset() if regex else frozenset({"$regex"})).compiled(selector)

    def __call__(self, doc: Mapping[str, Any]) -> bool:
        """Return whether a document matches."""
        return self._holds(doc)


class _Compiler:
    """Compiles one selector; the number of conditions is limited, since each costs time."""

    def __init__(self, rejected: frozenset[str]) -> None:
        self._rejected = rejected
        self._left = CONDITIONS_MAX

    def compiled(self, selector: object, depth: int = 0) -> Condition:
        """Return the condition that all members of a selector hold."""
        if depth > DEPTH_MAX:
            raise InvalidArgumentError(f"the selector is nested more than {DEPTH_MAX} deep")
        if not isinstance(selector, Mapping):
            return _equals(selector)
        self._count(selector)
        parts = [self._member(name, value, depth + 1) for name, value in selector.items()]
        if len(parts) == 1:
            return parts[0]
        return lambda value: all(part(value) for part in parts)

    def _member(self, name: object, argument: object, depth: int) -> Condition:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a selector's member is named by a text, not {name!r}")
        if name in self._rejected:
            raise InvalidArgumentError(f"operator {name} is not allowed here")
        if name in _COMBINED:
            return _COMBINED[name](self._several(name, argument, depth))
        if name in _INNER:
            return _INNER[name](self.compiled(argument, depth))
        if name in _OPTIONS and isinstance(argument, list):
            self._count(argument)
        if name in _OPERATORS:
            is_valid, condition = _OPERATORS[name]
            if not is_valid(argument):
                raise _bad(name, argument)
            return condition(argument)
        if name.startswith("$"):
            raise InvalidArgumentError(f"Invalid operator: {name}")
        path = [part.replace("\0", ".") for part in name.replace("\\.", "\0").split(".")]
        holds = self.compiled(argument, depth)
        if isinstance(argument, Mapping) and not argument:
            holds = _equals({})
        return lambda value: holds(_followed(value, path))

    def _several(self, name: str, argument: object, depth: int) -> list[Condition]:
        if not isinstance(argument, list):
            raise _bad(name, argument)
        self._count(argument)
        return [self.compiled(each, depth) for each in argument]

    def _count(self, conditions: Sized) -> None:
        self._left -= len(conditions)
        if self._left < 0:
            raise InvalidArgumentError(f"the selector has more than {CONDITIONS_MAX} conditions")


def _followed(value: Any, path: list[str]) -> Any:
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def _bad(name: str, argument: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"Bad argument for operator {name}: {reprlib.repr(argument)}")


# --- values ---

_KINDS: tuple[type, ...] = (type(None), bool, int, float, str, list, dict)
_TYPES = {"null": 0, "boolean": 1, "number": 2, "string": 3, "array": 4, "object": 5}


def collation(value: Any) -> tuple[Any, ...]:
    """Return a key that sorts JSON values as CouchDB does, except texts: by code points."""
    if value is None:
        return (0,)
    if isinstance(value, bool):
        return (1, value)
    if isinstance(value, int | float):
        return (2, value)
    if isinstance(value, str):
        return (3, value)
    if isinstance(value, list):
        return (4, *map(collation, value))
    return (5, *((collation(name), collation(each)) for name, each in value.items()))


def _equals(argument: Any) -> Condition:
    _check_json(argument)
    wanted = _plain(argument)
    return lambda value: value is not MISSING and _plain(value) == wanted


def _plain(value: Any) -> Any:
    """Return a value that compares as JSON does: true differs from 1, and members are unordered."""
    if isinstance(value, Mapping):
        return (5, {name: _plain(each) for name, each in value.items()})
    if isinstance(value, list):
        return (4, [_plain(each) for each in value])
    return collation(value)


def _check_json(argument: Any, depth: int = 0) -> None:
    if not isinstance(argument, _KINDS):
        raise InvalidArgumentError(f"not a JSON value: {reprlib.repr(argument)}")
    if depth > DEPTH_MAX:
        raise InvalidArgumentError(f"a value is nested more than {DEPTH_MAX} deep")
    if isinstance(argument, list | dict):
        for inner in argument.values() if isinstance(argument, dict) else argument:
            _check_json(inner, depth + 1)


def _compared(holds: Callable[[Any, Any], bool]) -> Callable[[Any], Condition]:
    def operator(argument: Any) -> Condition:
        _check_json(argument)
        bound = collation(argument)
        return lambda value: value is not MISSING and holds(collation(value), bound)

    return operator


def _one_of(argument: list[Any], *, negated: bool = False) -> Condition:
    options = [_equals(each) for each in argument]

    def holds(value: Any) -> bool:
        if value is MISSING:
            return False
        candidates = [value, *value] if isinstance(value, list) else [value]
        return any(option(each) for option in options for each in candidates) != negated

    return holds


def _mod(argument: list[int]) -> Condition:
    divisor, remainder = argument
    return lambda value: (
        type(value) is int
        and abs(value) % abs(divisor) == (remainder if value >= 0 else -remainder)
    )


def _is_mod(argument: object) -> bool:
    is_pair = isinstance(argument, list) and [type(each) for each in argument] == [int, int]
    return is_pair and argument[0] != 0  # type: ignore[index]


def _regex(argument: Any) -> Condition:
    try:
        pattern = re.compile(argument)
    except (TypeError, re.error) as e:
        raise _bad("$regex", argument) from e
    return lambda value: isinstance(value, str) and pattern.search(value) is not None


def _all(argument: list[Any]) -> Condition:
    wanted = [_equals(each) for each in argument]
    return lambda value: (
        isinstance(value, list)
        and bool(wanted)
        and all(any(option(each) for each in value) for option in wanted)
    )


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda argument: isinstance(argument, kind)


_ANYTHING = _is(object)
_OPERATORS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Condition]]] = {
    "$eq": (_ANYTHING, _equals),
    "$ne": (_ANYTHING, lambda argument: _not(_equals(argument))),
    "$gt": (_ANYTHING, _compared(lambda a, b: a > b)),
    "$gte": (_ANYTHING, _compared(lambda a, b: a >= b)),
    "$lt": (_ANYTHING, _compared(lambda a, b: a < b)),
    "$lte": (_ANYTHING, _compared(lambda a, b: a <= b)),
    "$in": (_is(list), _one_of),
    "$nin": (_is(list), lambda argument: _one_of(argument, negated=True)),
    "$exists": (_is(bool), lambda wanted: lambda value: (value is not MISSING) == wanted),
    "$type": (
        lambda argument: isinstance(argument, str) and argument in _TYPES,
        lambda name: lambda value: value is not MISSING and collation(value)[0] == _TYPES[name],
    ),
    "$size": (
        lambda argument: type(argument) is int and argument >= 0,
        lambda size: lambda value: isinstance(value, list) and len(value) == size,
    ),
    "$mod": (_is_mod, _mod),
    "$regex": (_ANYTHING, _regex),
    "$beginsWith": (
        _is(str),
        lambda prefix: lambda value: isinstance(value, str) and value.startswith(prefix),
    ),
    "$all": (_is(list), _all),
}
"""By operator, whether an argument is valid, and its condition."""


def _not(holds: Condition) -> Condition:
    return lambda value: value is not MISSING and not holds(value)


_OPTIONS = frozenset({"$in", "$nin", "$all"})
_COMBINED: dict[str, Callable[[list[Condition]], Condition]] = {
    "$and": lambda parts: lambda value: all(part(value) for part in parts),
    "$or": lambda parts: lambda value: any(part(value) for part in parts),
    "$nor": lambda parts: lambda value: not any(part(value) for part in parts),
}
_INNER: dict[str, Callable[[Condition], Condition]] = {
    "$not": lambda part: lambda value: not part(value),
    "$elemMatch": lambda part: (
        lambda value: isinstance(value, list) and any(part(each) for each in value)
    ),
    "$allMatch": lambda part: (
        lambda value: isinstance(value, list) and bool(value) and all(part(each) for each in value)
    ),
    "$keyMapMatch": lambda part: (
        lambda value: isinstance(value, Mapping) and any(part(each) for each in value)
    ),
}
