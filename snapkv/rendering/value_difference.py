"""The difference of two values: paths of trees, lines of texts, or bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from snapkv.base.text import PREVIEW_CHARS_MAX
from snapkv.rendering import views
from snapkv.rendering.compared import Compared, State, Unit
from snapkv.rendering.decoded import Decoded
from snapkv.rendering.lines import LINES_MAX, Line, View
from snapkv.rendering.paths import Patterns
from snapkv.rendering.tree_changes import PathChange, TreeChanges, without


class ValueDifference(Compared):
    """How a value differs from another one; false if the two are equal byte by byte.

    `state` says which of these it is: "equal"; "formatting", the same data stored as other bytes
    (or, as `summary` says, what a decoder shows is the same);
    "ignored", only ignored paths differ; "changed"; "added" or "removed", one side is absent;
    "redacted", see `Redaction`. `unit` says what was compared. `changes` has the paths of trees.
    """

    def lines(
        self,
        view: View = "auto",
        *,
        context: int = 3,
        width: int = 120,
        lines_max: int = LINES_MAX,
    ) -> list[Line]:
        """Return the difference as lines of (text, style) parts, for a terminal or a page.

        `view` is "paths" (of trees: one line for each), "unified" (with `context` equal lines
        around each change), "full" (all lines), "side-by-side" (in `width` columns), "words"
        (changed words inside the lines), or "auto": paths for trees, unified for the rest. Bytes
        have one view. Control, bidirectional and zero-width characters are escaped. After
        `lines_max` lines one more says how many are left out.

        Raises `InvalidOptionError` for an unknown view or a number out of range.
        """
        return views.lines(self, view, context=context, width=width, lines_max=lines_max)

    def brief(self, chars_max: int = PREVIEW_CHARS_MAX) -> Line:
        """Return the difference on one line: of trees the first change and how many more there are.

        A change of `KUBERNETES_NOISE` comes last. Of texts and bytes it is both values, as
        `shortened`.

        >>> from snapkv.rendering import decode, plain
        >>> plain(compare(decode(b'{"a": 1}'), decode(b'{"a": 2, "b": 3}')).brief())
        '~ a: 1 -> 2 (and 1 more)'
        """
        return views.brief(self, chars_max)


def compare(
    before: Decoded | None, after: Decoded | None, *, ignore: Sequence[str] = ()
) -> ValueDifference:
    """Return how one value differs from another; None is an absent value.

    Two trees are compared path by path, whatever formats they are stored in; a text and a text or
    a tree line by line; anything and hex byte by byte. `ignore` lists paths of trees that do not
    count, each with everything below it: `metadata.managedFields`, `spec.*.image`, `items[0]`,
    `labels["app.name"]`; `*` is any key or index. `kubernetes` is a preset, `KUBERNETES_NOISE`
    (`.kubernetes` is a key of that name). Cost: proportional to the sizes of both, and for lines
    and lists as in `snapkv.rendering.alignment`.

    >>> from snapkv.rendering import decode
    >>> old, new = (decode(b'{"image": "nginx:1.%d"}' % minor) for minor in (25, 26))
    >>> compare(old, new).changes
    (PathChange(kind='changed', path=('image',), before='nginx:1.25', after='nginx:1.26', \
index_before=None),)

    Raises `InvalidOptionError` for an ignored path that cannot be read.
    """
    ignored = Patterns.parse(ignore)
    if before is None or after is None:
        return _one_side(before, after, ignored)
    unit = _unit(before, after)
    if before.value == after.value:
        return ValueDifference(before, after, "equal", unit, _ignore=ignored)
    if unit == "path":
        found = TreeChanges(before.data, after.data, ignored)
        state: State = "changed" if found.found else "ignored" if found.ignored else "formatting"
        changes = tuple(found.found)
        return ValueDifference(before, after, state, unit, changes, found.ignored, ignored)
    state = "formatting" if unit == "line" and before.text == after.text else "changed"
    return ValueDifference(before, after, state, unit, _ignore=ignored)


def _one_side(before: Decoded | None, after: Decoded | None, ignored: Patterns) -> ValueDifference:
    side = before or after
    if side is None:
        return ValueDifference(None, None, "equal", "line")
    state: Literal["added", "removed"] = "added" if before is None else "removed"
    if side.form != "tree":
        unit: Unit = "line" if side.form == "text" else "byte"
        return ValueDifference(before, after, state, unit, _ignore=ignored)
    shown = without(side.data, ignored)
    change = PathChange(state, (), *((None, shown) if state == "added" else (shown, None)))
    return ValueDifference(before, after, state, "path", (change,), 0, ignored)


def _unit(before: Decoded, after: Decoded) -> Unit:
    forms = {before.form, after.form}
    return "path" if forms == {"tree"} else "byte" if "bytes" in forms else "line"
