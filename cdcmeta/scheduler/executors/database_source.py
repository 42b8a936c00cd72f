"""Changes databases as tables: a row is a document.

A change has the document's id, its winner as JSON (None if that is deleted), and all leaves with
their histories, as CouchDB's replication needs them. One watch reads all databases:

    commit  ("revisions", "users")          -> the winner and its ancestors
            ("docs", "users", 3, hash)      -> its body

A document with conflicts has other leaves, too, which are read at the commit's revision. The feed
of a database has each document's last change for ever, so a table continues after a compaction.

A commit deletes the bodies of the leaves that its edits follow. Where `revs_limit` has cut the
history between such a leaf and the present ones, only that says that it is their ancestor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import REGISTRY, ChangeRow, DatabaseRecord, space_of
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.documents import revisions_member, shown_as_json
from cdcmeta.changes.revisions import Leaf, Revision
from cdcmeta.changes.sequence import START
from cdcmeta.errors import DatabaseNotFoundError, DatabaseRelocatedError
from cdcmeta.scheduler.executors.contracts import Part, TableSource, WatchFeed
from snapkv import Change, Changes, Commit, CompactedError, SnapshotKV
from snapkv.copying.copying_kit import Keyspace, View

PAGE_DOCS = 100
Superseded: TypeAlias = Mapping[str, frozenset[Revision]]
"""Leaves that edits have followed, by document."""


@dataclass(frozen=True, slots=True)
class DocumentChange(Change[str]):
    """A changed document: `value` is its winner; `leaves` are all its leaves, the winner last.

    A leaf is a JSON document with `_revisions`; `revisions` names them.
    """

    leaves: tuple[bytes, ...]
    revisions: frozenset[Revision] = frozenset()
    cut: int = 1
    """The position before which a leaf's ancestors are not known; 1 if all are known."""
    superseded: frozenset[Revision] | None = frozenset()
    """The leaves that its commits have followed; None if that is not known, as in a state."""

    @property
    def has_lost(self) -> bool:
        """Whether a target may have a leaf that is an ancestor, and `leaves` do not say so."""
        return self.cut > 1 and (self.superseded is None or any(map(self.is_lost, self.superseded)))

    def is_lost(self, leaf: Revision) -> bool:
        """Return whether a target's leaf may be, or if it is superseded is, an ancestor."""
        return (
            leaf.position < self.cut
            and leaf not in self.revisions
            and (self.superseded is None or leaf in self.superseded)
        )

    def after(self, earlier: DocumentChange) -> DocumentChange:
        """Return this change with what an earlier one has superseded."""
        either = None
        if self.superseded is not None and earlier.superseded is not None:
            either = self.superseded | earlier.superseded
        return replace(self, superseded=either)


