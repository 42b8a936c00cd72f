"""Edits: a plan of the one commit that stores them, and the writer that commits plans.

A plan is pure: the writer reads the documents before (`known`), one key each, and the other leaves
of documents with several branches. It commits under guards, and plans again after a conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from cdcmeta.argument_checks import check_timeout
from cdcmeta.changes import database_layout as layout
from cdcmeta.changes.database_layout import DatabaseRecord, Winner
from cdcmeta.changes.database_state import tree_of
from cdcmeta.changes.documents import Edit, Edited, edited
from cdcmeta.changes.revisions import Revision, Tree
from cdcmeta.changes.sequence import Sequence as Seq
from cdcmeta.errors import (
    CDCMetaError,
    DatabaseNotFoundError,
    DatabaseRelocatedError,
    DocumentConflictError,
    EditNotMadeError,
    EditUnknownError,
    InvalidArgumentError,
)
from snapkv import (
    Absent,
    AtRevision,
    CommitTimeoutError,
    CommitUnknownError,
    ConflictError,
    Entry,
    HeadAt,
    SnapshotKV,
    SpaceOps,
    Stamp,
)
from snapkv.base.waiting import monotonic, pause
from snapkv.model import Guard, Scalar
from snapkv.tuples import Versionstamp


@dataclass(frozen=True, slots=True)
class Known:
    """A document as it was read; `revision` is the revision of its winner's key."""

    key: bytes
    tree: Tree | None = None
    sequence: Seq | None = None
    revision: int = 0

    def guard(self) -> Guard:
        """Return the guard of an edit: the document is unchanged."""
        return AtRevision(self.key, self.revision) if self.revision else Absent(self.key)


class Outcome(NamedTuple):
    """The planned result of an edit: its revision, whether it is written, or its error."""

    id: str
    rev: str | None = None
    written: bool = False
    error: CDCMetaError | None = None


class LocalWrite(NamedTuple):
    """The note of the commit of some edits; and a local document of it, with its guard."""

    note: str
    puts: Mapping[bytes, bytes] = MappingProxyType({})
    guards: tuple[Guard, ...] = ()


@dataclass(slots=True)
class EditPlan:
    """A planned commit: the documents that change, and the result of each edit.

    `trees` has the documents that change, in the order of their rows; `outcomes` has an entry for
    each edit.
    """

    database: DatabaseRecord
    known: Mapping[str, Known]
    trees: dict[str, Tree] = field(default_factory=dict)
    bodies: dict[str, dict[Revision, bytes]] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    def guards(self) -> list[Guard]:
        """Return the guards of the documents that change."""
        return [self.known[id].guard() for id in self.trees]

    def ops(self, stamp: Stamp, guards: Iterable[Guard]) -> SpaceOps:
        """Return the operations of the commit with this stamp.

        They add one row to the index for each document, and remove its previous row.
        """
        puts: dict[bytes, bytes] = {}
        deletes: list[bytes] = []
        for id, sequence in self._sequences(stamp.ts, stamp.batch).items():
            before, after = self.known[id], self.trees[id]
            old: dict[bytes, bytes | None] = {}
            if before.tree is not None and before.sequence is not None:
                old = layout.keys_before(before.key, id, before.tree, before.sequence)
            new = layout.stored(before.key, id, after, sequence)
            puts |= {key: value for key, value in new.items() if old.get(key) != value}
            deletes += [key for key in old if key not in new]
            for leaf in after.leaves:
                if (body := self.bodies[id].get(leaf.revision)) is not None:
                    puts[layout.body_key(id, leaf.revision)] = body
            deletes += [
                layout.body_key(id, leaf.revision)
                for leaf in (before.tree.leaves if before.tree is not None else ())
                if after.leaf(leaf.revision) is None
            ]
        return SpaceOps(puts, deletes, (), guards)

    def results(self, ts: int = 0, batch: int = 0) -> list[Edited]:
        """Return the result of each edit in the commit with this timestamp and batch, if any."""
        sequences = self._sequences(ts, batch)
        return [
            Edited(each.id, each.rev, sequences[each.id] if each.written else None, each.error)
            for each in self.outcomes
        ]

    def _sequences(self, ts: int, batch: int) -> dict[str, Seq]:
        incarnation = self.database.incarnation
        return {
            id: Seq(incarnation, Versionstamp(ts, batch, user))
            for user, id in enumerate(self.trees)
        }


