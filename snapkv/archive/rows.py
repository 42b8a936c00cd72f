"""The rows of an archive: Parquet files of changes, of states, and of the commit log.

A change and a row of a state have the user's key and its space ("" for keys without one), so that
any program can read them; `Keys` turns them into stored keys and back. Rows are sorted by stored
key, then by revision; rows of a log by revision. `timestamp` is that of the commit which made the
version, `time` the same to the microsecond for people. `change_ordinal` numbers the changes of a
revision in a space, from 0 on in the order of keys: a reader that has not all of them cannot.
`meta` of a log is JSON text; logs that were written before it was a column do not have it.

A file is cut into row groups of about `GROUP_BYTES`. Its metadata has the first and last stored
key of each: spaces sort by their escaped names there, which the statistics of Parquet do not show.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from snapkv.archive.manifest import File, Manifest
from snapkv.errors import ArchiveError
from snapkv.layout import Keyspace, Layout, SourceId, StampRecord, space_name

GROUP_BYTES = 1 << 20
GROUP_ROWS_MAX = 20_000
GROUPS, PATH = b"snapkv.groups", b"snapkv.path"
_TIME = pa.timestamp("us", tz="UTC")

_VERSION = [
    ("space", pa.string()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("revision", pa.int64()),
    ("created", pa.int64()),
    ("version", pa.int64()),
    ("timestamp", pa.int64()),
    ("time", _TIME),
]
BASE = pa.schema(_VERSION)
DELTA = pa.schema([*_VERSION, ("deleted", pa.bool_()), ("change_ordinal", pa.int32())])
LOG = pa.schema(
    [
        ("revision", pa.int64()),
        ("timestamp", pa.int64()),
        ("time", _TIME),
        ("ordinal", pa.int64()),
        ("writer", pa.string()),
        ("note", pa.string()),
        ("meta", pa.string()),
        ("stamp", pa.binary()),
    ]
)
SCHEMAS = {"base": BASE, "delta": DELTA, "log": LOG}
# Numbers rise by little from row to row. A heartbeat each second takes a third of what it took with
# dictionaries of numbers and level 1, and compressing it 0.2 of the recorder's CPU at most.
_COUNTED = {pa.int32(), pa.int64(), _TIME}
_REPEATED = {"space", "key", "writer", "note", "meta"}
_COMPRESSION_LEVEL = 9


class Keys:
    """Stored keys of a store as (space, key), and back."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._spaces: dict[str, Keyspace] = {"": layout.data}

    def parted(self, stored: bytes) -> tuple[str, bytes] | None:
        """Return the space and the key of a stored key; None for one that is not archived."""
        layout = self._layout
        if stored.startswith(layout.data.prefix):
            return "", stored[len(layout.data.prefix) :]
        if not stored.startswith(layout.spaces):
            return None
        space = space_name(stored[len(layout.spaces) :])
        return space, stored[len(self.prefix(space)) :]

    def prefix(self, space: str) -> bytes:
        """Return the prefix of the stored keys of a space."""
        found = self._spaces.get(space)
        if found is None:
            found = self._spaces[space] = self._layout.space(space)
        return found.prefix

    def stored(self, table: pa.Table) -> pa.Array:
        """Return the stored keys of rows."""
        spaces = table["space"].combine_chunks().dictionary_encode()
        names = [self.prefix(name) for name in spaces.dictionary.to_pylist()]
        prefixes = pa.array(names, pa.binary()).take(spaces.indices)
        empty = pa.scalar(b"", pa.binary())
        return pc.binary_join_element_wise(prefixes, table["key"].combine_chunks(), empty)


class RowGroup(NamedTuple):
    """A row group of a file: its number, and the first and last stored key in it."""

    number: int
    first: bytes
    last: bytes
    rows: int


