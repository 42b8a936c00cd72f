"""The records that a command prints: as text, as a table, as JSON or as YAML."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Self, TypeVar

import typer

from snapkv.base.text import width_of
from snapkv.cli.exits import Exit
from snapkv.cli.formats import (
    Json,
    cell_text,
    commit_json,
    counted,
    json_line,
    key_text,
    meta_text,
    quoted,
    revision_text,
    time_text,
    yaml_document,
)
from snapkv.cli.terminal import Part, write_line
from snapkv.model import Commit

# --- tables for people: rows under headings, in aligned columns ---

ROWS_SIZED = 1_000
"""The number of rows that are held to find the width of each column; later rows are written at
once."""


Cell = TypeVar("Cell")


class AlignedTable:
    """Rows, under headings if they are `shown`; columns are as wide as the first rows need.

    It holds `rows_sized` rows, at most. Numbers are aligned to the right.
    """

    def __init__(self, headings: Sequence[str], rows_sized: int = 1, *, shown: bool = True) -> None:
        self._headings, self._rows_sized, self._shown = headings, rows_sized, shown
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
        columns = [list(column) for column in zip(*rows, strict=True)]
        self._numbers = [
            all(_text(cell).replace(",", "").isdecimal() for cell in column) for column in columns
        ]
        headings: list[Part] = [(heading, "bold") for heading in self._headings]
        rows = [headings, *rows] if self._shown else rows
        self._widths = [
            max(width_of(_text(cell)) for cell in column) for column in zip(*rows, strict=True)
        ]
        for row in rows:
            self._write(row)

    def _write(self, row: Sequence[Part]) -> None:
        assert self._widths is not None
        parts = list[Part]()
        for at, cell in enumerate(row):
            if not self._widths[at]:
                continue
            pad = " " * (self._widths[at] - width_of(_text(cell)))
            parts += [pad, cell] if self._numbers[at] else [cell, pad]
            parts.append("  ")
        while parts and not _text(parts[-1]).strip():
            parts.pop()
        write_line(parts)


def _text(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


# --- output ---

FORMATS = ("text", "table", "json", "yaml")
COMMIT_HEADINGS = ("TIME", "REVISION", "WRITER", "NOTE", "META")


@dataclass(slots=True)
class Output:
    """The output of a command, in one of the `FORMATS`.

    In a `with` block a table has columns that fit its first rows; otherwise its first row decides.
    """

    format: str = "text"
    raw: bool = False
    member: str = ""
    """The member of a fleet that records are of, which is a field and a column of each."""
    width: int = 0
    """The characters of the column of members in a text; 0 for no such column."""
    remark: str = ""
    """A line before the first date that people are shown."""
    _headings: Sequence[str] = ()
    _names: Sequence[str] = ()
    _aligned: bool = False
    _table: AlignedTable | None = field(default=None, repr=False)
    _rows_sized: int = 1

    @property
    def structured(self) -> bool:
        """Whether records are written with all their fields, for programs."""
        return self.format in ("json", "yaml")

    def headed(self, *headings: str, aligned: bool = False) -> Self:
        """Name the columns of a table; without names, a table shows the fields of its records.

        With `aligned`, a text has aligned columns, too, without the headings.
        """
        self._headings, self._aligned = headings, aligned
        return self

    def __enter__(self) -> Self:
        self._rows_sized = ROWS_SIZED
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Write the rows that are held, before a line on the error stream."""
        if self._table is not None:
            self._table.flush()

    def record(
        self,
        fields: Json,
        *columns: Part | None,
        lines: Iterable[Iterable[Part]] | None = None,
        flush: bool = False,
    ) -> None:
        """Write one record: its fields for programs, its columns for people.

        As text, columns (None: left out) have two spaces between; `lines` take their place.
        """
        if self.member:
            fields = {"member": self.member, **fields}
            shown = self.member if self.format == "table" else self.member.ljust(self.width)
            columns = tuple(self._with_member(columns, shown))
        if self.format == "json":
            sys.stdout.write(json_line(fields) + "\n")
        elif self.format == "yaml":
            sys.stdout.write(yaml_document(fields, sys.stdout.encoding or "utf-8"))
        elif self._aligned or (self.format == "table" and (fields or self._headings)):
            self._add(fields, columns)
        else:
            for line in [_spaced(columns)] if lines is None else lines:
                write_line(line)
        if flush:
            sys.stdout.flush()

    def _with_member(self, columns: Sequence[Cell], column: Cell) -> list[Cell]:
        at = int(self._headings[:1] == ("TIME",))
        return [*columns[:at], column, *columns[at:]]

    def key_of(self, key: str | tuple[str, str]) -> str:
        """Return a key; the next records are of the member that a key of a fleet names."""
        if isinstance(key, str):
            return key
        self.member, key = key
        return key

    def _add(self, fields: Json, columns: Sequence[Part | None]) -> None:
        if self._table is None:
            self._names = () if self._headings else tuple(fields)
            headings = self._headings or [name.upper() for name in self._names]
            if self.width and self._headings:
                headings = self._with_member(headings, "MEMBER")
            is_table = self.format == "table"
            self._table = AlignedTable(headings, self._rows_sized, shown=is_table)
        by_name = [cell_text(fields.get(name)) for name in self._names]
        self._table.add(by_name or columns)

    def facts(self, fields: Json, rows: Sequence[tuple[str, str]]) -> None:
        """Write one record: its fields for programs, rows of a name and a text for people."""
        if self.structured:
            self.record(fields)
            return
        width = max(len(fact) for fact, _ in rows)
        with self.headed("FACT", "VALUE"):
            for fact, shown in rows:
                self.record({}, (fact.ljust(width), "cyan"), shown)

    def problems(self, fields: Json, problems: Sequence[str], found_in: str) -> None:
        """Write what a check has found; raise `typer.Exit` if that is anything."""
        if self.structured:
            self.record({**fields, "problems": list(problems)})
        else:
            for problem in problems:
                self.record({}, (key_text(problem), "red"))
            count = counted(len(problems), "problem") if problems else "no problems"
            self.record({}, f"{count} in {found_in}")
        if problems:
            raise typer.Exit(Exit.NO)

    def time(self, timestamp: int | None) -> Part:
        """Return the column of a time; `-` for an unknown one."""
        if timestamp is None:
            return "-"
        if self.remark and not (self.raw or self.structured):
            write_line([(self.remark, "dim")])
            self.remark = ""
        return time_text(timestamp, raw=self.raw), "cyan"

    def commit_columns(self, commit: Commit) -> tuple[Part | None, ...]:
        """Return the columns of a commit: time, revision, writer, note, meta."""
        revision = revision_text(commit.revision, commit.source_revision)
        return (self.time(commit.ts), revision, *who_and_why(commit))

    def committed(self, commit: Commit, *, flush: bool = False) -> None:
        """Write the time of a commit that was just made."""
        self.record(commit_json(commit), self.time(commit.ts), flush=flush)


def who_and_why(commit: Commit) -> tuple[Part | None, ...]:
    """Return the columns of a commit's writer, note and meta, None for an unknown one."""
    writer: Part | None = None if commit.writer is None else (key_text(commit.writer), "green")
    note: Part | None = None if commit.note is None else (quoted(commit.note), "italic")
    meta: Part | None = None if commit.meta is None else meta_text(commit.meta)
    return writer, note, meta


def _spaced(columns: Iterable[Part | None]) -> list[Part]:
    parts: list[Part] = []
    for column in columns:
        if column is not None:
            parts += ["  ", column] if parts else [column]
    return parts
