"""Routes: which path is answered by what, in a look-up for each of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
_REST = ":path}"


class Routes(Generic[T]):
    """Answers by path: `/{db}/_changes`, `/{db}/{id}`; `{rest:path}` takes all parts that are left.

    >>> routes = Routes({"/{db}/_changes": 1, "/{db}/{id}": 2, "/{db}/{id}/{rest:path}": 3})
    >>> routes.find("/a/_changes"), routes.find("/a/b")
    ((1, {'db': 'a'}), (2, {'db': 'a', 'id': 'b'}))
    >>> routes.find("/a/_changes/c/d")
    (3, {'db': 'a', 'id': '_changes', 'rest': 'c/d'})

    A text goes before a parameter, and a parameter before the rest. No parameter but the rest is
    ever empty.
    """

    def __init__(self, routes: Mapping[str, T]) -> None:
        self._root: _Node[T] = _Node()
        for path, answer in routes.items():
            node, names = self._root, []
            for part in path[1:].split("/"):
                if part.startswith("{"):
                    names.append(part.removesuffix(_REST).strip("{}"))
                if part.endswith(_REST):
                    node.rest = answer, names
                    break
                node = node.at(None if part.startswith("{") else part)
            else:
                node.answer = answer, names

    def find(self, path: str) -> tuple[T, dict[str, str]] | None:
        """Return the answer and the parameters of a path; None when there is no route."""
        values: list[str] = []
        found = self._root.find(path[1:].split("/"), 0, values)
        return found and (found[0], dict(zip(found[1], values, strict=True)))


class _Node(Generic[T]):
    """What follows the same parts of routes; each answer comes with its parameters' names."""

    def __init__(self) -> None:
        self.texts: dict[str | None, _Node[T]] = {}
        self.answer: tuple[T, list[str]] | None = None
        self.rest: tuple[T, list[str]] | None = None

    def at(self, part: str | None) -> _Node[T]:
        """Return what follows a part; None stands for a parameter."""
        return self.texts.setdefault(part, _Node())

    def find(self, parts: list[str], at: int, values: list[str]) -> tuple[T, list[str]] | None:
        """Return the answer of the parts from one on; `values` gets those of parameters."""
        if at == len(parts):
            return self.answer
        part, size = parts[at], len(values)
        if part in self.texts and (found := self.texts[part].find(parts, at + 1, values)):
            return found
        if part and None in self.texts:
            values.append(part)
            if found := self.texts[None].find(parts, at + 1, values):
                return found
        del values[size:]
        if self.rest is not None:
            values.append("/".join(parts[at:]))
        return self.rest
