"""The commits of one batch of a sink: each batch once, whatever is repeated or killed.

A batch has a name (the id of its query, or the option `txnAppId`) and a number. A marker in the
space `spark.sinks`, which each commit of the batch also writes, says how much of it is committed:

    batch 7 in three commits    marker after each          the driver dies, and repeats batch 7
    rows 1 to 40, by key        7, 40 of 100 rows, digest  is skipped
    rows 41 to 90               7, 90 of 100 rows, digest  is skipped
    rows 91 to 100                                         is committed, with 7, 100 of 100 rows

A guard on the marker's revision stops a second driver that still runs. If the rows of the repeated
batch are not the same (the digest), it begins with the first row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import msgpack

from snapkv.base.waiting import pause
from snapkv.errors import CommitUnknownError, ConflictError
from snapkv.model import Absent, AtRevision, Commit, Guard, HeadAt, Ops, SpaceOps
from snapkv.spark import errors
from snapkv.store.store import SnapshotKV
from snapkv.store.writes import GUARDS_BYTES, CommitRoom
from snapkv.tuples import pack

SPACE = "spark.sinks"
MARKER_BYTES = 1_024
"""The most bytes that a marker, its key and its guard take of a request."""
PAUSE_S_MAX = 0.05
TRIES = 8
"""The most attempts to replace the keys with a prefix, or of a commit, while other writers
commit."""

Key = str | bytes
Writes = Sequence[tuple[Any, bytes | None]]
"""Keys in order, each with its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: the name of what writes it and its number, None if it has none; the note."""

    name: str | None
    number: int
    note: str
    of_stream: bool = False
    """Whether it does the same when it is repeated, so that one without effect needs no marker."""

    def key_in(self, space: str | None) -> bytes:
        """Return the key of its marker: a program may write one batch into several spaces."""
        return pack((space or "", self.name or ""))

    def note_of(self, done: int, rows: int, total: int) -> str:
        """Return the note of a commit of some rows, after which so many are done."""
        if rows == total:
            return self.note
        return f"{self.note}, rows {done - rows + 1} to {done} of {total}"


@dataclass(frozen=True, slots=True)
class Marker:
    """The number of committed rows of a batch, the number of all, and the revision that says so."""

    number: int = -1
    done: int = 0
    total: int = 0
    digest: bytes = b""
    revision: int | None = None
    count: int = 0
    """The number of times that a document was written to say so; 0 for a key."""

    def encode(self) -> bytes:
        """Return the bytes in the store."""
        return bytes(msgpack.packb([self.number, self.done, self.total, self.digest]))

    def has(self, batch: Batch) -> bool:
        """Return whether all of a batch is committed; a later one says so, too."""
        whole = self.number == batch.number and self.done == self.total
        return batch.name is not None and (whole or self.number > batch.number)

    def first_of(self, batch: Batch, digest: bytes) -> int:
        """Return the first row of a batch that is not committed."""
        return self.done if (self.number, self.digest) == (batch.number, digest) else 0

    def check_alone(self, seen: Marker, batch: Batch) -> None:
        """Raise `SourceError` if a marker changed, and does not say that the batch is done."""
        if self.revision != seen.revision and not self.has(batch):
            raise errors.CONFLICT(
                f"another run of {batch.name} is committing batch {self.number}: "
                "end one of them; a checkpoint belongs to one query at a time"
            )


def read_marker(store: SnapshotKV, space: str | None, batch: Batch) -> Marker:
    """Return the marker of what writes batches into a space. One round trip."""
    if batch.name is None:
        return Marker()
    (entry,) = store.space(SPACE).entries_of([batch.key_in(space)])
    if entry is None:
        return Marker()
    number, done, total, digest = msgpack.unpackb(entry.value)
    return Marker(number, done, total, digest, entry.revision)


class BatchCommits:
    """Commits the writes of one batch to the keys of a store, or of one of its spaces.

    Raises `SourceError` if another run of the query commits, and as `SnapshotKV.commit`.
    """

    def __init__(self, store: SnapshotKV, space: str | None, batch: Batch) -> None:
        self._store, self._space, self._batch = store, space, batch
        layout = store._core.layout
        keys = layout.data if space is None else layout.space(space)
        self._room: CommitRoom[Any] = CommitRoom(store._core, keys, GUARDS_BYTES + MARKER_BYTES)
        self._marker = read_marker(store, space, batch)
        self._rng = Random()

    @property
    def done(self) -> bool:
        """Whether the batch was committed before."""
        return self._marker.has(self._batch)

    def add(self, writes: Writes) -> None:
        """Commit writes, in as many commits as they need."""
        digest = digest_of(writes)
        done = self._marker.first_of(self._batch, digest)
        for part in self._parts(writes[done:]):
            done += len(part)
            marker = Marker(self._batch.number, done, len(writes), digest)
            note = self._batch.note_of(done, len(part), len(writes))
            if not self._commit(self._ops(part, marker, note), marker):
                return

    def replace(self, prefix: Any, writes: Writes) -> None:
        """Make the keys with a prefix equal to the writes, which are all saves.

        Only what differs is committed, if no other writer commits meanwhile; else, after `TRIES`
        attempts in which nothing was committed, all of it, in one commit. The last commit has the
        marker.
        """
        failed, left = 0, None
        while failed < TRIES:
            now = self._view().at()
            changed = list(_differences(now.items(prefix), writes))
            if left is None or len(changed) < left:  # a commit of the last round remains
                failed, left = 0, len(changed)
            try:
                self._guarded(changed, now.revision)
            except ConflictError:
                self._check_alone()
                if self.done:
                    return
                failed += 1
                pause(self._rng.uniform(0, PAUSE_S_MAX * failed))
                continue
            return
        whole = self._parts(writes) or [[]]
        if len(whole) > 1:
            raise errors.CONFLICT(
                f"other writers committed first in {TRIES} attempts to replace the keys with "
                f"{prefix!r}, of which a part is written; write again when they commit less often"
            )
        marker = Marker(self._batch.number)
        self._commit(self._ops(whole[0], marker, self._batch.note, prefixes=[prefix]), marker)

    def _guarded(self, changed: Writes, revision: int) -> None:
        """Commit what differs, guarded by the newest commit; without it the marker alone."""
        parts = self._parts(changed)
        if not parts and self._batch.name is not None and not self._batch.of_stream:
            parts = [[]]
        done = 0
        for part in parts:
            done += len(part)
            marker = Marker(self._batch.number) if done == len(changed) else None
            note = self._batch.note_of(done, len(part), len(changed))
            ops = self._ops(part, marker, note, guards=[HeadAt(revision)])
            revision = self._sent(ops, marker).revision

    def _parts(self, writes: Writes) -> list[Writes]:
        return [part for part, _ in self._room.parts(writes)]

    def _commit(self, ops: Ops, marker: Marker) -> bool:
        """Commit; return whether to go on: another process may have committed all of it."""
        try:
            self._sent(ops, marker)
        except ConflictError:
            self._check_alone()
            return False
        return True

    def _check_alone(self) -> None:
        seen, self._marker = self._marker, read_marker(self._store, self._space, self._batch)
        self._marker.check_alone(seen, self._batch)

    def _sent(self, ops: Ops, marker: Marker | None) -> Commit:
        """Commit once; an unknown outcome is looked up. Raises `ConflictError`."""
        for _ in range(TRIES):
            try:
                commit = self._store.commit(lambda stamp: ops)
            except CommitUnknownError as e:
                unknown = e
                found = self._store.resolve(e.timestamp, e.nonce, batch=e.batch, guards=e.guards)
                if found is None:
                    continue
                commit = found
            if marker is not None and self._batch.name is not None:
                self._marker = replace(marker, revision=commit.revision)
            return commit
        raise unknown

    def _ops(
        self,
        part: Writes,
        marker: Marker | None,
        note: str,
        guards: Sequence[Guard] = (),
        prefixes: Sequence[Key] = (),
    ) -> Ops:
        puts = {key: value for key, value in part if value is not None}
        deletes = [key for key, value in part if value is None]
        spaces: dict[str, SpaceOps] = {}
        if self._batch.name is not None:
            known, key = self._marker.revision, self._batch.key_in(self._space)
            own: Guard = Absent(key) if known is None else AtRevision(key, known)
            saved = {} if marker is None else {key: marker.encode()}
            spaces[SPACE] = SpaceOps(saved, guards=[own])
        if self._space is None:
            return Ops(puts, deletes, prefixes, guards, note, spaces)  # type: ignore[arg-type]
        spaces[self._space] = SpaceOps(puts, deletes, prefixes)  # type: ignore[arg-type]
        return Ops(guards=guards, note=note, spaces=spaces)

    def _view(self) -> Any:
        return self._store if self._space is None else self._store.space(self._space)


def _differences(now: Iterator[tuple[Any, bytes]], writes: Writes) -> Iterator[tuple[Any, Any]]:
    """Yield the writes that make the present equal to `writes`: saves first, so none is missing."""
    present = dict(now)
    for key, value in writes:
        if present.pop(key, None) != value:
            yield key, value
    for key in present:
        yield key, None


def digest_of(writes: Writes) -> bytes:
    """Return a digest of the writes of a batch: a repeated batch has the same one."""
    found = hashlib.blake2b(digest_size=16)
    for write in writes:
        found.update(msgpack.packb(write))
    return found.digest()
