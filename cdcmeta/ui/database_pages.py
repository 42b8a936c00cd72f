"""The pages of changes databases: all of them, the documents of one, and one document.

Queries answer at a moment, as plain data; a page joins an answer with its request.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from markupsafe import Markup

from cdcmeta.changes import ChangesDB
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import REGISTRY, ChangeRow, space_of
from cdcmeta.changes.database_state import DatabaseState
from cdcmeta.changes.documents import checked_id
from cdcmeta.changes.revisions import Leaf, Revision, Tree
from cdcmeta.changes.sequence import START
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.errors import DatabaseNotFoundError, DocumentNotFoundError
from cdcmeta.ui.page_requests import Listed, listed, looks_longer, needed, store_of, time_of
from cdcmeta.ui.svg import picture, shape, text
from snapkv import SnapshotKV, When
from snapkv.model import Version
from snapkv.ui import Context, Page, Source
from snapkv.ui.view_kit import Budget, Row, row, stored_versions_back, way_of

# --- databases ---

DATABASES_MAX = 25
COUNT_MAX = 5_000
"""The most documents that are counted unless more are asked for."""
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
class DocumentRow:
    """A document's last change: `conflicts` counts the other branches that are not deleted."""

    seq: str
    timestamp: int
    id: str
    rev: str
    deleted: bool
    branches: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class DocumentList:
    """A database, and a page of its documents' last changes.

    The next page begins with `start`: a sequence, or in a list by id an id; None at the end.
    """

    database: DatabaseRow
    rows: list[DocumentRow]
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
) -> Listed[DatabaseRow]:
    """Return the databases of a store at a moment, from a name on; with `exact`, all are counted.

    One listing, and for each of the page as `ChangesDB.info`, and a round trip.
    """
    at = f"rev:{store.at(when).revision}"  # all reads of a page see the same
    found = store.space(REGISTRY).at(at).keys(start=_utf8(start) or None)
    names = (name.decode() for name in found)

    def row(name: str) -> DatabaseRow:
        return _database_row(store, ChangesDB(store, name).state(at), name, exact)

    return listed(names, limit, row)


def list_documents(
    store: SnapshotKV,
    name: str,
    when: When | None = None,
    *,
    by: str = "change",
    start: str = "",
    limit: int = ROWS_MAX,
    exact: bool = False,
) -> DocumentList:
    """Return a page of a database's documents at a moment.

    By `change` it has the newest ones first, from a sequence down; by `id` it begins at an id.
    Costs as a row of `list_databases`, a read for each 128 conflicts, and one listing by id or a
    few counts and listings by change. Raises `DatabaseNotFoundError`, `InvalidSequenceError`.
    """
    state = ChangesDB(store, name).state(when)
    if by == "id":
        found = state.documents(_utf8(start).decode() or None)
    else:
        until = min(Seq.parse(start), state.end) if start else state.end
        found = state.rows_backwards(START, until)
    rows, following = list(islice(found, limit + 1)), None
    if len(rows) > limit:
        last = rows.pop()
        following = last.id if by == "id" else str(last.sequence)
    return DocumentList(
        _database_row(store, state, name, exact), _document_rows(state, rows), following
    )


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
        [
            LeafRow(str(each.revision), not each.not_deleted, each is tree.winner, len(each.path))
            for each in tree.leaves[:LEAVES_MAX]
        ],
        max(0, len(tree.leaves) - LEAVES_MAX),
        revision_tree(tree),
    )


def winner_body(store: SnapshotKV, name: str, id: str, when: When | None) -> bytes | None:
    """Return the body of a document's winner at a moment.

    None without a document or a database, and for a deleted one. Costs as `document`.
    """
    try:
        found = document(store, name, id, when)
    except (DatabaseNotFoundError, DocumentNotFoundError):
        return None
    return None if found.deleted else found.body


# --- the edits of a document ---

EDITS_MAX = 25


@dataclass(frozen=True, slots=True)
class DocumentEdit:
    """A document after an edit: its winner, and the edit's writer and note.

    `rev` and `seq` are None where the database was deleted. An edit of a losing branch is one, too.
    `timestamp` is None if that commit was compacted.
    """

    revision: int
    timestamp: int | None
    rev: str | None
    seq: str | None
    deleted: bool
    writer: str | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Edits:
    """A page of edits, newest first. `following` is the revision from which the next one goes on.

    It is None at the end of what is left. `complete` is False if the time was used up before.
    """

    rows: list[DocumentEdit]
    following: int | None
    complete: bool
    compacted: bool


def edits_back(
    source: Source,
    name: str,
    id: str,
    until: When | None,
    *,
    limit: int = EDITS_MAX,
    budget: Budget,
) -> Edits:
    """Return the edits of a document up to a moment; costs as `snapkv.ui.key_versions`."""
    stored = source.reader.layout.space(space_of(name)).encode(layout.winner_key(id))
    high = source.mark(until).revision
    found = stored_versions_back(source, stored, high, limit=limit, budget=budget)
    rows = [_edit(version) for version in found.versions]
    return Edits(rows, found.following, found.complete, found.compacted and not found.created)


def _edit(version: Version) -> DocumentEdit:
    winner = None if version.value is None else layout.winner_of(version.value)
    return DocumentEdit(
        version.revision,
        version.ts,
        winner and str(winner.leaf.revision),
        winner and str(winner.sequence),
        winner is None or not winner.leaf.not_deleted,
        version.writer,
        version.note,
    )


# --- the revisions of a document: a row for each branch, a column for each step ---

LANES_MAX = 8
COLUMNS_MAX = 24


