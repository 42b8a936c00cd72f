"""The feed: rows of one revision, with the revisions and documents that callers ask for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import ChangeRow, DatabaseRecord
from cdcmeta.changes.database_state import Bodies, DatabaseState
from cdcmeta.changes.documents import Doc, is_id, shown, shown_as_json
from cdcmeta.changes.revisions import Leaf, Tree
from cdcmeta.changes.selector import Selector
from cdcmeta.changes.sequence import Sequence
from cdcmeta.errors import DatabaseNotFoundError, DatabaseRelocatedError, InvalidArgumentError
from snapkv import Changes, CompactedError, Space, Watch
from snapkv.base.waiting import monotonic

MAIN_ONLY, ALL_DOCS = "main_only", "all_docs"
CHUNK_ROWS = 256
"""The number of rows whose documents are read together."""
DIRECT_IDS_MAX = 100
"""The most `doc_ids` that are looked up; for more, the whole feed is read."""


class Change(NamedTuple):
    """A document's last change: its sequence, its winner, and optionally its document.

    `revs` has the winner and, with `style="all_docs"`, all other leaves by rank. `deleted` is about
    the winner. `doc` is the winner's document, with `include_docs`.
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
    """Changes at one revision: a consistent view in which each document appears once.

    The next page begins after `last_seq`; `pending` counts the rows after it, ignoring the filter.
    """

    rows: tuple[Change, ...]
    last_seq: Sequence
    pending: int


@dataclass(frozen=True, slots=True)
class Form:
    """Options of the feed: which changes it has, and what of each."""

    style: str = MAIN_ONLY
    include_docs: bool = False
    conflicts: bool = False
    doc_ids: Collection[str] | None = None
    prefix: str = ""
    selector: Selector | None = None
    predicate: Predicate | None = None
    as_json: bool = False
    """Whether included documents are bytes of JSON, for servers."""

    def __post_init__(self) -> None:
        """Raise `InvalidArgumentError` for an option of the wrong type."""
        given: Any = self  # a caller's keywords may have any type
        if self.style not in (MAIN_ONLY, ALL_DOCS):
            raise InvalidArgumentError(
                f"style must be {MAIN_ONLY} or {ALL_DOCS}, not {self.style!r}"
            )
        if isinstance(given.doc_ids, str | bytes):
            raise InvalidArgumentError("doc_ids must be an iterable of ids, not one text")
        try:
            ids = None if given.doc_ids is None else frozenset(given.doc_ids)
        except TypeError:
            raise InvalidArgumentError("doc_ids must be an iterable of texts") from None
        if ids is not None and not all(isinstance(id, str) for id in ids):
            raise InvalidArgumentError("doc_ids must be an iterable of texts")
        if not isinstance(given.prefix, str):
            raise InvalidArgumentError("prefix must be a text")
        if given.predicate is not None and not callable(given.predicate):
            raise InvalidArgumentError("predicate must be a function")
        selector = given.selector
        if selector is not None and not isinstance(selector, Selector):
            selector = Selector(selector)
        object.__setattr__(self, "doc_ids", ids)
        object.__setattr__(self, "selector", selector)

    @property
    def direct(self) -> bool:
        """Whether to look up the documents instead of reading the feed."""
        return self.doc_ids is not None and len(self.doc_ids) <= DIRECT_IDS_MAX

    @property
    def needs_docs(self) -> bool:
        """Whether bodies are read."""
        return self.include_docs or self.selector is not None

    def reads(self, rows: Iterable[ChangeRow]) -> bool:
        """Return whether the form needs more than the rows themselves have."""
        return self.needs_docs or (self.style == ALL_DOCS and any(row.branches > 1 for row in rows))

    def concerns(self, row: ChangeRow) -> bool:
        """Return whether a row passes the filters that need no document."""
        return (self.doc_ids is None or row.id in self.doc_ids) and row.id.startswith(self.prefix)


