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
    json_line,
    key_text,
    meta_text,
    quoted,
    time_text,
    yaml_document,
)
from snapkv.cli.table import ROWS_SIZED, Table
from snapkv.cli.terminal import Part, write_line
from snapkv.model import Commit

FORMATS = ("text", "table", "json", "yaml")
COMMIT_HEADINGS = ("TIME", "REVISION", "WRITER", "NOTE", "META")


@dataclass(slots=True)
class Output:
    """The output of a command, in one of the `FORMATS`.

    In a `with` block a table has columns that fit its first rows; otherwise its first row decides.
    """

    format: str = "text"
    raw: bool = False
    _headings: Sequence[str] = ()
    _names: Sequence[str] = ()
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
        lines: Iterable[Iterable[Part]] | None = None,
        flush: bool = False,
    ) -> None:
        """Write one record: its fields for programs, its columns for people.

        As text, columns (None: left out) have two spaces between; `lines` take their place.
        """
        if self.format == "json":
            sys.stdout.write(json_line(fields) + "\n")
        elif self.format == "yaml":
            sys.stdout.write(yaml_document(fields, sys.stdout.encoding or "utf-8"))
        elif self.format == "table" and (fields or self._headings):
            self._add(fields, columns)
        else:
            for line in [_spaced(columns)] if lines is None else lines:
                write_line(line)
        if flush:
            sys.stdout.flush()

    def _add(self, fields: Json, columns: Sequence[Part | None]) -> None:
        if self._table is None:
            self._names = () if self._headings else tuple(fields)
            headings = self._headings or [name.upper() for name in self._names]
            self._table = Table(headings, self._rows_sized)
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


def _spaced(columns: Iterable[Part | None]) -> list[Part]:
    parts: list[Part] = []
    for column in columns:
        if column is not None:
            parts += ["  ", column] if parts else [column]
    return parts
