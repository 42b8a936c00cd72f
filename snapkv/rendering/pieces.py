"""The lines of two texts that differ, and the bytes of two values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from snapkv.base.text import common_head, common_tail
from snapkv.rendering.alignment import Steps, edits

S = TypeVar("S", tuple[str, ...], bytes)

BYTE_EDITS_MAX = 10_000
"""How many pieces of bytes are kept apart; the last one has the rest."""
_JOINED_BYTES = 4
"""Changed bytes with at most so many equal ones between them are one edit."""


class Piece(NamedTuple, Generic[S]):
    """What replaces what: `before` at `before_at` became `after` at `after_at`.

    Of texts, lines with their line ends; of bytes, bytes. Places count from 0.
    """

    before_at: int
    before: S
    after_at: int
    after: S


LineEdits = tuple[Piece[tuple[str, ...]], ...]


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text with their ends; only a newline ends a line.

    >>> lines_of("a\r\nb"), lines_of("")
    (['a\r\n', 'b'], [])
    """
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + ([last] if last else [])


def line_pair(before: str, after: str) -> tuple[list[str], list[str]]:
    r"""Return the lines of two texts; if both lack the newline at the end, both get one.

    So a line that is added after the last one is the only line that differs.

    >>> line_pair("a", "a\nb"), line_pair("a", "a\n")
    ((['a\n'], ['a\n', 'b\n']), (['a'], ['a\n']))
    """
    if before and after and before[-1] != "\n" != after[-1]:
        before, after = f"{before}\n", f"{after}\n"
    return lines_of(before), lines_of(after)


def line_edits(
    before: Sequence[str], after: Sequence[str], steps: Steps | None = None
) -> LineEdits:
    """Return the pieces of lines that differ. Cost: see `snapkv.rendering.alignment`."""
    return tuple(
        Piece(i, tuple(before[i:i_end]), j, tuple(after[j:j_end]))
        for i, i_end, j, j_end in edits(before, after, steps)
    )


def byte_edits(before: bytes, after: bytes) -> tuple[Piece[bytes], ...]:
    """Return the bytes that differ: of values of one length at each place, else in one piece."""
    if before == after:
        return ()
    head = common_head(before, after)
    tail = common_tail(before, after, head)
    if len(before) != len(after):
        old, new = before[head : len(before) - tail], after[head : len(after) - tail]
        return (Piece(head, old, head, new),)
    spans: list[list[int]] = []
    for at in range(head, len(before) - tail):
        if before[at] == after[at]:
            continue
        if spans and (at - spans[-1][1] <= _JOINED_BYTES or len(spans) == BYTE_EDITS_MAX):
            spans[-1][1] = at + 1
        else:
            spans.append([at, at + 1])
    return tuple(Piece(a, before[a:b], a, after[a:b]) for a, b in spans)
