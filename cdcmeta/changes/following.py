"""Following the feed: the existing changes, then new ones, driven by a watch of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdcmeta.changes import layout
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Database, Row
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State
from cdcmeta.errors import DatabaseNotFoundError, DatabaseRelocatedError
from snapkv import Changes, CompactedError, Space, Watch
from snapkv.base.waiting import monotonic

CATCH_UP_ROWS = 64
"""Rows that are read before a waiting caller may get a timeout."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All changes up to `seq` were returned, or filtered out: a new follower may start here.

    `restarted` is True when compaction removed changes before the follower read them. Then it
    starts again with the current state, and may repeat changes.
    """

    seq: Sequence
    restarted: bool = False


class Follower:
    """The changes of a database, then new ones, until `close()`, which any thread may call.

    `next_within` waits for a bounded time. After `close()` it raises
    `snapkv.errors.StoreClosedError`.
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

    def _begin(self, state: State, *, restarted: bool) -> None:
        """Return the changes of a state, then follow from its revision."""
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

    def _changes_of(self, changes: Changes[bytes]) -> Iterator[Change | Checkpoint | None]:
        """Yield the changes of one commit, in the order of their rows' keys, and a checkpoint."""
        rows: list[Row] = []
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
        database = Database.decode(raw)
        self._check(database)
        return database.incarnation

    def _check(self, database: Database) -> None:
        if database.uuid != self._uuid:
            raise self._deleted()
        if database.moved:
            raise DatabaseRelocatedError(f"database {self._name!r} was moved to another store")

    def _deleted(self) -> DatabaseNotFoundError:
        return DatabaseNotFoundError(f"database {self._name!r} was deleted")

    def _state(self, revision: int | None) -> State:
        return State(self._space.at(revision=revision), self._name)


def followed(
    follower: Follower,
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
