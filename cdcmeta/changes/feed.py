"""The feed: rows of one revision, with the revisions and documents that callers ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from cdcmeta.changes.documents import Doc, shown
from cdcmeta.changes.layout import Row
from cdcmeta.changes.revisions import Leaf, Tree
from cdcmeta.changes.selector import Selector
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import Bodies, State
from cdcmeta.errors import InvalidArgumentError

MAIN_ONLY, ALL_DOCS = "main_only", "all_docs"
CHUNK_ROWS = 256
"""Rows whose documents are read together."""
DIRECT_IDS_MAX = 100
"""Up to so many `doc_ids` are looked up, beyond that the whole feed is read."""


@dataclass(frozen=True, slots=True)
class Change:
    """A document's last change: where it stands, its winner, and what was asked for besides.

    `revs` are the winner and, with `style="all_docs"`, all other leaves by rank. `deleted` speaks
    of the winner. `doc` is its body, with `include_docs`.
    """

    seq: Sequence
    id: str
    rev: str
    revs: tuple[str, ...]
    deleted: bool
    doc: Doc | None = None


Predicate = Callable[[Change], bool]


@dataclass(frozen=True, slots=True)
class ChangesPage:
    """Changes of one revision: a complete view, in which each document appears once.

    `last_seq` is where to go on; `pending` counts the rows behind it, whatever the filter.
    """

    rows: tuple[Change, ...]
    last_seq: Sequence
    pending: int


@dataclass(frozen=True, slots=True)
class Form:
    """What of each change is wanted, and which changes are."""

    style: str = MAIN_ONLY
    include_docs: bool = False
    conflicts: bool = False
    doc_ids: frozenset[str] | None = None
    prefix: str = ""
    selector: Selector | None = None
    predicate: Predicate | None = None

    @classmethod
    def of(
        cls,
        *,
        style: str = MAIN_ONLY,
        include_docs: bool = False,
        conflicts: bool = False,
        doc_ids: Iterable[str] | None = None,
        prefix: str = "",
        selector: Mapping[str, object] | None = None,
        predicate: Predicate | None = None,
    ) -> Form:
        """Return the form that a caller's keywords describe.

        Raises `InvalidArgumentError`, `InvalidSelectorError`.
        """
        if style not in (MAIN_ONLY, ALL_DOCS):
            raise InvalidArgumentError(f"style is {MAIN_ONLY} or {ALL_DOCS}, not {style!r}")
        if isinstance(doc_ids, str | bytes):
            raise InvalidArgumentError("doc_ids is an iterable of ids, not one text")
        ids = None if doc_ids is None else frozenset(doc_ids)
        if ids is not None and not all(isinstance(id, str) for id in ids):
            raise InvalidArgumentError("doc_ids is an iterable of texts")
        if not isinstance(prefix, str):
            raise InvalidArgumentError("prefix is a text")
        if predicate is not None and not callable(predicate):
            raise InvalidArgumentError("predicate is a function")
        chosen = None if selector is None else Selector(selector)
        return cls(style, include_docs, conflicts, ids, prefix, chosen, predicate)

    @property
    def direct(self) -> bool:
        """Whether the documents can be looked up instead of found in the feed."""
        return self.doc_ids is not None and len(self.doc_ids) <= DIRECT_IDS_MAX

    @property
    def needs_docs(self) -> bool:
        """Whether bodies are read."""
        return self.include_docs or self.selector is not None

    def reads(self, rows: Iterable[Row]) -> bool:
        """Return whether rows do not tell all that is wanted of them."""
        return self.needs_docs or (self.style == ALL_DOCS and any(row.branches > 1 for row in rows))

    def concerns(self, row: Row) -> bool:
        """Return whether a row passes what can be told without its document."""
        return (self.doc_ids is None or row.id in self.doc_ids) and row.id.startswith(self.prefix)


def page(
    state: State, form: Form, after: Sequence, until: Sequence, limit: int | None, descending: bool
) -> ChangesPage:
    """Return the first changes in (after, until], or with `descending` the last ones.

    One listing of the rows and at most one count. Documents and the other leaves of rows with
    several branches cost a read for each 128 of them.
    """
    if form.direct:
        rows = _looked_up(state, form, after, until, descending)
    elif descending:
        rows = state.rows_backwards(after, until)
    else:
        rows = state.rows(after, until)
    changes: list[Change] = []
    last: Sequence | None = None
    if limit != 0:
        chunk = CHUNK_ROWS if limit is None else min(CHUNK_ROWS, limit)
        for row, change in shaped(state, form, rows, chunk):
            last = row.sequence
            if change is not None:
                changes.append(change)
                if len(changes) == limit:
                    break
    ended = limit is None or len(changes) < limit
    place = _place(state, form, after, until, last, ended, descending)
    return ChangesPage(
        tuple(changes), place, _pending(state, after, until, place, limit, descending)
    )


def _looked_up(
    state: State, form: Form, after: Sequence, until: Sequence, descending: bool
) -> Iterator[Row]:
    """Yield the rows of a few documents, in the order of the feed."""
    ids = sorted(form.doc_ids or ())
    rows = [
        Row(winner.sequence, id, winner.leaf.revision, winner.branches, winner.leaf.not_deleted)
        for id, winner in zip(ids, state.winners(ids), strict=True)
        if winner is not None and after < winner.sequence <= until
    ]
    yield from sorted(rows, reverse=descending)


def _place(
    state: State,
    form: Form,
    after: Sequence,
    until: Sequence,
    last: Sequence | None,
    ended: bool,
    descending: bool,
) -> Sequence:
    """Return where to go on: behind the last row that was read, whether it was shown or not."""
    if last is not None and not (ended and form.direct and not descending):
        return last
    if not ended and not descending:
        return after  # nothing was asked for
    newest = next(state.rows_backwards(after, until), None)
    return after if newest is None else newest.sequence


def _pending(
    state: State,
    after: Sequence,
    until: Sequence,
    place: Sequence,
    limit: int | None,
    descending: bool,
) -> int:
    if limit is None:
        return 0
    if not descending:
        return state.count_rows(place, until)
    if limit == 0:
        return state.count_rows(after, until)
    return max(0, state.count_rows(after, place) - 1)


def shaped(
    state: State | None, form: Form, rows: Iterable[Row], chunk: int = CHUNK_ROWS
) -> Iterator[tuple[Row, Change | None]]:
    """Yield each row with the change that it is, None where the form leaves it out.

    `state` is what the rows are of; None will do where the form reads nothing more of them.
    """
    rows = iter(rows)
    while some := list(islice(rows, chunk)):
        chunk = CHUNK_ROWS
        wanted = [row for row in some if form.concerns(row)]
        changes = dict(zip((row.id for row in wanted), _changes(state, form, wanted), strict=True))
        for row in some:
            yield row, changes.get(row.id)


def _changes(state: State | None, form: Form, rows: list[Row]) -> Iterator[Change | None]:
    trees = _trees(state, form, rows)
    shown_leaves = {
        row.id: trees[row.id].leaves if form.style == ALL_DOCS else trees[row.id].leaves[:1]
        for row in rows
    }
    bodies: Bodies = {}
    if form.needs_docs and state is not None:
        leaves = (
            shown_leaves
            if form.selector is not None
            else {r.id: (trees[r.id].winner,) for r in rows}
        )
        bodies = state.bodies([(id, leaf.revision) for id in leaves for leaf in leaves[id]])
    for row in rows:
        yield _change(form, row, trees[row.id], shown_leaves[row.id], bodies)


def _trees(state: State | None, form: Form, rows: list[Row]) -> dict[str, Tree]:
    """Return the trees of rows; only the winners where no other leaf is shown."""
    trees = {row.id: Tree((Leaf(row.not_deleted, row.revision),)) for row in rows}
    if state is not None and (form.style == ALL_DOCS or (form.conflicts and form.include_docs)):
        several = [row.id for row in rows if row.branches > 1]
        for id, others in zip(several, state.other_leaves(several), strict=True):
            trees[id] = Tree.of([*trees[id].leaves, *others])
    return trees


def _change(
    form: Form, row: Row, tree: Tree, leaves: tuple[Leaf, ...], bodies: Bodies
) -> Change | None:
    if form.selector is not None:
        leaves = tuple(leaf for leaf in leaves if form.selector(_doc(row.id, leaf, bodies)))
        if not leaves:
            return None
    doc = _doc(row.id, tree.winner, bodies) if form.include_docs else None
    if doc is not None and form.conflicts and tree.conflicts:
        doc["_conflicts"] = [str(revision) for revision in tree.conflicts]
    revs = tuple(str(leaf.revision) for leaf in leaves)
    change = Change(row.sequence, row.id, str(row.revision), revs, not row.not_deleted, doc)
    if form.predicate is not None and not form.predicate(change):
        return None
    return change


def _doc(id: str, leaf: Leaf, bodies: Bodies) -> Doc:
    return shown(id, leaf, bodies[id, leaf.revision])