class FeedWalk:
    """The changes in (after, until] at one moment, or with `descending` from the last one back.

    The caller reads it step by step, so that a server holds no more than it can send. `ended` is
    True after the last change, or after `limit` changes.
    """

    def __init__(
        self,
        state: DatabaseState,
        form: Form,
        after: Sequence,
        until: Sequence,
        limit: int | None = None,
        descending: bool = False,
    ) -> None:
        self._state, self._form = copy(state), form  # a copy counts what this walk reads
        self._after, self._until = after, until
        self._limit, self._descending = limit, descending
        if form.direct:
            self._rows = _looked_up(state, form, after, until, descending)
        elif descending:
            self._rows = state.rows_backwards(after, until)
        else:
            self._rows = state.rows(after, until)
        self._ahead: list[ChangeRow] = []
        self._last: Sequence | None = None
        self.returned = 0
        self.ended = self._full

    @property
    def _full(self) -> bool:
        return self._limit is not None and self.returned >= self._limit

    @property
    def place(self) -> Sequence:
        """The last row that was read, even if filtered; before the first one, the start."""
        return self._last or self._after

    @property
    def bodies_bytes(self) -> int:
        """The size of all bodies read so far."""
        return self._state.bodies_bytes

    def step(self, rows_max: int) -> list[Change]:
        """Read up to `rows_max` more rows; return the changes that pass the filter.

        Costs one read for each 128 documents, or documents with several branches.
        """
        rows = [*self._ahead, *islice(self._rows, rows_max + 1 - len(self._ahead))]
        rows, self._ahead = rows[:rows_max], rows[rows_max:]  # one more, to detect the end
        changes: list[Change] = []
        for row, change in shaped(self._state, self._form, rows, rows_max):
            self._last = row.sequence
            if change is not None:
                changes.append(change)
                self.returned += 1
                if self._full:
                    break
        self.ended = self._full or not self._ahead
        return changes

    def page(self) -> ChangesPage:
        """Read to the end; costs one listing of the rows, at most one count, and its steps."""
        chunk = CHUNK_ROWS if self._limit is None else min(CHUNK_ROWS, self._limit)
        changes: list[Change] = []
        while not self.ended:
            changes += self.step(chunk)
            chunk = CHUNK_ROWS
        last_seq = self.last_seq()
        return ChangesPage(tuple(changes), last_seq, self.pending(last_seq))

    def last_seq(self) -> Sequence:
        """Return where to continue: after the last row that was read, even if filtered."""
        forwards = not self._descending
        if self._last is not None and not (self._form.direct and forwards and not self._full):
            return self._last
        if self._full and forwards:
            return self._after  # the limit is 0
        newest = next(self._state.rows_backwards(self._after, self._until), None)
        return self._after if newest is None else newest.sequence

    def pending(self, last_seq: Sequence) -> int:
        """Return how many rows are after `last_seq`, ignoring the filter. One count."""
        if self._limit is None:
            return 0
        if not self._descending:
            return self._state.count_rows(last_seq, self._until)
        if self._limit == 0:
            return self._state.count_rows(self._after, self._until)
        return max(0, self._state.count_rows(self._after, last_seq) - 1)


def _looked_up(
    state: DatabaseState, form: Form, after: Sequence, until: Sequence, descending: bool
) -> Iterator[ChangeRow]:
    """Yield the rows of a few documents, in the order of the feed."""
    ids = sorted(id for id in form.doc_ids or () if is_id(id))  # only valid ids can exist
    rows = [
        winner.row(id)
        for id, winner in zip(ids, state.winners(ids), strict=True)
        if winner is not None and after < winner.sequence <= until
    ]
    yield from sorted(rows, reverse=descending)


def shaped(
    state: DatabaseState | None, form: Form, rows: Iterable[ChangeRow], chunk: int = CHUNK_ROWS
) -> Iterator[tuple[ChangeRow, Change | None]]:
    """Yield each row with its change; None where the form filters it out.

    `state` is the state of the rows; it may be None if the form needs nothing but the rows.
    """
    rows = iter(rows)
    everything = form.doc_ids is None and not form.prefix
    while some := list(islice(rows, chunk)):
        chunk = CHUNK_ROWS
        if everything:
            yield from zip(some, _changes(state, form, some), strict=True)
            continue
        wanted = [row for row in some if form.concerns(row)]
        changes = dict(zip((row.id for row in wanted), _changes(state, form, wanted), strict=True))
        yield from ((row, changes.get(row.id)) for row in some)


