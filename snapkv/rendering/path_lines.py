"""The view of trees: a line for each path that differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from snapkv.rendering.lines import Line, Part, Style
from snapkv.rendering.paths import path_text
from snapkv.rendering.pieces import line_edits, lines_of
from snapkv.rendering.text import shortened_text, shortened_texts
from snapkv.rendering.text_lines import unified
from snapkv.rendering.tree import Tree, compact
from snapkv.rendering.tree_changes import PathChange

VALUE_CHARS_MAX = 200
"""How many characters of each side of a change are shown on its line."""
_INDENT = "    "


def path_lines(changes: Iterable[PathChange], context: int) -> Iterator[Line]:
    """Yield the lines of changes; the lines that differ inside long texts are below their path."""
    for change in changes:
        yield from _CHANGED[change.kind](change, context)


def _one_side(change: PathChange, mark: str, style: Style, tree: Tree) -> Line:
    shown = shortened_text(compact(tree), VALUE_CHARS_MAX)
    return (
        Part(mark, style),
        Part(path_text(change.path), "path"),
        Part(": ", "context"),
        Part(shown, style),
    )


def _added(change: PathChange, context: int) -> Iterator[Line]:
    yield _one_side(change, "+ ", "added", change.after)


def _removed(change: PathChange, context: int) -> Iterator[Line]:
    yield _one_side(change, "- ", "removed", change.before)


def _moved(change: PathChange, context: int) -> Iterator[Line]:
    yield (
        Part("~ ", "changed"),
        Part(path_text(change.path), "path"),
        Part(f": moved from [{change.index_before}]", "context"),
    )


def _changed(change: PathChange, context: int) -> Iterator[Line]:
    head = (Part("~ ", "changed"), Part(path_text(change.path), "path"))
    before, after = change.before, change.after
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        yield (*head, Part(":", "context"))
        old = lines_of(before)
        for line in unified(old, line_edits(old, lines_of(after)), context):
            yield (Part(_INDENT, "context"), *line)
        return
    old_text, new_text = _pair(before, after)
    arrow = Part(" -> ", "context")
    yield (*head, Part(": ", "context"), Part(old_text, "removed"), arrow, Part(new_text, "added"))


def _pair(before: Tree, after: Tree) -> tuple[str, str]:
    old, new = compact(before), compact(after)
    if max(len(old), len(new)) <= VALUE_CHARS_MAX:
        return old, new
    if isinstance(before, str) and isinstance(after, str):
        return shortened_texts(before, after, VALUE_CHARS_MAX)
    return shortened_text(old, VALUE_CHARS_MAX), shortened_text(new, VALUE_CHARS_MAX)


_CHANGED = {"added": _added, "removed": _removed, "changed": _changed, "moved": _moved}
