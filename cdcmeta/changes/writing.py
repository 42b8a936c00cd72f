"""Writes edits: reads the documents, plans, commits under guards, and retries on conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random

from cdcmeta.arguments import check_timeout
from cdcmeta.changes import layout
from cdcmeta.changes.documents import Edit, Edited
from cdcmeta.changes.editing import Beside, Known, Outcome, Plan, planned
from cdcmeta.changes.layout import Database, Winner
from cdcmeta.changes.state import tree_of
from cdcmeta.errors import (
    DatabaseNotFoundError,
    DatabaseRelocatedError,
    EditNotMadeError,
    EditUnknownError,
    InvalidArgumentError,
)
from snapkv import (
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

TIMEOUT_S = 10.0
DOCS_MAX = 0x10000
"""The most documents of one commit: the user version of a versionstamp has 16 bits."""
HEAD_TRIES = 8
PAUSE_S_MAX = 0.02


class Writer:
    """The edits of one database; safe for threads."""

    def __init__(self, store: SnapshotKV, name: str, space: str) -> None:
        self._store, self._name, self._space = store, name, store.space(space)
        self._cached: tuple[Database, int] | None = None
        self._rng = Random()

    def record(self, *, fresh: bool = False) -> tuple[Database, int]:
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
            known = self._cached = Database.decode(found.value), found.revision
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
        beside: Beside | None = None,
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

        With `beside` it is always one commit, also if no document changes, and none if an edit
        fails.

        Raises `DatabaseNotFoundError`, `DatabaseRelocatedError`, `EditUnknownError`,
        `snapkv.CommitTimeoutError`, `snapkv.CommitTooLargeError`, and `snapkv.ConflictError` for
        the guard of `beside`.
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
            if head is not None and losses >= HEAD_TRIES and beside is None:
                return self._in_parts(edits, deadline, meta)
            plan = planned(edits, known, database)
            if any(each.error for each in plan.outcomes) and not fresh:
                fresh = True  # the conflict may exist because the database was deleted
                continue
            failed = beside is not None and any(each.error for each in plan.outcomes)
            if failed or (not plan.trees and (beside is None or not beside.puts)):
                return plan.results(None)
            guards: list[Guard] = [AtRevision(layout.DATABASE, revision)]
            guards += plan.guards() if head is None else [HeadAt(head)]
            try:
                return self._commit(plan, guards, beside, deadline, meta)
            except ConflictError as e:
                if beside is not None and any(guard in beside.guards for guard, _ in e.failed):
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
            error.plan.results_at(unknown.timestamp, unknown.batch)
            if found
            else _not_made(error.plan.outcomes)
        )
        return [*error.before, *own, *_not_made(error.after)]

    def _commit(
        self,
        plan: Plan,
        guards: list[Guard],
        beside: Beside | None,
        deadline: float,
        meta: Mapping[str, Scalar] | None,
    ) -> list[Edited]:
        left = deadline - monotonic()
        if left <= 0:
            raise CommitTimeoutError("the deadline passed before the edits were sent")

        def build(stamp: Stamp) -> SpaceOps:
            ops = plan.ops(stamp, guards)
            if beside is None:
                return ops
            puts = {**ops.puts, **beside.puts}
            return replace(ops, puts=puts, guards=[*guards, *beside.guards])

        note = None if beside is None else beside.note
        try:
            commit = self._space.commit(build, note=note, meta=meta, timeout=left)
        except CommitUnknownError as e:
            raise EditUnknownError(e, plan) from e
        return plan.results(commit)

    def _wait(self, losses: int, deadline: float) -> None:
        left = deadline - monotonic()
        if left <= 0:
            raise CommitTimeoutError(
                f"the deadline passed after {losses} lost attempts: other writers committed first"
            )
        pause(min(left, self._rng.uniform(0, PAUSE_S_MAX * min(losses, 5))))

    def _known(self, edits: Iterable[Edit | Edited]) -> tuple[dict[str, Known], int | None]:
        """Return the documents of edits, and the store revision to guard instead of each.

        That revision is None if each document can have its own guard.
        """
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
        self,
        edits: Sequence[Edit | Edited],
        deadline: float,
        meta: Mapping[str, Scalar] | None,
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
