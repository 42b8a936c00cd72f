"""Lines of styled parts, which a terminal or a page shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from snapkv.base.text import counted

Style = Literal[
    "added",
    "removed",
    "changed",
    "context",
    "path",
    "meta",
    "word-added",
    "word-removed",
]
"""What a part means; the medium chooses the colour."""

View = Literal["auto", "paths", "unified", "full", "side-by-side", "words"]

LINES_MAX = 2_000
"""How many lines a view has, unless another number is given."""
COUNTED_MAX = 10_000
"""How many of the lines that are left out are counted."""
LINE_CHARS_MAX = 1_000
"""How many characters of one line of a value are shown."""


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
