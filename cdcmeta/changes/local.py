"""Local documents, such as replicators' checkpoints: without history, and not in the feed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cdcmeta.changes import layout
from cdcmeta.changes.documents import Doc, checked_id, encoded, fields_of, own_members
from cdcmeta.changes.editing import Outcome, Plan
from cdcmeta.changes.writing import Writer
from cdcmeta.errors import DocumentConflictError, DocumentNotFoundError, EditUnknownError
from snapkv import Absent, AtRevision, CommitUnknownError, ConflictError, Entry, Space

PREFIX = "_local/"


class LocalDocs:
    """The local documents of a database; arguments are ids without `_local/`."""

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

    def put(self, id: str, doc: Mapping[str, Any], *, timeout: float | None = None) -> str:
        """Store a local document; return its `_rev`. It must have the `_rev` that it replaces.

        One round trip to read and one to commit; `timeout` as in `ChangesDB.put`. Raises
        `DocumentConflictError`, `InvalidDocumentError`, `DatabaseNotFoundError`,
        `snapkv.CommitTimeoutError`, and `EditUnknownError`. Resolve the last one before a retry,
        which would conflict with the document if it was stored.
        """
        fields = fields_of(doc)
        body = encoded(own_members(fields))
        return f"0-{self._write(id, fields.get('_rev'), body, timeout)}"

    def remove(self, id: str, rev: str, *, timeout: float | None = None) -> None:
        """Delete a local document. Raises as `put`, `DocumentNotFoundError`."""
        if self._entry(id) is None:
            raise DocumentNotFoundError(PREFIX + id)
        self._write(id, rev, None, timeout)

    def _entry(self, id: str) -> Entry | None:
        key = layout.local_key(checked_id(id, local=True))
        self._writer.record()
        return self._space.entries_of([key])[0]

    def _write(self, id: str, rev: object, body: bytes | None, timeout: float | None) -> int:
        """Replace the document at `rev`; return how often it was written.

        Without a body, delete it.
        """
        key = layout.local_key(id)
        while True:
            entry = self._entry(id)
            count = 0 if entry is None else layout.local_of(entry.value)[0]
            if rev != (f"0-{count}" if count else None):
                raise DocumentConflictError(PREFIX + id)
            revision = self._writer.writable()
            database, _ = self._writer.record()
            own = Absent(key) if entry is None else AtRevision(key, entry.revision)
            guards = [own, AtRevision(layout.DATABASE, revision)]
            puts = {} if body is None else {key: layout.local_value(count + 1, body)}
            try:
                deletes = [] if puts else [key]
                self._space.commit(puts=puts, deletes=deletes, guards=guards, timeout=timeout)
                return count + 1
            except CommitUnknownError as e:
                made = Outcome(PREFIX + id, None if body is None else f"0-{count + 1}")
                raise EditUnknownError(e, Plan(database, {}, outcomes=[made])) from e
            except ConflictError:
                # the next read finds out whether the document or the database changed
                self._writer.record(fresh=True)
