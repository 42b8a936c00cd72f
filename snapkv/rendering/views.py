"""The views of a difference, as lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import get_args

from snapkv.base.arguments import check_int
from snapkv.base.text import counted, shortened, shortened_texts
from snapkv.errors import InvalidOptionError
from snapkv.rendering.compared import Compared
from snapkv.rendering.decoded import hex_rows
from snapkv.rendering.lines import Line, Part, View, bounded
from snapkv.rendering.path_lines import brief_line, path_lines
from snapkv.rendering.paths import Patterns
from snapkv.rendering.pieces import Piece, lines_of
from snapkv.rendering.side_by_side import WIDTH_MIN, side_by_side
from snapkv.rendering.text_lines import unified, words

_BYTES_SHOWN_MAX = 1 << 16
"""How many bytes of one changed piece are shown."""


def lines(
    difference: Compared, view: View, *, context: int, width: int, lines_max: int
) -> list[Line]:
    """Return a difference as lines; see `ValueDifference.lines`."""
    if view not in get_args(View):
        raise InvalidOptionError(
            f"view {view!r} is unknown; use one of {', '.join(get_args(View))}"
        )
    check_int("context", context, 0)
    check_int("width", width, WIDTH_MIN)
    check_int("lines_max", lines_max, 1)
    if difference.state == "equal":
        return []
    return bounded(chain(_notes(difference), _body(difference, view, context, width)), lines_max)


def brief(difference: Compared, chars_max: int) -> Line:
    """Return a difference on one line; see `ValueDifference.brief`."""
    before, after = difference.before, difference.after
    if difference.state in ("formatting", "ignored", "redacted", "equal"):
        return (Part(difference.summary, "meta"),)
    if before is None or after is None:
        side = before or after
        assert side is not None
        return (Part(side.preview(chars_max), "removed" if after is None else "added"),)
    if difference.unit != "path":
        if difference.unit == "line" and (before.is_by_decoder or after.is_by_decoder):
            texts = shortened_texts(before.text, after.text, max(4, chars_max))
        else:
            texts = shortened(before.value, after.value, chars_max)
        return (Part(texts[0], "removed"), Part(" -> ", "context"), Part(texts[1], "added"))
    bookkeeping = Patterns.parse(["kubernetes"])
    said = (each for each in difference.changes if not bookkeeping.cover(each.path))
    first = brief_line(next(said, difference.changes[0]), chars_max)
    more = len(difference.changes) - 1
    return (*first, Part(f" (and {more:,} more)", "meta")) if more else first


def _notes(difference: Compared) -> Iterator[Line]:
    if difference.state in ("formatting", "ignored", "redacted"):
        yield (Part(difference.summary, "meta"),)
        return
    before, after = difference.before, difference.after
    if before is not None and after is not None and before.kind != after.kind:
        yield (Part(f"kind: {before.kind} -> {after.kind}", "meta"),)
    if difference.ignored:
        differ = counted(difference.ignored, "ignored path")
        yield (Part(f"({differ} differ{'s' * (difference.ignored == 1)}, too)", "meta"),)


def _body(difference: Compared, view: View, context: int, width: int) -> Iterator[Line]:
    if difference.state in ("ignored", "redacted"):
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


def _previews(difference: Compared) -> Iterator[Line]:
    assert difference.before is not None
    assert difference.after is not None
    before, after = shortened(difference.before.value, difference.after.value)
    yield (Part("- ", "removed"), Part(before, "removed"))
    yield (Part("+ ", "added"), Part(after, "added"))


def _byte_lines(difference: Compared, context: int) -> Iterator[Line]:
    for piece in difference.byte_edits:
        yield (Part(_span_text(piece), "meta"),)
        yield from _dump("- ", "removed", piece.before_at, piece.before)
        yield from _dump("+ ", "added", piece.after_at, piece.after)


def _span_text(piece: Piece[bytes]) -> str:
    at = f"byte {piece.before_at:,}"
    return (
        f"@@ {at}: {counted(len(piece.before), 'byte')} -> {counted(len(piece.after), 'byte')} @@"
    )


def _dump(mark: str, style: str, at: int, content: bytes) -> Iterator[Line]:
    for row in hex_rows(content[:_BYTES_SHOWN_MAX], at):
        yield (Part(mark + row, style),)  # type: ignore[arg-type]
    if len(content) > _BYTES_SHOWN_MAX:
        yield (Part(f"{mark}... {len(content) - _BYTES_SHOWN_MAX:,} more bytes", "meta"),)
