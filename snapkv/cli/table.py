"""Tables for people: rows under headings, in aligned columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from snapkv.cli.terminal import Part, text_of_parts, write_line

ROWS_SIZED = 1_000
"""How many rows are held to find the width of each column; later rows are written at once."""


class Table:
    """Rows under headings; the columns are as wide as the first rows need.

    It holds `rows_sized` rows, at most. Numbers are aligned to the right.
    """

    def __init__(self, headings: Sequence[str], rows_sized: int = 1) -> None:
        self._headings, self._rows_sized = headings, rows_sized
        self._held: list[list[Part]] = []
        self._widths: list[int] | None = None
        self._numbers: list[bool] = []

    def add(self, cells: Sequence[Part | None]) -> None:
        """Add a row; None is an empty cell."""
        padded = zip_longest(self._headings, cells)
        row: list[Part] = ["" if cell is None else cell for _, cell in padded]
        if self._widths is not None:
            self._write(row)
            return
        self._held.append(row)
        if len(self._held) >= self._rows_sized:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are held, the headings before the first."""
        if not self._held:
            return
        rows, self._held = self._held, []
        width = _width_of()
        columns = [list(column) for column in zip(self._headings, *rows, strict=True)]
        self._widths = [max(width(_text(cell)) for cell in column) for column in columns]
        self._numbers = [all(_is_number(_text(cell)) for cell in column[1:]) for column in columns]
        self._write([(heading, "bold") for heading in self._headings])
        for row in rows:
            self._write(row)

    def _write(self, row: Sequence[Part]) -> None:
        assert self._widths is not None
        width, parts = _width_of(), list[Part]()
        for at, cell in enumerate(row):
            pad = " " * (self._widths[at] - width(_text(cell)))
            parts += [pad, cell] if self._numbers[at] else [cell, pad]
            parts.append("  ")
        while parts and not _text(parts[-1]).strip():
            parts.pop()
        write_line(parts)


def _text(part: Part) -> str:
    return text_of_parts([part])


def _is_number(text: str) -> bool:
    return text.replace(",", "").isdecimal()


def _width_of() -> Callable[[str], int]:
    """Return the function that measures text in cells of a terminal."""
    from rich.cells import cell_len

    return cell_len
