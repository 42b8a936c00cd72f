"""Another store as a sink: its keys, and in the same commits how far each table is.

The target's space `changefeed/<id>` has a record for each table, a msgpack array
`[token's owner, token's number, checkpoint]`, and each commit guards its revision. So a commit of
an earlier assignment, or a repeated one, changes nothing. For example, capture A writes up to 7,
hangs, and is replaced by B:

    A   commit: keys, record (9, 1, 7)      guard: the record at revision 50
    B   begin:  record (9, 2, 7)            guard: the record at revision 51
    A   commit: keys, record (9, 1, 8)      guard: the record at revision 51: a conflict, fenced
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgpack

from cdcmeta.errors import SinkError
from cdcmeta.scheduler.core.states import Token
from cdcmeta.scheduler.executors.sinks.contract import fenced
from snapkv import (
    Absent,
    AtRevision,
    Changes,
    CommitTooLargeError,
    CommitUnknownError,
    ConflictError,
    Ops,
    SnapshotKV,
    SpaceOps,
    Stamp,
    format_time,
)

WRITE_S = 3.0
"""How long a commit may take, in seconds."""


class Reached(NamedTuple):
    """The record of a table in the target."""

    token: Token
    checkpoint: int


class StoreSink:
    """Writes into a store, each change exactly once; the commits of a batch become one.

    Times in the target are those of its own commits. `changefeed` names the records of tables.
    """

    def __init__(self, target: SnapshotKV, changefeed: str, *, write_s: float = WRITE_S) -> None:
        self.target, self._space, self._write_s = target, f"changefeed/{changefeed}", write_s

    def writer(self, table: str, token: Token) -> StoreWriter:
        """Return a writer of one assignment."""
        return StoreWriter(self.target, self._space, table, token, self._write_s)

    def close(self) -> None:
        """Do nothing: the store is closed by who opened it."""


class StoreWriter:
    """Writes one table; two round trips to begin, then one for each batch."""

    def __init__(
        self, target: SnapshotKV, space: str, table: str, token: Token, write_s: float
    ) -> None:
        self._target, self._space, self._token = target, space, token
        self._write_s = write_s
        self._key = table.encode()
        self._revision = 0

    def begin(self, start: int) -> int:
        """Write the token into the table's record; return the checkpoint that it has."""
        while True:
            found = self._read()
            if found is not None and found.token > self._token:
                raise _fenced(self._key, found.token)
            reached = max(start, found.checkpoint if found is not None else 0)
            if self._commit({}, (), reached, None):
                return reached

    def write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        """Commit the last value of each key with the record; in halves, if that is too large."""
        try:
            self._write(commits, checkpoint)
        except CommitTooLargeError:
            if len(commits) < 2:
                raise
            half = len(commits) // 2
            self.write(commits[:half], checkpoint and commits[half - 1].commit.ts)
            self.write(commits[half:], checkpoint)

    def _write(self, commits: Sequence[Changes[str]], checkpoint: int) -> None:
        last = {each.key: each.value for commit in commits for each in commit.changes}
        puts = {key: value for key, value in last.items() if value is not None}
        deletes = [key for key, value in last.items() if value is None]
        note = None
        if commits and checkpoint:
            note = f"replicated up to {format_time(checkpoint)}"
        while not self._commit(puts, deletes, checkpoint, note):
            found = self._read()
            if found is None or found.token != self._token:
                raise _fenced(self._key, found.token if found is not None else self._token)
            if checkpoint and found.checkpoint >= checkpoint:
                return  # an earlier try landed

    def close(self) -> None:
        """Do nothing."""

    def _read(self) -> Reached | None:
        entry = self._target.space(self._space).entries_of([self._key], timeout=self._write_s)[0]
        self._revision = entry.revision if entry is not None else 0
        return reached_of(entry.value) if entry is not None else None

    def _commit(
        self, puts: dict[str, bytes], deletes: Sequence[str], checkpoint: int, note: str | None
    ) -> bool:
        """Commit with the record; False if the record has changed. An unknown outcome is False."""
        key, before = self._key, self._revision
        guard = AtRevision(key, before) if before else Absent(key)
        record = msgpack.packb([*self._token, checkpoint])
        space = SpaceOps({key: record}, guards=[guard])

        def build(stamp: Stamp) -> Ops:
            return Ops(puts, deletes, note=note, spaces={self._space: space})

        try:
            self._revision = self._target.commit(build, timeout=self._write_s).revision
        except (ConflictError, CommitUnknownError):
            return False
        return True


def reached_of(raw: bytes) -> Reached:
    """Return the record of a table. Raises `SinkError` if it is not one."""
    try:
        owner, number, checkpoint = msgpack.unpackb(raw)
        return Reached(Token(int(owner), int(number)), int(checkpoint))
    except (ValueError, TypeError, msgpack.UnpackException) as e:
        raise SinkError(f"the target has an invalid record of a table: {raw[:40]!r}") from e


def _fenced(table: bytes, token: Token) -> SinkError:
    return fenced(table.decode(), token)
