"""Following the feed: what there is, then what comes, driven by a watch of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdcmeta.changes import layout
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Database, Row
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State
from cdcmeta.errors import (
    DatabaseDeletedError,
    DatabaseNotFoundError,
    DatabaseRelocatedError,
)
from snapkv import Changes, CompactedError, Space, Watch
from snapkv.clock import monotonic

CATCH_UP_ROWS = 64
"""Rows that are read before somebody who waits is told that it takes time."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything up to `seq` was told, or left out by a filter: go on from here.

    `restarted` says that compaction overtook the follower: what comes next may have come before,
    and is the state as it is, as after a restart.
    """

    seq: Sequence
    restarted: bool = False


class Follower:
    """The changes of a database, then those to come, until `close()`, from any thread.

    `next_within` waits for a bounded time only, for servers that have other things to do. Once
    this is closed it raises `snapkv.errors.StoreClosedError`.
    """

    def __init__(self, name: str, space: Space, form: Form, since: Sequence, state: State) -> None:
        self._name, self._space, self._form = name, space, form
        self._uuid = state.database.uuid
        self._since = since
        self._waiting: Iterator[Change | Checkpoint | None] = iter(())
        self._watch: Watch[bytes] | None = None
        self._begin(state, restarted=False)

    @property
    def since(self) -> Sequence:
        """The place up to which everything was told."""
        return self._since

    def next_within(self, timeout: float | None) -> Change | Checkpoint | None:
        """Return the next change or checkpoint; None when `timeout` seconds bring nothing.

        Raises `DatabaseDeletedError`, `DatabaseRelocatedError`.
        """
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            try:
                for found in self._waiting:
                    if found is not None:
                        return found
                    if deadline is not None and monotonic() >= deadline:
                        return None  # rows that a filter leaves out take time, too
                assert self._watch is not None
                left = None if deadline is None else max(0.0, deadline - monotonic())
                changes = self._watch.next(left)
            except CompactedError:
                self._restart()
                continue
            if changes is None:
                return None
            self._waiting = self._told(changes)

    def _restart(self) -> None:
        """Go on from the state as it is: what came between is gone."""
        self.close()
        try:
            state = self._state(None)
        except DatabaseNotFoundError as e:
            raise self._deleted() from e
        self._begin(state, restarted=True)

    def close(self) -> None:
        """End the watch; twice is fine."""
        if self._watch is not None:
            self._watch.close()

    def _begin(self, state: State, *, restarted: bool) -> None:
        """Tell what there is at one revision, then follow from there."""
        self._check(state.database)
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        self._waiting = self._caught_up(state, restarted)

    def _caught_up(self, state: State, restarted: bool) -> Iterator[Change | Checkpoint | None]:
        if restarted:
            yield Checkpoint(self._since, restarted=True)
        rows = state.rows(self._since, state.end)
        for row, change in shaped(state, self._form, rows, CATCH_UP_ROWS):
            self._since = row.sequence
            yield change
        self._since = max(self._since, state.end)
        yield Checkpoint(self._since)

    def _told(self, changes: Changes[bytes]) -> Iterator[Change | Checkpoint | None]:
        """Tell what one commit changed; its rows come in the order of their keys."""
        rows: list[Row] = []
        incarnation = self._since.incarnation
        for change in changes:
            if change.key == layout.DATABASE:
                incarnation = self._looked_at(change.value)
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

    def _looked_at(self, raw: bytes | None) -> int:
        """Return the incarnation that a new record of the database tells."""
        if raw is None:
            raise self._deleted()
        database = Database.decode(raw)
        self._check(database)
        return database.incarnation

    def _check(self, database: Database) -> None:
        if database.uuid != self._uuid:
            raise self._deleted()
        if database.moved:
            raise DatabaseRelocatedError(f"database {self._name!r} was moved to another store")

    def _deleted(self) -> DatabaseDeletedError:
        return DatabaseDeletedError(f"database {self._name!r} was deleted")

    def _state(self, revision: int | None) -> State:
        return State(self._space.at(revision=revision), self._name)


def followed(
    follower: Follower,
    heartbeat: float | None,
    idle_timeout: float | None,
    limit: int | None,
) -> Iterator[Change | Checkpoint]:
    """Yield what a follower tells, with a checkpoint after each `heartbeat` seconds of silence.

    It ends after `limit` changes, or when `idle_timeout` seconds bring none.
    """
    begun = last = Checkpoint(follower.since)
    told = 0
    heard = monotonic()
    try:
        while limit is None or told < limit:
            waits = [each for each in (heartbeat, _left(heard, idle_timeout)) if each is not None]
            found = follower.next_within(min(waits) if waits else None)
            if isinstance(found, Change):
                told, heard = told + 1, monotonic()
                yield found
                continue
            before, last = last, found or Checkpoint(follower.since)
            over = idle_timeout is not None and monotonic() - heard >= idle_timeout
            if not over or last not in (before, begun):
                yield last
            if over:
                return
    finally:
        follower.close()


def _left(heard: float, idle_timeout: float | None) -> float | None:
    return None if idle_timeout is None else max(0.0, heard + idle_timeout - monotonic())
