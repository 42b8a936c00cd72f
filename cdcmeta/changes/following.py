"""Following the feed: what there is, then what comes, driven by a watch of the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdcmeta.changes import layout
from cdcmeta.changes.feed import Change, Form, shaped
from cdcmeta.changes.layout import Database, Row
from cdcmeta.changes.sequence import Sequence
from cdcmeta.changes.state import State
from cdcmeta.errors import DatabaseDeletedError, DatabaseRelocatedError
from snapkv import Changes, CompactedError, Space, Watch
from snapkv.clock import monotonic


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything up to `seq` was told, or left out by a filter: go on from here.

    `restarted` says that compaction overtook the follower: what comes next may have come before,
    and is the state as it is, as after a restart.
    """

    seq: Sequence
    restarted: bool = False


class Follower:
    """The changes of a database, then those to come; an iterator that can be closed.

    `next_within` waits for a bounded time only, for servers that have other things to do.
    """

    def __init__(self, name: str, space: Space, form: Form, since: Sequence, state: State) -> None:
        self._name, self._space, self._form = name, space, form
        self._uuid = state.database.uuid
        self._since = since
        self._waiting: Iterator[Change | Checkpoint] = iter(())
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
            found = next(self._waiting, None)
            if found is not None:
                return found
            assert self._watch is not None
            left = None if deadline is None else max(0.0, deadline - monotonic())
            try:
                changes = self._watch.next(left)
            except CompactedError:
                self._watch.close()
                self._begin(self._state(None), restarted=True)
                continue
            if changes is None:
                return None
            self._waiting = self._told(changes)

    def close(self) -> None:
        """End the watch; twice is fine."""
        if self._watch is not None:
            self._watch.close()

    def _begin(self, state: State, *, restarted: bool) -> None:
        """Tell what there is at one revision, then follow from there."""
        self._watch = self._space.watch(since=state.snapshot.timestamp)
        self._waiting = self._caught_up(state, restarted)

    def _caught_up(self, state: State, restarted: bool) -> Iterator[Change | Checkpoint]:
        if restarted:
            yield Checkpoint(self._since, restarted=True)
        rows = state.rows(self._since, state.end)
        for row, change in shaped(state, self._form, rows):
            self._since = row.sequence
            if change is not None:
                yield change
        self._since = max(self._since, state.end)
        yield Checkpoint(self._since)

    def _told(self, changes: Changes[bytes]) -> Iterator[Change | Checkpoint]:
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
                if found is not None:
                    yield found
        self._since = max(self._since, Sequence.at(changes.commit.ts, incarnation))
        yield Checkpoint(self._since)

    def _looked_at(self, raw: bytes | None) -> int:
        """Return the incarnation that a new record of the database tells."""
        database = None if raw is None else Database.decode(raw)
        if database is None or database.uuid != self._uuid:
            raise DatabaseDeletedError(f"database {self._name!r} was deleted")
        if database.moved:
            raise DatabaseRelocatedError(f"database {self._name!r} was moved to another store")
        return database.incarnation

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
    last = Checkpoint(follower.since)
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
            last = found or last
            if idle_timeout is not None and monotonic() - heard >= idle_timeout:
                return
            yield last
    finally:
        follower.close()


def _left(heard: float, idle_timeout: float | None) -> float | None:
    return None if idle_timeout is None else max(0.0, heard + idle_timeout - monotonic())
