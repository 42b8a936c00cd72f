"""Figures of an archive: its files, bytes, commits and times."""

from __future__ import annotations

from typing import NamedTuple

from snapkv.archive.folder import Files
from snapkv.archive.manifest import Gap
from snapkv.archive.publishing import existing


class ArchiveStatus(NamedTuple):
    """What an archive holds.

    It knows history from the timestamp `since` to `resolved`, but for `gaps`; both with the
    source's revisions. `files`, `rows` and `bytes` are by kind: base, delta, log. `written` is when
    the newest manifest was written, in seconds since 1970, by the clock of the archive's place.
    """

    url: str
    name: str
    store_id: str
    prefix: bytes | None
    number: int
    since: int
    since_revision: int
    resolved: int
    resolved_revision: int
    gaps: tuple[Gap, ...]
    files: dict[str, int]
    rows: dict[str, int]
    bytes: dict[str, int]
    written: float


def archive_status(files: Files) -> ArchiveStatus:
    """Return what an archive holds; two listings, and one read.

    Raises `ArchiveError` if it has no manifest.
    """
    manifest = existing(files)
    written = max(entry.written for entry in files.list("_manifest"))
    kinds = {kind: manifest.of_kind(kind) for kind in ("base", "delta", "log")}
    source = manifest.source
    return ArchiveStatus(
        url=files.url,
        name=source.name,
        store_id=source.id.hex(),
        prefix=source.prefix,
        number=manifest.number,
        since=manifest.since_timestamp,
        since_revision=manifest.since,
        resolved=manifest.resolved,
        resolved_revision=manifest.high,
        gaps=manifest.gaps,
        files={kind: len(found) for kind, found in kinds.items()},
        rows={kind: sum(f.rows for f in found) for kind, found in kinds.items()},
        bytes={kind: sum(f.size for f in found) for kind, found in kinds.items()},
        written=written,
    )
