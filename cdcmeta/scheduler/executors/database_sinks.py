"""Changes databases as sinks of changes databases: the same documents, revisions and conflicts.

A table is written to a database of its own, in another store or on a CouchDB server. All leaves of
a changed document are sent with their histories, as CouchDB's replicator does, so repeated and late
writes change nothing. The checkpoint is written after the documents.

Where the source's `revs_limit` has cut these histories, the source says which leaves its edits have
followed, and these end in the target. In a state the source cannot say it: then each leaf of the
target ends that is older than a cut, but in a store not one that another writer made there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

from cdcmeta.argument_checks import bounded_batches
from cdcmeta.changes import ChangesDB
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import space_of
from cdcmeta.changes.documents import Edit, replicated_edit_of, revisions_member, shown_as_json
from cdcmeta.changes.revisions import HASH_BYTES, Leaf, Revision
from cdcmeta.errors import DatabaseExistsError, SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.contracts import Origin, TableWriter
from cdcmeta.scheduler.executors.couch_sink import BATCH_BYTES, BATCH_DOCS, WRITE_S, CouchWriter
from cdcmeta.scheduler.executors.database_source import DocumentChange
from cdcmeta.scheduler.executors.loop_prevention import ROUTE
from cdcmeta.scheduler.executors.store_sink import StoreTableWriter
from snapkv import Changes, CommitTooLargeError, SnapshotKV
from snapkv.base.waiting import monotonic

ENDED_DOCS = 100
"""The most documents whose leaves one request reads, in order to end some."""


class DatabaseWriter(TableWriter):
    """Writes a table into the database of its name in a store; creates it if it is missing.

    A read and a commit for a batch, and a commit of its checkpoint. A part of a state in which the
    source has cut histories costs three reads more.
    """

    def __init__(
        self,
        target: SnapshotKV,
        changefeed: str,
        table: str,
        token: Token,
        *,
        write_s: float = WRITE_S,
        origin: Origin | None = None,
        source: str | None = None,
    ) -> None:
        self._database, self._space = ChangesDB(target, table), target.space(space_of(table))
        self._records = StoreTableWriter(
            target, changefeed, table, token, write_s=write_s, origin=origin
        )
        self._write_s = write_s
        self._meta = None if source is None else {ROUTE: source}

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
        documents = documents_of(commits)
        if documents:
            self._replicate(self._edits_of(documents), deadline)
        if checkpoint:
            self._records.write([], checkpoint, deadline=deadline)

    def _edits_of(self, documents: Sequence[DocumentChange]) -> list[Edit]:
        unknown = [each for each in documents if each.superseded is None and each.has_lost]
        lost = self._lost(unknown) if unknown else {}
        edits: list[Edit] = []
        for each in documents:
            superseded = lost.get(each.key, ()) if each.superseded is None else each.superseded
            gone = frozenset(rev for rev in superseded if each.is_lost(rev))
            for leaf in each.leaves:
                edits.append(replace(replicated_edit_of(json.loads(leaf)), superseded=gone))
        return edits

    def _lost(self, documents: Sequence[DocumentChange]) -> dict[str, list[Revision]]:
        """Return which leaves of the target may be ancestors, and were not made there."""
        state = self._database.state()
        winners = state.winners([each.key for each in documents])
        return {
            each.key: [
                leaf.revision
                for leaf in state.tree(each.key, winner).leaves
                if each.is_lost(leaf.revision) and not self._is_own(each.key, leaf.revision)
            ]
            for each, winner in zip(documents, winners, strict=True)
            if winner is not None
        }

    def _is_own(self, id: str, revision: Revision) -> bool:
        """Return whether a leaf was made in the target, as far as its commits are known."""
        key = layout.body_key(id, revision)
        last = next(self._space.history(key, newest_first=True, limit=1), None)
        return last is not None and last.ts is not None and last.meta != self._meta

    def _replicate(self, edits: list[Edit], deadline: float) -> None:
        """Store revisions; in halves, if they are too large for one commit."""
        left_s = deadline - monotonic()
        if left_s <= 0:
            raise SinkError(f"the target did not take it within {self._write_s:g} s")
        try:
            results = self._database.edit(edits, timeout=left_s, meta=self._meta)
        except CommitTooLargeError:
            half = len(edits) // 2
            if not half:
                raise
            self._replicate(edits[:half], deadline)
            self._replicate(edits[half:], deadline)
            return
        for each in results:
            if each.error is not None:
                raise SinkError(f"the target rejects the document {each.id!r}: {each.error}")


class CouchReplicaWriter(CouchWriter):
    """Writes a table into a database of a CouchDB server; creates it if it is missing.

    One request for a batch, two for its checkpoint. For each 100 documents whose histories were cut
    between two batches there is one more, and another one if the target has leaves to be ended.
    """

    def replace(self) -> Iterator[str]:
        """Return nothing: a state of a database has its removed documents."""
        return iter(())

    def _send_all(self, commits: Sequence[Changes[str]]) -> None:
        documents = documents_of(commits)
        self._post_in_batches(leaf for each in documents for leaf in each.leaves)
        lost = (each for each in documents if each.has_lost)
        while some := list(islice(lost, ENDED_DOCS)):
            self._post_in_batches(self._tombstones(some))

    def _post_in_batches(self, leaves: Iterable[bytes]) -> None:
        for docs in bounded_batches(leaves, len, BATCH_DOCS, BATCH_BYTES):
            self._post_docs(docs)

    def _tombstones(self, documents: Sequence[DocumentChange]) -> list[bytes]:
        """Return what ends the living leaves of the target that are ancestors in the source."""
        keys = [each.key for each in documents]
        path = "_all_docs?include_docs=true&conflicts=true"

        def read(rows: list[Any]) -> list[bytes]:
            living = {row["key"]: _living_of(row) for row in rows}
            return [
                _tombstone(each.key, leaf)
                for each in documents
                for leaf in filter(each.is_lost, living[each.key])
            ]

        return self._client.listed("POST", path, read, json.dumps({"keys": keys}).encode())


def documents_of(commits: Sequence[Changes[str]]) -> list[DocumentChange]:
    """Return the changed documents, each as its last commit has it."""
    last: dict[str, DocumentChange] = {}
    for commit in commits:
        for change in commit.changes:
            assert isinstance(change, DocumentChange)
            earlier = last.get(change.key)
            last[change.key] = change if earlier is None else change.after(earlier)
    return list(last.values())


def _living_of(row: Mapping[str, Any]) -> list[Revision]:
    """Return the leaves that are not deleted of a row of `_all_docs`. Raises `KeyError`, ..."""
    doc = row.get("doc")
    if doc is None:  # there is none, or its winner is deleted, and so are all other leaves
        return []
    return [Revision.parse(each) for each in (doc["_rev"], *doc.get("_conflicts", ()))]


def _tombstone(id: str, leaf: Revision) -> bytes:
    """Return the deleted revision after a leaf, always the same, with a hash that does not win."""
    digest = hashlib.blake2b(f"{leaf} {id}".encode(), digest_size=HASH_BYTES // 2).digest()
    ended = Revision(leaf.position + 1, bytes(HASH_BYTES // 2) + digest)
    path = revisions_member(Leaf(False, ended, (leaf.hash,)))
    return shown_as_json(id, Leaf(False, ended), b"{}", _revisions=path)
