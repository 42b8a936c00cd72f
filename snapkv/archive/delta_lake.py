"""An archive as tables of Delta Lake: a transaction log beside the archive's own manifests.

The log is written here, not with deltalake: that has no transaction in which some files stay, some
come and some go (in its overwrites a file that stays is added and removed, which the protocol
forbids), and this needs no second set of credentials.

The archive's URL is the table of the changes, its folder `log` the one of the commits. All files of
the archive are below the former, so a VACUUM would delete files that the table does not name. The
protocol therefore demands a feature of writers that none has: readers read, writers refuse.

Source: the protocol of Delta Lake, https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid5

from snapkv.archive import open_files
from snapkv.archive.folder import Files
from snapkv.archive.manifest import File, existing
from snapkv.archive.rows import LakeTable, PublishedTable, facts_of, tables_of
from snapkv.base.clocks import SystemClock
from snapkv.base.version import __version__
from snapkv.errors import ArchiveError
from snapkv.layout import SourceId

LOG_FOLDER = "_delta_log"
DIGITS = 20
TRIES_MAX = 8
PROTOCOL = {
    "minReaderVersion": 1,
    "minWriterVersion": 7,
    "writerFeatures": ["snapkvArchiveIsReadOnly"],
}
TYPES = {
    "int32": "integer",
    "int64": "long",
    "string": "string",
    "binary": "binary",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamp",
}
NAMESPACE = UUID("6f1d3c1e-7f0b-4d3e-9a52-0a4f6f0a7c55")


def publish_delta(url: str, storage: Mapping[str, Any] | None = None) -> list[PublishedTable]:
    """Make the tables of an archive readable by Delta Lake, or bring them up to date.

    Each table gets a version of Delta that names the files of the archive's newest manifest, unless
    its newest version does so already. No file is copied. Files that the archive merges are deleted
    later (see `snapkv record`), so publish again within that time.

    Costs a listing, and a read of each version that was published before. Raises `ArchiveError`,
    `FormatError`, `EngineUnavailableError`.
    """
    files = open_files(url, storage)
    manifest = existing(files)
    return [_published(files, table, manifest.source) for table in tables_of(manifest)]


def _published(files: Files, table: LakeTable, source: SourceId) -> PublishedTable:
    for _ in range(TRIES_MAX):
        version, present, schema = _newest(files, table)
        wanted = {_relative(table, file.path): file for file in table.files}
        if version >= 0 and wanted.keys() == present.keys():
            break
        actions = list(_actions(table, source, version, schema, wanted, present))
        text = "\n".join(json.dumps(action) for action in actions)
        if files.put_new(_log_name(table, version + 1), text.encode()):
            break
    else:
        raise ArchiveError(f"other programs publish {table.name} of {files.url} all the time")
    where = f"{files.url.rstrip('/')}/{table.folder}".rstrip("/")
    rows = sum(file.rows for file in table.files)
    return PublishedTable(table.name, where, len(table.files), rows)


def _newest(files: Files, table: LakeTable) -> tuple[int, dict[str, int], str]:
    """Return the newest version, -1 for none, its files with their sizes, and its schema."""
    entries = files.list(_log_folder(table))
    names = [entry.name for entry in entries if not entry.name.endswith(".crc")]
    expected = [_log_name(table, version) for version in range(len(names))]
    if names != expected:
        raise ArchiveError(
            f"{_log_folder(table)} of {files.url} has files of another program; delete that folder "
            "and publish again"
        )
    present: dict[str, int] = {}
    schema = ""
    for name in names:
        for line in files.read(name).splitlines():
            action = json.loads(line)
            if added := action.get("add"):
                present[added["path"]] = added["size"]
            elif removed := action.get("remove"):
                present.pop(removed["path"], None)
            elif metadata := action.get("metaData"):
                schema = metadata["schemaString"]
    return len(names) - 1, present, schema


def _actions(
    table: LakeTable,
    source: SourceId,
    version: int,
    schema: str,
    wanted: Mapping[str, File],
    present: Mapping[str, int],
) -> Iterator[dict[str, Any]]:
    """Yield the actions of the version after `version`, which has a schema and files `present`."""
    now_ms = SystemClock().now_ms()
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {},
            "engineInfo": f"snapkv/{__version__}",
        }
    }
    if version < 0:
        yield {"protocol": PROTOCOL}
    metadata = _metadata(table, source, now_ms)
    if metadata["schemaString"] != schema:  # an older version of this module lacked a column
        yield {"metaData": metadata}
    for path, size in present.items():
        if path not in wanted:
            removed = {"deletionTimestamp": now_ms, "dataChange": True, "size": size}
            yield {"remove": {"path": path, **removed, "partitionValues": {}}}
    for path, file in wanted.items():
        if path not in present:
            added = {"size": file.size, "modificationTime": now_ms, "dataChange": True}
            stats = json.dumps({"numRecords": file.rows})
            yield {"add": {"path": path, **added, "partitionValues": {}, "stats": stats}}


def _metadata(table: LakeTable, source: SourceId, now_ms: int) -> dict[str, Any]:
    fields = [
        {"name": field.name, "type": TYPES[str(field.type)], "nullable": True, "metadata": {}}
        for field in table.schema
    ]
    return {
        "id": str(uuid5(NAMESPACE, f"{source.id.hex()}/{table.name}")),
        "name": table.name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": facts_of(source),
        "createdTime": now_ms,
    }


def _relative(table: LakeTable, path: str) -> str:
    return path.removeprefix(f"{table.folder}/") if table.folder else path


def _log_folder(table: LakeTable) -> str:
    return f"{table.folder}/{LOG_FOLDER}" if table.folder else LOG_FOLDER


def _log_name(table: LakeTable, version: int) -> str:
    return f"{_log_folder(table)}/{version:0{DIGITS}}.json"