def _changes(
    state: DatabaseState | None, form: Form, rows: list[ChangeRow]
) -> Iterator[Change | None]:
    trees = _trees(state, form, rows)
    if form.selector is None and not form.include_docs:
        for row in rows:  # most feeds need nothing but the rows
            rev = str(row.revision)
            revs = _revs(trees[row.id].leaves) if row.id in trees else (rev,)
            yield _passed(form, Change(row.sequence, row.id, rev, revs, not row.not_deleted))
        return
    if form.selector is None and not trees:
        yield from _with_winners(state, form, rows)
        return
    every = form.style == ALL_DOCS
    found = [(row, trees.get(row.id) or _lone(row)) for row in rows]
    shown_leaves = [tree.leaves if every else tree.leaves[:1] for _, tree in found]
    wanted = {(row.id, row.revision) for row in rows}
    if form.selector is not None:
        for row, leaves in zip(rows, shown_leaves, strict=True):
            wanted |= {(row.id, leaf.revision) for leaf in leaves}
    bodies = state.bodies(list(wanted)) if state is not None else {}
    for (row, tree), leaves in zip(found, shown_leaves, strict=True):
        yield _with_doc(form, row, tree, leaves, bodies)


def _with_winners(
    state: DatabaseState | None, form: Form, rows: list[ChangeRow]
) -> Iterator[Change | None]:
    """Yield changes with the documents of their winners."""
    show = shown_as_json if form.as_json else shown
    wanted = [(row.id, row.revision) for row in rows]
    bodies = state.bodies(wanted) if state is not None else {}
    for row, name in zip(rows, wanted, strict=True):
        leaf = Leaf(row.not_deleted, row.revision)
        rev = str(row.revision)
        doc: Any = show(row.id, leaf, bodies[name])
        change = Change(row.sequence, row.id, rev, (rev,), not row.not_deleted, doc)
        yield _passed(form, change)


def _trees(state: DatabaseState | None, form: Form, rows: list[ChangeRow]) -> dict[str, Tree]:
    """Return the trees of the rows whose other leaves are shown, by document id."""
    if state is None or not (form.style == ALL_DOCS or (form.conflicts and form.include_docs)):
        return {}
    several = [row for row in rows if row.branches > 1]
    found = state.other_leaves([row.id for row in several])
    return {
        row.id: Tree.of([*_lone(row).leaves, *others])
        for row, others in zip(several, found, strict=True)
    }


def _lone(row: ChangeRow) -> Tree:
    return Tree((Leaf(row.not_deleted, row.revision),))


def _revs(leaves: Iterable[Leaf]) -> tuple[str, ...]:
    return tuple(str(leaf.revision) for leaf in leaves)


def _with_doc(
    form: Form, row: ChangeRow, tree: Tree, leaves: tuple[Leaf, ...], bodies: Bodies
) -> Change | None:
    if form.selector is not None:
        docs = ((leaf, shown(row.id, leaf, bodies[row.id, leaf.revision])) for leaf in leaves)
        leaves = tuple(leaf for leaf, doc in docs if form.selector(doc))
        if not leaves:
            return None
    doc = None
    if form.include_docs:
        show: Callable[..., Any] = shown_as_json if form.as_json else shown
        more = _conflicts(tree) if form.conflicts else {}
        doc = show(row.id, tree.winner, bodies[row.id, row.revision], **more)
    rev, deleted = str(row.revision), not row.not_deleted
    return _passed(form, Change(row.sequence, row.id, rev, _revs(leaves), deleted, doc))


def _conflicts(tree: Tree) -> dict[str, list[str]]:
    found = [str(revision) for revision in tree.conflicts]
    return {"_conflicts": found} if found else {}


def _passed(form: Form, change: Change) -> Change | None:
    return change if form.predicate is None or form.predicate(change) else None


# --- following the feed ---

CATCH_UP_ROWS = 64
"""The rows that are read before a waiting caller may get a timeout."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All changes up to `seq` were returned, or filtered out: a new follower may start here.

    `restarted` is True when compaction removed changes before the follower read them. Then it
    starts again with the current state, and may repeat changes.
    """

    seq: Sequence
    restarted: bool = False


