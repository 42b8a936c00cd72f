"""Changes databases as sinks of changes databases: the same documents, revisions and conflicts.

A table is written to a database of its own, in another store or on a CouchDB server. All leaves of
a changed document are sent with their histories, as CouchDB's replicator does, so repeated and late
writes change nothing. The checkpoint is written after the documents.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import quote

from cdcmeta.changes import ChangesDB
from cdcmeta.errors import DatabaseExistsError, SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.sinks.contract import NAME_IN_URL, Origin
from cdcmeta.scheduler.executors.sinks.couch import (
    BATCH_BYTES,
    BATCH_DOCS,
    WRITE_S,
    CouchSink,
    CouchWriter,
)
from cdcmeta.scheduler.executors.sinks.couch_client import CouchClient, Database
from cdcmeta.scheduler.executors.sinks.stores import StoreSink, StoreWriter
from cdcmeta.scheduler.executors.sources.databases import DocumentChange
from snapkv import Changes, CommitTooLargeError, SnapshotKV
from snapkv.clock import monotonic


class DatabaseSink:
    """Writes each table into the database of its name in a store; creates it if it is missing."""

    def __init__(
        self,
        target: SnapshotKV,
        changefeed: str,
        *,
        write_s: float = WRITE_S,
        origin: Origin | None = None,
    ) -> None:
        self._target, self._write_s = target, write_s
        self._records = StoreSink(target, changefeed, write_s=write_s, origin=origin)

    def writer(self, table: str, token: Token) -> DatabaseWriter:
        """Return a writer of one assignment."""
        database, records = ChangesDB(self._target, table), self._records.writer(table, token)
        return DatabaseWriter(database, records, self._write_s)

    def close(self) -> None:
        """Do nothing: the store is closed by who opened it."""


class DatabaseWriter:
    """Writes one database: a read and a commit for a batch, and a commit of its checkpoint."""

    def __init__(self, database: ChangesDB, records: StoreWriter, write_s: float) -> None:
        self._database, self._records, self._write_s = database, records, write_s

    def begin(self, start: int) -> int:
        """Take the table over, and create the database unless it exists."""
        reached = self._records.begin(start)
        if not self._database.exists():
            with suppress(DatabaseExistsError):  # another writer was faster
                self._database.create()
        return reached

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Replicate the documents, then write the checkpoint, both within the same time."""
        deadline = monotonic() + self._write_s
        leaves = [json.loads(each) for each in leaves_of(commits)]
        if leaves:
            self._replicate(leaves, deadline)
        if checkpoint:
            self._records.write([], checkpoint, deadline=deadline)

    def close(self) -> None:
        """Do nothing."""

    def _replicate(self, leaves: list[dict[str, object]], deadline: float) -> None:
        """Store revisions; in halves, if they are too large for one commit."""
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise SinkError(f"the target did not take it within {self._write_s:g} s")
        try:
            results = self._database.replicate(leaves, timeout=left_s)
        except CommitTooLargeError:
            half = len(leaves) // 2
            if not half:
                raise
            self._replicate(leaves[:half], deadline)
            self._replicate(leaves[half:], deadline)
            return
        for each in results:
            if each.error is not None:
                raise SinkError(f"the target rejects the document {each.id!r}: {each.error}")


class CouchReplicaSink(CouchSink):
    """Writes each table into a database of a CouchDB server; creates it if it is missing.

    A `*` in the URL is the name of the table.
    """

    def writer(self, table: str, token: Token) -> CouchReplicaWriter:
        """Return a writer of one assignment, with a connection of its own."""
        client = CouchClient(self._database_of(table), self._write_s)
        return CouchReplicaWriter(client, self._changefeed, table, token, self._origin)

    def _database_of(self, table: str) -> Database:
        name = quote(table, safe="")
        return Database(self._url.replace(NAME_IN_URL, name), self._environment)


class CouchReplicaWriter(CouchWriter):
    """Writes one database: one request for a batch, two for its checkpoint."""

    def _send_all(self, commits: Sequence[Changes[str]]) -> None:
        docs, size = list[bytes](), 0
        for doc in leaves_of(commits):
            if docs and (size + len(doc) > BATCH_BYTES or len(docs) >= BATCH_DOCS):
                self._post_docs(docs)
                docs, size = [], 0
            docs.append(doc)
            size += len(doc)
        if docs:
            self._post_docs(docs)


def leaves_of(commits: Sequence[Changes[str]]) -> Iterator[bytes]:
    """Yield the leaves of the changed documents, each document as its last commit has it."""
    last: dict[str, DocumentChange] = {}
    for commit in commits:
        for change in commit.changes:
            assert isinstance(change, DocumentChange)
            last[change.key] = change
    for document in last.values():
        yield from document.leaves
