"""A changes database: documents with revision trees, and the feed of their changes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.argument_checks import (
    bounded_batches,
    check_int,
    check_store,
    checked_database_name,
    listed,
)
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import REGISTRY, DatabaseRecord, space_of
from cdcmeta.changes.database_state import DatabaseState, DocVersion, Missing, versions
from cdcmeta.changes.database_state import Since as Since
from cdcmeta.changes.documents import (
    Doc,
    Edit,
    Edited,
    checked_id,
    edit_of,
    encoded,
    fields_of,
    own_members,
    replicated_edit_of,
)
from cdcmeta.changes.editing import EditPlan, LocalWrite, Outcome, Writer
from cdcmeta.changes.feed import (
    Change,
    ChangesPage,
    Checkpoint,
    DatabaseFollower,
    FeedWalk,
    Form,
    followed,
    shaped,
)
from cdcmeta.changes.revisions import Revision
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.errors import (
    CDCMetaError,
    DatabaseExistsError,
    DatabaseRelocatedError,
    DocumentConflictError,
    DocumentNotFoundError,
    EditUnknownError,
    InvalidArgumentError,
)
from snapkv import (
    Absent,
    AtRevision,
    CommitUnknownError,
    ConflictError,
    Entry,
    Ops,
    SnapshotKV,
    Space,
    SpaceOps,
    When,
)
from snapkv.model import Guard

REVS_LIMIT, REVS_LIMIT_MAX = 1_000, 4_000


@dataclass(frozen=True, slots=True)
class Info:
    """Facts about a database at the time of `update_seq`."""

    name: str
    doc_count: int
    deleted_count: int
    update_seq: Seq
    incarnation: int
    revs_limit: int
    uuid: str


class ChangesDB:
    """A database of JSON documents in a store, with CouchDB's revisions and changes feed.

    >>> import snapkv
    >>> with snapkv.open("memory:") as store:
    ...     db = ChangesDB(store, "catalogue").create()
    ...     first = db.put({"_id": "users", "columns": ["id"]})
    ...     second = db.put({"_id": "users", "columns": ["id", "name"]}, rev=first.rev)
    ...     [(change.id, change.rev == second.rev) for change in db.changes().rows]
    [('users', True)]

    The constructor does not access the store; `create()` makes the database. Safe for threads. The
    caller closes the store. Errors of the store pass through.
    """

    def __init__(self, store: SnapshotKV, name: str) -> None:
        check_store(store)
        self.store, self.name = store, checked_database_name(name)
        self._space = store.space(space_of(name))
        self._writer = Writer(store, name, space_of(name))
        self._local = LocalDocs(self._space, self._writer)

    def __repr__(self) -> str:
        return f"<ChangesDB {self.name!r}>"

    # --- the database ---

    def create(self, *, revs_limit: int = REVS_LIMIT) -> ChangesDB:
        """Create the database, empty; return this object. One round trip.

        `revs_limit` is how many revisions of each branch are kept. Raises
        `DatabaseExistsError`, `InvalidArgumentError`.
        """
        check_int("revs_limit", revs_limit, 1, REVS_LIMIT_MAX)
        database = DatabaseRecord(uuid.uuid4().bytes, revs_limit=revs_limit)
        record = {layout.DATABASE: database.encode()}
        registered = SpaceOps({self.name.encode(): b""})
        made = SpaceOps(record, guards=[Absent(layout.DATABASE)])
        ops = Ops(spaces={REGISTRY: registered, self._space.name: made})
        try:
            self.store.commit(lambda _: ops)
        except ConflictError:
            raise DatabaseExistsError(f"database {self.name!r} exists already") from None
        return self

    def delete(self) -> None:
        """Delete the database with all its documents; its past can still be read as of a time.

        Raises `DatabaseNotFoundError`.
        """
        unregistered = SpaceOps(deletes=[self.name.encode()])
        while True:
            _, revision = self._writer.record(fresh=True)
            gone = SpaceOps(delete_prefixes=[b""], guards=[AtRevision(layout.DATABASE, revision)])
            ops = Ops(spaces={REGISTRY: unregistered, self._space.name: gone})
            try:
                self.store.commit(lambda _, ops=ops: ops)  # type: ignore[misc]
                return
            except ConflictError:
                continue  # its record was changed or deleted: read it again

    def exists(self, *, as_of: When | None = None) -> bool:
        """Return whether the database exists, or existed at a time."""
        return self._space.entries_of([layout.DATABASE], as_of)[0] is not None

    def relocate(self, to: SnapshotKV | None = None) -> ChangesDB:
        """Move the database to another store and return it there, with the next incarnation.

        Sequences continue to grow, whatever the other store's clock. Without a store, the database
        remains here and only its incarnation grows, for example after the store was restored from a
        backup. Once the move begins, every edit here fails, and followers raise
        `DatabaseRelocatedError`. A second call continues the move. The history is not moved. Raises
        `DatabaseNotFoundError`, `DatabaseExistsError` for another database of this name there.
        """
        if to is not None:
            check_store(to)
        return ChangesDB(relocated(self.store, self.name, self._writer, to), self.name)

    def set_revs_limit(self, limit: int) -> None:
        """Keep `limit` revisions of each branch from now on; a branch is cut when it is edited."""
        check_int("revs_limit", limit, 1, REVS_LIMIT_MAX)
        while True:
            database, revision = self._writer.record(fresh=True)
            record = {layout.DATABASE: replace(database, revs_limit=limit).encode()}
            try:
                self._space.commit(puts=record, guards=[AtRevision(layout.DATABASE, revision)])
                return
            except ConflictError:
                continue

    def info(self, *, as_of: When | None = None) -> Info:
        """Return facts about the database; four round trips, and a few to find the newest row."""
        state = self.state(as_of)
        documents, deleted = state.counts()
        database = state.database
        return Info(
            self.name,
            documents,
            deleted,
            state.newest(),
            database.incarnation,
            database.revs_limit,
            database.uuid.hex(),
        )

    # --- documents ---

    def put(
        self, doc: Mapping[str, Any], rev: str | None = None, *, timeout: float | None = None
    ) -> Edited:
        """Store a document: a new one, or the next revision of the one that `rev` names.

        `rev` overrides the document's `_rev`; a document without `_id` gets a new one. One round
        trip to read and one to commit; `timeout` (seconds, 10 by default) limits the wait.

        Raises `DocumentConflictError`, `InvalidDocumentError`, `InvalidRevisionError`,
        `DatabaseNotFoundError`, `EditUnknownError`, `snapkv.CommitTimeoutError`.
        """
        return self._one(edit_of(doc, rev), timeout)

    def remove(self, id: str, rev: str, *, timeout: float | None = None) -> Edited:
        """Delete a document's branch that ends in `rev`; a tombstone remains. Costs as `put`."""
        return self._one(edit_of({"_deleted": True}, rev, id=id), timeout)

    def bulk(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store documents in one commit; return the result of each, in order.

        On etcd, more than 94 documents take several commits if other writers commit all the time.
        A conflicting or invalid document fails alone: its result has the error. Results have
        `EditNotMadeError` if the timeout passed after other documents were stored. The rows of the
        feed are in the order of the input. Raises `DatabaseNotFoundError`, `EditUnknownError`,
        `snapkv.CommitTimeoutError` and `snapkv.CommitTooLargeError` (nothing was stored),
        `InvalidArgumentError`.
        """
        return self._many(docs, edit_of, timeout)

    def replicate(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store revisions made elsewhere, with their histories (`_revisions`), in one commit.

        A revision that the database has already changes nothing, and its result has no `seq`.
        Replicated revisions never conflict. Raises as `bulk`.
        """
        return self._many(docs, replicated_edit_of, timeout)

    def edit(self, edits: list[Edit], local: LocalWrite | None = None, **said: Any) -> list[Edited]:
        """Commit edits as `Writer.edit`, for layers above, with a local document, or a `meta`."""
        return self._writer.edit(edits, local=local, **said)

    def resolve(self, error: EditUnknownError) -> list[Edited] | None:
        """Return the results of edits whose outcome was unknown; None if none was committed.

        The sequences come from the commit. Raises as `SnapshotKV.resolve`.
        """
        if not isinstance(error, EditUnknownError):
            raise InvalidArgumentError(f"resolve takes an EditUnknownError, not {error!r}")
        return self._writer.resolve(error)

    def get(
        self,
        id: str,
        rev: str | None = None,
        *,
        conflicts: bool = False,
        revisions: bool = False,
        as_of: When | None = None,
    ) -> Doc:
        """Return a document's winner, or the leaf `rev`, now or at a time.

        `conflicts` adds `_conflicts`, the other leaves that are not deleted; `revisions` adds
        `_revisions`. Three round trips, four for a document with several branches. Raises
        `DocumentNotFoundError`.
        """
        wanted = None if rev is None else Revision.parse(rev)
        found = self.state(as_of).document(checked_id(id), wanted)
        return found.shown(conflicts=conflicts, revisions=revisions)

    def open_revs(
        self,
        id: str,
        revs: Iterable[str] | None = None,
        *,
        latest: bool = False,
        as_of: When | None = None,
    ) -> list[Doc | str]:
        """Return leaves of a document with their `_revisions`; the text of each missing revision.

        Without `revs` it returns all leaves. With `latest`, a revision that is not a leaf returns
        the leaves that descend from it. Costs as `get`. Raises `InvalidRevisionError`.
        """
        wanted = None if revs is None else [Revision.parse(rev) for rev in listed(revs, "revs")]
        return self.state(as_of).open_revs(checked_id(id), wanted, latest)

    def missing_revs(self, revs: Mapping[str, Iterable[str]]) -> dict[str, Missing]:
        """Return for each document which of the given revisions the database does not have.

        Documents without a missing revision are left out. Raises `InvalidRevisionError`.
        """
        if not isinstance(revs, Mapping):
            raise InvalidArgumentError(
                f"revs are revisions by document id, not {type(revs).__name__}"
            )
        wanted = {
            checked_id(id): [Revision.parse(rev) for rev in listed(of, "revs")]
            for id, of in revs.items()
        }
        return self.state().missing_revs(wanted)

    def documents(
        self, start: str | None = None, *, include_docs: bool = False, as_of: When | None = None
    ) -> Iterator[Change]:
        """Yield the documents that are not deleted, by id, from `start` on, at one moment."""
        state = self.state(as_of)
        changes = shaped(
            state, Form(include_docs=include_docs), state.documents(start, deleted=False)
        )
        return (change for _, change in changes if change is not None)

    def history(self, id: str, *, include_docs: bool = False) -> Iterator[DocVersion]:
        """Yield the document after each edit that is not compacted, oldest first.

        The feed has only the last change of each document. Costs one watch of the document's key,
        and with `include_docs` three round trips for each version.
        """
        return versions(self._space, checked_id(id), include_docs)

    @property
    def local(self) -> LocalDocs:
        """The local documents: not replicated, not in the feed, without revision history."""
        return self._local

    # --- the feed ---

    def changes(
        self,
        since: Since = 0,
        *,
        until: Since | None = None,
        limit: int | None = None,
        descending: bool = False,
        as_of: When | None = None,
        **form: Any,
    ) -> ChangesPage:
        """Return a page of the feed: changes in (since, until], all of one revision.

        `form`: `style="all_docs"` (all leaves), `include_docs`, `conflicts` (with them),
        `doc_ids`, `prefix` (of ids), `selector`, `predicate` (a function of a `Change`). `limit`
        counts the changes that pass. `as_of` reads the feed at a time. Costs one listing, a count,
        and one read for each 128 documents or sets of other leaves.

        Raises `InvalidSequenceError`, `InvalidArgumentError`, `DatabaseNotFoundError`,
        `snapkv.CompactedError`.
        """
        _check_limit(limit)
        wanted = Form(**form)
        state = self.state(as_of)
        after = self.place(since, state)
        last = state.end if until is None else self.place(until, state)
        return FeedWalk(state, wanted, after, last, limit, descending).page()

    def follow(
        self,
        since: Since = "now",
        *,
        heartbeat: float | None = None,
        idle_timeout: float | None = None,
        limit: int | None = None,
        **form: Any,
    ) -> Iterator[Change | Checkpoint]:
        """Yield the changes after `since`, then new ones as they are committed.

        After each commit, and after each `heartbeat` seconds without a change, a `Checkpoint` has
        the place up to which the feed is complete, even if a filter leaves out every change. The
        feed ends after `limit` changes, or after `idle_timeout` seconds without one. `form` as in
        `changes`.

        Raises as `changes`, `DatabaseNotFoundError`, `DatabaseRelocatedError`.
        """
        for name, seconds in (("heartbeat", heartbeat), ("idle_timeout", idle_timeout)):
            if seconds is not None and not (type(seconds) in (int, float) and seconds >= 0):
                raise InvalidArgumentError(f"{name} is seconds, not {seconds!r}")
        _check_limit(limit)
        if heartbeat == 0:
            raise InvalidArgumentError("heartbeat must be longer than 0 s")
        return followed(self.follower(since, **form), heartbeat, idle_timeout, limit)

    def follower(self, since: Since = "now", **form: Any) -> DatabaseFollower:
        """Return the follower that `follow` iterates; its waits can be bounded one by one."""
        wanted = Form(**form)
        state = self.state()
        return DatabaseFollower(self.name, self._space, wanted, self.place(since, state), state)

    def place(self, since: Since, state: DatabaseState | None = None) -> Seq:
        """Return the sequence of a place; a future time is now.

        Raises `InvalidSequenceError`.
        """
        state = self.state() if state is None else state
        if not isinstance(state, DatabaseState):
            raise InvalidArgumentError(f"a state is what state() returns, not {state!r}")
        return min(state.place(since, self.store.timestamp_of), state.end)

    def state(self, as_of: When | None = None) -> DatabaseState:
        """Return the database at one revision, for layers above. Raises `DatabaseNotFoundError`."""
        return DatabaseState(self._space.at(as_of), self.name)

    # --- helpers ---

    def _one(self, edit: Edit, timeout: float | None) -> Edited:
        (found,) = self._writer.edit([edit], timeout=timeout)
        if found.error is not None:
            raise found.error
        return found

    def _many(
        self, docs: Iterable[Mapping[str, Any]], parse: Any, timeout: float | None
    ) -> list[Edited]:
        edits: list[Edit | Edited] = []
        for doc in listed(docs, "docs"):
            try:
                edits.append(parse(doc))
            except CDCMetaError as e:
                id = doc.get("_id") if isinstance(doc, Mapping) else None
                edits.append(Edited(id if isinstance(id, str) else "", error=e))
        return self._writer.edit(edits, timeout=timeout)


def databases(store: SnapshotKV, *, as_of: When | None = None) -> list[str]:
    """Return the names of a store's databases, sorted. One round trip, two for a time."""
    check_store(store)
    return [key.decode() for key in store.space(REGISTRY).at(as_of)]


def _check_limit(limit: object) -> None:
    if limit is not None:
        check_int("limit", limit, 0)


# --- local documents ---

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
        """Replace the document at `rev`, or delete it (None); return how often it was written."""
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
                raise EditUnknownError(e, EditPlan(database, {}, outcomes=[made])) from e
            except ConflictError:
                # the next read finds out whether the document or the database changed
                self._writer.record(fresh=True)


# --- relocation ---

BATCH_BYTES, BATCH_KEYS = 256 << 10, 1_000


def relocated(store: SnapshotKV, name: str, writer: Writer, to: SnapshotKV | None) -> SnapshotKV:
    """Raise a database's incarnation, here or in another store; return its store.

    Steps of a move, each of which a second call may repeat:

        commit   store    what it writes                            edits            in the target
        1        source   `moved` in the record                     fail             no database
        2        target   deletes all its keys, puts the claim      fail             no database
        3 to n   target   the keys as of commit 1, in batches       fail             no database
        n + 1    target   record and name, deletes the claim        succeed there    all of it

    Commits 3 to n + 1 guard the claim. A second call deletes the keys and puts a claim of its own,
    so of two concurrent calls the later one continues, and the other raises `ConflictError`.
    """
    database, revision = writer.record(fresh=True)
    if to is None:
        while not _raised(store, name, database, revision):
            database, revision = writer.record(fresh=True)
        return store
    target = to.space(space_of(name))
    (existing,) = target.entries_of([layout.DATABASE])
    if _is_done(name, database, existing):
        return to
    if not database.moved:
        moved = {layout.DATABASE: replace(database, moved=True).encode()}
        unchanged = [AtRevision(layout.DATABASE, revision)]
        store.space(space_of(name)).commit(puts=moved, guards=unchanged)
        database, revision = writer.record(fresh=True)
    snapshot = store.space(space_of(name)).at(revision=revision)
    key = layout.DATABASE
    same = Absent(key) if existing is None else AtRevision(key, existing.revision)
    claim = target.commit(puts={layout.CLAIM: b""}, delete_prefixes=[b""], guards=[same])
    guards: list[Guard] = [Absent(key), AtRevision(layout.CLAIM, claim.revision)]
    items = (item for item in snapshot.items() if item[0] != layout.DATABASE)
    for batch in bounded_batches(items, lambda item: sum(map(len, item)), BATCH_KEYS, BATCH_BYTES):
        target.commit(puts=dict(batch), guards=guards)
    eras = (*database.eras, snapshot.timestamp)
    record = {layout.DATABASE: replace(database, eras=eras, moved=False).encode()}
    made = SpaceOps(record, deletes=[layout.CLAIM], guards=guards)
    ops = Ops(spaces={space_of(name): made, REGISTRY: SpaceOps({name.encode(): b""})})
    to.commit(lambda _: ops)
    return to


def _is_done(name: str, database: DatabaseRecord, existing: Entry | None) -> bool:
    """Return whether a database was moved already to the store that has the record `existing`.

    A database that was moved away from there may return. Raises `DatabaseExistsError`.
    """
    if existing is None:
        return False
    found = DatabaseRecord.decode(existing.value)
    if found.uuid != database.uuid:
        raise DatabaseExistsError(f"the other store has another database {name!r} already")
    if database.moved and not found.moved and found.incarnation > database.incarnation:
        return True
    if not found.moved or found.incarnation > database.incarnation:
        raise DatabaseExistsError(f"the other store has a newer copy of database {name!r} already")
    return False


def _raised(store: SnapshotKV, name: str, database: DatabaseRecord, revision: int) -> bool:
    """Begin the next incarnation, with this commit's timestamp; return False on a conflict."""
    if database.moved:
        raise DatabaseRelocatedError(f"database {name!r} was moved to another store")
    guards = [AtRevision(layout.DATABASE, revision)]

    def build(stamp: object) -> SpaceOps:
        ts: int = stamp.ts  # type: ignore[attr-defined]
        record = replace(database, eras=(*database.eras, ts), moved=False)
        return SpaceOps({layout.DATABASE: record.encode()}, guards=guards)

    try:
        store.space(space_of(name)).commit(build)
    except ConflictError:
        return False
    return True
