"""An archive as Iceberg tables: metadata in `_iceberg/` that names the files of the archive.

Each time it is published, a table is made anew, with one snapshot: the time travel is that of the
rows, by `timestamp`. Iceberg names files by whole URLs, so an archive that was moved is published
again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from snapkv.archive import open_files
from snapkv.archive.folder import Files
from snapkv.archive.manifest import GRACE_S, Manifest, existing
from snapkv.archive.rows import LakeTable, PublishedTable, facts_of, tables_of
from snapkv.base.extras import requires_extra
from snapkv.errors import EngineUnavailableError, InvalidOptionError

with requires_extra("iceberg", "tables of Iceberg"):
    from pyiceberg.catalog.memory import InMemoryCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.table import StaticTable

FOLDER = "_iceberg"
MANIFEST = "snapkv.manifest"
_ID = "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))
METADATA = re.compile(
    rf"[0-9]{{5}}-{_ID}\.metadata\.json|snap-[0-9]+-[0-9]+-{_ID}\.avro|{_ID}-m[0-9]+\.avro"
)
"""The names that pyiceberg gives to metadata: no other file is ever deleted."""
STORAGE = {
    "access_key_id": "s3.access-key-id",
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
"""The options of an object store, and the properties of pyiceberg that mean the same."""


def publish_iceberg(url: str, storage: Mapping[str, Any] | None = None) -> list[PublishedTable]:
    """Make the tables of an archive readable by Iceberg, or bring them up to date.

    `url` is a folder or `s3://BUCKET/PATH`. The URL of each table is that of its metadata, which
    pyiceberg's `StaticTable.from_metadata` and polars' `scan_iceberg` take. No file is copied.
    Files that the archive merges are deleted later, so publish again within that time.

    Reads the end of each file. Raises `InvalidOptionError` for another object store,
    `ArchiveError`, `FormatError`, `EngineUnavailableError`.
    """
    files = open_files(url, storage)
    place, properties = _place(url, storage or {})
    manifest = existing(files)
    try:
        return [_published(files, place, properties, manifest, t) for t in tables_of(manifest)]
    except OSError as e:  # pyiceberg's and pyarrow's errors of files
        raise EngineUnavailableError(f"the tables of {url} could not be written: {e}") from e


def _place(url: str, storage: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the URL of an archive for pyiceberg, and pyiceberg's properties."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return f"file://{os.path.abspath(url)}", {}
    if scheme != "s3":
        raise InvalidOptionError(
            f"tables of Iceberg can be in a folder or in s3://, not in {scheme}://"
        )
    given = {STORAGE[option]: str(storage[option]) for option in STORAGE if option in storage}
    return url.rstrip("/"), given


def _published(
    files: Files, place: str, properties: Mapping[str, str], manifest: Manifest, table: LakeTable
) -> PublishedTable:
    location = f"{place}/{FOLDER}/{table.name}"
    metadata = _current(location, properties, manifest)
    if metadata is None:
        metadata = _made(place, location, properties, manifest, table)
        _forget_older(files, table)
    rows = sum(file.rows for file in table.files)
    return PublishedTable(table.name, metadata, len(table.files), rows)


def _current(location: str, properties: Mapping[str, str], manifest: Manifest) -> str | None:
    """Return the metadata of a table if it is the one of this manifest."""
    try:
        found = StaticTable.from_metadata(location, dict(properties))
    except (FileNotFoundError, NoSuchTableError):
        return None
    same = found.properties.get(MANIFEST) == str(manifest.number)
    return found.metadata_location if same and found.location() == location else None


def _made(
    place: str, location: str, properties: Mapping[str, str], manifest: Manifest, table: LakeTable
) -> str:
    """Write a table's metadata, and then the hint where it is; return its URL."""
    catalog = InMemoryCatalog("snapkv", warehouse=f"{place}/{FOLDER}", **properties)
    try:
        catalog.create_namespace("snapkv")
        made = catalog.create_table(
            ("snapkv", table.name),
            schema=table.schema,
            location=location,
            properties={
                **facts_of(manifest.source),
                MANIFEST: str(manifest.number),
                "gc.enabled": "false",  # no expiry of snapshots deletes the archive's files
            },
        )
        made.add_files([f"{place}/{file.path}" for file in table.files])
    finally:
        catalog.engine.dispose()  # or Python, from 3.13 on, warns of its connection
    metadata = made.metadata_location
    name = os.path.basename(metadata).removesuffix(".metadata.json")
    with made.io.new_output(f"{location}/metadata/version-hint.text").create(
        overwrite=True
    ) as hint:
        hint.write(name.encode())
    return str(metadata)


def _forget_older(files: Files, table: LakeTable) -> None:
    """Delete metadata that was replaced an hour ago."""
    folder = f"{FOLDER}/{table.name}/metadata"
    entries = [
        entry
        for entry in files.list(folder)
        if METADATA.fullmatch(entry.name.removeprefix(f"{folder}/"))
    ]
    newest = max((entry.written for entry in entries), default=0.0)
    for entry in entries:
        if entry.written < newest - GRACE_S:
            files.delete(entry.name)
