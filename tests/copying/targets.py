"""Targets of recordings: opened, and compared with their source."""

from __future__ import annotations

from typing import Any

from archive.histories import answers

import snapkv
from snapkv import SnapshotKV

REVISIONS = {"_commit_version", "_version_from", "_version_to"}
TARGETS = ("archive", "lmdb", "memory")


def target_url(kind: str, folder: Any) -> str:
    return {"archive": str(folder), "lmdb": f"lmdb:{folder}", "memory": f"memory:{folder}"}[kind]


def opened(kind: str, folder: Any, **options: Any) -> SnapshotKV:
    """Open what was recorded."""
    url = target_url(kind, folder)
    return snapkv.open_archive(url, **options) if kind == "archive" else snapkv.open(url, **options)


def comparable(found: dict[str, Any]) -> dict[str, Any]:
    """Return answers without revisions: another store has revisions of its own."""
    kept = {what: each for what, each in found.items() if what != "revisions"}
    kept["states"] = [items for items, revision in found["states"]]
    for what in ("commits", "backwards"):
        kept[what] = [(c.ts, c.writer, c.note, c.meta) for c in found[what]]
    kept["histories"] = [
        [(v.ts, v.value, v.writer, v.note, v.meta) for v in versions]
        for versions in found["histories"]
    ]
    for what in ("changes", "versions"):
        kept[what] = [
            {name: cell for name, cell in row.items() if name not in REVISIONS}
            for row in found[what]
        ]
    return kept


def assert_equal(source: dict[str, Any], recorded: SnapshotKV, since: int) -> None:
    """Assert that a record answers what its source answered."""
    expected, found = comparable(source), comparable(answers(recorded, since))
    for what, each in expected.items():
        assert found[what] == each, what
