"""A changes database: documents with revision trees, and the feed of their changes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cdcmeta.arguments import check_store, listed
from cdcmeta.changes import layout, reading
from cdcmeta.changes.documents import (
    Doc,
    Edit,
    Edited,
    checked_id,
    edit_of,
    replicated_edit_of,
)
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
    """Facts about a database: of the moment `update_seq` stands for."""

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

    Making one asks nobody; `create()` makes the database. Safe for threads; the store stays the
    caller's to close. What the store raises is passed on.
    """

    def __init__(self, store: SnapshotKV, name: str) -> None:
        check_store(store)
        self.store, self.name = store, checked_name(name)
        self._space = store.space(space_of(name))
        self._writer = Writer(store, name, space_of(name))
        self._local = LocalDocs(self._space, self._writer)

    def __repr__(self) -> str:
        return f"<ChangesDB {self.name!r}>"

    # --- its life ---

    def create(self, *, revs_limit: int = REVS_LIMIT) -> ChangesDB:
        """Make the database, empty; return this. One round trip.

        `revs_limit` is how many revisions of each branch are remembered. Raises
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
                continue  # its record changed meanwhile, or it is gone

    def exists(self, *, as_of: When | None = None) -> bool:
        """Return whether the database is there (or was, at a time)."""
        return self._space.entries_of([layout.DATABASE], as_of)[0] is not None

    def relocate(self, to: SnapshotKV | None = None) -> ChangesDB:
        """Move the database to another store and return it there, with the next incarnation.

        Sequences go on from where they were, whatever the other store's clock says. Without a
        store it stays, and only the incarnation grows: after the store was restored from a backup,
        say. From the beginning on no edit succeeds here, and followers are told. What was
        interrupted goes on when it is called again. The past stays behind.

        Raises `DatabaseNotFoundError`, `DatabaseExistsError` (another one is there already).
        """
        if to is not None:
            check_store(to)
        return ChangesDB(relocated(self.store, self.name, self._writer, to), self.name)

    def set_revs_limit(self, limit: int) -> None:
        """Remember so many revisions of each branch from now on; a branch is cut when edited."""
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
        """Return facts about the database; four round trips and a few to find the newest row."""
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

        `rev` goes before the document's `_rev`; without an `_id` it gets one. One round trip to
        read and one to commit; `timeout` (seconds, 10 by default) bounds the wait.

        Raises `DocumentConflictError`, `InvalidDocumentError`, `InvalidRevisionError`,
        `DatabaseNotFoundError`, `EditUnknownError`, `snapkv.CommitTimeoutError`.
        """
        return self._one(edit_of(doc, rev), timeout)

    def remove(self, id: str, rev: str, *, timeout: float | None = None) -> Edited:
        """Delete a document's branch that ends in `rev`; a tombstone stays. Costs as `put`."""
        return self._one(edit_of({"_deleted": True}, rev, id=id), timeout)

    def bulk(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store documents in one commit; return what became of each, in order.

        On etcd more than 94 of them, among others who commit all the time, take several commits.

        A conflicting or an invalid one is left out by itself, and so are, as `EditNotMadeError`,
        those for which the time was over when others were stored. Their rows stand in the order
        of the input. Raises `DatabaseNotFoundError`, `EditUnknownError`,
        `snapkv.CommitTimeoutError` and `snapkv.CommitTooLargeError` (nothing was stored),
        `InvalidArgumentError`.
        """
        return self._many(docs, edit_of, timeout)

    def replicate(
        self, docs: Iterable[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Edited]:
        """Store revisions made elsewhere, with their histories (`_revisions`), in one commit.

        What is known already changes nothing and has no `seq`; nothing is in conflict. Raises as
        `bulk`.
        """
        return self._many(docs, replicated_edit_of, timeout)

    def resolve(self, error: EditUnknownError) -> list[Edited] | None:
        """Settle edits whose outcome was unknown: what became of each, None if they never will.

        The sequences are those of the commit that landed. Raises as `SnapshotKV.resolve`.
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
        """Return a document's winner, or the leaf `rev`, now or as it was.

        `conflicts` adds `_conflicts`, the other leaves that are not deleted; `revisions` adds
        `_revisions`. Three round trips, four where there are several branches. Raises
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
        """Return leaves of a document with their `_revisions`; of a missing one its text.

        Without `revs` all leaves; with `latest` a revision that has descendants stands for them.
        Costs as `get`. Raises `InvalidRevisionError`.
        """
        wanted = None if revs is None else [Revision.parse(rev) for rev in listed(revs, "revs")]
        return reading.open_revs(self.state(as_of), checked_id(id), wanted, latest)

    def missing_revs(self, revs: Mapping[str, Iterable[str]]) -> dict[str, Missing]:
        """Return for each document which of some revisions are not known here.

        Documents of which all are known are left out. Raises `InvalidRevisionError`.
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
        """Yield the documents that are not deleted, by id, from one on; of one moment."""
        return reading.by_id(self.state(as_of), Form.of(include_docs=include_docs), start)

    def history(self, id: str, *, include_docs: bool = False) -> Iterator[DocVersion]:
        """Yield what the document was after each edit that compaction left, oldest first.

        The feed has one row for each document; this is where the versions between are. One watch
        of the document's key, and with `include_docs` three round trips for each version.
        """
        return reading.versions(self._space, checked_id(id), include_docs)

    @property
    def local(self) -> LocalDocs:
        """The local documents: not replicated, in no feed, without history of revisions."""
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
        counts what is shown. `as_of` reads the feed as it was. Costs one listing, a count, and
        for documents and other leaves one read for each 128.

        Raises `InvalidSequenceError`, `InvalidArgumentError`, `InvalidSelectorError`,
        `DatabaseNotFoundError`, `snapkv.CompactedError`.
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
        """Yield the changes after `since`, then those to come, as commits bring them.

        A `Checkpoint` tells up to where everything was told, after each commit and after each
        `heartbeat` seconds of silence: also where a filter leaves out all there is. It ends after
        `limit` changes or `idle_timeout` seconds without one. `form` as in `changes`.

        Raises as `changes`, `DatabaseDeletedError`, `DatabaseRelocatedError`.
        """
        for name, seconds in (("heartbeat", heartbeat), ("idle_timeout", idle_timeout)):
            if seconds is not None and not (type(seconds) in (int, float) and seconds >= 0):
                raise InvalidArgumentError(f"{name} is seconds, not {seconds!r}")
        _check_limit(limit)
        if heartbeat == 0:
            raise InvalidArgumentError("heartbeat is longer than 0 s")
        return followed(self.follower(since, **form), heartbeat, idle_timeout, limit)

    def follower(self, since: Since = "now", **form: Any) -> Follower:
        """Return what `follow` iterates, to be asked with a bound for each wait."""
        wanted = Form.of(**form)
        state = self.state()
        return Follower(self.name, self._space, wanted, self.place(since, state), state)

    def place(self, since: Since, state: State | None = None) -> Seq:
        """Return the sequence that a place stands for; one to come is now.

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
    """Return what can be the name of a database. Raises `InvalidNameError`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidNameError(
            f"name {name!r}: only lower-case letters, digits, and _$()+-/ are allowed, and a "
            "letter first"
        )
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidNameError(f"a name has {NAME_CHARACTERS_MAX} characters at most")
    return name


def _check_limit(limit: object) -> None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgumentError(f"limit is a number that is not negative, not {limit!r}")


def _checked_revs_limit(limit: object) -> int:
    if type(limit) is not int or not 1 <= limit <= REVS_LIMIT_MAX:
        raise InvalidArgumentError(f"revs_limit is 1 to {REVS_LIMIT_MAX}, not {limit!r}")
    return limit