class DatabaseFollower:
    """The changes of a database, then new ones, until `close()`, which any thread may call.

    `next_within` waits for a bounded time. After `close()` it raises
    `snapkv.errors.StoreClosedError`.
    """

    def __init__(
        self, name: str, space: Space, form: Form, since: Sequence, state: DatabaseState
    ) -> None:
        self._name, self._space, self._form = name, space, form
        self._uuid = state.database.uuid
        self._since = since
        self._waiting: Iterator[Change | Checkpoint | None] = iter(())
        self._watch: Watch[bytes] | None = None
        self._begin(state, restarted=False)

    @property
    def since(self) -> Sequence:
        """The place up to which all changes were returned."""
        return self._since

    def next_within(self, timeout: float | None) -> Change | Checkpoint | None:
        """Return the next change or checkpoint; None after `timeout` seconds without one.

        Raises `DatabaseNotFoundError`, `DatabaseRelocatedError`.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            try:
                for found in self._waiting:
                    if found is not None:
                        return found
                    if deadline is not None and monotonic() >= deadline:
                        return None  # reading filtered rows takes time, too
                assert self._watch is not None
                left = None if deadline is None else max(0.0, deadline - monotonic())
                changes = self._watch.next(left)
            except CompactedError:
                self._restart()
                continue
            if changes is None:
                return None
            self._waiting = self._changes_of(changes)

    def _restart(self) -> None:
        """Continue from the current state: the changes in between were compacted."""
        self.close()
        try:
            state = self._state(None)
        except DatabaseNotFoundError as e:
            raise self._deleted() from e
        self._begin(state, restarted=True)

    def close(self) -> None:
        """End the watch; a second call does nothing."""
        if self._watch is not None:
            self._watch.close()

    def _begin(self, state: DatabaseState, *, restarted: bool) -> None:
        """Return the changes of a state, then follow from its revision."""
        self._check(state.database)
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        self._waiting = self._caught_up(state, restarted)

    def _caught_up(
        self, state: DatabaseState, restarted: bool
    ) -> Iterator[Change | Checkpoint | None]:
        if restarted:
            yield Checkpoint(self._since, restarted=True)
        rows = state.rows(self._since, state.end)
        for row, change in shaped(state, self._form, rows, CATCH_UP_ROWS):
            self._since = row.sequence
            yield change
        self._since = max(self._since, state.end)
        yield Checkpoint(self._since)

    def _changes_of(self, changes: Changes[bytes]) -> Iterator[Change | Checkpoint | None]:
        """Yield the changes of one commit, in the order of their rows' keys, and a checkpoint."""
        rows: list[ChangeRow] = []
        incarnation = self._since.incarnation
        for change in changes:
            if change.key == layout.DATABASE:
                incarnation = self._incarnation_of(change.value)
            elif change.value is not None and change.key.startswith(layout.ROW_PREFIX):
                rows.append(layout.row_of(change.key, change.value))
        if rows:
            reads = self._form.reads(rows)
            state = self._state(changes.commit.revision) if reads else None
            for row, found in shaped(state, self._form, rows):
                self._since = row.sequence
                yield found
        self._since = max(self._since, Sequence.behind(changes.commit.ts, incarnation))
        yield Checkpoint(self._since)

    def _incarnation_of(self, raw: bytes | None) -> int:
        """Return the incarnation in a new record of the database, after checking the record."""
        if raw is None:
            raise self._deleted()
        database = DatabaseRecord.decode(raw)
        self._check(database)
        return database.incarnation

    def _check(self, database: DatabaseRecord) -> None:
        if database.uuid != self._uuid:
            raise self._deleted()
        if database.moved:
            raise DatabaseRelocatedError(f"database {self._name!r} was moved to another store")

    def _deleted(self) -> DatabaseNotFoundError:
        return DatabaseNotFoundError(f"database {self._name!r} was deleted")

    def _state(self, revision: int | None) -> DatabaseState:
        return DatabaseState(self._space.at(revision=revision), self._name)


def followed(
    follower: DatabaseFollower,
    heartbeat: float | None,
    idle_timeout: float | None,
    limit: int | None,
) -> Iterator[Change | Checkpoint]:
    """Yield what a follower returns, and a checkpoint after each `heartbeat` seconds without.

    Ends after `limit` changes, or after `idle_timeout` seconds without a change.
    """
    first = last = Checkpoint(follower.since)
    count = 0
    last_change = monotonic()
    try:
        while limit is None or count < limit:
            waits = [
                each for each in (heartbeat, _left(last_change, idle_timeout)) if each is not None
            ]
            found = follower.next_within(min(waits) if waits else None)
            if isinstance(found, Change):
                count, last_change = count + 1, monotonic()
                yield found
                continue
            before, last = last, found or Checkpoint(follower.since)
            over = idle_timeout is not None and monotonic() - last_change >= idle_timeout
            if not over or last not in (before, first):
                yield last
            if over:
                return
    finally:
        follower.close()


def _left(last_change: float, idle_timeout: float | None) -> float | None:
    return None if idle_timeout is None else max(0.0, last_change + idle_timeout - monotonic())
