"""The view side by side: what was on the left, what is on the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from snapkv.base.text import cut, escaped, told_apart, width_of
from snapkv.rendering.alignment import Steps
from snapkv.rendering.lines import Line, Part, Style
from snapkv.rendering.pieces import LineEdits, Piece
from snapkv.rendering.text_lines import (
    NO_NEWLINE,
    hunk_title,
    hunks,
    lack_newline,
    shown,
    walked,
    word_edits,
    words_in,
)

WIDTH_MIN = 20
"""How many columns a view side by side has at least."""
_PAIR_CHARS_MAX = 400
"""In longer lines, changed words are not marked."""
_SEPARATOR = 3


def side_by_side(
    before: Sequence[str], pieces: LineEdits, context: int, width: int
) -> Iterator[Line]:
    """Yield lines of `width` columns; long lines of a side go on in the next line."""
    column = (width - _SEPARATOR) // 2
    steps = Steps()
    for hunk in hunks(before, pieces, context):
        yield hunk_title(hunk)
        for equal, piece in walked(before, hunk):
            for line in equal:
                part = [Part(shown(line), "context")]
                yield from _rows(part, part, "   ", column)
            if piece is not None:
                yield from _replaced(piece, column, steps)


def _replaced(piece: Piece[tuple[str, ...]], column: int, steps: Steps) -> Iterator[Line]:
    for old, new in zip_longest(piece.before, piece.after):
        if old is None or new is None:
            left = [] if old is None else [Part(shown(old), "removed")]
            right = [] if new is None else [Part(shown(new), "added")]
            yield from _rows(left, right, " + " if old is None else " - ", column)
        else:
            yield from _rows(*_pair(old, new, steps), " ~ ", column)
    left, right = ([NO_NEWLINE] if lacks else [] for lacks in lack_newline(piece))
    if left or right:
        yield from _rows(left, right, "   ", column)


def _pair(old: str, new: str, steps: Steps) -> tuple[list[Part], list[Part]]:
    if max(len(old), len(new)) > _PAIR_CHARS_MAX:
        return [Part(shown(old, new), "removed")], [Part(shown(new, old), "added")]
    old, new = old.removesuffix("\n"), new.removesuffix("\n")
    old, new = told_apart(old, new)
    left: list[Part] = []
    right: list[Part] = []
    for text, style in word_edits(words_in(old), words_in(new), steps):
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
            head, text = cut(text, room)
            if head:
                row.append(Part(head, part.style))
                room -= width_of(head)
            if text:
                yield tuple(row)
                row, room = [], column
    yield tuple(row)
