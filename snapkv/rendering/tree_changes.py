"""Changes between two trees, path by path.

Items of two lists correspond
* if all items are dicts with a field of `IDENTITY_FIELDS` whose values are distinct in each list:
  by that field. An item at another place among them is moved;
* else as lines of two texts do: equal items in the same order correspond. Between them, as many as
  both sides have are taken for changed, where they have most in common; the rest is added or
  removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from snapkv.rendering.alignment import ChangedRange, EditBudget, edits, longest_rising
from snapkv.rendering.paths import Path, Patterns, Step, path_text
from snapkv.rendering.value_tree import Numbers, Tree

IDENTITY_FIELDS = (
    "name",
    "id",
    "_id",
    "uid",
    "key",
    "type",
    "mountPath",
    "containerPort",
    "port",
    "ip",
)
"""The fields that name an item of a list, the first that applies: as Kubernetes merges lists,
too."""

_OFFSETS_MAX = 64
_ENTRIES_MAX = 32

Kind = Literal["added", "removed", "changed", "moved"]


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path that differs.

    A whole subtree that is added or removed is one change. Indexes in `path` are as in `after`;
    only the last index of a removed item is as in `before`. A moved item of a list was at
    `index_before`; what changed inside it is a change of its own.
    """

    kind: Kind
    path: Path
    before: Tree = None
    after: Tree = None
    index_before: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {path_text(self.path)}"


class TreeChanges:
    """The changes between two trees, but for ignored paths, which are counted."""

    def __init__(self, before: Tree, after: Tree, ignored: Patterns) -> None:
        self.found: list[PathChange] = []
        self.ignored = 0
        self._numbers = Numbers()
        self._pairs = ListPairs(self._numbers)
        self._walk((), before, after, ignored)

    def _walk(self, path: Path, before: Tree, after: Tree, ignored: Patterns) -> None:
        if self._numbers.of(before) == self._numbers.of(after):
            return
        if ignored.covers:
            self.ignored += 1
        elif isinstance(before, dict) and isinstance(after, dict):
            for key in _merged_keys(before, after):
                below, inner = (*path, key), ignored.below(key)
                if key not in after:
                    self._one_side("removed", below, before[key], inner)
                elif key not in before:
                    self._one_side("added", below, after[key], inner)
                else:
                    self._walk(below, before[key], after[key], inner)
        elif isinstance(before, list) and isinstance(after, list):
            self._lists(path, before, after, ignored)
        else:
            self.found.append(PathChange("changed", path, before, after))

    def _one_side(self, kind: Kind, path: Path, tree: Tree, ignored: Patterns) -> None:
        if ignored.covers:
            self.ignored += 1
            return
        shown = without(tree, ignored)
        before, after = (shown, None) if kind == "removed" else (None, shown)
        self.found.append(PathChange(kind, path, before, after))

    def _lists(self, path: Path, before: list[Tree], after: list[Tree], ignored: Patterns) -> None:
        pairs = self._pairs.of(before, after)
        left, right = {i for i, _ in pairs}, {j: i for i, j in pairs}
        for i, item in enumerate(before):
            if i not in left:
                self._one_side("removed", (*path, i), item, ignored.below(i))
        kept = {pairs[n][1] for n in longest_rising([i for i, _ in pairs])}
        for j, item in enumerate(after):
            below, inner = (*path, j), ignored.below(j)
            if j not in right:
                self._one_side("added", below, item, inner)
                continue
            if j not in kept:
                earlier = before[right[j]]
                self.found.append(PathChange("moved", below, earlier, item, right[j]))
            self._walk(below, before[right[j]], item, inner)


def _merged_keys(before: dict[str, Tree], after: dict[str, Tree]) -> Iterator[str]:
    """Yield the keys of both dicts: in the order of `after`, removed ones where they were."""
    new = iter(after)
    for key in before:
        if key not in after:
            yield key
            continue
        for each in new:
            if each in before:
                break
            yield each
        yield key
    yield from (key for key in new if key not in before)


class ListPairs:
    """Finds which items of two lists correspond, by the rule above."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._budget = EditBudget()

    def of(self, before: list[Tree], after: list[Tree]) -> list[tuple[int, int]]:
        """Return the indexes of corresponding items, in the order of `after`."""
        field = identity_field(before, after)
        return self._aligned(before, after) if field is None else _by_field(field, before, after)

    def _aligned(self, before: list[Tree], after: list[Tree]) -> list[tuple[int, int]]:
        a, b = list(map(self._numbers.of, before)), list(map(self._numbers.of, after))
        pairs: list[tuple[int, int]] = []
        i = j = 0
        for edit in (*edits(a, b, self._budget), ChangedRange(len(a), len(a), len(b), len(b))):
            pairs += zip(range(i, edit.before_from), range(j, edit.after_from), strict=True)
            pairs += self._taken_for_changed(before, after, edit)
            i, j = edit.before_to, edit.after_to
        return pairs

    def _taken_for_changed(
        self, before: list[Tree], after: list[Tree], edit: ChangedRange
    ) -> Iterator[tuple[int, int]]:
        lefts, rights = range(*edit[:2]), range(*edit[2:])
        short, long = sorted((lefts, rights), key=len)
        if not short:
            return
        offsets = range(min(len(long) - len(short), _OFFSETS_MAX) + 1)

        def in_common(offset: int) -> int:
            i, j = (offset, 0) if long is lefts else (0, offset)
            return sum(
                self._alike(before[lefts[i + n]], after[rights[j + n]])
                for n in range(min(len(short), _OFFSETS_MAX))
            )

        best = max(offsets, key=in_common) if len(offsets) > 1 else 0
        i, j = (best, 0) if long is lefts else (0, best)
        yield from zip(lefts[i : i + len(short)], rights[j : j + len(short)], strict=True)

    def _alike(self, before: Tree, after: Tree) -> int:
        if not (isinstance(before, dict) and isinstance(after, dict)):
            return 0
        of = self._numbers.of
        entries = islice(before.items(), _ENTRIES_MAX)
        return sum(key in after and of(part) == of(after[key]) for key, part in entries)


def identity_field(before: list[Tree], after: list[Tree]) -> str | None:
    """Return the field that names the items of two lists, None if there is none."""
    if not before or not after:
        return None
    for field in IDENTITY_FIELDS:
        if _is_identity(field, before) and _is_identity(field, after):
            return field
    return None


def _is_identity(field: str, items: Sequence[Tree]) -> bool:
    seen: set[object] = set()
    for item in items:
        name = item.get(field) if isinstance(item, dict) else None
        if not isinstance(name, str | int) or isinstance(name, bool) or name in seen:
            return False
        seen.add(name)
    return True


def _by_field(field: str, before: list[Tree], after: list[Tree]) -> list[tuple[int, int]]:
    places = {item[field]: i for i, item in enumerate(before)}
    return [(places[item[field]], j) for j, item in enumerate(after) if item[field] in places]


def without(tree: Tree, ignored: Patterns) -> Tree:
    """Return a tree without the ignored paths; the tree itself if none is ignored."""
    if not ignored:
        return tree
    if isinstance(tree, dict):
        return dict(_left(tree.items(), ignored))
    if isinstance(tree, list):
        return [part for _, part in _left(enumerate(tree), ignored)]
    return tree


def _left(parts: object, ignored: Patterns) -> Iterator[tuple[Step, Tree]]:
    for step, part in parts:  # type: ignore[attr-defined]
        inner = ignored.below(step)
        if not inner.covers:
            yield step, without(part, inner)
