"""The view of trees: a line for each path that differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from snapkv.base.text import shortened_text, shortened_texts, told_apart
from snapkv.rendering.alignment import Steps
from snapkv.rendering.lines import Line, Part, Style
from snapkv.rendering.paths import path_text
from snapkv.rendering.pieces import line_edits, line_pair
from snapkv.rendering.text_lines import unified
from snapkv.rendering.tree import Tree, compact
from snapkv.rendering.tree_changes import PathChange

VALUE_CHARS_MAX = 200
"""How many characters of each side of a change are shown on its line."""
PATH_CHARS_MAX = 500
"""How many characters of a path are shown."""
_INDENT = "    "


def path_lines(changes: Iterable[PathChange], context: int) -> Iterator[Line]:
    """Yield the lines of changes; the lines that differ inside long texts are below their path."""
    steps = Steps()
    for change in changes:
        yield from _CHANGED[change.kind](change, context, steps)


def brief_line(change: PathChange, chars_max: int) -> Line:
    """Return a change on one line, without the lines inside long texts."""
    if change.kind == "changed":
        return _replaced(change, chars_max)
    return next(_CHANGED[change.kind](change, 0, Steps()))


def _path(change: PathChange) -> Part:
    return Part(shortened_text(path_text(change.path), PATH_CHARS_MAX), "path")


def _one_side(change: PathChange, mark: str, style: Style, tree: Tree) -> Line:
    shown = shortened_text(compact(tree), VALUE_CHARS_MAX)
    return (
        Part(mark, style),
        _path(change),
        Part(": ", "context"),
        Part(shown, style),
    )


def _added(change: PathChange, context: int, steps: Steps) -> Iterator[Line]:
    yield _one_side(change, "+ ", "added", change.after)


def _removed(change: PathChange, context: int, steps: Steps) -> Iterator[Line]:
    yield _one_side(change, "- ", "removed", change.before)


def _moved(change: PathChange, context: int, steps: Steps) -> Iterator[Line]:
    yield (
        Part("~ ", "changed"),
        _path(change),
        Part(f": moved from [{change.index_before}]", "context"),
    )


def _changed(change: PathChange, context: int, steps: Steps) -> Iterator[Line]:
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield (Part("~ ", "changed"), _path(change), Part(":", "context"))
        old, new = line_pair(before, after)
        for line in unified(old, line_edits(old, new, steps), context):
            yield (Part(_INDENT, "context"), *line)
        return
    yield _replaced(change, VALUE_CHARS_MAX)


def _replaced(change: PathChange, chars_max: int) -> Line:
    before, after = _pair(change.before, change.after, chars_max)
    return (
        Part("~ ", "changed"),
        _path(change),
        Part(": ", "context"),
        Part(before, "removed"),
        Part(" -> ", "context"),
        Part(after, "added"),
    )


def _pair(before: Tree, after: Tree, chars_max: int) -> tuple[str, str]:
    old, new = compact(before), compact(after)
    if max(len(old), len(new)) <= chars_max:
        return told_apart(old, new)
    if isinstance(before, str) and isinstance(after, str):
        return shortened_texts(before, after, chars_max)
    return shortened_texts(old, new, chars_max)


_CHANGED = {"added": _added, "removed": _removed, "changed": _changed, "moved": _moved}
