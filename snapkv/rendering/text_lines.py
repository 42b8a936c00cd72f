"""Lines of styled parts, which a terminal or a page shows; the views of texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap, zip_longest
from typing import Literal, NamedTuple

from snapkv.base.text import counted, escaped, told_apart, window_start
from snapkv.rendering.alignment import EditBudget, LineEdits, Piece, edits

Style = Literal[
    "added", "removed", "changed", "context", "path", "meta", "word-added", "word-removed"
]
"""What a part means; the medium chooses the colour."""

View = Literal["auto", "paths", "unified", "full", "side-by-side", "words"]

LINES_MAX = 2_000
"""The most lines of a view, unless another number is given."""
COUNTED_MAX = 10_000
"""The most left-out lines that are counted."""
LINE_CHARS_MAX = 1_000
"""The most characters of one line of a value that are shown."""


class Part(NamedTuple):
    """A piece of a line; its text has no control characters."""

    text: str
    style: Style


Line = tuple[Part, ...]


def plain(line: Iterable[Part]) -> str:
    """Return the text of a line without its styles.

    >>> plain((Part("- ", "removed"), Part("old", "removed")))
    '- old'
    """
    return "".join(part.text for part in line)


def bounded(lines: Iterable[Line], lines_max: int) -> list[Line]:
    """Return at most `lines_max` lines, and one that says how many more there are."""
    shown: list[Line] = []
    more = 0
    for line in lines:
        if len(shown) < lines_max:
            shown.append(line)
        else:
            more += 1
            if more == COUNTED_MAX:
                break
    if more:
        least = "at least " if more == COUNTED_MAX else ""
        shown.append((Part(f"... {least}{counted(more, 'more line')}", "meta"),))
    return shown


WORDS_MAX = 20_000
"""The most words and signs of one changed piece that are compared; a longer one is shown by
lines."""

_WORDS = re.compile(r"\n|\\u[0-9a-f]{4}|\w+|[^\S\n]+|[^\w\s]")
NO_NEWLINE = Part("\\ no newline at the end", "meta")


class Hunk(NamedTuple):
    """Changed pieces that are shown together, and the equal lines around and between them."""

    before_from: int
    before_to: int
    after_from: int
    after_to: int
    pieces: LineEdits


def hunks(before: Sequence[str], pieces: LineEdits, context: int | None) -> Iterator[Hunk]:
    """Yield the pieces with `context` equal lines around them (None: with all lines).

    Pieces whose context meets are one hunk.
    """
    reach = len(before) if context is None else context
    group: list[Piece[tuple[str, ...]]] = []
    for piece in pieces:
        if group and piece.before_at - _before_end(group[-1]) > 2 * reach:
            yield _hunk(before, group, reach)
            group = []
        group.append(piece)
    if group:
        yield _hunk(before, group, reach)


def _hunk(before: Sequence[str], group: list[Piece[tuple[str, ...]]], reach: int) -> Hunk:
    first, last = group[0], group[-1]
    lead = min(reach, first.before_at)
    tail = min(reach, len(before) - _before_end(last))
    return Hunk(
        first.before_at - lead,
        _before_end(last) + tail,
        first.after_at - lead,
        last.after_at + len(last.after) + tail,
        tuple(group),
    )


def _before_end(piece: Piece[tuple[str, ...]]) -> int:
    return piece.before_at + len(piece.before)


def hunk_title(hunk: Hunk) -> Line:
    """Return the line above a hunk, as `diff -u` writes it."""
    before = _range_text(hunk.before_from, hunk.before_to)
    return (Part(f"@@ -{before} +{_range_text(hunk.after_from, hunk.after_to)} @@", "meta"),)


def _range_text(start: int, end: int) -> str:
    count = end - start
    return f"{start + (count > 0)},{count}" if count != 1 else str(start + 1)


def walked(
    before: Sequence[str], hunk: Hunk
) -> Iterator[tuple[Sequence[str], Piece[tuple[str, ...]] | None]]:
    """Yield equal lines and the piece that follows them, None after the last ones."""
    at = hunk.before_from
    for piece in hunk.pieces:
        yield before[at : piece.before_at], piece
        at = _before_end(piece)
    yield before[at : hunk.before_to], None


def unified(before: Sequence[str], pieces: LineEdits, context: int | None) -> Iterator[Line]:
    """Yield a unified difference; without titles of hunks if `context` is None."""
    for hunk in hunks(before, pieces, context):
        if context is not None:
            yield hunk_title(hunk)
        for equal, piece in walked(before, hunk):
            yield from _marked("  ", "context", equal)
            if piece is not None:
                yield from replaced(piece)


def replaced(piece: Piece[tuple[str, ...]]) -> Iterator[Line]:
    """Yield the lines of a piece: what was, then what is."""
    lack_before, lack_after = lack_newline(piece)
    yield from _marked("- ", "removed", piece.before, piece.after)
    if lack_before:
        yield (NO_NEWLINE,)
    yield from _marked("+ ", "added", piece.after, piece.before)
    if lack_after:
        yield (NO_NEWLINE,)


def lack_newline(piece: Piece[tuple[str, ...]]) -> tuple[bool, bool]:
    """Check which side ends a text without a newline; of a text beside an empty one none does."""
    before, after = piece.before, piece.after
    return (
        bool(before) and before[-1][-1] != "\n" and bool(after or piece.after_at),
        bool(after) and after[-1][-1] != "\n" and bool(before or piece.before_at),
    )


def _marked(
    mark: str, style: Style, lines: Sequence[str], counterparts: Sequence[str] = ()
) -> Iterator[Line]:
    for index, line in enumerate(lines):
        counterpart = counterparts[index] if index < len(counterparts) else None
        text = shown(line, counterpart)
        if counterpart is not None:
            text, _ = told_apart(text, shown(counterpart, line))
        yield (Part(mark + text, style),)


def shown(line: str, counterpart: str | None = None) -> str:
    """Return a line with every character visible; a long one shows where it differs."""
    line = line.removesuffix("\n")
    if len(line) <= LINE_CHARS_MAX:
        return escaped(line)
    start = window_start(line, counterpart, LINE_CHARS_MAX) if counterpart is not None else 0
    part = escaped(line[start : start + LINE_CHARS_MAX])
    left = len(line) - start - LINE_CHARS_MAX
    return f"{'...' * (start > 0)}{part}" + (f"... ({left:,} more characters)" if left > 0 else "")


def words(before: Sequence[str], pieces: LineEdits, context: int) -> Iterator[Line]:
    """Yield lines in which changed words are marked: `[-old-]{+new+}`."""
    budget = EditBudget()
    for hunk in hunks(before, pieces, context):
        yield hunk_title(hunk)
        for equal, piece in walked(before, hunk):
            yield from _marked("  ", "context", equal)
            if piece is not None:
                yield from _words_of(piece, budget)


def _words_of(piece: Piece[tuple[str, ...]], budget: EditBudget) -> Iterator[Line]:
    longest = max(map(len, (*piece.before, *piece.after)))
    pairs = starmap(told_apart, zip_longest(piece.before, piece.after, fillvalue=""))
    old, new = (_WORDS.findall("".join(side)) for side in zip(*pairs, strict=True))
    many = longest > LINE_CHARS_MAX or max(len(old), len(new)) > WORDS_MAX
    if many or not (old and new):
        yield from replaced(piece)
        return
    lack_before, lack_after = lack_newline(piece)
    if lack_before != lack_after:
        (new if lack_before else old).pop()
    line: list[Part] = [Part("~ ", "changed")]
    for text, style in word_edits(old, new, budget):
        *whole, last = text.split("\n") if style != "word-removed" else [text]
        for each in whole:
            yield (*line, *_word(each, style))
            line = [Part("~ ", "changed")]
        line += _word(last, style)
    if len(line) > 1:
        yield tuple(line)
    if lack_before != lack_after:
        done = "added" if lack_before else "removed"
        yield (Part(f"\\ the newline at the end was {done}", "meta"),)


def _word(text: str, style: Style) -> list[Part]:
    marks = {"word-removed": ("[-", "-]"), "word-added": ("{+", "+}")}.get(style, ("", ""))
    return [Part(escaped(text).join(marks), style)] if text else []


def word_edits(
    old: Sequence[str], new: Sequence[str], budget: EditBudget
) -> Iterator[tuple[str, Style]]:
    """Yield runs of words: equal ones ("context"), removed ones, added ones."""
    at = 0
    for edit in edits(old, new, budget):
        if equal := "".join(old[at : edit.before_from]):
            yield equal, "context"
        if removed := "".join(old[edit.before_from : edit.before_to]):
            yield removed, "word-removed"
        if added := "".join(new[edit.after_from : edit.after_to]):
            yield added, "word-added"
        at = edit.before_to
    if equal := "".join(old[at:]):
        yield equal, "context"


def words_in(text: str) -> list[str]:
    """Return the words, runs of spaces and signs of a text."""
    return _WORDS.findall(text)
