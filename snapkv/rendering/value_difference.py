"""The difference of two values: paths of trees, lines of texts, or bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, zip_longest
from typing import Literal, NamedTuple, get_args

from snapkv.base.arguments import check_int, wrong_type
from snapkv.base.text import (
    PREVIEW_CHARS_MAX,
    counted,
    escaped,
    shortened,
    shortened_text,
    shortened_texts,
    split_at_width,
    stored_text,
    told_apart,
    width_of,
)
from snapkv.errors import InvalidOptionError
from snapkv.rendering.alignment import (
    EditBudget,
    LineEdits,
    Piece,
    byte_edits,
    line_edits,
    line_pair,
    lines_of,
)
from snapkv.rendering.decoded import ENCRYPTED, REDACTED, Decoded, hex_rows, tree_text
from snapkv.rendering.paths import AUTO, NO_PATTERNS, Patterns, path_text
from snapkv.rendering.text_lines import (
    LINES_MAX,
    NO_NEWLINE,
    Line,
    Part,
    Style,
    View,
    bounded,
    hunk_title,
    hunks,
    lack_newline,
    shown,
    unified,
    walked,
    word_edits,
    words,
    words_in,
)
from snapkv.rendering.tree_changes import PathChange, TreeChanges, without
from snapkv.rendering.value_tree import Tree, compact, leaves

_BYTES_SHOWN_MAX = 1 << 16
"""The most bytes of one changed piece that are shown."""

State = Literal[
    "equal", "formatting", "ignored", "changed", "added", "removed", "redacted", "encrypted"
]
UNSHOWN = ("ignored", "redacted", "encrypted")
"""The states of differences that have a summary alone."""
Unit = Literal["path", "line", "byte"]


class Stat(NamedTuple):
    """The number of differences, in `unit`; a changed path counts in `changed` only."""

    added: int
    removed: int
    changed: int
    unit: Unit

    def __str__(self) -> str:
        counts = f"+{self.added:,} -{self.removed:,}"
        return (
            f"{counts} ~{self.changed:,} {self.unit}s" if self.changed else f"{counts} {self.unit}s"
        )


@dataclass(frozen=True, eq=False)
class ValueDifference:
    """How a value differs from another one; false if the two are equal byte by byte.

    `state` says which of these it is: "equal"; "formatting", the same data stored as other bytes
    (or, as `summary` says, what a decoder shows is the same);
    "ignored", only ignored paths differ; "changed"; "added" or "removed", one side is absent;
    "redacted", see `Redaction`; "encrypted", one side or both, so that only `summary` is known.
    `unit` says what was compared. `changes` has the paths of trees.
    """

    before: Decoded | None
    after: Decoded | None
    state: State
    unit: Unit
    changes: tuple[PathChange, ...] = ()
    ignored: int = 0
    """The number of ignored paths that differ; of `auto` alone only if nothing else does."""
    _ignore: Patterns = field(default_factory=Patterns, repr=False)

    def __bool__(self) -> bool:
        return self.state != "equal"

    @cached_property
    def texts(self) -> tuple[str, str]:
        """Both sides as text, without ignored paths; an absent side is empty."""
        if self.state == "formatting":
            stored = [stored_text(each.value) for each in (self.before, self.after) if each]
            if None not in stored and stored[0] != stored[1]:
                return str(stored[0]), str(stored[1])
        return self._text(self.before), self._text(self.after)

    def _text(self, side: Decoded | None) -> str:
        if side is None:
            return ""
        if side.form == "tree" and self._ignore:
            return tree_text(without(side.data, self._ignore), side.kind) + "\n"
        return side.text.removesuffix("\n") + "\n" if side.form == "tree" else side.text

    @cached_property
    def line_edits(self) -> LineEdits:
        """The lines of `texts` that differ, as `line_pair` makes them.

        Cost: see `snapkv.rendering.alignment`.
        """
        return line_edits(*line_pair(*self.texts))

    @cached_property
    def byte_edits(self) -> tuple[Piece[bytes], ...]:
        """The stored bytes that differ."""
        sides = [b"" if each is None else each.value for each in (self.before, self.after)]
        return byte_edits(*sides)

    @cached_property
    def stat(self) -> Stat:
        """The number of paths, lines or bytes that are added, removed and changed."""
        if self.state in ("equal", "formatting", *UNSHOWN):
            return Stat(0, 0, 0, self.unit)
        if self.unit == "path":
            added = sum(leaves(each.after) for each in self.changes if each.kind == "added")
            removed = sum(leaves(each.before) for each in self.changes if each.kind == "removed")
            changed = sum(each.kind in ("changed", "moved") for each in self.changes)
            return Stat(added, removed, changed, "path")
        pieces = self.line_edits if self.unit == "line" else self.byte_edits
        added, removed = sum(len(e.after) for e in pieces), sum(len(e.before) for e in pieces)
        return Stat(added, removed, 0, self.unit)

    @property
    def summary(self) -> str:
        """One phrase: what differs and how much."""
        if self.state == "formatting":
            sides = [each for each in (self.before, self.after) if each]
            if decoders := dict.fromkeys(each.kind for each in sides if each.is_by_decoder):
                name, said = " and ".join(decoders), "show" if len(decoders) > 1 else "shows"
                return f"{name} {said} the same for both; the stored bytes differ"
            kinds = dict.fromkeys(each.kind for each in sides)
            also = f" ({' -> '.join(kinds)})" if len(kinds) > 1 else ""
            return f"same data, other formatting{also}"
        if self.state == "ignored":
            return f"only ignored paths differ ({self.ignored:,})"
        if self.state == "redacted":
            return " -> ".join(
                side.text if side else "absent" for side in (self.before, self.after)
            )
        if self.state == "encrypted":
            from snapkv.rendering.encryption import change_text

            assert self.before is not None
            assert self.after is not None
            return change_text(self.before.value, self.after.value)
        if self.state == "equal":
            return "equal"
        also = f", {counted(self.ignored, 'ignored path')}" if self.ignored else ""
        return f"{self.stat}{also}"

    # --- as lines ---

    def lines(
        self, view: View = "auto", *, context: int = 3, width: int = 120, lines_max: int = LINES_MAX
    ) -> list[Line]:
        """Return the difference as lines of (text, style) parts, for a terminal or a page.

        `view` is "paths" (of trees: one line for each), "unified" (with `context` equal lines
        around each change), "full" (all lines), "side-by-side" (in `width` columns), "words"
        (changed words inside the lines), or "auto": paths for trees, unified for the rest. Bytes
        have one view. Control, bidirectional and zero-width characters are escaped. After
        `lines_max` lines one more says how many are left out.

        Raises `InvalidOptionError` for an unknown view or a number out of range.
        """
        if view not in get_args(View):
            raise InvalidOptionError(
                f"view {view!r} is unknown; use one of {', '.join(get_args(View))}"
            )
        check_int("context", context, 0)
        check_int("width", width, WIDTH_MIN)
        check_int("lines_max", lines_max, 1)
        if self.state == "equal":
            return []
        return bounded(chain(_notes(self), _body(self, view, context, width)), lines_max)

    def brief(self, chars_max: int = PREVIEW_CHARS_MAX) -> Line:
        """Return the difference on one line: of trees the first change and how many more there are.

        A change of `KUBERNETES_NOISE` comes last. Of texts and bytes it is both values, as
        `shortened`.

        >>> from snapkv.rendering import decode, plain
        >>> plain(compare(decode(b'{"a": 1}'), decode(b'{"a": 2, "b": 3}')).brief())
        '~ a: 1 -> 2 (and 1 more)'
        """
        before, after = self.before, self.after
        if self.state in ("equal", "formatting", *UNSHOWN):
            return (Part(self.summary, "meta"),)
        if before is None or after is None:
            side = before or after
            assert side is not None
            return (Part(side.preview(chars_max), "removed" if after is None else "added"),)
        if self.unit != "path":
            if self.unit == "line" and (before.is_by_decoder or after.is_by_decoder):
                texts = shortened_texts(before.text, after.text, max(4, chars_max))
            else:
                texts = shortened(before.value, after.value, chars_max)
            return (Part(texts[0], "removed"), Part(" -> ", "context"), Part(texts[1], "added"))
        bookkeeping = Patterns.parse(["kubernetes"])
        said = (each for each in self.changes if not bookkeeping.cover(each.path))
        first = _line_of(next(said, self.changes[0]), chars_max)
        more = len(self.changes) - 1
        return (*first, Part(f" (and {more:,} more)", "meta")) if more else first


def compare(
    before: Decoded | None, after: Decoded | None, *, ignore: Sequence[str] = ()
) -> ValueDifference:
    """Return how one value differs from another; None is an absent value.

    Two trees are compared path by path, whatever formats they are stored in; a text and a text or
    a tree line by line; anything and hex byte by byte. `ignore` lists paths of trees that do not
    count, each with everything below it: `metadata.managedFields`, `spec.*.image`, `items[0]`,
    `labels["app.name"]`; `*` is any key or index. `kubernetes` is a preset, `KUBERNETES_NOISE`
    (`.kubernetes` is a key of that name); `auto` is that preset for objects with apiVersion, kind
    and metadata, and nothing for other values. Cost: proportional to the sizes of both, and for
    lines and lists as in `snapkv.rendering.alignment`.

    >>> from snapkv.rendering import decode
    >>> old, new = (decode(b'{"image": "nginx:1.%d"}' % minor) for minor in (25, 26))
    >>> compare(old, new).changes
    (PathChange(kind='changed', path=('image',), before='nginx:1.25', after='nginx:1.26', \
index_before=None),)

    Raises `InvalidOptionError` for an ignored path that cannot be read.
    """
    ignored = NO_PATTERNS
    if ignore:
        old = before is None or is_kubernetes(before.data)
        objects = old and (after is None or is_kubernetes(after.data))
        if objects or tuple(ignore) != (AUTO,):
            ignored = Patterns.parse(ignore, kubernetes=objects)
    if before is None or after is None:
        return _one_side(before, after, ignored)
    forms = {before.form, after.form}
    unit: Unit = "path" if forms == {"tree"} else "byte" if "bytes" in forms else "line"
    if before.value == after.value:
        return ValueDifference(before, after, "equal", unit, _ignore=ignored)
    if ENCRYPTED in (before.kind, after.kind):
        return ValueDifference(before, after, "encrypted", unit, _ignore=ignored)
    if unit == "path":
        found = TreeChanges(before.data, after.data, ignored)
        state: State = "changed" if found.found else "ignored" if found.ignored else "formatting"
        changes, count = tuple(found.found), found.ignored
        if changes and set(ignore) == {AUTO}:  # each change of an object has some
            count = 0
        return ValueDifference(before, after, state, unit, changes, count, ignored)
    state = "formatting" if unit == "line" and before.text == after.text else "changed"
    return ValueDifference(before, after, state, unit, _ignore=ignored)


def is_kubernetes(tree: Tree) -> bool:
    """Return whether a tree is an object of Kubernetes: with apiVersion, kind and metadata."""
    if not isinstance(tree, dict):
        return False
    named = isinstance(tree.get("apiVersion"), str) and isinstance(tree.get("kind"), str)
    return named and isinstance(tree.get("metadata"), dict)


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


# --- as lines ---


def _notes(difference: ValueDifference) -> Iterator[Line]:
    if difference.state in ("formatting", *UNSHOWN):
        yield (Part(difference.summary, "meta"),)
        return
    before, after = difference.before, difference.after
    if before is not None and after is not None and before.kind != after.kind:
        yield (Part(f"kind: {before.kind} -> {after.kind}", "meta"),)
    if difference.ignored:
        differ = counted(difference.ignored, "ignored path")
        yield (Part(f"({differ} differ{'s' * (difference.ignored == 1)}, too)", "meta"),)


def _body(difference: ValueDifference, view: View, context: int, width: int) -> Iterator[Line]:
    if difference.state in UNSHOWN:
        return iter(())
    if difference.unit == "byte":
        return _byte_lines(difference, context)
    if view in ("auto", "paths") and difference.state == "formatting":
        return _previews(difference)
    whole = difference.state in ("added", "removed")  # the text says more than one line of JSON
    if view in ("auto", "paths") and difference.unit == "path" and not whole:
        return path_lines(difference.changes, context)
    if difference.state == "formatting" and not difference.line_edits:
        return _previews(difference)
    if not difference.line_edits:  # the texts of two types are the same: only paths show it
        return path_lines(difference.changes, context) if difference.changes else iter(())
    before, pieces = lines_of(difference.texts[0]), difference.line_edits
    if view == "side-by-side":
        return side_by_side(before, pieces, context, width)
    if view == "words":
        return words(before, pieces, context)
    return unified(before, pieces, None if view == "full" else context)


def _previews(difference: ValueDifference) -> Iterator[Line]:
    assert difference.before is not None
    assert difference.after is not None
    before, after = shortened(difference.before.value, difference.after.value)
    yield (Part("- ", "removed"), Part(before, "removed"))
    yield (Part("+ ", "added"), Part(after, "added"))


def _byte_lines(difference: ValueDifference, context: int) -> Iterator[Line]:
    for piece in difference.byte_edits:
        sizes = [counted(len(side), "byte") for side in (piece.before, piece.after)]
        yield (Part(f"@@ byte {piece.before_at:,}: {' -> '.join(sizes)} @@", "meta"),)
        yield from _dump("- ", "removed", piece.before_at, piece.before)
        yield from _dump("+ ", "added", piece.after_at, piece.after)


def _dump(mark: str, style: str, at: int, content: bytes) -> Iterator[Line]:
    for row in hex_rows(content[:_BYTES_SHOWN_MAX], at):
        yield (Part(mark + row, style),)  # type: ignore[arg-type]
    if len(content) > _BYTES_SHOWN_MAX:
        yield (Part(f"{mark}... {len(content) - _BYTES_SHOWN_MAX:,} more bytes", "meta"),)


# --- a line for each path ---


VALUE_CHARS_MAX = 200
"""The most characters of each side of a change that are shown on its line."""
PATH_CHARS_MAX = 500
"""The most characters of a path that are shown."""
_INDENT = "    "


def path_lines(changes: Iterable[PathChange], context: int) -> Iterator[Line]:
    """Yield the lines of changes; the lines that differ inside long texts are below their path."""
    budget = EditBudget()
    for change in changes:
        before, after = change.before, change.after
        is_long = isinstance(before, str) and isinstance(after, str) and "\n" in before + after
        if change.kind != "changed" or not is_long:
            yield _line_of(change, VALUE_CHARS_MAX)
            continue
        path = shortened_text(path_text(change.path), PATH_CHARS_MAX)
        yield (Part("~ ", "changed"), Part(path, "path"), Part(":", "context"))
        old, new = line_pair(before, after)
        for line in unified(old, line_edits(old, new, budget), context):
            yield (Part(_INDENT, "context"), *line)


def _line_of(change: PathChange, chars_max: int) -> Line:
    """Return a change on one line; of a changed path both values."""
    path = Part(shortened_text(path_text(change.path), PATH_CHARS_MAX), "path")
    if change.kind == "moved":
        where = Part(f": moved from [{change.index_before}]", "context")
        return (Part("~ ", "changed"), path, where)
    colon = Part(": ", "context")
    if change.kind == "changed":
        before, after = _both_texts(change.before, change.after, chars_max)
        values = Part(before, "removed"), Part(" -> ", "context"), Part(after, "added")
        return (Part("~ ", "changed"), path, colon, *values)
    mark, tree = ("+ ", change.after) if change.kind == "added" else ("- ", change.before)
    shown = shortened_text(compact(tree), VALUE_CHARS_MAX)
    return (Part(mark, change.kind), path, colon, Part(shown, change.kind))


def _both_texts(before: Tree, after: Tree, chars_max: int) -> tuple[str, str]:
    old, new = compact(before), compact(after)
    if max(len(old), len(new)) <= chars_max:
        return told_apart(old, new)
    if isinstance(before, str) and isinstance(after, str):
        return shortened_texts(before, after, chars_max)
    return shortened_texts(old, new, chars_max)


# --- side by side ---


WIDTH_MIN = 20
"""The least columns of a view side by side."""
_PAIR_CHARS_MAX = 400
"""The most characters of a line in which changed words are marked."""
_SEPARATOR = 3


def side_by_side(
    before: Sequence[str], pieces: LineEdits, context: int, width: int
) -> Iterator[Line]:
    """Yield lines of `width` columns; long lines of a side go on in the next line."""
    column = (width - _SEPARATOR) // 2
    budget = EditBudget()
    for hunk in hunks(before, pieces, context):
        yield hunk_title(hunk)
        for equal, piece in walked(before, hunk):
            for line in equal:
                part = [Part(shown(line), "context")]
                yield from _rows(part, part, "   ", column)
            if piece is not None:
                yield from _piece_rows(piece, column, budget)


def _piece_rows(piece: Piece[tuple[str, ...]], column: int, budget: EditBudget) -> Iterator[Line]:
    for old, new in zip_longest(piece.before, piece.after):
        if old is None or new is None:
            left = [] if old is None else [Part(shown(old), "removed")]
            right = [] if new is None else [Part(shown(new), "added")]
            yield from _rows(left, right, " + " if old is None else " - ", column)
        else:
            yield from _rows(*_words_marked(old, new, budget), " ~ ", column)
    left, right = ([NO_NEWLINE] if lacks else [] for lacks in lack_newline(piece))
    if left or right:
        yield from _rows(left, right, "   ", column)


def _words_marked(old: str, new: str, budget: EditBudget) -> tuple[list[Part], list[Part]]:
    if max(len(old), len(new)) > _PAIR_CHARS_MAX:
        return [Part(shown(old, new), "removed")], [Part(shown(new, old), "added")]
    old, new = old.removesuffix("\n"), new.removesuffix("\n")
    old, new = told_apart(old, new)
    left: list[Part] = []
    right: list[Part] = []
    for text, style in word_edits(words_in(old), words_in(new), budget):
        if style != "word-added":
            left.append(Part(escaped(text), style if style == "word-removed" else "removed"))
        if style != "word-removed":
            right.append(Part(escaped(text), style if style == "word-added" else "added"))
    return left, right


def _rows(left: list[Part], right: list[Part], mark: str, column: int) -> Iterator[Line]:
    style: Style = "context" if mark == "   " else "meta"
    rows = zip_longest(_wrapped(left, column), _wrapped(right, column), fillvalue=())
    for first, second in rows:
        used = sum(width_of(part.text) for part in first)
        padding = Part(" " * (column - used), "context")
        yield (*first, padding, Part(mark, style), *second)


def _wrapped(parts: list[Part], column: int) -> Iterator[Line]:
    row: list[Part] = []
    room = column
    for part in parts:
        text = part.text
        while text:
            head, text = split_at_width(text, room)
            if head:
                row.append(Part(head, part.style))
                room -= width_of(head)
            if text:
                yield tuple(row)
                row, room = [], column
    yield tuple(row)


# --- values that are never shown ---


class Redaction:
    """Hides the values of keys below prefixes: only sizes, and that a value changed.

    No hash is shown, as it would give short secrets away. A prefix is compared with the beginning
    of the key, so `""` hides every value.

    >>> secret = Redaction(["secrets/"])
    >>> secret.covers("secrets/db"), secret.covers("app/db")
    (True, False)
    >>> secret.decoded(b"hunter2").text
    'redacted, 7 bytes'
    >>> secret.difference(b"hunter2", b"hunter3").summary
    'redacted, 7 bytes -> redacted, 7 bytes'
    """

    def __init__(self, prefixes: Iterable[str] = ()) -> None:
        if isinstance(prefixes, str):
            raise wrong_type("prefixes", "a list of prefixes", prefixes)
        self.prefixes = tuple(prefixes)

    def covers(self, key: str) -> bool:
        """Return whether the values of a key are hidden."""
        return key.startswith(self.prefixes)

    def preview(self, value: bytes) -> str:
        """Return what is shown instead of a value."""
        return f"redacted, {counted(len(value), 'byte')}"

    def decoded(self, value: bytes) -> Decoded:
        """Return what is shown instead of a decoded value; it does not contain the value."""
        return Decoded(REDACTED, self.preview(value), "text", b"")

    def difference(self, before: bytes | None, after: bytes | None) -> ValueDifference:
        """Return a difference that says only whether, and from which size to which, it changed."""
        state: State = "equal" if before == after else "redacted"
        shown = [None if value is None else self.decoded(value) for value in (before, after)]
        return ValueDifference(shown[0], shown[1], state, "byte")
