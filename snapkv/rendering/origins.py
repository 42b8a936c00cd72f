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
    wrote: dict[int, tuple[str, ...]] = {}  # the managers of each revision
    for version in versions:
        if version.value is None:
            held = None
        elif held is None or held[0].value != version.value:
            new = decode(version.value, kind, decoder)
            wrote[version.revision] = writers(held and held[0].data, new.data)
            held = new, _origins(held, new, version)
    if held is None:
        return []
    value, origins = held
    ignored = Patterns.parse(ignore, kubernetes=is_kubernetes(value.data))
    if value.form != "tree":
        lines = enumerate(zip(lines_of(value.text), origins, strict=True), 1)  # type: ignore[arg-type]
        return [Blame(n, escaped(line.removesuffix("\n")), of) for n, (line, of) in lines]  # type: ignore[arg-type]
    trees, is_managed = dict[int, Tree](), SIGN in value.value

    def managers_of(path: Path, version: Version) -> tuple[str, ...]:
        revision = version.revision
        if not is_managed:
            return ()
        if revision not in trees:  # a path was changed there, so it is a value
            trees[revision] = decode(version.value or b"", kind, decoder).data
        found = owners(trees[revision], path, value.data)
        by = wrote.get(revision, ())
        return tuple(each for each in found if each in by) or found or by

    return list(_leaves((), value.data, origins, ignored, managers_of))  # type: ignore[arg-type]


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


def _leaves(
    path: Path,
    tree: Tree,
    origins: Origins,
    ignored: Patterns,
    managers_of: Callable[[Path, Version], tuple[str, ...]],
) -> Iterator[Blame]:
    parts: Iterable[tuple[Any, Tree]] = ()
    if isinstance(tree, dict):
        parts = tree.items()
    elif isinstance(tree, list):
        parts = enumerate(tree)
    if parts and tree:
        for step, part in parts:
            below = ignored if ignored.covers else ignored.below(step)
            yield from _leaves((*path, step), part, _below(origins, step), below, managers_of)
    else:
        assert isinstance(origins, Version)
        managers = () if ignored.covers else managers_of(path, origins)
        yield Blame(path_text(path), compact(tree), origins, ignored.covers, managers)