class Encoding:
    """The bytes of a Parquet file that is made of row groups as its rows come.

    The file holds its own path, so that one in the place of another is noticed, and checksums of
    its pages. It is in memory, compressed, and of its rows not more than one group.
    """

    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path
        self.rows = self.nbytes = 0
        """What was added; the bytes are those before compression."""
        self.first = self.last = b""
        self._schema = SCHEMAS[kind].with_metadata({PATH: path})
        self._sink = pa.BufferOutputStream()
        counted = [field.name for field in self._schema if field.type in _COUNTED]
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=[name for name in self._schema.names if name in _REPEATED],
            column_encoding=dict.fromkeys(counted, "DELTA_BINARY_PACKED"),
            write_page_checksum=True,
        )
        self._named: list[list[str]] = []
        self._pending: list[tuple[pa.Table, Sequence[bytes]]] = []

    def add(self, table: pa.Table, keys: Sequence[bytes]) -> None:
        """Add rows that come after the earlier ones; `keys` are their stored keys."""
        if not keys:
            return
        tables = [table, *(each for each, _ in self._pending)]
        rows, nbytes = sum(t.num_rows for t in tables), sum(t.nbytes for t in tables)
        if rows > GROUP_ROWS_MAX or nbytes > GROUP_BYTES:
            self._write()
        self._pending.append((table, keys))
        self.first, self.last = (self.first if self.rows else keys[0]), keys[-1]
        self.rows += table.num_rows
        self.nbytes += table.nbytes

    def finish(self) -> bytes:
        """Return the file."""
        self._write()
        self._writer.add_key_value_metadata({GROUPS: json.dumps(self._named)})
        self._writer.close()
        return self._sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def _write(self) -> None:
        """Write the rows that wait, as one group or as several."""
        if not self._pending:
            return
        table = pa.concat_tables([each for each, _ in self._pending])
        keys = [key for _, some in self._pending for key in some]
        self._pending = []
        rows = table.num_rows
        each = max(1, min(GROUP_ROWS_MAX, GROUP_BYTES * rows // max(1, table.nbytes)))
        for a, b in pairwise([*range(0, rows, each), rows]):
            self._named.append([keys[a].hex(), keys[b - 1].hex()])
            self._writer.write_table(table.slice(a, b - a).cast(self._schema), row_group_size=b - a)


def damaged(file: File, why: object) -> ArchiveError:
    """Return the error for a file that is not what the manifest says."""
    return ArchiveError(f"{file.path} of the archive is damaged: {why}")


def groups_of(parquet: pq.ParquetFile, file: File) -> list[RowGroup]:
    """Return the row groups of a file; raises `ArchiveError` if it does not name them."""
    metadata = parquet.metadata
    try:
        named = json.loads(metadata.metadata[GROUPS])
        if len(named) != metadata.num_row_groups:
            raise damaged(file, f"{len(named)} names for {metadata.num_row_groups} row groups")
        return [
            RowGroup(at, bytes.fromhex(first), bytes.fromhex(last), metadata.row_group(at).num_rows)
            for at, (first, last) in enumerate(named)
        ]
    except (KeyError, ValueError, TypeError) as e:
        raise damaged(file, f"not a file of an archive: {e!r}") from e


def table_of(kind: str, columns: Iterable[Sequence[Any]]) -> pa.Table:
    """Return columns, in the order of the schema of that kind, as a table."""
    schema = SCHEMAS[kind]
    arrays = [pa.array(found, field.type) for found, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def with_meta(log: pa.Table) -> pa.Table:
    """Return the rows of a log with the column `meta`, which older logs do not have."""
    if "meta" in log.column_names:
        return log
    found = [StampRecord.decode(stamp).meta_json for stamp in log["stamp"].to_pylist()]
    return log.append_column("meta", pa.array(found, pa.string())).select(LOG.names)


class LakeTable(NamedTuple):
    """A table for readers of Delta Lake and Iceberg, whose rows are in files of the archive.

    `changes` has the rows of the state at the archive's first revision (`deleted` is null there),
    and every change since; `commits` has the rows of the logs. `folder` contains the files ("" for
    all). No file is copied.
    """

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


def tables_of(manifest: Manifest) -> list[LakeTable]:
    """Return the tables of an archive."""
    since = manifest.since
    changes = (*manifest.of_kind("base", since, since), *manifest.of_kind("delta"))
    return [
        LakeTable("changes", "", DELTA, changes),
        LakeTable("commits", "log", LOG, tuple(manifest.of_kind("log"))),
    ]


def facts_of(source: SourceId) -> dict[str, str]:
    """Return what a table's properties say about the store that was archived."""
    return {"snapkv.store": source.name, "snapkv.store-id": source.id.hex()}
