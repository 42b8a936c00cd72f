"""Trimming a table's log: removes old log rows and records the time up to which."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cdcmeta.generations.cdc.log_rows import (
    OLD_PREFIX,
    SLOTS,
    STAMP_BYTES,
    encoded,
    row_of,
    span_of,
)
from cdcmeta.generations.log import layout
from cdcmeta.generations.log.consumers import consumers_at
from cdcmeta.generations.log.listing import revision_of, unchanged
from snapkv import AtRevision, ConflictError, Entry, Ops, Snapshot, SnapshotKV, Space, SpaceOps
from snapkv.model import Guard
from snapkv.tuples import Versionstamp, pack, unpack

ROWS_AT_ONCE = 1_000
"""Rows that one commit removes: about 100 kB in etcd's request, of 1.5 MiB."""
OLD_ROWS_AT_ONCE = 64
"""Rows that one commit moves: each has a guard, and etcd takes 95 guards."""
OLD_BYTES_AT_ONCE = 256 << 10
"""A commit that moves rows ends with the row that reaches this; etcd's requests have 1.5 MiB."""
TRIES = 50
"""Conflicts with other processes before the error is raised."""
TRIMMED_PREFIX = pack(("trimmed",))


class Trimmer:
    """Removes log rows of a table in commits of a bounded size; each records what it removed."""

    def __init__(self, store: SnapshotKV, space: Space, table: str, log: str | None) -> None:
        """Take the table's space, and the space of its generation log, None without one."""
        self._store, self._space, self._table = store, space, table
        self._log = None if log is None else store.space(log)

    def trim(self, until: int, *, unread: bool) -> int:
        """Remove the rows up to a time; return how many.

        Without `unread` it keeps rows that a registered consumer has not passed. The next call
        continues an interrupted one. Raises `snapkv.ConflictError` after too many conflicts.
        """
        upgrade(self._space)
        removed = 0
        for left in reversed(range(TRIES)):
            snapshot = self._space.at()
            last, guarded = (until, {}) if unread else self._passed(snapshot, until)
            marks = dict(snapshot.entries(TRIMMED_PREFIX))
            revisions = {key: revision_of(entry) for key, entry in marks.items()}
            try:
                for keys, newest in _batches(snapshot, trimmed_at(snapshot), last):
                    puts = {
                        pack(("trimmed", slot)): layout.number(ts) for slot, ts in newest.items()
                    }
                    guards: list[Guard] = [unchanged(key, revisions.get(key, 0)) for key in puts]
                    own = {self._space.name: SpaceOps(puts, keys, guards=guards)}
                    done = self._store.commit(lambda _, spaces=guarded | own: Ops(spaces=spaces))  # type: ignore[misc]
                    revisions |= dict.fromkeys(puts, done.revision)
                    removed += len(keys)
            except ConflictError:  # another process trims, too, or a consumer was registered
                if not left:
                    raise
                continue
            break
        return removed

    def _passed(self, snapshot: Snapshot[bytes], until: int) -> tuple[int, dict[str, SpaceOps]]:
        """Return the time that all consumers have passed, and the guard that none is registered."""
        if self._log is None:
            return until, {}
        state = self._log.at(revision=snapshot.revision)
        positions = [
            each.position
            for id, each in consumers_at(state).items()
            if id.table in (None, self._table)
        ]
        (count,) = state.entries_of([layout.CONSUMERS])
        guard = unchanged(layout.CONSUMERS, revision_of(count))
        return min([until, *positions]), {self._log.name: SpaceOps(guards=[guard])}


def trimmed_at(snapshot: Snapshot[bytes]) -> dict[int, int]:
    """Return for each trimmed slot the time of its last removed row."""
    items = snapshot.items(TRIMMED_PREFIX)
    return {unpack(key)[1]: layout.number_of(value) for key, value in items}


def upgrade(space: Space) -> int:
    """Move log rows of an older version, stored by stream, to their slots; return how many.

    In commits of a bounded size; each row exactly once, even if several processes do it. Without
    such rows it costs one round trip.
    """
    moved = lost = 0
    first: bytes | None = None
    while True:
        entries = space.at().entries(OLD_PREFIX)
        batch = list(_to_move(entries))
        if batch and batch[0][0] != first:
            first, lost = batch[0][0], 0
        try:
            while batch:
                space.commit(
                    puts=encoded(row_of(key, entry.value) for key, entry in batch),
                    deletes=[key for key, _ in batch],
                    guards=[AtRevision(key, entry.revision) for key, entry in batch],
                )
                moved += len(batch)
                batch = list(_to_move(entries))
        except ConflictError:
            # another process moves them, too: only attempts without progress count
            lost += 1
            if lost == TRIES:
                raise
            continue
        return moved


def _to_move(entries: Iterator[tuple[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
    """Yield the rows that one commit moves: at least one, if any is left."""
    size = 0
    for key, entry in islice(entries, OLD_ROWS_AT_ONCE):
        yield key, entry
        size += len(key) + len(entry.value)
        if size >= OLD_BYTES_AT_ONCE:
            return


def _batches(
    snapshot: Snapshot[bytes], trimmed: dict[int, int], last: int
) -> Iterator[tuple[list[bytes], dict[int, int]]]:
    """Yield keys of rows up to a time, with the newest time of each slot among them."""
    keys: list[bytes] = []
    newest: dict[int, int] = {}
    for slot in range(SLOTS):
        # Two removals may have divided the rows of one commit, so the last time is read again.
        start, end = span_of(slot, max(0, trimmed.get(slot, 0) - 1), last)
        for key in snapshot.keys(start=start, end=end):
            keys.append(key)
            newest[slot] = Versionstamp.from_bytes(key[-STAMP_BYTES:]).version
            if len(keys) == ROWS_AT_ONCE:
                yield keys, newest
                keys, newest = [], {}
    if keys:
        yield keys, newest