def planned(
    edits: Iterable[Edit | Edited], known: Mapping[str, Known], database: DatabaseRecord
) -> EditPlan:
    """Return the plan of some edits; results of edits that failed before keep their places.

    Edits of one document are applied one after the other. Its row has the place of the last one.
    """
    plan = EditPlan(database, known)
    for edit in edits:
        if isinstance(edit, Edited):
            plan.outcomes.append(Outcome(edit.id, error=edit.error))
            continue
        before = plan.trees.get(edit.id, known[edit.id].tree)
        is_there = before is not None and before.winner.not_deleted
        if edit.replaces and edit.deleted and not is_there:
            plan.outcomes.append(Outcome(edit.id))
            continue
        try:
            after, rev = edited(before, edit, database.revs_limit)
        except DocumentConflictError as e:
            plan.outcomes.append(Outcome(edit.id, error=e))
            continue
        plan.outcomes.append(Outcome(edit.id, str(rev), after is not before))
        if after is not before:
            plan.trees.pop(edit.id, None)
            plan.trees[edit.id] = after
            plan.bodies.setdefault(edit.id, {})[rev] = edit.body
    return plan


# --- committing a plan ---

TIMEOUT_S = 10.0
DOCS_MAX = 0x10000
"""The most documents of one commit: the user version of a versionstamp has 16 bits."""
HEAD_TRIES = 8
PAUSE_S_MAX = 0.02