class DatabasesSource(TableSource):
    """Reads changes databases of a store; a table is a database, by its name."""

    restarts = has_removals = True

    def __init__(self, store: SnapshotKV, names: Collection[str]) -> None:
        self._store = store
        spaces = store.reader.layout.spaces
        self._view = View[bytes](store.reader, Keyspace(spaces, text=False))
        self._names = {self._escaped(name, spaces): name for name in names}
        """The names of the databases, by their spaces in keys."""
        self._uuids: dict[str, bytes] = {}
        """The identity of each database, as it was seen first."""
        self._prefix = self._escaped("", spaces)

    def feed(self, since: int | None) -> WatchFeed[bytes]:
        """Return the commits after a timestamp."""
        return WatchFeed(self._view.watch(self._prefix, since), self._split)

    def state(
        self, table: str, since: int, at: int, kept: Iterable[str] = ()
    ) -> Iterator[Changes[str]]:
        """Yield the documents that have changed since a timestamp, as of another, in parts.

        If that moment is compacted, they come as they are now: what follows changes them to the
        same end. Raises `DatabaseNotFoundError`, `DatabaseRelocatedError`.
        """
        state = self._state(table, at)
        self._check(table, state.database)
        after = state.database.sequence_at(since) if since > 0 else START
        while True:
            try:
                commit = Commit(at, 0, state.snapshot.revision, None)
                rows = state.rows(after, state.end)
                while page := list(islice(rows, PAGE_DOCS)):
                    yield Changes(commit, tuple(_documents(state, page, commit, None)))
                    after = page[-1].sequence
                return
            except CompactedError:  # the index is in the order of changes: what follows is new
                state = self._state(table)
                self._check(table, state.database)

    def _check(self, name: str, database: DatabaseRecord) -> None:
        """Raise the error of a database that was moved, or deleted and created again."""
        if database.moved:
            raise DatabaseRelocatedError(f"database {name!r} was moved to another store")
        known = self._uuids.setdefault(name, database.uuid)
        if known != database.uuid:
            raise DatabaseNotFoundError(
                f"database {name!r} was deleted and created again: create the changefeed again, too"
            )

    def _split(self, changes: Changes[bytes]) -> dict[str, Part]:
        """Return the changed documents of each database in a commit."""
        keys: dict[str, dict[bytes, bytes | None]] = {}
        for change in changes.changes:
            space, _, key = change.key.partition(b"/")
            name = self._names.get(space)
            if name is not None:
                keys.setdefault(name, {})[key] = change.value
        parts = {name: self._part(name, changes.commit, each) for name, each in keys.items()}
        return {name: part for name, part in parts.items() if part is not None}

    def _part(self, name: str, commit: Commit, keys: dict[bytes, bytes | None]) -> Part | None:
        """Return the changed documents of one commit; an error if the database has ended."""
        if layout.DATABASE in keys:
            raw = keys[layout.DATABASE]
            if raw is None:
                return DatabaseNotFoundError(f"database {name!r} was deleted")
            try:
                self._check(name, DatabaseRecord.decode(raw))
            except (DatabaseNotFoundError, DatabaseRelocatedError) as e:
                return e
        rows = [
            layout.row_of(key, value)
            for key, value in keys.items()
            if value is not None and key.startswith(layout.ROW_PREFIX)
        ]
        if not rows:
            return None
        superseded = _superseded(keys)
        found = [_lone_document(row, keys, commit, superseded) for row in rows]
        if None in found:
            state = self._state(name, revision=commit.revision)
            found = list(_documents(state, rows, commit, superseded))
        return Changes(commit, tuple(each for each in found if each is not None))

    def _state(
        self, name: str, at: int | None = None, *, revision: int | None = None
    ) -> DatabaseState:
        """Return a database at a moment, or now if that is compacted: its leaves follow."""
        space = self._store.space(space_of(name))
        try:
            return DatabaseState(space.at(at, revision=revision), name)
        except CompactedError:
            return DatabaseState(space.at(), name)

    def _escaped(self, name: str, spaces: bytes) -> bytes:
        prefix = self._store.reader.layout.space(f"{REGISTRY}/{name}").prefix
        return prefix[len(spaces) : -1]


def _superseded(keys: dict[bytes, bytes | None]) -> Superseded:
    """Return the leaves that the edits of a commit have followed, by document."""
    found: dict[str, set[Revision]] = {}
    for key, value in keys.items():
        named = layout.named_by_body(key) if value is None else None
        if named is not None:
            found.setdefault(named[0], set()).add(named[1])
    return {id: frozenset(each) for id, each in found.items()}


def _lone_document(
    row: ChangeRow, keys: dict[bytes, bytes | None], commit: Commit, superseded: Superseded
) -> Change[str] | None:
    """Return a document without conflicts from the keys of a commit; None if they have not all."""
    winner = keys.get(layout.winner_key(row.id))
    body = keys.get(layout.body_key(row.id, row.revision))
    if row.branches != 1 or winner is None or body is None:
        return None
    leaves = [(layout.winner_of(winner).leaf, body)]
    return _document(row.id, leaves, commit, superseded.get(row.id, frozenset()))


def _documents(
    state: DatabaseState, rows: Iterable[ChangeRow], commit: Commit, superseded: Superseded | None
) -> Iterator[Change[str]]:
    """Yield documents with all their leaves. Two round trips, and one more with conflicts."""
    ids = [row.id for row in rows]
    winners = state.winners(ids)
    several = [id for id, each in zip(ids, winners, strict=True) if each and each.branches > 1]
    leaves_of = dict(zip(several, state.other_leaves(several), strict=True)) if several else {}
    leaves: list[tuple[str, list[Leaf]]] = [
        (id, [*leaves_of.get(id, ()), winner.leaf])
        for id, winner in zip(ids, winners, strict=True)
        if winner is not None
    ]
    wanted: list[tuple[str, Revision]] = [(id, leaf.revision) for id, all in leaves for leaf in all]
    bodies = state.bodies(wanted)
    for id, each in leaves:
        gone = None if superseded is None else superseded.get(id, frozenset())
        yield _document(id, [(leaf, bodies[id, leaf.revision]) for leaf in each], commit, gone)


def _document(
    id: str,
    leaves: list[tuple[Leaf, bytes]],
    commit: Commit,
    superseded: frozenset[Revision] | None,
) -> DocumentChange:
    winner, body = leaves[-1]
    value = shown_as_json(id, winner, body) if winner.not_deleted else None
    shown = tuple(
        shown_as_json(id, leaf, body, _revisions=revisions_member(leaf)) for leaf, body in leaves
    )
    revisions = frozenset(leaf.revision for leaf, _ in leaves)
    cut = max(leaf.revision.position - len(leaf.ancestors) for leaf, _ in leaves)
    return DocumentChange(id, value, commit, shown, revisions, cut, superseded)
