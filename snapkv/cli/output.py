"""The answer of a command: its records as text, as a table, as JSON or as YAML."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from snapkv.cli.formats import (
    Json,
    cell_text,
    commit_json,
    difference_json,
    json_line,
    key_text,
    meta_text,
    preview,
    quoted,
    time_text,
    yaml_document,
)
from snapkv.cli.table import ROWS_SIZED, Table
from snapkv.cli.terminal import Part, tell, write_line
from snapkv.model import Commit, Difference

FORMATS = ("text", "table", "json", "yaml")
COMMIT_HEADINGS = ("TIME", "REVISION", "WRITER", "NOTE", "META")
DIFFERENCE_HEADINGS = ("", "KEY", "BEFORE", "AFTER")

SUMMARY_LINES_MAX = 20
"""How many differences are shown before a question."""


@dataclass(slots=True)
class Output:
    """The output of a command, in one of the `FORMATS`.

    In a `with` block a table has columns that fit its first rows; otherwise its first row decides.
    """

    format: str = "text"
    raw: bool = False
    _headings: Sequence[str] = ()
    _table: Table | None = field(default=None, repr=False)
    _rows_sized: int = 1

    @property
    def structured(self) -> bool:
        """Whether records are written with all their fields, for programs."""
        return self.format in ("json", "yaml")

    def headed(self, *headings: str) -> Self:
        """Name the columns of a table; without names, a table shows the fields of its records."""
        self._headings = headings
        return self

    def __enter__(self) -> Self:
        self._rows_sized = ROWS_SIZED
        return self

    def __exit__(self, *error: object) -> None:
        if self._table is not None:
            self._table.flush()

    def record(
        self,
        fields: Json,
        *columns: Part | None,
        line: Iterable[Part] | None = None,
        flush: bool = False,
    ) -> None:
        """Write one record: its fields for programs, its columns for people.

        As text, columns (None: left out) have two spaces between; `line` takes their place.
        """
        if self.format == "json":
            sys.stdout.write(json_line(fields) + "\n")
        elif self.format == "yaml":
            sys.stdout.write(yaml_document(fields))
        elif self.format == "table" and (fields or self._headings):
            self._add(fields, columns)
        else:
            write_line(_spaced(columns) if line is None else line)
        if flush:
            sys.stdout.flush()

    def _add(self, fields: Json, columns: Sequence[Part | None]) -> None:
        by_field = fields and not self._headings
        if self._table is None:
            headings = [name.upper() for name in fields] if by_field else self._headings
            self._table = Table(headings, self._rows_sized)
        self._table.add([cell_text(value) for value in fields.values()] if by_field else columns)

    def difference(self, difference: Difference[str]) -> None:
        """Write a difference."""
        self.record(
            difference_json(difference),
            *difference_columns(difference),
            line=difference_parts(difference),
        )

    def facts(self, fields: Json, rows: Sequence[tuple[str, str]]) -> None:
        """Write one record: its fields for programs, rows of a name and a text for people."""
        if self.structured:
            self.record(fields)
            return
        width = max(len(fact) for fact, _ in rows)
        with self.headed("FACT", "VALUE"):
            for fact, shown in rows:
                self.record({}, (fact.ljust(width), "cyan"), shown)

    def time(self, timestamp: int | None) -> Part:
        """Return the column of a time; `-` for an unknown one."""
        return "-" if timestamp is None else (time_text(timestamp, raw=self.raw), "cyan")

    def commit_columns(self, commit: Commit) -> tuple[Part | None, ...]:
        """Return the columns of a commit: time, revision, writer, note, meta."""
        return (self.time(commit.ts), str(commit.revision), *who_and_why(commit))

    def committed(self, commit: Commit, *, flush: bool = False) -> None:
        """Write the time of a commit that was just made."""
        self.record(commit_json(commit), self.time(commit.ts), flush=flush)


def who_and_why(commit: Commit) -> tuple[Part | None, ...]:
    """Return the columns of a commit's writer, note and meta, None for an unknown one."""
    writer: Part | None = None if commit.writer is None else (key_text(commit.writer), "green")
    note: Part | None = None if commit.note is None else (quoted(commit.note), "italic")
    meta: Part | None = None if commit.meta is None else meta_text(commit.meta)
    return writer, note, meta


def difference_columns(difference: Difference[str]) -> tuple[Part | None, ...]:
    """Return the columns of a difference: sign, key, value before and after."""
    sign, style = sign_of(difference)
    before, after = (
        None if value is None else preview(value) for value in (difference.before, difference.after)
    )
    return (sign, style), (key_text(difference.key), style), before, after


def sign_of(difference: Difference[str]) -> tuple[str, str]:
    """Return the sign of a difference, and its style."""
    if difference.before is None:
        return "+", "green"
    return ("-", "red") if difference.after is None else ("~", "yellow")


def difference_parts(difference: Difference[str]) -> list[Part]:
    """Return the line of a difference: `+ key value`, `- key value`, `~ key before -> after`."""
    key, before, after = key_text(difference.key), difference.before, difference.after
    if before is None:
        assert after is not None
        return [(f"+ {key}  {preview(after)}", "green")]
    if after is None:
        return [(f"- {key}  {preview(before)}", "red")]
    return [(f"~ {key}", "yellow"), f"  {preview(before)} -> {preview(after)}"]


def tell_differences(differences: list[Difference[str]]) -> None:
    """Show what is about to change, the first lines of it, on the error stream."""
    for difference in differences[:SUMMARY_LINES_MAX]:
        write_line(difference_parts(difference), error=True)
    if (more := len(differences) - SUMMARY_LINES_MAX) > 0:
        tell(f"... and {more:,} more")


def _spaced(columns: Iterable[Part | None]) -> list[Part]:
    parts: list[Part] = []
    for column in columns:
        if column is not None:
            parts += ["  ", column] if parts else [column]
    return parts
