"""Local documents: a replicator's checkpoints, say. They have no revisions and are in no feed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cdcmeta.changes import layout
from cdcmeta.changes.documents import Doc, checked_id, encoded, fields_of, own_members
from cdcmeta.changes.writing import Writer
from cdcmeta.errors import DocumentConflictError, DocumentNotFoundError
from snapkv import Absent, AtRevision, ConflictError, Entry, Space

PREFIX = "_local/"


class LocalDocs:
    """The local documents of a database; ids are given without `_local/`."""

    def __init__(self, space: Space, writer: Writer) -> None:
        self._space, self._writer = space, writer

    def get(self, id: str) -> Doc:
        """Return a local document. One round trip. Raises `DocumentNotFoundError`."""
        entry = self._entry(id)
        if entry is None:
            raise DocumentNotFoundError(PREFIX + id)
        count, body = layout.local_of(entry.value)
        doc: Doc = json.loads(body)
        return {"_id": PREFIX + id, "_rev": f"0-{count}"} | doc

    def put(self, id: str, doc: Mapping[str, Any]) -> str:
        """Store a local document and return its `_rev`; that of the one it replaces must be given.

        One round trip to read and one to commit. Raises `DocumentConflictError`,
        `InvalidDocumentError`, `DatabaseNotFoundError`.
        """
        fields = fields_of(doc)
        body = encoded(own_members(fields))

        def ops(count: int) -> dict[str, Any]:
            return {"puts": {layout.local_key(id): layout.local_value(count + 1, body)}}

        return f"0-{self._write(id, fields.get('_rev'), ops) + 1}"

    def remove(self, id: str, rev: str) -> None:
        """Delete a local document. Raises as `put`, `DocumentNotFoundError`."""
        if self._entry(id) is None:
            raise DocumentNotFoundError(PREFIX + id)
        self._write(id, rev, lambda _: {"deletes": [layout.local_key(id)]})

    def _entry(self, id: str) -> Entry | None:
        key = layout.local_key(checked_id(id, local=True))
        self._writer.record()
        return self._space.entries_of([key])[0]

    def _write(self, id: str, rev: object, ops: Callable[[int], dict[str, Any]]) -> int:
        """Commit what replaces the document that `rev` names; return how often that was written."""
        key = layout.local_key(id)
        while True:
            entry = self._entry(id)
            count = 0 if entry is None else layout.local_of(entry.value)[0]
            if rev != (f"0-{count}" if count else None):
                raise DocumentConflictError(PREFIX + id)
            revision = self._writer.writable()
            own = Absent(key) if entry is None else AtRevision(key, entry.revision)
            guards = [own, AtRevision(layout.DATABASE, revision)]
            try:
                self._space.commit(guards=guards, **ops(count))
                return count
            except ConflictError:  # the next look tells whether it was the document or the database
                self._writer.record(fresh=True)