@dataclass(frozen=True, slots=True)
class RevisionNode:
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

    nodes: list[RevisionNode]
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
    nodes: list[RevisionNode] = []
    places: dict[Revision, int] = {}
    for lane, (leaf, path) in enumerate(zip(drawn, paths, strict=True)):
        parent: int | None = None
        for revision in reversed(path):
            if revision not in places:
                kind = _kind(tree, leaf) if revision == leaf.revision else "inner"
                places[revision] = len(nodes)
                column = revision.position - first
                nodes.append(RevisionNode(str(revision), lane, column, kind, parent))
            parent = places[revision]
    older = any(path[-1].position > 1 for path in paths)
    more = len(tree.leaves) - len(drawn)
    return RevisionTree(nodes, len(drawn), newest - first + 1, older, more)


def _kind(tree: Tree, leaf: Leaf) -> str:
    if leaf is tree.winner:
        return "wins"
    return "conflict" if leaf.not_deleted else "deleted"


# --- the same as a picture: branches from left to right, the winner's on top ---

STEP, LANE = 44, 36
MARGIN_X, MARGIN_Y, RADIUS = 34, 22, 8
LABELS = {"wins": "the winner", "conflict": "a conflict", "deleted": "deleted", "inner": ""}


def tree_picture(tree: RevisionTree) -> Markup:
    """Return the newest revisions of a document's branches; each is labelled with its position."""
    parts = []
    places = [(MARGIN_X + n.column * STEP, MARGIN_Y + n.lane * LANE) for n in tree.nodes]
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        if node.parent is not None:
            from_x, from_y = places[node.parent]
            bend = f"M{from_x} {from_y} C{from_x + STEP // 2} {from_y} {from_x + STEP // 2} {y}"
            parts.append(shape("path", "edge", d=f"{bend} {x} {y}"))
        elif tree.older and node.column == 0:
            parts.append(shape("path", "edge older", d=f"M{x - MARGIN_X + 4} {y} L{x} {y}"))
    for node, (x, y) in zip(tree.nodes, places, strict=True):
        title = ": ".join(filter(None, (node.rev, LABELS[node.kind])))
        parts.append(shape("circle", f"node {node.kind}", title, cx=x, cy=y, r=RADIUS))
        parts.append(text(x, y + RADIUS + 11, node.rev.partition("-")[0], "middle small"))
    width = 2 * MARGIN_X + (tree.columns - 1) * STEP
    height = 2 * MARGIN_Y + (tree.lanes - 1) * LANE
    title = f"{len(tree.nodes)} revisions in {tree.lanes} branches"
    return picture(width, height, title, parts, name="revisions")


# --- pages ---

ROWS_ASKED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DocumentData:
    """A document, its edits up to the moment, and what differs from the beginning of the range.

    The bodies of a `hidden` one are redacted.
    """

    document: Document
    edits: Edits
    compared: Row | None
    hidden: bool


def databases_page(c: Context) -> Page:
    """Show the databases of the store at the moment."""
    found = list_databases(store_of(c), c.at, start=c.state["start"], exact=looks_longer(c))
    return Page("cdcmeta/databases.html", "Databases", found)


def database_page(c: Context) -> Page:
    """Show a database's documents at the moment: the newest change first, or by id."""
    name, by = needed(c, "db"), c.state.choice("by", "change", "id")
    limit = c.state.limit(ROWS_MAX, ROWS_ASKED_MAX)
    start, exact = c.state["start"], looks_longer(c)
    found = list_documents(store_of(c), name, c.at, by=by, start=start, limit=limit, exact=exact)
    return Page("cdcmeta/database.html", name, found, {"by": by})


def document_page(c: Context) -> Page:
    """Show a document at the moment: its branches, a body, its edits, and what changed.

    It is redacted as a key `DATABASE/ID` is.
    """
    store, name, id = store_of(c), needed(c, "db"), needed(c, "id")
    found = document(store, name, id, c.at, rev=c.state["rev"])
    until = f"rev:{c.state['older']}" if c.state["older"] else c.at
    edits = edits_back(c.source, name, id, until, budget=c.budget())
    compared, key = None, f"{name}/{id}"
    hidden = c.source.hides(key)
    if c.compared and not c.state["rev"]:
        before, after = (winner_body(store, name, id, when) for when in (c.since, c.at))
        compared = row(c.source, key, before, after) if before != after else None
    more = {"picture": tree_picture(found.tree), "way": way_of(c)}
    shown = replace(found, body=None) if hidden else found
    return Page("cdcmeta/document.html", id, DocumentData(shown, edits, compared, hidden), more)


# --- helpers ---


def _utf8(start: str) -> bytes:
    """Return the bytes of a text that bounds a listing; it may be any text of a URL."""
    return start.encode(errors="replace")


def _database_row(store: SnapshotKV, state: DatabaseState, name: str, exact: bool) -> DatabaseRow:
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


def _counts(state: DatabaseState, exact: bool) -> tuple[int, int] | tuple[None, None]:
    if not exact:
        few = islice(state.snapshot.keys(layout.ROW_PREFIX), COUNT_MAX + 1)
        if sum(1 for _ in few) > COUNT_MAX:
            return None, None
    return state.counts()


def _document_rows(state: DatabaseState, rows: list[ChangeRow]) -> list[DocumentRow]:
    several = [row.id for row in rows if row.branches > 1]
    conflicts = {
        id: sum(leaf.not_deleted for leaf in leaves)
        for id, leaves in zip(several, state.other_leaves(several), strict=True)
    }
    return [
        DocumentRow(
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
