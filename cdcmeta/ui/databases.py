"""Changes databases as pages show them: all of them, one database's feed, one document."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from cdcmeta.changes import ChangesDB, layout
from cdcmeta.changes.documents import checked_id
from cdcmeta.changes.layout import Row
from cdcmeta.changes.relocation import REGISTRY
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from cdcmeta.changes.sequence import START
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.changes.state import State
from cdcmeta.errors import DocumentNotFoundError
from cdcmeta.ui.lookups import time_of
from snapkv import SnapshotKV, When

# --- revisions ---
# A document's revisions as a picture shows them: a row for each branch, a column for each step.

LANES_MAX = 8
COLUMNS_MAX = 24
INNER, WINS, CONFLICT, DELETED = "inner", "wins", "conflict", "deleted"


@dataclass(frozen=True, slots=True)
class Node:
    """A revision: its branch, its column, and what it is; `parent` is the index of another node."""

    rev: str
    lane: int
    column: int
    kind: str
    parent: int | None


@dataclass(frozen=True, slots=True)
class RevisionTree:
    """The newest revisions of the branches that rank first.

    `older` says whether branches go back further, `more` counts branches that are left out.
    """

    nodes: list[Node]
    lanes: int
    columns: int
    older: bool
    more: int


def revision_tree(tree: Tree) -> RevisionTree:
    """Return the picture of a tree; O(revisions that it shows).

    >>> leaf = Leaf(True, Revision(2, bytes(16)), (b"a" * 16,))
    >>> [(node.rev[:4], node.column, node.parent) for node in revision_tree(Tree((leaf,))).nodes]
    [('1-61', 0, None), ('2-00', 1, 0)]
    """
    newest = max(leaf.revision.position for leaf in tree.leaves)
    oldest = max(1, newest - COLUMNS_MAX + 1)
    drawn = [leaf for leaf in tree.leaves if leaf.revision.position >= oldest][:LANES_MAX]
    paths = [[each for each in leaf.path if each.position >= oldest] for leaf in drawn]
    first = min(path[-1].position for path in paths)
    nodes: list[Node] = []
    places: dict[Revision, int] = {}
    for lane, (leaf, path) in enumerate(zip(drawn, paths, strict=True)):
        parent: int | None = None
        for revision in reversed(path):
            if revision not in places:
                kind = _kind(tree, leaf) if revision == leaf.revision else INNER
                places[revision] = len(nodes)
                nodes.append(Node(str(revision), lane, revision.position - first, kind, parent))
            parent = places[revision]
    older = any(path[-1].position > 1 for path in paths)
    more = len(tree.leaves) - len(drawn)
    return RevisionTree(nodes, len(drawn), newest - first + 1, older, more)


def _kind(tree: Tree, leaf: Leaf) -> str:
    if leaf is tree.winner:
        return WINS
    return CONFLICT if leaf.not_deleted else DELETED


# --- databases ---

DATABASES_MAX = 25
COUNT_MAX = 5_000
"""More documents than these are counted only where that is asked for."""
ROWS_MAX = 50
LEAVES_MAX = 50


@dataclass(frozen=True, slots=True)
class DatabaseRow:
    """A database at a moment; `newest` and `created` are timestamps.

    `newest_seq` and `newest` are None before its first edit, `created` if that was compacted.
    `documents` and `deleted` are None if it has more than `COUNT_MAX`, which costs time to count.
    """

    name: str
    documents: int | None
    deleted: int | None
    newest_seq: str | None
    newest: int | None
    created: int | None
    incarnation: int
    moved: bool
    revs_limit: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Databases:
    """A page of databases, by name. The next one begins at `start`, None at the end."""

    rows: list[DatabaseRow]
    start: str | None


@dataclass(frozen=True, slots=True)
class FeedRow:
    """A document's last change: `conflicts` counts the other branches that are not deleted."""

    seq: str
    timestamp: int
    id: str
    rev: str
    deleted: bool
    branches: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class Feed:
    """A database, and a page of its documents' last changes.

    The next page begins with `start`: a sequence, or in a list by id an id; None at the end.
    """

    database: DatabaseRow
    rows: list[FeedRow]
    start: str | None


@dataclass(frozen=True, slots=True)
class LeafRow:
    """The end of a branch: `known` counts the revisions of its path, itself included."""

    rev: str
    deleted: bool
    wins: bool
    known: int


@dataclass(frozen=True, slots=True)
class Document:
    """A document at a moment, and the body of one of its leaves.

    `rev` is the leaf that is shown, the winner by default. `leaves` are the winner and then the
    other branches by rank, `more` of which are left out.
    """

    database: str
    id: str
    seq: str
    timestamp: int
    rev: str
    deleted: bool
    body: bytes | None
    leaves: list[LeafRow]
    more: int
    tree: RevisionTree


def has_databases(store: SnapshotKV, when: When | None = None) -> bool:
    """Return whether a store holds databases at a moment; one page of a listing."""
    return next(store.space(REGISTRY).at(when).keys(), None) is not None


def list_databases(
    store: SnapshotKV,
    when: When | None = None,
    *,
    start: str = "",
    limit: int = DATABASES_MAX,
    exact: bool = False,
) -> Databases:
    """Return the databases of a store at a moment, from a name on; with `exact`, all are counted.

    One listing, and as `database_row` for each of the page.
    """
    at = _pinned(store, when)
    found = store.space(REGISTRY).at(at).keys(start=_utf8(start) or None)
    names = [name.decode() for name in islice(found, limit + 1)]
    rows = [database_row(store, name, at, exact=exact) for name in names[:limit]]
    return Databases(rows, names[limit] if len(names) > limit else None)


