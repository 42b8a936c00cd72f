"""Origins: the version that last changed each path of a tree, or each line of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from snapkv.base.text import escaped
from snapkv.model import Version
from snapkv.rendering.alignment import line_edits, line_pair, lines_of
from snapkv.rendering.decoded import ENCRYPTED, Decoded
from snapkv.rendering.decoder import Decoder
from snapkv.rendering.managed_fields import SIGN, owners, writers
from snapkv.rendering.paths import Path, Patterns, path_text
from snapkv.rendering.tree_changes import ListPairs
from snapkv.rendering.value_decoding import decode
from snapkv.rendering.value_difference import is_kubernetes
from snapkv.rendering.value_tree import Numbers, Tree, compact

Origins = Version | dict[str, "Origins"] | list["Origins"]
"""A tree of the same shape as a value, with the version of each leaf; a version is of all below."""


@dataclass(frozen=True, slots=True)
class Blame:
    """A path or line of the newest value, with the version that last changed it.

    `place` is a path as text (`spec.containers[0].image`), or the number of a line, from 1. Of an
    object of Kubernetes, `managers` own the path in that version, or else wrote that version.
    """

    place: str | int
    text: str
    version: Version
    is_ignored: bool = False
    """Whether it is a path that does not count."""
    managers: tuple[str, ...] = ()


def blame(
    versions: Iterable[Version],
    kind: str | None = None,
    decoder: Decoder | None = None,
    *,
    ignore: Sequence[str] = (),
) -> list[Blame]:
    """Return, for each path (or line) of the newest value, the version that last changed it.

    `versions` are all of one key, oldest first, as `history(key)` yields them. A path names a
    scalar, or an empty dict or list, in the order of the value; a line is of a text, or of a dump
    in hex. What the oldest version had carries that version: where history was compacted, it may
    be older. A version that removes the key, or that is of another form (a text between
    trees), ends what was before. The list is empty without versions, or if the newest
    removes the key. `ignore` lists paths that do not count, as in `compare`.

    Cost: one `decode` and one comparison for each version; two of them in memory at a time. Of
    objects of Kubernetes, one more `decode` for each version in the answer.

    Raises `InvalidOptionError` as `decode` does.
    """
    held: tuple[Decoded, Origins | list[Version]] | None = None
    by_manager = _Managers(kind, decoder)
    for version in versions:
        if version.value is None:
            held = None
        elif held is None or held[0].value != version.value:
            new = decode(version.value, kind, decoder)
            by_manager.add(version, None if held is None else held[0], new)
            held = new, _origins(held, new, version)
    if held is None:
        return []
    value, origins = held
    ignored = Patterns.parse(ignore, kubernetes=is_kubernetes(value.data))
    if value.form == "tree" and SIGN in value.value:
        named = by_manager.of(value.data)
        return list(_leaves((), value.data, origins, ignored, named))  # type: ignore[arg-type]
    return list(_blamed(value, origins, ignored))


Named = Callable[[Path, Version], tuple[str, ...]]
"""Returns the managers that changed a path in a version."""


class _Managers:
    """Finds the managers of Kubernetes that changed paths."""

    def __init__(self, kind: str | None, decoder: Decoder | None) -> None:
        self._kind, self._decoder = kind, decoder
        self._writers: dict[int, tuple[str, ...]] = {}  # of the revisions
        self._trees: dict[int, Tree] = {}

    def add(self, version: Version, before: Decoded | None, after: Decoded) -> None:
        """Note the managers that wrote a version."""
        if after.form == "tree" and SIGN in after.value:
            old = before.data if before is not None and before.form == "tree" else None
            self._writers[version.revision] = writers(old, after.data)

    def of(self, newest: Tree) -> Named:
        """Return what finds the managers of the paths of the newest version."""

        def named(path: Path, version: Version) -> tuple[str, ...]:
            revision, wrote = version.revision, self._writers.get(version.revision, ())
            if revision not in self._trees:
                value = version.value or b""  # a path was changed, not removed
                self._trees[revision] = decode(value, self._kind, self._decoder).data
            found = owners(self._trees[revision], path, newest)
            return tuple(each for each in found if each in wrote) or found or wrote

        return named


def _origins(
    held: tuple[Decoded, Origins | list[Version]] | None, new: Decoded, version: Version
) -> Origins | list[Version]:
    old = held[0] if held and (held[0].form == "tree") == (new.form == "tree") else None
    if new.kind == ENCRYPTED:  # two values may show the same
        old = None
    if new.form == "tree":
        if held is None or old is None:
            return version
        return _Inheritance(version).of(old.data, new.data, held[1])  # type: ignore[arg-type]
    if held is None or old is None:
        return [version] * len(lines_of(new.text))
    origins: list[Version] = list(held[1])  # type: ignore[arg-type]
    for piece in reversed(line_edits(*line_pair(old.text, new.text))):
        origins[piece.before_at : piece.before_at + len(piece.before)] = [version] * len(
            piece.after
        )
    return origins


class _Inheritance:
    """Gives each part of a new tree the version of the part that it was before."""

    def __init__(self, version: Version) -> None:
        self._version = version
        self._numbers = Numbers()
        self._pairs = ListPairs(self._numbers)

    def of(self, before: Tree, after: Tree, origins: Origins) -> Origins:
        if self._numbers.of(before) == self._numbers.of(after):
            return origins
        if not after:  # an empty dict or list is a leaf
            return self._version
        if isinstance(before, dict) and isinstance(after, dict):
            return {
                key: self.of(before[key], part, _below(origins, key))
                if key in before
                else self._version
                for key, part in after.items()
            }
        if isinstance(before, list) and isinstance(after, list):
            came_from = {j: i for i, j in self._pairs.of(before, after)}
            return [
                self.of(before[came_from[j]], part, _below(origins, came_from[j]))
                if j in came_from
                else self._version
                for j, part in enumerate(after)
            ]
        return self._version


def _below(origins: Origins, step: str | int) -> Origins:
    return origins if isinstance(origins, Version) else origins[step]  # type: ignore[index]


def _blamed(value: Decoded, origins: Origins | list[Version], ignored: Patterns) -> Iterator[Blame]:
    if value.form == "tree":
        yield from _leaves((), value.data, origins, ignored)  # type: ignore[arg-type]
        return
    for number, (line, version) in enumerate(zip(lines_of(value.text), origins, strict=True), 1):  # type: ignore[arg-type]
        yield Blame(number, escaped(line.removesuffix("\n")), version)  # type: ignore[arg-type]


def _leaves(
    path: Path,
    tree: Tree,
    origins: Origins,
    ignored: Patterns,
    named: Named = lambda path, version: (),
) -> Iterator[Blame]:
    parts: Iterable[tuple[Any, Tree]] = ()
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, list):
        parts = enumerate(tree)
    if parts and tree:
        for step, part in parts:
            below = ignored if ignored.covers else ignored.below(step)
            yield from _leaves((*path, step), part, _below(origins, step), below, named)
    else:
        assert isinstance(origins, Version)
        managers = () if ignored.covers else named(path, origins)
        yield Blame(path_text(path), compact(tree), origins, ignored.covers, managers)
