"""The commit log of an archive, as the versions of the timestamp key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapkv.archive.manifest import File, Manifest
from snapkv.archive.opened import OpenFiles
from snapkv.archive.rows import Group
from snapkv.engine.contract import KeyValue


def revision_key(revision: int) -> bytes:
    """Return a revision as row groups of a log are named: in 8 bytes, so that they sort."""
    return revision.to_bytes(8, "big")


class Marks:
    """The versions of the timestamp key in an archive."""

    def __init__(self, opened: OpenFiles, key: bytes) -> None:
        self._opened, self._key = opened, key

    def at(self, manifest: Manifest, revision: int) -> KeyValue | None:
        """Return the version in force at a revision; reads one row group."""
        return next(self.back(manifest, revision), None)

    def back(self, manifest: Manifest, revision: int) -> Iterator[KeyValue]:
        """Yield the version in force at a revision, and those before it, newest first."""
        created = manifest.source.created
        for file, group in reversed(self._groups(manifest)):
            if int.from_bytes(group.first, "big") > revision:
                continue
            table = self._opened.rows(file, group).table
            count = int(table["revision"].to_numpy().searchsorted(revision, side="right"))
            for at in reversed(range(count)):
                yield self._version(table, at, created)

    def between(self, manifest: Manifest, low: int, high: int) -> Iterator[KeyValue]:
        """Yield the versions of the revisions `low` to `high`, oldest first."""
        created = manifest.source.created
        for file, group in self._groups(manifest):
            if int.from_bytes(group.last, "big") < low or int.from_bytes(group.first, "big") > high:
                continue
            table = self._opened.rows(file, group).table
            revisions = table["revision"].to_numpy()
            first = int(revisions.searchsorted(low))
            for at in range(first, int(revisions.searchsorted(high, side="right"))):
                yield self._version(table, at, created)

    def _groups(self, manifest: Manifest) -> list[tuple[File, Group]]:
        logs = manifest.of_kind("log")
        return [(file, group) for file in logs for group in self._opened.groups(file)]

    def _version(self, table: Any, at: int, created: int) -> KeyValue:
        stamp, revision, ordinal = (
            table[name][at].as_py() for name in ("stamp", "revision", "ordinal")
        )
        return KeyValue(self._key, stamp, created, revision, ordinal)
