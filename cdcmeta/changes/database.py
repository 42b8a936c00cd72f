"""A changes database: documents with revision trees, and the feed of their changes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.arguments import check_int, check_store, listed
from cdcmeta.changes import layout, reading
from cdcmeta.changes.documents import (
    Doc,
    Edit,
    Edited,
    checked_id,
    edit_of,
    replicated_edit_of,
)
from cdcmeta.changes.editing import Beside
from cdcmeta.changes.feed import Change, ChangesPage, Form, page
from cdcmeta.changes.following import Checkpoint, Follower, followed
from cdcmeta.changes.layout import Database
from cdcmeta.changes.local import LocalDocs
from cdcmeta.changes.reading import DocVersion, Missing
from cdcmeta.changes.relocation import REGISTRY, relocated, space_of
from cdcmeta.changes.revisions import Revision
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.changes.state import Since as Since
from cdcmeta.changes.state import State
from cdcmeta.changes.writing import Writer
from cdcmeta.errors import (
    CDCMetaError,
    DatabaseExistsError,
    EditUnknownError,
    InvalidArgumentError,
    InvalidNameError,
)
from snapkv import Absent, AtRevision, ConflictError, Ops, SnapshotKV, SpaceOps, When

NAME = re.compile(r"[a-z][a-z0-9_$()+/-]*")
NAME_CHARACTERS_MAX = 128
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
        self.store, self.name = store, checked_name(name)
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
        database = Database(uuid.uuid4().bytes, revs_limit=_checked_revs_limit(revs_limit))
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
        backup. As soon as the move begins, every edit here fails, and followers raise
        `DatabaseRelocatedError`. A second call continues an interrupted move. The history is not
        moved.

        Raises `DatabaseNotFoundError`, `DatabaseExistsError` (the other store has another database
        of this name).
        """
        if to is not None:
            check_store(to)
        return ChangesDB(relocated(self.store, self.name, self._writer, to), self.name)

    def set_revs_limit(self, limit: int) -> None:
        """Keep `limit` revisions of each branch from now on; a branch is cut when it is edited."""
        _checked_revs_limit(limit)
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

    def edit(self, edits: list[Edit], beside: Beside | None = None, **said: Any) -> list[Edited]:
        """Commit edits as `Writer.edit`, for layers above, with a local document, or a `meta`."""
        return self._writer.edit(edits, beside=beside, **said)

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
        found = reading.document(self.state(as_of), checked_id(id), wanted)
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
        the leaves that descend from it.
        Costs as `get`. Raises `InvalidRevisionError`.
        """
        wanted = None if revs is None else [Revision.parse(rev) for rev in listed(revs, "revs")]
        return reading.open_revs(self.state(as_of), checked_id(id), wanted, latest)

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
        return reading.missing_revs(self.state(), wanted)

    def documents(
        self, start: str | None = None, *, include_docs: bool = False, as_of: When | None = None
    ) -> Iterator[Change]:
        """Yield the documents that are not deleted, by id, from `start` on, at one moment."""
        return reading.by_id(self.state(as_of), Form.of(include_docs=include_docs), start)

    def history(self, id: str, *, include_docs: bool = False) -> Iterator[DocVersion]:
        """Yield the document after each edit that is not compacted, oldest first.

        The feed has only the last change of each document. Costs one watch of the document's key,
        and with `include_docs` three round trips for each version.
        """
        return reading.versions(self._space, checked_id(id), include_docs)

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
        wanted = Form.of(**form)
        state = self.state(as_of)
        after = self.place(since, state)
        last = state.end if until is None else self.place(until, state)
        return page(state, wanted, after, last, limit, descending)

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

    def follower(self, since: Since = "now", **form: Any) -> Follower:
        """Return the follower that `follow` iterates; its waits can be bounded one by one."""
        wanted = Form.of(**form)
        state = self.state()
        return Follower(self.name, self._space, wanted, self.place(since, state), state)

    def place(self, since: Since, state: State | None = None) -> Seq:
        """Return the sequence of a place; a future time is now.

        Raises `InvalidSequenceError`.
        """
        state = self.state() if state is None else state
        if not isinstance(state, State):
            raise InvalidArgumentError(f"a state is what state() returns, not {state!r}")
        return min(state.place(since, self.store.timestamp_of), state.end)

    def state(self, as_of: When | None = None) -> State:
        """Return the database at one revision, for layers above. Raises `DatabaseNotFoundError`."""
        return State(self._space.at(as_of), self.name)

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


def checked_name(name: object) -> str:
    """Return a valid name of a database. Raises `InvalidNameError`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidNameError(
            f"name {name!r}: only lower-case letters, digits, and _$()+-/ are allowed, and the "
            "first character must be a letter"
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidNameError(f"a name has at most {NAME_CHARACTERS_MAX} characters")
    return name


def _check_limit(limit: object) -> None:
    if limit is not None:
        check_int("limit", limit, 0)


def _checked_revs_limit(limit: object) -> int:
    return check_int("revs_limit", limit, 1, REVS_LIMIT_MAX)