def database_row(
    store: SnapshotKV, name: str, when: When | None = None, *, exact: bool = False
) -> DatabaseRow:
    """Return a database at a moment; costs as `ChangesDB.info`, and a round trip.

    Raises `DatabaseNotFoundError`.
    """
    return _row_of(store, ChangesDB(store, name).state(when), name, exact)


def feed(
    store: SnapshotKV,
    name: str,
    when: When | None = None,
    *,
    start: str = "",
    limit: int = ROWS_MAX,
    exact: bool = False,
) -> Feed:
    """Return a page of a database's feed at a moment, newest first, from a sequence down.

    Costs as `database_row`, a few counts and listings, and a read for each 128 conflicts. Raises
    `DatabaseNotFoundError`, `InvalidSequenceError`.
    """
    db = ChangesDB(store, name)
    state = db.state(when)
    until = min(Seq.parse(start), state.end) if start else state.end
    rows = list(islice(state.rows_backwards(START, until), limit + 1))
    following = str(rows[limit].sequence) if len(rows) > limit else None
    return Feed(_row_of(store, state, name, exact), _feed_rows(state, rows[:limit]), following)


def feed_by_id(
    store: SnapshotKV,
    name: str,
    when: When | None = None,
    *,
    start: str = "",
    limit: int = ROWS_MAX,
    exact: bool = False,
) -> Feed:
    """Return the same by document id, from an id on; one listing instead of several."""
    state = ChangesDB(store, name).state(when)
    rows = list(islice(state.documents(_utf8(start).decode() or None), limit + 1))
    following = rows[limit].id if len(rows) > limit else None
    return Feed(_row_of(store, state, name, exact), _feed_rows(state, rows[:limit]), following)


def document(
    store: SnapshotKV, name: str, id: str, when: When | None = None, *, rev: str = ""
) -> Document:
    """Return a document at a moment with its branches, and the body of one of them.

    Three round trips, four with several branches. Raises `DatabaseNotFoundError`,
    `DocumentNotFoundError`, `InvalidRevisionError`.
    """
    state = ChangesDB(store, name).state(when)
    (winner,) = state.winners([checked_id(id)])
    if winner is None:
        raise DocumentNotFoundError(id)
    tree = state.tree(id, winner)
    leaf = tree.leaf(Revision.parse(rev)) if rev else tree.winner
    if leaf is None:
        raise DocumentNotFoundError(id)
    return Document(
        name,
        id,
        str(winner.sequence),
        winner.sequence.timestamp,
        str(leaf.revision),
        not leaf.not_deleted,
        state.bodies([(id, leaf.revision)]).get((id, leaf.revision)),
        [_leaf_row(tree, each) for each in tree.leaves[:LEAVES_MAX]],
        max(0, len(tree.leaves) - LEAVES_MAX),
        revision_tree(tree),
    )


def winner_body(store: SnapshotKV, name: str, id: str, when: When | None) -> bytes | None:
    """Return the body of a document's winner at a moment.

    None without a document or a database, and for a deleted one. Costs as `document`.
    """
    db = ChangesDB(store, name)
    if not db.exists(as_of=when):
        return None
    state = db.state(when)
    (winner,) = state.winners([checked_id(id)])
    if winner is None or not winner.leaf.not_deleted:
        return None
    wanted = id, winner.leaf.revision
    return state.bodies([wanted]).get(wanted)


# --- helpers ---


def _pinned(store: SnapshotKV, when: When | None) -> When:
    """Return a moment as a revision, so that all reads of a page see the same."""
    return f"rev:{store.at(when).revision}"


def _utf8(start: str) -> bytes:
    """Return the bytes of a text that bounds a listing; it may be any text of a URL."""
    return start.encode(errors="replace")


def _row_of(store: SnapshotKV, state: State, name: str, exact: bool) -> DatabaseRow:
    documents, deleted = _counts(state, exact)
    newest = state.newest()
    record = state.database
    return DatabaseRow(
        name,
        documents,
        deleted,
        None if newest == START else str(newest),
        None if newest == START else newest.timestamp,
        time_of(store, state.created),
        record.incarnation,
        record.moved,
        record.revs_limit,
        record.uuid.hex(),
    )


def _counts(state: State, exact: bool) -> tuple[int, int] | tuple[None, None]:
    if not exact:
        few = islice(state.snapshot.keys(layout.ROW_PREFIX), COUNT_MAX + 1)
        if sum(1 for _ in few) > COUNT_MAX:
            return None, None
    return state.counts()


def _feed_rows(state: State, rows: list[Row]) -> list[FeedRow]:
    several = [row.id for row in rows if row.branches > 1]
    conflicts = {
        id: sum(leaf.not_deleted for leaf in leaves)
        for id, leaves in zip(several, state.other_leaves(several), strict=True)
    }
    return [
        FeedRow(
            str(row.sequence),
            row.sequence.timestamp,
            row.id,
            str(row.revision),
            not row.not_deleted,
            row.branches,
            conflicts.get(row.id, 0),
        )
        for row in rows
    ]


def _leaf_row(tree: Tree, leaf: Leaf) -> LeafRow:
    return LeafRow(str(leaf.revision), not leaf.not_deleted, leaf is tree.winner, len(leaf.path))