class Writer:
    """The edits of one database; safe for threads."""

    def __init__(self, store: SnapshotKV, name: str, space: str) -> None:
        self._store, self._name, self._space = store, name, store.space(space)
        self._cached: tuple[DatabaseRecord, int] | None = None
        self._rng = Random()

    def record(self, *, fresh: bool = False) -> tuple[DatabaseRecord, int]:
        """Return the database's record and its revision; without a round trip if it is cached.

        Each commit guards the record, so nothing is written with an outdated one. Raises
        `DatabaseNotFoundError`.
        """
        known = self._cached  # another thread may clear it
        if known is None or fresh:
            self._cached = None
            (found,) = self._space.entries_of([layout.DATABASE])
            if found is None:
                raise DatabaseNotFoundError(f"database {self._name!r} does not exist")
            known = self._cached = DatabaseRecord.decode(found.value), found.revision
        return known

    def writable(self, *, fresh: bool = False) -> int:
        """Return the revision of the record of a database that takes edits.

        Raises `DatabaseRelocatedError`, `DatabaseNotFoundError`.
        """
        database, revision = self.record(fresh=fresh)
        if database.moved and not fresh:
            database, revision = self.record(fresh=True)  # it may have been moved back
        if database.moved:
            raise DatabaseRelocatedError(f"database {self._name!r} was moved to another store")
        return revision

    def edit(
        self,
        edits: Sequence[Edit | Edited],
        *,
        timeout: float | None = None,
        local: LocalWrite | None = None,
        meta: Mapping[str, Scalar] | None = None,
    ) -> list[Edited]:
        """Commit edits together, with a `meta`; return the result of each, in order.

        One read and one commit without contention. A conflicting edit fails alone. When another
        writer changes one of the documents first, all edits are planned again.

        If the documents are more than a commit's guards, one guard on the whole store replaces
        them. After `HEAD_TRIES` losses to other writers, the edits are split into several commits.

            etcd, 200 documents, 95 guards
            try 1 to 8    one commit, guarded by the store's newest revision; another commit wins
            then          commits of 94, 94 and 12 documents, each document with its own guard

        With `local` it is always one commit, also if no document changes, and none if an edit
        fails.

        Raises `DatabaseNotFoundError`, `DatabaseRelocatedError`, `EditUnknownError`,
        `snapkv.CommitTimeoutError`, `snapkv.CommitTooLargeError`, and `snapkv.ConflictError` for
        the guard of `local`.
        """
        if len(edits) > DOCS_MAX:
            raise InvalidArgumentError(f"{len(edits)} documents, more than {DOCS_MAX} at once")
        check_timeout(timeout)
        deadline = monotonic() + (TIMEOUT_S if timeout is None else timeout)
        losses = 0
        fresh = False
        while True:
            revision = self.writable(fresh=fresh)
            database, _ = self.record()
            known, head = self._known(edits)
            if head is not None and losses >= HEAD_TRIES and local is None:
                return self._in_parts(edits, deadline, meta)
            plan = planned(edits, known, database)
            if any(each.error for each in plan.outcomes) and not fresh:
                fresh = True  # the conflict may exist because the database was deleted
                continue
            failed = local is not None and any(each.error for each in plan.outcomes)
            if failed or (not plan.trees and (local is None or not local.puts)):
                return plan.results()
            guards: list[Guard] = [AtRevision(layout.DATABASE, revision)]
            guards += plan.guards() if head is None else [HeadAt(head)]
            try:
                return self._commit(plan, guards, local, deadline, meta)
            except ConflictError as e:
                if local is not None and any(guard in local.guards for guard, _ in e.failed):
                    raise
                losses, fresh = losses + 1, True
                self._wait(losses, deadline)

    def resolve(self, error: EditUnknownError) -> list[Edited] | None:
        """Return the results of edits whose outcome was unknown; None if none was committed.

        Raises as `SnapshotKV.resolve`.
        """
        unknown = error.commit
        found = self._store.resolve(unknown.timestamp, unknown.nonce, guards=unknown.guards)
        if found is None and not error.before:
            return None
        own = (
            error.plan.results(unknown.timestamp, unknown.batch)
            if found
            else _not_made(error.plan.outcomes)
        )
        return [*error.before, *own, *_not_made(error.after)]

    def _commit(
        self,
        plan: EditPlan,
        guards: list[Guard],
        local: LocalWrite | None,
        deadline: float,
        meta: Mapping[str, Scalar] | None,
    ) -> list[Edited]:
        left = deadline - monotonic()
        if left <= 0:
            raise CommitTimeoutError("the deadline passed before the edits were sent")

        def build(stamp: Stamp) -> SpaceOps:
            ops = plan.ops(stamp, guards)
            if local is None:
                return ops
            puts = {**ops.puts, **local.puts}
            return replace(ops, puts=puts, guards=[*guards, *local.guards])

        note = None if local is None else local.note
        try:
            commit = self._space.commit(build, note=note, meta=meta, timeout=left)
        except CommitUnknownError as e:
            raise EditUnknownError(e, plan) from e
        return plan.results(commit.ts, commit.batch)

    def _wait(self, losses: int, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise CommitTimeoutError(
                f"the deadline passed after {losses} lost attempts: other writers committed first"
            )
        pause(min(left, self._rng.uniform(0, PAUSE_S_MAX * min(losses, 5))))

    def _known(self, edits: Iterable[Edit | Edited]) -> tuple[dict[str, Known], int | None]:
        """Return documents of edits; the revision to guard if they are too many to guard each."""
        ids = list(dict.fromkeys(edit.id for edit in edits if isinstance(edit, Edit)))
        keys = [layout.winner_key(id) for id in ids]
        most = self._store.guards_max
        alone = most is None or len(ids) < most
        snapshot = None if alone else self._space.at()
        entries = (snapshot or self._space).entries_of(keys)
        winners = _winners(entries)
        if any(winner and winner.branches > 1 for winner in winners):
            snapshot = snapshot or self._space.at()  # other leaves must be read at the same moment
            entries = snapshot.entries_of(keys)
            winners = _winners(entries)
        found = {
            id: Known(key)
            if entry is None or winner is None
            else Known(key, tree_of(snapshot, id, winner), winner.sequence, entry.revision)
            for id, key, entry, winner in zip(ids, keys, entries, winners, strict=True)
        }
        return found, None if alone or snapshot is None else snapshot.revision

    def _in_parts(
        self, edits: Sequence[Edit | Edited], deadline: float, meta: Mapping[str, Scalar] | None
    ) -> list[Edited]:
        size = max(1, (self._store.guards_max or DOCS_MAX) - 1)
        found: list[Edited] = []
        for at in range(0, len(edits), size):
            left = max(0.0, deadline - monotonic())
            try:
                found += self.edit(edits[at : at + size], timeout=left, meta=meta)
            except EditUnknownError as e:
                raise EditUnknownError(e.commit, e.plan, found, edits[at + size :]) from e
            except CommitTimeoutError:
                if not found:
                    raise
                return found + _not_made(edits[at:])
        return found


def _winners(entries: Iterable[Entry | None]) -> list[Winner | None]:
    return [None if entry is None else layout.winner_of(entry.value) for entry in entries]


def _not_made(edits: Iterable[Edit | Edited | Outcome]) -> list[Edited]:
    return [Edited(edit.id, error=EditNotMadeError(edit.id)) for edit in edits]
