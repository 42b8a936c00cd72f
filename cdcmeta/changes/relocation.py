"""Relocation: a database moves to another store, and its sequences go on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cdcmeta.changes import layout
from cdcmeta.changes.layout import Database
from cdcmeta.changes.writing import Writer
from cdcmeta.errors import DatabaseExistsError, DatabaseRelocatedError
from snapkv import Absent, AtRevision, Commit, ConflictError, Entry, Ops, SnapshotKV, SpaceOps
from snapkv.model import Guard

REGISTRY = "changes"
"""The space whose keys are the names of databases."""
BATCH_BYTES, BATCH_KEYS = 256 << 10, 1_000


def space_of(name: str) -> str:
    """Return the name of the space that a database lives in."""
    return f"{REGISTRY}/{name}"


def relocated(store: SnapshotKV, name: str, writer: Writer, to: SnapshotKV | None) -> SnapshotKV:
    """Raise a database's incarnation, here or in another store; return where it is then.

    First a commit ends all editing here; then everything is copied as it stood then; the record
    comes last, so that nobody sees half a database. Of two at once the later one goes on, and the
    other is told: each clears what is there under a claim of its own.
    """
    database, revision = writer.record(fresh=True)
    if to is None:
        while not _raised(store, name, database, revision):
            database, revision = writer.record(fresh=True)
        return store
    target = to.space(space_of(name))
    (there,) = target.entries_of([layout.DATABASE])
    if _is_done(name, database, there):
        return to
    if not database.moved:
        _replace(store, name, replace(database, moved=True), revision)
        database, revision = writer.record(fresh=True)
    snapshot = store.space(space_of(name)).at(revision=revision)
    key = layout.DATABASE
    stood = Absent(key) if there is None else AtRevision(key, there.revision)
    claim = target.commit(puts={layout.CLAIM: b""}, delete_prefixes=[b""], guards=[stood])
    guards: list[Guard] = [Absent(key), AtRevision(layout.CLAIM, claim.revision)]
    for batch in _batches(snapshot.items()):
        target.commit(puts=batch, guards=guards)
    eras = (*database.eras, snapshot.timestamp)
    record = {layout.DATABASE: replace(database, eras=eras, moved=False).encode()}
    made = SpaceOps(record, deletes=[layout.CLAIM], guards=guards)
    ops = Ops(spaces={space_of(name): made, REGISTRY: SpaceOps({name.encode(): b""})})
    to.commit(lambda _: ops)
    return to


def _is_done(name: str, database: Database, there: Entry | None) -> bool:
    """Return whether a database was moved to where a record stands already.

    One that once moved away from there may come back. Raises `DatabaseExistsError`.
    """
    if there is None:
        return False
    found = Database.decode(there.value)
    if found.uuid != database.uuid:
        raise DatabaseExistsError(f"another database {name!r} is there already")
    if database.moved and not found.moved and found.incarnation > database.incarnation:
        return True
    if not found.moved or found.incarnation > database.incarnation:
        raise DatabaseExistsError(f"database {name!r} is there already, and newer")
    return False


def _raised(store: SnapshotKV, name: str, database: Database, revision: int) -> bool:
    """Begin the next incarnation with the timestamp of this very commit."""
    if database.moved:
        raise DatabaseRelocatedError(f"database {name!r} lives elsewhere now")
    guards = [AtRevision(layout.DATABASE, revision)]

    def build(stamp: object) -> SpaceOps:
        ts: int = stamp.ts  # type: ignore[attr-defined]
        record = replace(database, eras=(*database.eras, ts), moved=False)
        return SpaceOps({layout.DATABASE: record.encode()}, guards=guards)

    try:
        store.space(space_of(name)).commit(build)
    except ConflictError:
        return False
    return True


def _replace(store: SnapshotKV, name: str, database: Database, revision: int) -> Commit:
    return store.space(space_of(name)).commit(
        puts={layout.DATABASE: database.encode()}, guards=[AtRevision(layout.DATABASE, revision)]
    )


def _batches(items: Iterator[tuple[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Yield what there is but the record, in parts that any engine takes at once."""
    batch: dict[bytes, bytes] = {}
    size = 0
    for key, value in items:
        if key == layout.DATABASE:
            continue
        batch[key] = value
        size += len(key) + len(value)
        if size >= BATCH_BYTES or len(batch) >= BATCH_KEYS:
            yield batch
            batch, size = {}, 0
    if batch:
        yield batch
