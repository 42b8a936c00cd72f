"""The commits of one batch of a sink: each batch once, whatever is repeated or killed.

A batch has a name (the id of its query, or the option `txnAppId`) and a number. A marker in the
space `spark.sinks`, which each commit of the batch also writes, says how much of it is committed:

    batch 7 in three commits    marker after each        the driver dies, and repeats batch 7
    keys a to f                 7, part 1 of 3, digest   is skipped
    keys g to m                 7, part 2 of 3, digest   is skipped
    keys n to z                                          is committed, with 7, part 3 of 3

A guard on the marker's revision stops a second driver that still runs. If the rows of the repeated
batch are not the same (the digest), it begins with the first part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from snapkv.errors import CommitUnknownError, ConflictError
from snapkv.model import Absent, AtRevision, Commit, Guard, HeadAt, Ops, SpaceOps
from snapkv.spark import errors
from snapkv.spark.errors import SourceError
from snapkv.store.room import BESIDE_BYTES, Room
from snapkv.store.store import SnapshotKV

SPACE = "spark.sinks"
MARKER_BYTES = 1_024
"""The most bytes that a marker, its key and its guard take of a request."""
NAME_BYTES_MAX = 512
TRIES = 8
"""Attempts to replace the keys with a prefix, or of a commit, while other writers commit."""

Key = str | bytes
Writes = Sequence[tuple[Any, bytes | None]]
"""Keys in order, each with its new value, None for a removal."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: the name of what writes it and its number, None if it has none; the note."""

    name: str | None
    number: int
    note: str

    @property
    def key(self) -> bytes:
        """The key of its marker."""
        return (self.name or "").encode()


@dataclass(frozen=True, slots=True)
class Marker:
    """How much of a batch is committed: `part` of `parts`; and the revision that says so."""

    number: int = -1
    part: int = 0
    parts: int = 0
    digest: bytes = b""
    revision: int | None = None

    def encode(self) -> bytes:
        """Return the bytes in the store."""
        return bytes(msgpack.packb([self.number, self.part, self.parts, self.digest]))

    def has(self, number: int) -> bool:
        """Return whether all of a batch is committed; a later one says so, too."""
        return self.number > number or (self.number == number and self.part == self.parts)


def read_marker(store: SnapshotKV, batch: Batch) -> Marker:
    """Return the marker of what writes a batch. One round trip."""
    if batch.name is None:
        return Marker()
    (entry,) = store.space(SPACE).entries_of([batch.key])
    if entry is None:
        return Marker()
    number, part, parts, digest = msgpack.unpackb(entry.value)
    return Marker(number, part, parts, digest, entry.revision)


class BatchCommits:
    """Commits the writes of one batch to the keys of a store, or of one of its spaces.

    Raises `SourceError` if another run of the query commits, and as `SnapshotKV.commit`.
    """

    def __init__(self, store: SnapshotKV, space: str | None, batch: Batch) -> None:
        self._store, self._space, self._batch = store, space, batch
        layout = store._core.layout
        keys = layout.data if space is None else layout.space(space)
        self._room: Room[Any] = Room(store._core, keys, BESIDE_BYTES + MARKER_BYTES)
        self._marker = read_marker(store, batch)

    @property
    def done(self) -> bool:
        """Whether the batch was committed before."""
        return self._batch.name is not None and self._marker.has(self._batch.number)

    def add(self, writes: Writes) -> None:
        """Commit writes, in as many commits as they need."""
        parts = [part for part, _ in self._room.parts(writes)]
        digest = _digest(writes)
        known = self._marker.number == self._batch.number and self._marker.digest == digest
        first = self._marker.part if known and self._marker.parts == len(parts) else 0
        for n, part in enumerate(parts[first:], first + 1):
            marker = Marker(self._batch.number, n, len(parts), digest)
            if not self._commit(part, marker, n, len(parts)):
                return

    def replace(self, prefix: Any, writes: Writes) -> None:
        """Make the keys with a prefix equal to the writes, which are all saves.

        Only what differs is committed, if no other writer commits meanwhile; else after `TRIES`
        attempts all of it, in one commit. The last commit has the marker.
        """
        for _ in range(TRIES):
            now = self._view().at()
            parts = [part for part, _ in self._room.parts(_differences(now.items(prefix), writes))]
            if not parts and self._batch.name is not None:
                parts = [[]]  # the marker alone
            try:
                self._guarded(parts, now.revision)
            except ConflictError:
                self._check_alone()
                if self.done:
                    return
                continue
            return
        whole = [part for part, _ in self._room.parts(writes)]
        if len(whole) > 1:
            raise SourceError(
                errors.CONFLICT,
                f"other writers committed first in all {TRIES} attempts to replace the keys with "
                f"{prefix!r}; write again when they commit less often",
            )
        marker = Marker(self._batch.number, 1, 1)
        self._commit(whole[0] if whole else [], marker, 1, 1, prefixes=[prefix])

    def _guarded(self, parts: Sequence[Writes], revision: int) -> None:
        for n, part in enumerate(parts, 1):
            marker = Marker(self._batch.number, 1, 1) if n == len(parts) else None
            commit = self._sent(part, marker, _note(self._batch, n, len(parts)), [HeadAt(revision)])
            revision = commit.revision

    def _commit(
        self, part: Writes, marker: Marker, n: int, parts: int, prefixes: Sequence[Key] = ()
    ) -> bool:
        """Commit a part; return whether to go on: another process may have committed all of it."""
        note = _note(self._batch, n, parts)
        try:
            self._sent(part, marker, note, prefixes=prefixes)
        except ConflictError:
            self._check_alone()
            return False
        return True

    def _check_alone(self) -> None:
        """Raise `SourceError` if the marker changed, and does not say that the batch is done."""
        seen, self._marker = self._marker, read_marker(self._store, self._batch)
        if self._marker.revision != seen.revision and not self.done:
            raise SourceError(
                errors.CONFLICT,
                f"another run of {self._batch.name} is committing batch {self._marker.number}: "
                "end one of them; a checkpoint belongs to one query at a time",
            )

    def _sent(
        self,
        part: Writes,
        marker: Marker | None,
        note: str,
        guards: Sequence[Guard] = (),
        prefixes: Sequence[Key] = (),
    ) -> Commit:
        """Commit once; an unknown outcome is looked up. Raises `ConflictError`."""
        ops = self._ops(part, marker, note, guards, prefixes)
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
        guards: Sequence[Guard],
        prefixes: Sequence[Key],
    ) -> Ops:
        puts = {key: value for key, value in part if value is not None}
        deletes = [key for key, value in part if value is None]
        spaces: dict[str, SpaceOps] = {}
        if self._batch.name is not None:
            known, key = self._marker.revision, self._batch.key
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
    """Yield the writes that make the present equal to `writes`: the saves, then the removals.

    So nothing is missing between two commits of them.
    """
    present = dict(now)
    for key, value in writes:
        if present.pop(key, None) != value:
            yield key, value
    for key in present:
        yield key, None


def _digest(writes: Writes) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for write in writes:
        found.update(msgpack.packb(write))
    return found.digest()


def _note(batch: Batch, part: int, parts: int) -> str:
    return batch.note if parts == 1 else f"{batch.note}, part {part} of {parts}"
