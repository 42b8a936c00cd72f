"""An archive as tables for other programs: changes and commits, in the files that it has.

`changes` are the rows of the state at the archive's first revision (`deleted` is null there), and
every change since. `commits` are the rows of the logs. They are published for readers of Delta Lake
and of Iceberg, without copying a file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from snapkv.archive.manifest import File, Manifest
from snapkv.archive.rows import DELTA, LOG
from snapkv.layout import SourceId


class Table(NamedTuple):
    """A table, and the files that hold its rows; `folder` contains all of them ("" for all)."""

    name: str
    folder: str
    schema: Any
    files: tuple[File, ...]


class PublishedTable(NamedTuple):
    """A table that was published: what a reader opens, and the files and rows in it."""

    name: str
    url: str
    files: int
    rows: int


def tables_of(manifest: Manifest) -> list[Table]:
    """Return the tables of an archive."""
    first = [base for base in manifest.of_kind("base") if base.high == manifest.since]
    changes = (*first, *manifest.of_kind("delta"))
    return [
        Table("changes", "", DELTA, changes),
        Table("commits", "log", LOG, tuple(manifest.of_kind("log"))),
    ]


def facts_of(source: SourceId) -> dict[str, str]:
    """Return what a table's properties say about the store that was archived."""
    return {"snapkv.store": source.name, "snapkv.store-id": source.id.hex()}
